"""What a network is asked to do: sequences in, the outputs wanted of it, and how far off it is.

All that the package knows of a task is written in its class; commands, sweeps and the second-order solver read it
there. What a class leaves out has a default that suits a task without noise.
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Scalar

from underhood.core.arrays import DType
from underhood.core.registry import Registry

Batch = tuple[Float[Array, "b t d"], Float[Array, "b *t d_o"]]

# name → the class, or a function with keyword arguments that makes the task: they are the task's settings.
TASKS: Registry[Callable[..., AbstractTask]] = Registry("task", "underhood.training.tasks.*")


class Signs(NamedTuple):
    """k sign changes that leave a task as it is, entries ±1: what each does to an example, the query and the output."""

    examples: np.ndarray  # (k, d)
    query: np.ndarray  # (k, d)
    outputs: np.ndarray  # (k, d_o)


@dataclasses.dataclass(frozen=True)
class SecondOrder:
    """How many sequences Levenberg–Marquardt learns from and is tested with."""

    sequences: int = 640
    """Enough without noise; with noise, more of them average it out."""
    tests: int = 256


class AbstractTask(eqx.Module):
    """Draws fresh sequences; `last_only` tasks read the output at the last step, the others at every step.

    A batch is a function of its key alone: step s of a run with seed k draws from
    `fold_in(stream_key(k, TRAINING), s)`, so that a run that is stopped and resumed sees the sequences it would have
    seen, and each of them once.
    """

    name: ClassVar[str]
    last_only: ClassVar[bool] = False
    width: ClassVar[int] = 100
    """Hidden neurons of a network unless the user says otherwise."""
    second_order: ClassVar[SecondOrder | None] = SecondOrder()
    """None: Levenberg–Marquardt refuses the task."""
    probes: ClassVar[int] = 512
    """Sequences that closeness to attention is read from."""
    tolerance: ClassVar[float | None] = None
    """How far from an attention a trained network may be; the decompiler's own unless given."""

    @property
    @abstractmethod
    def d(self) -> int:
        """Size of one input."""

    @property
    @abstractmethod
    def d_out(self) -> int:
        """Size of the output that is asked for."""

    @property
    @abstractmethod
    def steps(self) -> int:
        """Time steps of one sequence."""

    @abstractmethod
    def batch(self, key: Array, size: int, *, validation: bool = False, dtype: DType = jnp.float32) -> Batch:
        """`size` fresh sequences and the outputs wanted; from the validation distribution if there is one."""

    def loss(self, outputs: Float[Array, "b *t d_model"], wanted: Float[Array, "b *t d_o"]) -> Scalar:
        """What training makes small, a mean over sequences; the second-order solver takes this one only."""
        return half_mean_square(outputs, wanted)

    def settings(self) -> dict[str, Any]:
        """What the run folder keeps of the task: plain JSON that tells it from any other. Here, all fields."""
        return {"task": self.name, **{field.name: getattr(self, field.name) for field in dataclasses.fields(self)}}

    def optimal_loss(self, *, validation: bool = False) -> float | None:
        """The loss of the best prediction, where it is known and not 0."""
        return None

    def optimal_prediction(self, xs: Any) -> Any:
        """That prediction for a batch (b, t, d), in the shape of the outputs wanted; None where it is not known."""
        return None

    def symmetry(self) -> Signs | None:
        """Sign changes for the second-order solver to average over (second_order/symmetry.py)."""
        return None


def half_mean_square(outputs: Float[Array, "b *t d_model"], wanted: Float[Array, "b *t d_o"]) -> Scalar:
    """½ · mean over batch, time and output coordinates of (ŷ − y)², the paper's convention (docs/fidelity.md).

    A network that gives the whole element (x, y), as Eq. 4's attention does, is read in its last coordinates.
    """
    error = outputs[..., -wanted.shape[-1] :] - wanted
    return 0.5 * jnp.mean(error * error)


# Streams that never meet: what a run trains on, and what it is tested on.
TRAINING, HELD_OUT, VALIDATION = range(3)


def stream_key(seed: int | Array, stream: int) -> Array:
    """The random stream of one seed for one use."""
    return jax.random.fold_in(jax.random.key(seed), stream)


def draw(
    task: AbstractTask, seed: int, size: int, *, stream: int = HELD_OUT, part: int = 0, dtype: DType = np.float64
) -> tuple[np.ndarray, np.ndarray]:
    """`size` sequences for analysis, as NumPy arrays; `part` 0, 1, 2 … are fresh ones of the same stream."""
    with jax.enable_x64(np.dtype(dtype) == np.float64):
        key = jax.random.fold_in(stream_key(seed, stream), part)
        xs, ys = _drawn(task, key, size, stream == VALIDATION, np.dtype(dtype).name)
        return np.asarray(xs), np.asarray(ys)


@eqx.filter_jit
def _drawn(task: AbstractTask, key: Array, size: int, validation: bool, dtype: str) -> Batch:
    return task.batch(key, size, validation=validation, dtype=dtype)
