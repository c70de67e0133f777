"""S_t, read and changed: the state after every step, outputs with another run's state, and which part of it matters.

    run = uh.states(model, xs)                    run["layer 0 memory"] is (t, heads, keys, values)
    ys = uh.patch(model, xs, run_of_ys, at=10)    10 steps of xs, then the other run's state, then the rest of xs
    uh.difference(model, xs, other, at=10)        how much of that change each part of the state carries

A state is all that a model knows of its past. So with all of it patched, the outputs that follow are those of the other
sequence's first steps followed by this one's last ones; with a part of it, they say what that part carries.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, SupportsIndex

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from underhood.core.arrays import precision_of
from underhood.core.errors import UnderhoodError
from underhood.core.memory import require_memory
from underhood.core.model import AbstractModel
from underhood.explain.attention_map import sequence_of
from underhood.explain.maps import whole_number


@dataclasses.dataclass(frozen=True)
class States:
    """The state of a model after every step of one sequence.

    `parts` maps names such as "h", "memory" or "layer 1 memory" to arrays whose first axis is time; `outputs` are those
    of the run. `states[name]` is a part, and `states.after(10)` the whole state after ten steps.
    """

    parts: dict[str, np.ndarray]
    outputs: Float[np.ndarray, "t d_o"]
    structure: Any = dataclasses.field(repr=False)
    initial: tuple[np.ndarray, ...] = dataclasses.field(repr=False)

    def __len__(self) -> int:
        return len(self.outputs)

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self.parts:
            raise UnderhoodError(f"no part {name!r} of the state", remedy=f"Parts: {', '.join(self.parts)}.")
        return self.parts[name]

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name} {part.shape[1:]}" for name, part in self.parts.items())
        return f"States after each of {len(self)} steps: {sizes}"

    def after(self, steps: SupportsIndex) -> Any:
        """The state after so many steps.

        **Arguments:**

        - `steps`: how many; 0 is the state before the first input.

        **Returns:**

        The state as `model.step` and `model.scan` take it.
        """
        count = _whole(steps, "steps")
        if not 0 <= count <= len(self):
            raise UnderhoodError(f"expected from 0 to {len(self)} steps", count)
        leaves = self.initial if count == 0 else [part[count - 1] for part in self.parts.values()]
        return jax.tree.unflatten(self.structure, leaves)


@dataclasses.dataclass(frozen=True)
class Difference:
    """How much of what another run's state changes each part of it carries.

    `alone` is the share of the change in the outputs that a part makes when it is patched by itself, and `without` the
    share that is missing when everything else is; both are 1 for a part that carries it all, and 0 for one that carries
    nothing. `change` is the size of the whole change, the root mean square over the outputs that follow.
    """

    alone: dict[str, float]
    without: dict[str, float]
    change: float

    def __repr__(self) -> str:
        rows = [f"{name}: {alone:.3g} alone, {self.without[name]:.3g} without" for name, alone in self.alone.items()]
        return "\n".join([f"a change of {self.change:.3g} in the outputs", *rows])


def states(model: Any, xs: Any) -> States:
    """The state of a model after every step of a sequence, by named parts.

    **Arguments:**

    - `model`: any model of this package.
    - `xs`: one sequence (t, d).

    **Returns:**

    `States`: the parts with time as their first axis, and the outputs.
    """
    _require_model(model)
    sequence = sequence_of(model, xs)
    with precision_of(model):
        start = model.initial_state()
        leaves, structure = jax.tree.flatten(start)
        require_memory(2 * len(sequence) * sum(leaf.nbytes for leaf in leaves), f"the states of {len(sequence)} steps")
        every, outputs = _run(model, jnp.asarray(sequence), start)
    parts = dict(zip(_names(model, start), map(np.asarray, jax.tree.leaves(every)), strict=True))
    return States(parts, np.asarray(outputs), structure, tuple(map(np.asarray, leaves)))


def patch(
    model: Any, xs: Any, state: Any, *, at: SupportsIndex, parts: Iterable[str] | None = None
) -> Float[np.ndarray, "t d_o"]:
    """Outputs on a sequence when the state, or parts of it, is exchanged on the way.

    The model reads the first `at` inputs, its state is replaced, and the rest of the inputs follow.

    **Arguments:**

    - `model`: any model of this package.
    - `xs`: one sequence (t, d).
    - `state`: `States` of another run, whose state after `at` steps is taken; or a state as `model.step` takes it; or
        a dictionary from names of parts to arrays.
    - `at`: how many steps come before the exchange.
    - `parts`: names of the parts to exchange; all of them unless given.

    **Returns:**

    The outputs (t, d_out); the first `at` are as they were.
    """
    _require_model(model)
    sequence, step = sequence_of(model, xs), _whole(at, "at")
    if not 0 <= step <= len(sequence):
        raise UnderhoodError(f"expected at from 0 to {len(sequence)}", step)
    with precision_of(model):
        before, own = model.scan(sequence[:step]) if step else (np.zeros((0, model.d_out)), model.initial_state())
        exchanged = _exchanged(_names(model, own), own, _given(state, step), parts)
        after = model.scan(sequence[step:], exchanged)[0] if step < len(sequence) else np.zeros((0, model.d_out))
    return np.concatenate([np.asarray(before, model.dtype), np.asarray(after, model.dtype)])


def difference(model: Any, xs: Any, other: Any, *, at: SupportsIndex) -> Difference:
    """Which part of the state carries what another sequence's past changes in the outputs?

    **Arguments:**

    - `model`: any model of this package.
    - `xs`: the sequence (t, d) whose outputs are looked at, from step `at` on.
    - `other`: a sequence with another past; its state after `at` steps is patched in.
    - `at`: how many steps come before the exchange.

    **Returns:**

    A `Difference`: the share of each part, by itself and left out.
    """
    run, step = states(model, other), _whole(at, "at")
    if not 1 <= step < len(sequence_of(model, xs)):
        raise UnderhoodError("expected at from 1 to one less than the sequence's length", step)
    plain = np.asarray(model(sequence_of(model, xs)))[step:]
    names = list(run.parts)

    def changed(parts: list[str]) -> np.ndarray:
        return patch(model, xs, run, at=step, parts=parts)[step:] - plain

    whole = changed(names)
    size = float(np.sqrt(np.mean(whole**2)))

    def share(part: np.ndarray) -> float:
        """The projection on the whole change, over it."""
        return float(np.sum(part * whole) / np.sum(whole**2)) if size > 0 else 0.0

    alone = {name: share(changed([name])) for name in names}
    without = {name: 1 - share(changed([one for one in names if one != name])) if size > 0 else 0.0 for name in names}
    return Difference(alone, without, size)


@eqx.filter_jit
def _run(model: AbstractModel, xs: Float[Array, "t d"], state: Any) -> tuple[Any, Float[Array, "t d_o"]]:
    def body(state: Any, x: Array) -> tuple[Any, tuple[Any, Array]]:
        state, y = model._step(state, x)
        return state, (state, y)

    return jax.lax.scan(body, state, xs)[1]


def _names(model: Any, state: Any) -> list[str]:
    """A name for each array of a state, in their order."""
    cells = getattr(model, "cells", None)
    if cells is not None:
        named = [_names(cell, own) for cell, own in zip(cells, state, strict=True)]
        return [f"layer {index} {name}" for index, names in enumerate(named) for name in names]
    leaves = jax.tree.leaves(state)
    if len(model.state_names) == len(leaves):
        return list(model.state_names)
    by_shape = {3: "memory", 2: "past"}
    names = ["state" if len(leaves) == 1 else by_shape.get(leaf.ndim, "vector") for leaf in leaves]
    counts = (names[:index].count(name) for index, name in enumerate(names))
    return [name if names.count(name) == 1 else f"{name} {count}" for name, count in zip(names, counts, strict=True)]


def _given(state: Any, step: int) -> Any:
    if isinstance(state, States):
        if step > len(state):
            raise UnderhoodError(f"expected a run of at least {step} steps to take the state from", len(state))
        return state.after(step)
    return state


def _exchanged(names: list[str], own: Any, given: Any, parts: Iterable[str] | None) -> Any:
    """The own state with some of its arrays taken from another one."""
    leaves, structure = jax.tree.flatten(own)
    if isinstance(given, Mapping):
        found, wanted = dict(given), list(given) if parts is None else list(parts)
    else:
        others, other_structure = jax.tree.flatten(given)
        if other_structure != structure:
            remedy = "Take it from uh.states(model, other) or model.scan(other)[1]."
            raise UnderhoodError("expected a state of this model", str(other_structure), remedy)
        found, wanted = dict(zip(names, others, strict=True)), names if parts is None else list(parts)
    for name in wanted:
        if name not in names or name not in found:
            raise UnderhoodError(f"no part {name!r} of the state", remedy=f"Parts: {', '.join(names)}.")
    result = []
    for name, leaf in zip(names, leaves, strict=True):
        new = np.asarray(found[name]) if name in wanted else leaf
        if np.shape(new) != np.shape(leaf):
            raise UnderhoodError(f"expected the part {name!r} of shape {np.shape(leaf)}", np.shape(new))
        result.append(jax.numpy.asarray(new, leaf.dtype))
    return jax.tree.unflatten(structure, result)


def _whole(value: Any, name: str) -> int:
    number = whole_number(value)
    if number is None:
        raise UnderhoodError(f"expected a whole number {name}", repr(value))
    return number


def _require_model(model: Any) -> None:
    if not isinstance(model, AbstractModel):
        remedy = "Use uh.from_torch(module), or uh.from_pretrained(folder, layer) for a layer of a checkpoint."
        raise UnderhoodError("expected a model of this package", type(model).__name__, remedy)
