"""`fit`: a model, a task and a configuration give a trained network, its history, and a folder to resume from."""

from __future__ import annotations

import dataclasses
import hashlib
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from underhood.core.arrays import precision_of
from underhood.core.display import Displayed, Summary
from underhood.core.errors import UnderhoodError
from underhood.core.files import model_bytes
from underhood.core.memory import NotEnoughMemory
from underhood.core.model import AbstractModel
from underhood.training import adamw
from underhood.training.checkpoints import Checkpoint
from underhood.training.config import CHUNK, FitConfig
from underhood.training.fingerprint import fingerprint_of
from underhood.training.folder import RunFolder
from underhood.training.metrics import MemoryLog
from underhood.training.population import Loss, Member, Trainer, require_alike
from underhood.training.room import require_room
from underhood.training.tasks.task import AbstractTask

OnInterrupt = Literal["raise", "return"]
# Called after each chunk with the step and the members' latest losses.
Watcher = Callable[[int, np.ndarray], None]


class Diverged(UnderhoodError):
    """A loss that is no number any more."""


@dataclasses.dataclass(frozen=True, repr=False)
class Run(Displayed):
    """One trained network and how it came about."""

    model: Any
    """The network after the last step, of the class that was given."""
    history: list[dict[str, Any]]
    """A line for each `log_every` steps, with their mean loss."""
    path: Path | None
    """The run folder, where there is one."""
    member: Member
    """Its seed and rates."""
    steps: int
    """Steps that it took, fewer than asked for if it was interrupted."""
    held_out_loss: float
    """The task's loss on sequences that training never drew."""
    validation_loss: float
    """The same on the task's validation distribution."""
    seconds: float
    """Of all sittings."""
    file: Path | None = None
    """The trained network on disk, once the run has ended."""
    interrupted: bool = False
    """By Ctrl-C: a checkpoint is there to resume from."""

    def _summary(self) -> Summary:
        answer = f"{self.model.title}, trained for {self.steps:,} steps" + (", interrupted" if self.interrupted else "")
        losses = {"held-out loss": self.held_out_loss, "validation loss": self.validation_loss}
        return Summary(answer, {**losses, "seed": self.seed, "seconds": round(self.seconds, 1), "folder": self.path})

    @property
    def seed(self) -> int:
        return self.member.seed


def fit(
    model: AbstractModel,
    task: AbstractTask,
    config: FitConfig | None = None,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    watch: Watcher | None = None,
    loss: Loss | None = None,
    on_interrupt: OnInterrupt = "raise",
) -> Run:
    """min_w ½ mean |f_w(x) − y|²: train `model` on fresh sequences of `task` by AdamW.

    **Arguments:**

    - `model`: the network at the start; it is not changed.
    - `task`: what draws sequences and the outputs wanted.
    - `config`: steps, rates and the rest, `uh.FitConfig()` unless given.
    - `out`: a run folder, which survives a kill at any moment.
    - `resume`: go on with the run in `out`, or start if there is none. A run that has ended goes on where `config`
      asks for more steps, with a new cosine over the further ones.
    - `watch`: called as `watch(step, losses)` after each chunk of steps.
    - `loss`: `loss(model, xs, ys)` of a batch, in place of the task's.
    - `on_interrupt`: what Ctrl-C does once a checkpoint is written: "raise" KeyboardInterrupt, or "return" the
      network so far, with `interrupted` set.

    **Returns:**

    The trained network, its losses and its folder.
    """
    config = FitConfig() if config is None else config
    if not isinstance(config, FitConfig):
        raise UnderhoodError("expected a uh.FitConfig", type(config).__name__)
    member = Member(config.seed, config.learning_rate, config.weight_decay)
    options: dict[str, Any] = {"out": out, "resume": resume, "watch": watch, "loss": loss, "on_interrupt": on_interrupt}
    return fit_population([model], [member], task, config, **options)[0]


