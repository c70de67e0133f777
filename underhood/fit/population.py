"""Many networks side by side: one compiled program takes a chunk of steps, for each member in turn or at once.

A chunk draws its batches together, ahead of a loop over steps that never leaves the compiled program. Members
(seeds, learning rates, decays) run the same program; their calls are handed over without waiting, so that
they share the cores. Batching members into one larger program (vmap) was slower: at n = 80 four members took 0.65 ms
a step each where one alone takes 0.39, since batched products of small matrices leave the fast library.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Scalar

from underhood.data.task import HELD_OUT, TRAINING, VALIDATION, AbstractTask, half_mean_square, stream_key
from underhood.fit import adamw
from underhood.fit.config import FitConfig
from underhood.fit.kernels import forward

CHUNK = 50  # steps between two returns to Python: it costs 0.1 ms, and Ctrl-C is answered here
HELD_OUT_PART = 1024  # sequences of one forward pass when evaluating

Loss = Callable[[Any, Any, Any], Array]


@dataclasses.dataclass(frozen=True)
class Member:
    """One network of a population: its seed and its rates."""

    seed: int
    learning_rate: float
    weight_decay: float


def members_of(
    config: FitConfig,
    seeds: Sequence[int],
    learning_rates: Sequence[float] = (),
    weight_decays: Sequence[float] = (),
) -> tuple[Member, ...]:
    """Every combination, seeds running fastest; rates are the config's unless given."""
    return tuple(
        Member(int(seed), float(rate), float(decay))
        for decay in (weight_decays or (config.weight_decay,))
        for rate in (learning_rates or (config.learning_rate,))
        for seed in seeds
    )


class Trainer:
    """The compiled programs for one structure of model, one task and one configuration."""

    def __init__(self, model: Any, task: AbstractTask, config: FitConfig, loss: Loss | None = None) -> None:
        self.ravelled = adamw.ravel(model)
        self.task, self.config = task, config
        self.loss = loss or functools.partial(_task_loss, task.last_only)
        # The position is given away: the new one takes its memory.
        self._chunk = jax.jit(self._run_chunk, donate_argnums=0)
        self._evaluate = jax.jit(self._held_out_part, static_argnums=2)

    def advance(self, at: adamw.Position, member: Member, steps: int) -> tuple[adamw.Position, Float[Array, " chunk"]]:
        """Up to `CHUNK` steps; the first `steps` of the losses are meant."""
        dtype = at.vector.dtype
        rates = adamw.Rates(jnp.asarray(member.learning_rate, dtype), jnp.asarray(member.weight_decay, dtype))
        return self._chunk(at, rates, member.seed, steps)

    def _run_chunk(
        self, at: adamw.Position, rates: adamw.Rates, seed: Scalar, steps: Scalar
    ) -> tuple[adamw.Position, Float[Array, " chunk"]]:
        dtype, unravel = at.vector.dtype, self.ravelled.unravel
        key = stream_key(seed, TRAINING)
        numbers = at.step + jnp.arange(CHUNK, dtype=jnp.int32)
        xs, wanted = jax.vmap(
            lambda number: self.task.batch(jax.random.fold_in(key, number), self.config.batch_size, dtype=dtype)
        )(numbers)
        factors = adamw.annealed(self.config)(numbers).astype(dtype)

        def one_step(index: Array, carried: tuple[adamw.Position, Array]) -> tuple[adamw.Position, Array]:
            at, losses = carried
            loss, gradient = jax.value_and_grad(lambda v: self.loss(unravel(v), xs[index], wanted[index]))(at.vector)
            at = adamw.update(at, gradient, rates, self.ravelled.decays, factors[index], self.config.epsilon)
            return at, losses.at[index].set(loss)

        return jax.lax.fori_loop(0, steps, one_step, (at, jnp.zeros(CHUNK, dtype)))

    def model_at(self, at: adamw.Position) -> Any:
        """The network that this position stands for."""
        return self.ravelled.unravel(at.vector)

    def held_out_loss(self, at: adamw.Position, seed: int, *, validation: bool = False) -> float:
        """½ mean square over fresh sequences that training never saw, in parts that fit the cache."""
        parts = -(-self.config.held_out // HELD_OUT_PART)
        sizes = np.full(parts, HELD_OUT_PART)
        sizes[-1] -= parts * HELD_OUT_PART - self.config.held_out
        losses = [self._evaluate(at.vector, (seed, part), (validation, int(sizes[part]))) for part in range(parts)]
        return float(np.dot([float(loss) for loss in losses], sizes) / self.config.held_out)

    def _held_out_part(self, vector: Array, where: tuple[Array, Array], what: tuple[bool, int]) -> Scalar:
        (seed, part), (validation, size) = where, what
        key = jax.random.fold_in(stream_key(seed, VALIDATION if validation else HELD_OUT), part)
        xs, wanted = self.task.batch(key, size, validation=validation, dtype=vector.dtype)
        return self.loss(self.ravelled.unravel(vector), xs, wanted)


def _task_loss(last_only: bool, model: Any, xs: Array, wanted: Array) -> Scalar:
    return half_mean_square(forward(model, xs, last_only), wanted)
