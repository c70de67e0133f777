"""What a training run takes of the memory, from below: the weights many times over, and sequences.

    (EACH · members + SHARED) · p        EACH: weights at the start and in the end, a vector, Adam's two moments;
                                         SHARED: gradients, and what the compiled programs keep
    sequences · t · (d + d_o)            of a chunk of steps, or of one part of the held-out ones

Measured at p = 1.8e7 (gated RNN) and 5e7 (LSTM), one member: 13 and 11 times the weights at the peak.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import numpy as np

from underhood.core.memory import require_memory
from underhood.core.model import AbstractModel
from underhood.training.config import CHUNK, HELD_OUT_PART, FitConfig
from underhood.training.tasks.task import AbstractTask

EACH, SHARED = 5, 6


def require_room(model: AbstractModel, members: int, task: AbstractTask, config: FitConfig) -> None:
    """Refuse what cannot fit; `model` may be the shapes of one, as `shape_of` gives them."""
    leaves = [leaf for leaf in jax.tree.leaves(model) if hasattr(leaf, "shape") and hasattr(leaf, "dtype")]
    size = max((np.dtype(leaf.dtype).itemsize for leaf in leaves), default=4)
    weights = sum(math.prod(leaf.shape) for leaf in leaves)
    networks = "a network" if members == 1 else f"{members} networks"
    require_memory(size * (EACH * members + SHARED) * weights, f"{networks} with {weights} parameters")
    sequences = max(CHUNK * config.batch_size, min(HELD_OUT_PART, config.held_out))
    numbers = sequences * task.steps * (task.d + task.d_out)
    require_memory(size * numbers, f"{sequences} sequences of {task.steps} steps")


def shape_of(make: Callable[[], Any]) -> Any:
    """The shapes of the network that `make` makes, without its memory; the network itself where that cannot be."""
    try:
        return eqx.filter_eval_shape(make)
    except jax.errors.JAXTypeError:  # an architecture of somebody else's that computes with NumPy
        return make()