def fit_population(
    models: Sequence[AbstractModel],
    members: Sequence[Member],
    task: AbstractTask,
    config: FitConfig,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    watch: Watcher | None = None,
    warn: Callable[[str], None] | None = None,
    loss: Loss | None = None,
    on_interrupt: OnInterrupt = "raise",
    command: dict[str, Any] | None = None,
) -> list[Run]:
    """Train one model for each member, side by side: one architecture and size, with seeds and rates of their own.

    **Arguments:**

    - `models`: a network for each member.
    - `members`: their seeds and rates; of the rates in `config` only the ratio of the final to the first one counts.
    - `task`, `config`, `out`, `resume`, `watch`, `loss`, `on_interrupt`: as for `fit`.
    - `warn`: called with a text where checkpoints had to be passed over.
    - `command`: kept in run.json, for the command line to resume from.

    **Returns:**

    A trained network for each member.
    """
    require_alike(models, members, task)
    require_room(models[0], len(models), task, config)
    folder = None if out is None else RunFolder(Path(out))
    with precision_of(models[0]), folder.locked() if folder else nullcontext():
        config = folder.extended(config, command) if folder and resume else config
        # In halves or as a whole changes last bits: a resumed run does as it did before.
        halves = folder.recorded.get("halves", 1) if folder and resume and folder.recorded else None
        population = _Population(models, members, task, config, folder, loss, halves)
        found = folder.open(population.settings(), resume=resume, command=command) if folder else None
        if folder and folder.problems and warn is not None:
            used = found.path if found else "the start"
            warn("; ".join(str(problem) for problem in folder.problems) + f" Going on from {used}.")
        try:
            population.begin(found)
            runs = population.run(watch)
        except jax.errors.JaxRuntimeError as error:
            if str(error).startswith("RESOURCE_EXHAUSTED"):
                raise NotEnoughMemory(f"jax gave up: {str(error)[:200]}", remedy="Choose smaller sizes.") from error
            raise
    if on_interrupt == "raise" and any(run.interrupted for run in runs):
        raise KeyboardInterrupt(f"go on with `resume=True` from {out}" if out else "")
    return runs


class _Population:
    """The loop: chunks of steps, then the log, then a checkpoint when it is due."""

    def __init__(
        self, models, members, task, config, folder: RunFolder | None, loss: Loss | None, halves: int | None
    ) -> None:
        self.models, self.members, self.task, self.config = models, tuple(members), task, config
        self.folder, self.memory, self.loss = folder, MemoryLog(), loss
        # Members share the cores among them.
        self.trainer = Trainer(models[0], task, config, loss, halves=halves if len(members) == 1 else 1)
        self.step, self.window = 0, np.zeros((len(members), 0))

    @property
    def log(self) -> Any:
        return self.folder.log if self.folder else self.memory

    def settings(self) -> dict[str, Any]:
        return {
            "format": "underhood-run/1",
            **self.task.settings(),
            "model": [_fingerprint(model) for model in self.models],
            "config": self.config.as_dict(),
            "members": [dataclasses.asdict(member) for member in self.members],
            "loss": "task" if self.loss is None else fingerprint_of(self.loss),
            **({"halves": self.trainer.halves} if self.trainer.halves > 1 else {}),
        }

    def begin(self, found: Checkpoint | None) -> None:
        self.positions = [adamw.start(adamw.ravel(model).vector) for model in self.models]
        if found is not None:
            template = jax.tree.structure(self.positions[0])
            positions = [_leaves(found, index) for index in range(len(self.members))]
            self._require_own(found, positions)
            self.step, self.window = found.step, found.tensors["window"]
            self.positions = [
                jax.tree.unflatten(template, [jnp.asarray(leaf) for leaf in leaves]) for leaves in positions
            ]

    def _require_own(self, found: Checkpoint, positions: list[list[np.ndarray]]) -> None:
        """A checkpoint with the arrays of this run, each of its shape and dtype."""
        # A single number is stored as an array of one.
        own = [[(np.shape(leaf) or (1,), np.dtype(leaf.dtype)) for leaf in jax.tree.leaves(p)] for p in self.positions]
        there = [[(leaf.shape, leaf.dtype) for leaf in leaves] for leaves in positions]
        window = found.tensors.get("window")
        fits = window is not None and window.ndim == 2 and len(window) == len(self.members)
        if there != own or not fits or found.step > self.config.steps:
            remedy = "It was changed after it was written: take it away, and go on with `resume=True`."
            raise UnderhoodError(f"{found.path} holds other arrays than this run's", remedy=remedy)

    def run(self, watch: Watcher | None) -> list[Run]:
        self.seconds, self.counted, config = 0.0, time.perf_counter(), self.config
        with _deferred_interrupt() as interrupted:
            while self.step < config.steps and not interrupted.is_set():
                losses = self._chunk()
                if watch is not None:
                    watch(self.step, losses[:, -1])
                if self.step % config.checkpoint_every == 0 or self.step == config.steps:
                    self._checkpoint()
            if self.step % config.checkpoint_every != 0 and self.step < config.steps:
                self._checkpoint()  # Ctrl-C between two of them
            self._count_seconds()
            return [self._result(index, interrupted.is_set()) for index in range(len(self.members))]

    def _chunk(self) -> np.ndarray:
        """Up to the next line of the log, in one or more chunks; every member is under way before one is awaited."""
        every = (self.config.log_every, self.config.checkpoint_every)
        count = min(CHUNK, self.config.steps - self.step, *(e - self.step % e for e in every))
        started = [
            self.trainer.advance(at, member, count) for at, member in zip(self.positions, self.members, strict=True)
        ]
        losses = np.stack([np.asarray(losses[:count], np.float64) for _, losses in started])
        self._require_finite(losses)
        self.positions = [position for position, _ in started]
        self.step += count
        self.window = np.concatenate([self.window, losses], axis=1)
        if self.step % self.config.log_every == 0 or self.step == self.config.steps:
            for index, member in enumerate(self.members):
                rate = adamw.learning_rate_at(self.config, self.step) * (
                    member.learning_rate / self.config.learning_rate
                )
                line = {"step": self.step, "seed": member.seed, "member": index}
                self.log.write({**line, "loss": float(self.window[index].mean()), "learning_rate": rate})
            self.window = self.window[:, :0]
        return losses

    def _require_finite(self, losses: np.ndarray) -> None:
        bad = np.argwhere(~np.isfinite(losses).T)
        if bad.size == 0:
            return
        offset, index = (int(number) for number in bad[0])
        member = self.members[index]
        last = self.folder.last_checkpoint if self.folder else None
        raise Diverged(
            f"the loss became {losses[index, offset]} at step {self.step + offset + 1} of seed {member.seed} "
            f"(learning rate {member.learning_rate:g})",
            remedy=f"Last good checkpoint: {last or 'none'}. Lower `learning_rate`.",
        )

    def _checkpoint(self) -> None:
        if self.folder is None:
            return
        tensors = {"window": self.window}
        for index, position in enumerate(self.positions):
            for number, leaf in enumerate(jax.tree.leaves(position)):
                tensors[f"{index}.{number}"] = np.asarray(leaf)
        self.folder.save(self.step, tensors)
        self._count_seconds()  # with each checkpoint: a kill loses the steps since the last one, and their seconds

    def _count_seconds(self) -> None:
        now = time.perf_counter()
        passed, self.counted = now - self.counted, now
        self.seconds = self.folder.add_seconds(passed) if self.folder else self.seconds + passed

    def _result(self, index: int, interrupted: bool) -> Run:
        member, position = self.members[index], self.positions[index]
        done = self.step == self.config.steps
        run = Run(
            model=self.trainer.model_at(position),
            history=[line for line in self.log.lines if line["member"] == index],
            path=self.folder.path if self.folder else None,
            member=member,
            steps=self.step,
            held_out_loss=self.trainer.held_out_loss(position, member.seed),
            validation_loss=self.trainer.held_out_loss(position, member.seed, validation=True),
            seconds=self.seconds,
            interrupted=interrupted and not done,
        )
        if self.folder is None or not done:
            return run
        content = model_bytes(run.model, provenance=self._origin(run))
        return dataclasses.replace(run, file=self.folder.files.write(model_name(self.members, index), content))

    def _origin(self, run: Run) -> dict[str, Any]:
        return {
            "command": "train",
            "task": self.task.name,
            "optimizer": "adamw",
            "config": self.config.as_dict(),
            "member": dataclasses.asdict(run.member),
            "held_out_loss": run.held_out_loss,
        }


