"""A model's `_step` as a list of simple operations on arrays, which torch, ONNX and a page can run.

jax traces the step once. What depends on the weights alone (λ = exp(−exp ν), say) can be computed here and handed over
as a number, so that another library's last bit of exp does not show after a thousand steps.

As JSON, a program is

    {"weights": {name: slot}, "x": slot, "states": [slots], "initial": [arrays], "constants": {slot: array},
     "ops": [{"op": "dot_general", "in": [slots], "out": slot, …}], "y": slot, "next": [slots], "shown": {name: slot}}
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from underhood.core.arrays import precision_of
from underhood.core.errors import UnderhoodError
from underhood.core.model import AbstractModel

# Operations that take and return arrays component by component, and need nothing else said.
PLAIN = (
    *("neg", "exp", "log", "log1p", "expm1", "tanh", "logistic", "sqrt", "rsqrt", "abs", "sign", "erf", "sin", "cos"),
    *("floor", "square", "not", "is_finite", "add", "sub", "mul", "div", "max", "min", "pow", "rem", "atan2"),
    *("lt", "le", "gt", "ge", "eq", "ne", "and", "or", "select_n"),
)
SAME = ("copy", "copy_p", "stop_gradient", "convert_element_type", "optimization_barrier", "reduce_precision")
RESHAPES = ("reshape", "squeeze", "expand_dims")  # it is enough to know the shape that comes out
REDUCTIONS = ("reduce_sum", "reduce_max", "reduce_min", "reduce_prod")
CALLS = ("jaxpr", "call_jaxpr", "fun_jaxpr")  # where a primitive that only calls others keeps them


class Op(NamedTuple):
    """One primitive of jax: slots in, slots out."""

    primitive: Any
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    params: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Program:
    """One step of `model`, with every array in a slot."""

    model: AbstractModel
    ops: tuple[Op, ...]
    weights: dict[str, int]
    values: dict[int, Any]  # of slots that are known: constants, and weights once they are folded in
    shapes: dict[int, tuple[int, ...]]
    states: tuple[int, ...]
    x: int
    following: tuple[int, ...]
    y: int
    shown: dict[str, int]

    def folded(self) -> Program:
        """The same with the weights as constants, and everything that follows from them alone computed."""
        values = dict(self.values)
        values |= dict(zip(self.weights.values(), jax.tree.leaves(self.model), strict=True))
        left = []
        with precision_of(self.model):
            for op in self.ops:
                if all(slot in values for slot in op.inputs):
                    values |= _applied(op, values)
                else:
                    left.append(op)
        return dataclasses.replace(self, ops=tuple(left), weights={}, values=values)

    def without_displayed(self) -> Program:
        """Only what the output and the next state need."""
        needed, kept = {self.y, *self.following}, []
        for op in reversed(self.ops):
            if needed & set(op.outputs):
                needed |= set(op.inputs)
                kept.append(op)
        return dataclasses.replace(self, ops=tuple(reversed(kept)), shown={})

    def step(self, states: Sequence[Any], x: Any) -> tuple[list[Any], Any]:
        """Run a folded program in jax: the state's arrays and the input to the next ones and the output."""
        values = {**self.values, **dict(zip(self.states, states, strict=True)), self.x: x}
        for op in self.ops:
            values |= _applied(op, values)
        return [jnp.asarray(values[slot]) for slot in self.following], jnp.asarray(values[self.y])

    def as_json(self) -> dict[str, Any]:
        """Plain data, for programs without jax; an operation that has no portable form is refused by its name."""
        ops = [self._portable(op) for op in self.ops]
        wanted = {self.y, *self.following, *self.shown.values(), *(slot for op in ops for slot in op["in"])}
        with precision_of(self.model):
            initial = [np.asarray(leaf).tolist() for leaf in jax.tree.leaves(self.model._initial_state())]
        return {
            "weights": self.weights,
            "x": self.x,
            "states": list(self.states),
            "initial": initial,
            "constants": {str(slot): np.asarray(self.values[slot]).tolist() for slot in wanted & self.values.keys()},
            "ops": ops,
            "y": self.y,
            "next": list(self.following),
            "shown": self.shown,
        }

    def _portable(self, op: Op) -> dict[str, Any]:
        name = op.primitive.name
        plain = {"op": name, "in": list(op.inputs), "out": op.outputs[0]}
        if name in PLAIN:
            return plain
        if name in SAME:
            # A comparison gives true or false, which becomes a number where it is added.
            is_number = np.issubdtype(op.params.get("new_dtype", np.bool), np.floating)
            return {**plain, "op": "number" if is_number else "same"}
        if name in REDUCTIONS:
            return {**plain, "axes": list(op.params["axes"])}
        if name in RESHAPES:
            return {**plain, "op": "reshape", "shape": list(self.shapes[op.outputs[0]])}
        if name in PORTABLE:
            return {**plain, **{key: _listed(value) for key, value in PORTABLE[name](op.params).items()}}
        raise UnderhoodError(
            f"{self.model.kind} uses the operation {name}, which runs in jax only",
            remedy="Write its _step with simpler operations (docs/extending.md).",
        )


