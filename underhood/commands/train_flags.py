"""The flags of `underhood train`, and the settings that they have unless given; light, as every command reads them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

# What a flag is unless given. The flags themselves are None then: a resumed run takes those from its folder.
USUAL: dict[str, Any] = {
    "task": "teacher-student",
    "model": "gated-rnn",
    "layers": 1,
    "seeds": 1,
    "first_seed": 0,
    "optimizer": "adamw",
    "lambdas": "fixed",
    "target_loss": 1e-20,
}


def _usual(name: str) -> object:
    """Help that shows what is used where nothing is given."""
    return tyro.conf.arg(help_behavior_hint=f"(default: {USUAL[name]})")


@dataclasses.dataclass(frozen=True)
class TrainFlags:
    """The flags of `underhood train`."""

    out: Path | None = None
    """Run folder."""
    resume: bool = False
    """Go on from the last checkpoint of --out with its settings, or start if there is none."""
    list: bool = False
    """Print the names of all tasks, with their settings, and of all models."""
    task: Annotated[str | None, _usual("task")] = None
    """Task, by a name that --list prints."""
    model: Annotated[str | None, _usual("model")] = None
    """Architecture, by a name that --list prints."""
    hidden: int | None = None
    """Hidden neurons; the task's usual number unless given, and far fewer for levenberg."""
    pre_readout: int | None = None
    """Pre-readout neurons of a gated RNN; as many as hidden ones unless given."""
    layers: Annotated[int | None, _usual("layers")] = None
    """Layers, for architectures that can be stacked."""
    seeds: Annotated[int | None, _usual("seeds")] = None
    """Number of seeds, trained side by side."""
    first_seed: Annotated[int | None, _usual("first_seed")] = None
    """First seed."""
    optimizer: Annotated[Literal["adamw", "levenberg"] | None, _usual("optimizer")] = None
    """adamw is the paper's; levenberg is second order, in float64."""
    preset: str | None = None
    """section-3.1, section-3.2, section-3.3 or section-4.2: the paper's steps, rates and decay."""
    steps: int | None = None
    """Training steps, 10,000 unless given; with levenberg, iterations over all starts (unless given, 200 for each)."""
    batch_size: int | None = None
    """Sequences of a step; 64 unless given."""
    learning_rate: tuple[float, ...] | None = None
    """Learning rate at the start of the cosine, 1e-3 unless given; several are trained side by side."""
    weight_decay: tuple[float, ...] | None = None
    """Decoupled decay of all but the recurrent parameters, 0.01 unless given; several are trained side by side."""
    l2: float | None = None
    """L2 penalty ½ l2 |w|² on all but the recurrent parameters, none unless given."""
    anneal_l2: bool = False
    """Let the penalty fall with the learning rate."""
    d: int | None = None
    """Input size of a random teacher; 4 unless given."""
    teacher: Path | None = None
    """A teacher of your own (linear attention, as `underhood sample` writes it)."""
    teacher_seed: int | None = None
    """Seed of the random teacher; 0 unless given."""
    length: int | None = None
    """Time steps of a sequence; the task's own number unless given (--list)."""
    examples: int | None = None
    """Examples T of a linear-regression sequence; 12 unless given."""
    d_x: int | None = None
    """Input size of linear-regression; 3 unless given."""
    d_y: int | None = None
    """Output size of linear-regression; 3 unless given."""
    set: tuple[str, ...] | None = None
    """Settings of any task, as name=value: --set size=3 length=8."""
    log_every: int | None = None
    """Steps between lines of metrics.jsonl; 100 unless given."""
    checkpoint_every: int | None = None
    """Steps between checkpoints; 5,000 unless given."""
    lambdas: Annotated[Literal["fixed", "free"] | None, _usual("lambdas")] = None
    """levenberg: λ fixed to 0 and 1, or free in [0, 1] (slower)."""
    target_loss: Annotated[float | None, _usual("target_loss")] = None
    """levenberg: held-out loss to stop at."""
    max_seconds: float | None = None
    """levenberg: time after which a seed is given up; no limit unless given."""
    tensorboard: bool = False
    """Write TensorBoard event files into --out as well (extra: tensorboard)."""
    json: bool = False
    """Print one JSON object."""