def model_name(members: Sequence[Member], index: int) -> str:
    """By seed where seeds tell members apart, by number otherwise."""
    seeds = [member.seed for member in members]
    return f"model-seed-{seeds[index]}.safetensors" if len(set(seeds)) == len(seeds) else f"model-{index}.safetensors"


def _leaves(found: Checkpoint, index: int) -> list[np.ndarray]:
    prefix = f"{index}."
    numbers = (name[len(prefix) :] for name in found.tensors if name.startswith(prefix))
    return [found.tensors[f"{prefix}{number}"] for number in sorted(numbers, key=lambda number: (len(number), number))]


def _fingerprint(model: AbstractModel) -> dict[str, Any]:
    """Kind, sizes and initial weights in short: a resumed run must start from the same network."""
    leaves = [np.ascontiguousarray(leaf) for leaf in jax.tree.leaves(model) if hasattr(leaf, "dtype")]
    digest = hashlib.sha256(b"".join(leaf.tobytes() for leaf in leaves)).hexdigest()[:16]
    return {"kind": model.kind, "parameters": model.parameters, "dtype": str(model.dtype), "start": digest}


@contextmanager
def _deferred_interrupt() -> Iterator[threading.Event]:
    """Ctrl-C ends the run after the chunk that is under way; a second one ends it at once."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def handler(number: int, frame: Any) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    before = signal.signal(signal.SIGINT, handler)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)