# The parameters that each operation needs, beside its inputs.
PORTABLE: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "dot_general": lambda p: dict(zip(("contract", "batch"), p["dimension_numbers"], strict=True)),
    "broadcast_in_dim": lambda p: {"shape": p["shape"], "axes": p["broadcast_dimensions"]},
    "transpose": lambda p: {"axes": p["permutation"]},
    "concatenate": lambda p: {"axis": p["dimension"]},
    "stack": lambda p: {"axis": p["axis"]},
    "slice": lambda p: {
        "start": p["start_indices"],
        "stop": p["limit_indices"],
        "step": p["strides"] or [1] * len(p["start_indices"]),
    },
    "integer_pow": lambda p: {"power": p["y"]},
    "cumsum": lambda p: {"axis": p["axis"], "reverse": p["reverse"]},
    "iota": lambda p: {"shape": p["shape"], "axis": p["dimension"]},
}


def trace(model: AbstractModel) -> Program:
    """`model._step` as a program; its weights are inputs, by the names that files have."""
    leaves, treedef = jax.tree.flatten(model)
    with precision_of(model):
        state = jax.eval_shape(model._initial_state)

        def step(leaves: list[Any], state: Any, x: Any) -> Any:
            network = jax.tree.unflatten(treedef, leaves)
            following, y = network._step(state, x)
            return following, y, shown_by(network, following, x)

        x = jax.ShapeDtypeStruct((model.d,), model.dtype)
        closed, out = jax.make_jaxpr(step, return_shape=True)(leaves, state, x)
    builder = _Builder()
    given = builder.bind(closed.jaxpr.invars)
    outputs = builder.inline(closed.jaxpr, closed.consts, given)
    following, y, shown = jax.tree.unflatten(jax.tree.structure(out), outputs)
    count = len(leaves)
    return Program(
        model=model,
        ops=tuple(builder.ops),
        weights=dict(zip(names_of(model), given[:count], strict=True)),
        values=builder.values,
        shapes=builder.shapes,
        states=tuple(given[count:-1]),
        x=given[-1],
        following=tuple(jax.tree.leaves(following)),
        y=y,
        shown=shown,
    )


def shown_by(model: AbstractModel, state: Any, x: Any) -> dict[str, Any]:
    """What a page draws: the state of each layer, and what the model itself wants watched."""
    cells = getattr(model, "cells", None)
    if cells is None:
        return {"layer 0": model.display_state(state), **model.display_extras(state, x)}
    return {f"layer {i}": cell.display_state(one) for i, (cell, one) in enumerate(zip(cells, state, strict=True))}


def names_of(model: AbstractModel) -> list[str]:
    """The dotted name of each weight, as in files."""
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(model)[0]]
    return [".".join(str(getattr(key, "name", getattr(key, "idx", key))) for key in path) for path in paths]


def _applied(op: Op, values: dict[int, Any]) -> dict[int, Any]:
    result = op.primitive.bind(*(values[slot] for slot in op.inputs), **op.params)
    results = result if op.primitive.multiple_results else [result]
    return dict(zip(op.outputs, results, strict=True))


def _listed(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_listed(one) for one in value]
    return value.item() if isinstance(value, np.generic) else value


class _Builder:
    """Writes nested jaxprs out into one list; each use of a function gets slots of its own."""

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.values: dict[int, Any] = {}
        self.shapes: dict[int, tuple[int, ...]] = {}

    def slot(self, shape: tuple[int, ...]) -> int:
        self.shapes[len(self.shapes)] = tuple(shape)
        return len(self.shapes) - 1

    def bind(self, variables: Sequence[Any]) -> list[int]:
        return [self.slot(variable.aval.shape) for variable in variables]

    def constant(self, value: Any) -> int:
        slot = self.slot(np.shape(value))
        self.values[slot] = value
        return slot

    def inline(self, jaxpr: Any, consts: Sequence[Any], inputs: Sequence[int]) -> list[int]:
        env = dict(zip(jaxpr.constvars, map(self.constant, consts), strict=True))
        env |= dict(zip(jaxpr.invars, inputs, strict=True))

        def read(atom: Any) -> int:
            return self.constant(atom.val) if hasattr(atom, "val") else env[atom]

        for equation in jaxpr.eqns:
            slots = [read(atom) for atom in equation.invars]
            inner = next((equation.params[name] for name in CALLS if name in equation.params), None)
            if equation.primitive.name == "split":
                found = self.slices(slots[0], equation)
            elif inner is None or equation.primitive.name in ("scan", "while", "cond"):
                found = self.bind(equation.outvars)
                self.ops.append(Op(equation.primitive, tuple(slots), tuple(found), equation.params))
            else:
                found = self.inline(getattr(inner, "jaxpr", inner), getattr(inner, "consts", ()), slots)
            env |= dict(zip(equation.outvars, found, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def slices(self, source: int, equation: Any) -> list[int]:
        """`split` gives several arrays at once; slices give them one by one."""
        found, shape, axis, start = self.bind(equation.outvars), self.shapes[source], equation.params["axis"], 0
        for slot, size in zip(found, equation.params["sizes"], strict=True):
            lower, upper = [0] * len(shape), list(shape)
            lower[axis], upper[axis] = start, start + size
            params = {"start_indices": tuple(lower), "limit_indices": tuple(upper), "strides": None}
            self.ops.append(Op(jax.lax.slice_p, (source,), (slot,), params))
            start += size
        return found
