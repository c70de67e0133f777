"""AdamW on one ravelled vector: v ← v − η_s (m̂/(√ŝ + ε) + decay ⊙ v), η_s from 1e-3 to 1e-6 along a cosine.

The parameters are one vector, because a step of a small network costs more in calls than in arithmetic: one
update of 21,500 numbers takes a tenth of the time of six updates of their parts. Which of them decay is a vector
too, so that members of a population with different decays run the same program.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Scalar

from underhood.core.model import AbstractModel
from underhood.training.config import FitConfig


class Position(NamedTuple):
    """Where an optimisation stands: all that a checkpoint needs of it."""

    vector: Float[Array, " p"]
    adam: Any  # optax.ScaleByAdamState
    step: Scalar


class Rates(NamedTuple):
    """What may differ among the members of a population."""

    learning_rate: Scalar
    weight_decay: Scalar


class Ravelled(NamedTuple):
    """A model as a vector: how to get back, and which entries decay."""

    vector: Float[Array, " p"]
    unravel: Callable[[Array], Any]
    decays: Float[Array, " p"]


def ravel(model: AbstractModel) -> Ravelled:
    """The trainable numbers of `model` in one vector."""
    trainable, rest = eqx.partition(model, eqx.is_inexact_array)
    vector, unravel = ravel_pytree(trainable)
    decays = jax.tree_util.tree_map_with_path(
        lambda path, leaf: jnp.full_like(leaf, 0.0 if is_recurrent(model, path) else 1.0), trainable
    )
    return Ravelled(vector, lambda v: eqx.combine(unravel(v), rest), ravel_pytree(decays)[0])


def is_recurrent(model: AbstractModel, path: tuple[Any, ...]) -> bool:
    """Does this leaf parametrise λ? The paper decays "all parameters except the recurrent ones λ"."""
    node: Any = model
    recurrent = False
    for key in path:
        if isinstance(key, jax.tree_util.GetAttrKey):
            (field,) = (field for field in dataclasses.fields(node) if field.name == key.name)
            node, recurrent = getattr(node, key.name), field.metadata.get("recurrent", False)
        else:
            node = node[key.idx]
    return recurrent


def start(vector: Float[Array, " p"]) -> Position:
    """Before the first step."""
    vector = jnp.array(vector)  # a copy: the position is given away at each chunk
    return Position(vector, optax.scale_by_adam().init(vector), jnp.zeros((), jnp.int32))


def annealed(config: FitConfig) -> Callable[[Any], Any]:
    """The cosine as a factor of the learning rate, from 1 to final/initial; one after the other where a run went on."""
    ratio = config.final_learning_rate / config.learning_rate
    ends = (*config.restarts, config.steps)
    cosines = [
        optax.cosine_decay_schedule(1.0, end - start, alpha=ratio)
        for start, end in zip((0, *config.restarts), ends, strict=True)
    ]
    return cosines[0] if len(cosines) == 1 else optax.join_schedules(cosines, list(config.restarts))


def learning_rate_at(config: FitConfig, step: int) -> float:
    """η_s on the host, for the log."""
    start = max((end for end in config.restarts if end < step), default=0)
    length = min((end for end in (*config.restarts, config.steps) if end >= step), default=config.steps) - start
    ratio = config.final_learning_rate / config.learning_rate
    cosine = 0.5 * (1 + np.cos(np.pi * min(step - start, length) / length))
    return float(config.learning_rate * ((1 - ratio) * cosine + ratio))


def update(
    at: Position,
    gradient: Float[Array, " p"],
    rates: Rates,
    decays: Float[Array, " p"],
    factor: Scalar,
    config: FitConfig,
) -> Position:
    """One step of AdamW, b1 = 0.9 and b2 = 0.999, with the gradient l2 · w of a penalty where there is one."""
    if config.l2:
        penalty = config.l2 * factor if config.anneal_l2 else config.l2
        gradient = gradient + penalty * decays * at.vector
    direction: Any
    direction, adam = optax.scale_by_adam(eps=config.epsilon).update(gradient, at.adam)
    change = direction + rates.weight_decay * decays * at.vector
    return Position(at.vector - rates.learning_rate * factor * change, adam, at.step + 1)
