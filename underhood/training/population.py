"""Many networks side by side: one compiled program takes a chunk of steps, for each member in turn or at once.

A chunk draws its batches together, ahead of a loop over steps that never leaves the compiled program. Members
(seeds, learning rates, decays) run the same program; their calls are handed over without waiting, so that
they share the cores. Batching members into one larger program (vmap) was slower: at n = 80 four members took 0.65 ms
a step each where one alone takes 0.39, since batched products of small matrices leave the fast library.

A network that trains alone, with two devices there (`core/threads.py`), makes the gradients of half a batch on each of
them, and both take the same step: at n = 100, the compiler's own threads won 5 % by the second core. In halves or
as a whole, sums differ in their last bits; a run folder keeps which it was, and a single device goes through the
halves in turn.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Scalar

from underhood.core.arrays import DType
from underhood.core.errors import UnderhoodError
from underhood.core.model import AbstractModel
from underhood.layers.kernels.dispatch import forward, parts_of
from underhood.training import adamw
from underhood.training.config import CHUNK, HELD_OUT_PART, FitConfig, require_rate
from underhood.training.tasks.task import HELD_OUT, TRAINING, VALIDATION, AbstractTask, stream_key

HALVES, HALF = 2, "half"  # a batch in two, for two devices, and the name of that axis
LEAST_WORK = 2**24  # weights × tokens of a step from which a second device is worth the handing over

Loss = Callable[[Any, Any, Any], Array]


@dataclasses.dataclass(frozen=True)
class Member:
    """One network of a population: its seed and its rates."""

    seed: int
    learning_rate: float
    weight_decay: float

    def __post_init__(self) -> None:
        for name in ("learning_rate", "weight_decay"):
            require_rate(name, getattr(self, name))


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


def require_alike(models: Sequence[Any], members: Sequence[Member], task: AbstractTask) -> None:
    """Models of one architecture and size that fit the task, one for each member."""
    if not members or len(models) != len(members):
        raise UnderhoodError("expected one model for each member", f"{len(models)} models, {len(members)} members")
    if not isinstance(task, AbstractTask):
        raise UnderhoodError("expected a task to train on", type(task).__name__, "Use uh.TeacherStudent, for example.")
    for model in models:
        if not isinstance(model, AbstractModel):
            raise UnderhoodError("expected a model of underhood to train", type(model).__name__)
        if model.d != task.d:
            raise UnderhoodError(f"expected a model with {task.d} inputs for the task {task.name}", model.d)
        if model.d_out < task.d_out:
            raise UnderhoodError(f"expected a model with {task.d_out} outputs for the task {task.name}", model.d_out)
    structures = {
        str(jax.tree.structure(model)) + str([np.shape(x) for x in jax.tree.leaves(model)]) for model in models
    }
    if len(structures) > 1:
        raise UnderhoodError("expected members of one architecture and size", f"{len(structures)} different ones")


class Trainer:
    """The compiled programs for one structure of model, one task and one configuration."""

    def __init__(
        self,
        model: Any,
        task: AbstractTask,
        config: FitConfig,
        loss: Loss | None = None,
        *,
        halves: int | None = None,
        devices: Sequence[Any] | None = None,
    ) -> None:
        self.ravelled = adamw.ravel(model)
        self.task, self.config = task, config
        self.loss = loss or functools.partial(_task_loss, task)
        devices = jax.local_devices() if devices is None else devices
        # A loss of the user's need not be a mean over sequences: it gets the whole batch.
        worth_it = loss is None and self.ravelled.vector.size * config.batch_size * task.steps >= LEAST_WORK
        chosen = HALVES if worth_it and config.batch_size % HALVES == 0 and len(devices) >= HALVES else 1
        self.halves = chosen if halves is None else halves
        # Halves are small, and a loop inside them rounds otherwise on one device than on two; the last output is cheap.
        self.in_parts = loss is None and not task.last_only and self.halves == 1
        program, self.everywhere = self._run_chunk, None
        if 1 < self.halves <= len(devices):
            mesh, same = Mesh(np.array(devices[: self.halves]), (HALF,)), PartitionSpec()
            self.everywhere = NamedSharding(mesh, same)
            program = jax.shard_map(program, mesh=mesh, in_specs=same, out_specs=same, check_vma=False)
        # The position is given away: the new one takes its memory.
        self._chunk = jax.jit(program, donate_argnums=0)
        self._evaluate = jax.jit(self._held_out_part, static_argnums=2)

    def advance(self, at: adamw.Position, member: Member, steps: int) -> tuple[adamw.Position, Float[Array, " chunk"]]:
        """Up to `CHUNK` steps; the first `steps` of the losses are meant."""
        dtype = at.vector.dtype
        rates = adamw.Rates(jnp.asarray(member.learning_rate, dtype), jnp.asarray(member.weight_decay, dtype))
        if self.everywhere is not None:
            at = jax.device_put(at, self.everywhere)
        return self._chunk(at, rates, member.seed, steps)

    def _run_chunk(
        self, at: adamw.Position, rates: adamw.Rates, seed: Scalar, steps: Scalar
    ) -> tuple[adamw.Position, Float[Array, " chunk"]]:
        dtype = at.vector.dtype
        numbers = at.step + jnp.arange(CHUNK, dtype=jnp.int32)
        # Compiled apart from what stands around it, half a batch rounds alike on one device and on two.
        apart = jax.lax.optimization_barrier if self.halves > 1 else lambda tree: tree
        xs, wanted = self._batches(stream_key(seed, TRAINING), numbers, dtype)
        factors = adamw.annealed(self.config)(numbers).astype(dtype)

        def half(*arguments: Array) -> tuple[Array, Array]:
            return apart(self._loss_and_gradient(*apart(arguments)))

        def one_step(index: Array, carried: tuple[adamw.Position, Array]) -> tuple[adamw.Position, Array]:
            at, losses = carried
            mine = [half(at.vector, x[index], y[index]) for x, y in zip(xs, wanted, strict=True)]
            gradient = functools.reduce(jnp.add, [gradient for _, gradient in mine])
            if self.everywhere is not None:
                gradient = jax.lax.psum(gradient, HALF)
            gradient = apart(gradient)
            mean = gradient / self.halves
            at = adamw.update(at, mean, rates, self.ravelled.decays, factors[index], self.config)
            return at, losses.at[index].set(jnp.stack([loss for loss, _ in mine]))

        # The halves' losses are added up after the loop: inside it, a fused addition would round once less.
        at, losses = jax.lax.fori_loop(0, steps, one_step, (at, jnp.zeros((CHUNK, len(xs)), dtype)))
        losses = functools.reduce(jnp.add, losses.T)
        losses = losses if self.everywhere is None else jax.lax.psum(losses, HALF)
        return at, losses / self.halves

    def _loss_and_gradient(self, vector: Array, xs: Array, wanted: Array) -> tuple[Array, Array]:
        """Of one batch, part after part where that keeps a kernel's arrays in the cache.

        At n = 100, b = 64, t = 32 on one core a step took 2.46 ms in place of 2.72.
        """
        gradient = jax.value_and_grad(lambda v, x, y: self.loss(self.ravelled.unravel(v), x, y))
        parts = parts_of(self.ravelled.unravel(vector), len(xs), self.task.steps) if self.in_parts else 1
        if parts == 1:
            return gradient(vector, xs, wanted)
        xs, wanted = (whole.reshape(parts, -1, *whole.shape[1:]) for whole in (xs, wanted))

        def add(part: Array, sums: tuple[Array, Array]) -> tuple[Array, Array]:
            return jax.tree.map(jnp.add, sums, gradient(vector, xs[part], wanted[part]))

        # A loop, not parts written one after the other: each then takes the memory of the one before.
        nothing = jnp.zeros((), vector.dtype), jnp.zeros_like(vector)
        return jax.tree.map(lambda total: total / parts, jax.lax.fori_loop(0, parts, add, nothing))

    def _batches(self, key: Array, numbers: Array, dtype: DType) -> tuple[list[Array], list[Array]]:
        """The batches of a chunk's steps, in the halves that this device is to work on."""

        def draw(numbers: Array) -> Any:
            def batch(number: Array) -> Any:
                return self.task.batch(jax.random.fold_in(key, number), self.config.batch_size, dtype=dtype)

            return jax.lax.optimization_barrier(jax.vmap(batch)(numbers))

        # As many at a time on one device as on two: the number that is drawn together shows in the last bits.
        groups = numbers.reshape(self.halves, -1)
        if self.everywhere is None:
            xs, wanted = jax.tree.map(lambda *parts: jnp.concatenate(parts), *map(draw, groups))
            return jnp.split(xs, self.halves, axis=1), jnp.split(wanted, self.halves, axis=1)
        # Each device draws whole batches for a part of the steps, and hands the other its halves of them.
        xs, wanted = jax.tree.map(
            lambda part: jax.lax.all_to_all(part, HALF, split_axis=1, concat_axis=0, tiled=True),
            draw(groups[jax.lax.axis_index(HALF)]),
        )
        return [xs], [wanted]

    def model_at(self, at: adamw.Position) -> Any:
        """The network that this position stands for."""
        return self.ravelled.unravel(_on_one_device(at.vector))

    def held_out_loss(self, at: adamw.Position, seed: int, *, validation: bool = False) -> float:
        """The task's loss over fresh sequences that training never saw, in parts that fit the cache."""
        parts = -(-self.config.held_out // HELD_OUT_PART)
        sizes = np.full(parts, HELD_OUT_PART)
        sizes[-1] -= parts * HELD_OUT_PART - self.config.held_out
        vector = _on_one_device(at.vector)
        losses = [self._evaluate(vector, (seed, part), (validation, int(sizes[part]))) for part in range(parts)]
        return float(np.dot([float(loss) for loss in losses], sizes) / self.config.held_out)

    def _held_out_part(self, vector: Array, where: tuple[Array, Array], what: tuple[bool, int]) -> Scalar:
        (seed, part), (validation, size) = where, what
        key = jax.random.fold_in(stream_key(seed, VALIDATION if validation else HELD_OUT), part)
        xs, wanted = self.task.batch(key, size, validation=validation, dtype=vector.dtype)
        return self.loss(self.ravelled.unravel(vector), xs, wanted)


def _on_one_device(vector: Float[Array, " p"]) -> Float[Array, " p"]:
    """Off the devices that shared the work: what is made of it may be used with any other array."""
    return jnp.asarray(np.asarray(vector))


def _task_loss(task: AbstractTask, model: AbstractModel, xs: Array, wanted: Array) -> Scalar:
    return task.loss(forward(model, xs, task.last_only), wanted)
