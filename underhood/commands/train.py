"""`underhood train`: networks on the paper's tasks, by AdamW as in the paper or by a second-order solver."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Literal

from underhood.commands.output import DONE, note, print_json

INTERRUPTED = 130  # 128 + SIGINT: stopped by Ctrl-C, with a checkpoint to go on from


@dataclasses.dataclass(frozen=True)
class Train:
    """Train one network for each seed; a run folder holds settings, metrics, checkpoints and the results."""

    out: Path
    """Run folder; a run that stands there goes on with --resume."""
    task: str = "teacher-student"
    """teacher-student (Section 3) or linear-regression (Section 4)."""
    model: str = "gated-rnn"
    """gated-rnn, gated-rnn-dense, lru, lru-in-out, lru-in-skip, lstm or gru."""
    hidden: int | None = None
    """Hidden neurons; the paper's unless given (100, and 80 for linear-regression; levenberg takes far fewer)."""
    pre_readout: int | None = None
    """Pre-readout neurons of a gated-rnn; as many as hidden ones unless given."""
    layers: int = 1
    """Layers of an lru, lstm or gru."""
    seeds: int = 1
    """How many seeds, trained side by side."""
    first_seed: int = 0
    """The first of them."""
    optimizer: Literal["adamw", "levenberg"] = "adamw"
    """adamw is the paper's; levenberg is second order, in float64."""
    preset: str | None = None
    """section-3.1, section-3.2, section-3.3 or section-4.2: the paper's steps, rates and decay."""
    steps: int | None = None
    """Training steps (iterations for levenberg); 10,000 unless given, or the preset's."""
    resume: bool = False
    """Go on from the last checkpoint of --out, or start if there is none."""
    batch_size: int | None = None
    """Sequences of a step; 64 unless given."""
    learning_rate: tuple[float, ...] = ()
    """Where the cosine starts, 1e-3 unless given; several are trained side by side."""
    weight_decay: tuple[float, ...] = ()
    """Decoupled decay of all but the recurrent parameters; several are trained side by side."""
    d: int = 4
    """Input size of a random teacher."""
    teacher: Path | None = None
    """A teacher of your own (linear attention, as `underhood sample` writes it)."""
    teacher_seed: int = 0
    """Seed of the random teacher."""
    length: int = 32
    """Time steps of a teacher-student sequence."""
    examples: int = 12
    """Examples T of a linear-regression sequence."""
    d_x: int = 3
    """Input size of linear-regression."""
    d_y: int = 3
    """Output size of linear-regression."""
    log_every: int | None = None
    """Steps to a line of metrics.jsonl."""
    checkpoint_every: int | None = None
    """Steps to a checkpoint."""
    lambdas: Literal["fixed", "free"] = "fixed"
    """levenberg: λ fixed to 0 and 1, or free in [0, 1] (slower)."""
    target_loss: float = 1e-20
    """levenberg stops at this held-out loss."""
    max_seconds: float | None = None
    """levenberg gives up on a seed after this time."""
    tensorboard: bool = False
    """Write TensorBoard event files into --out as well (extra: tensorboard)."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> int:
        from underhood.errors import UnderhoodError

        if self.seeds < 1:
            raise UnderhoodError("seeds is a whole number from 1 on", self.seeds)
        if self.optimizer == "levenberg":
            from underhood.commands.train_levenberg import train_levenberg

            runs, interrupted = train_levenberg(self, self.make_task()), False
        else:
            from underhood.fit.cores import offer_two_devices

            offer_two_devices()
            runs, interrupted = _train_adamw(self, self.make_task())
        payload = {"task": self.task, "model": self.model, "optimizer": self.optimizer, "out": str(self.out)}
        payload |= {"interrupted": interrupted, "runs": runs}
        print_json(payload) if self.json else _print_runs(payload)
        return INTERRUPTED if interrupted else DONE

    def make_task(self) -> Any:
        from underhood.data import TASKS, TeacherStudent
        from underhood.storage.files import load

        make = TASKS[self.task]
        if self.teacher is not None:
            from underhood.attention.linear import require_attention

            return TeacherStudent(require_attention(load(self.teacher)), self.length)
        return make(
            d=self.d,
            length=self.length,
            task_seed=self.teacher_seed,
            examples=self.examples,
            d_x=self.d_x,
            d_y=self.d_y,
        )

    def make_config(self) -> Any:
        """The preset, or the defaults, with what was given in their place."""
        from underhood.errors import UnderhoodError
        from underhood.fit.config import PRESETS, FitConfig

        if self.preset is not None and self.preset not in PRESETS:
            raise UnderhoodError("unknown preset", repr(self.preset), f"Known: {', '.join(PRESETS)}.")
        given = {
            "steps": self.steps,
            "batch_size": self.batch_size,
            "learning_rate": self.learning_rate[0] if self.learning_rate else None,
            "weight_decay": self.weight_decay[0] if self.weight_decay else None,
            "seed": self.first_seed,
            "log_every": self.log_every,
            "checkpoint_every": self.checkpoint_every,
        }
        base = PRESETS[self.preset] if self.preset else FitConfig()
        return dataclasses.replace(base, **{name: value for name, value in given.items() if value is not None})

    def make_model(self, task: Any, seed: int) -> Any:
        from underhood.errors import UnderhoodError
        from underhood.model import make_model

        hidden = self.hidden or (80 if self.task == "linear-regression" else 100)
        if self.pre_readout is None:
            return make_model(self.model, task.d, hidden=hidden, d_out=task.d_out, layers=self.layers, seed=seed)
        if self.model != "gated-rnn":
            raise UnderhoodError("only a gated-rnn has pre-readout neurons to choose", f"--model {self.model}")
        import jax

        from underhood.cells.gated_rnn import GatedRNN

        key = jax.random.key(seed)
        return GatedRNN.random(d=task.d, d_out=task.d_out, hidden=hidden, pre_readout=self.pre_readout, key=key)


def _train_adamw(flags: Train, task: Any) -> tuple[list[dict[str, Any]], bool]:
    from underhood.commands.progress import Progress
    from underhood.fit.population import members_of
    from underhood.fit.runs import fit_population

    config = flags.make_config()
    seeds = range(flags.first_seed, flags.first_seed + flags.seeds)
    members = members_of(config, seeds, flags.learning_rate, flags.weight_decay)
    models = [flags.make_model(task, member.seed) for member in members]
    with Progress(config.steps, flags.out if flags.tensorboard else None, members) as progress:
        found = fit_population(
            models,
            members,
            task,
            config,
            out=flags.out,
            resume=flags.resume,
            watch=progress.update,
            warn=note,
        )
    return [_row(run, task) for run in found], any(run.interrupted for run in found)


def _row(run: Any, task: Any) -> dict[str, Any]:
    row = {
        "held_out_loss": run.held_out_loss,
        "steps": run.steps,
        "seconds": run.seconds,
        "hidden": getattr(run.model, "hidden", None),
        "pre_readout": getattr(run.model, "pre_readout", None),
        "seed": run.seed,
        "learning_rate": run.member.learning_rate,
        "weight_decay": run.member.weight_decay,
        "file": None if run.file is None else str(run.file),
    }
    if hasattr(task, "optimal_loss"):
        row |= {
            "validation_loss": run.validation_loss,
            "optimal_loss": task.optimal_loss(),
            "optimal_validation_loss": task.optimal_loss(validation=True),
        }
    return row


def _print_runs(payload: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    names = ("seed", "hidden", "pre_readout", "steps", "seconds", "held_out_loss")
    table = Table(*names, title=escape(f"{payload['task']}: {payload['out']}"), title_justify="left")
    for row in payload["runs"]:
        table.add_row(*(f"{row[name]:.4g}" if isinstance(row[name], float) else str(row[name]) for name in names))
    Console().print(table)
