"""A method of a model, compiled once for each structure and called at the price of the call.

`eqx.filter_jit` takes a model apart and compares its structure at every call: 0.2 ms, ten times what a step of a small
cell takes. A model does not change, so that can be done once: here its arrays and the compiled function are kept
beside it for as long as it lives. Inside jax's transformations its arrays are not known, and equinox does it all.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.core
import numpy as np

from underhood.core.arrays import dtype_of


class Prepared(NamedTuple):
    """What does not change from call to call of one model."""

    model: weakref.ref[Any]
    leaves: tuple[jax.Array, ...]
    structure: Any
    d: int
    dtype: np.dtype
    functions: dict[Callable[..., Any], Callable[..., Any]]

    def call(self, method: Callable[..., Any], *arguments: Any) -> Any:
        if method not in self.functions:
            self.functions[method] = _compiled(method, self.structure)
        return self.functions[method](self.leaves, *arguments)


# By id(): a model is frozen and has no hash, so that neither an attribute nor a dictionary of models could hold this.
# An entry goes with its model. It earns its place by what a step costs: 40 µs in place of 230 (benchmarks/layers.py).
_PREPARED: dict[int, Prepared] = {}


def prepared(model: Any) -> Prepared | None:
    """Kept from the first call on; None where a transformation of jax holds the arrays."""
    key = id(model)
    kept = _PREPARED.get(key)
    if kept is not None and kept.model() is model:
        return kept
    leaves, structure = jax.tree.flatten(model)
    if not all(isinstance(leaf, jax.Array) and not isinstance(leaf, jax.core.Tracer) for leaf in leaves):
        return None
    reference = weakref.ref(model, lambda _: _PREPARED.pop(key, None))
    _PREPARED[key] = Prepared(reference, tuple(leaves), structure, model.d, dtype_of(leaves), {})
    return _PREPARED[key]


def call(method: Callable[..., Any], model: Any, *arguments: Any) -> Any:
    """method(model, *arguments) for a function of a module, whose identity stays."""
    kept = prepared(model)
    return jitted(method, model, *arguments) if kept is None else kept.call(method, *arguments)


@functools.cache
def _compiled(method: Callable[..., Any], structure: Any) -> Callable[..., Any]:
    def function(leaves: tuple[jax.Array, ...], *arguments: Any) -> Any:
        return method(jax.tree.unflatten(structure, leaves), *arguments)

    return jax.jit(function)


@eqx.filter_jit
def jitted(method: Callable[..., Any], model: Any, *arguments: Any) -> Any:
    # One compiled program for each method, structure and shape: an eager lax.scan would compile at each call.
    return method(model, *arguments)


if TYPE_CHECKING:
    Method = TypeVar("Method", bound=Callable[..., Any])

    def unwrapped(method: Method) -> Method: ...
else:

    class unwrapped:
        """A plain method. One that equinox has wrapped makes a module of itself whenever it is named: 60 µs."""

        def __init__(self, function: Callable[..., Any]) -> None:
            functools.update_wrapper(self, function)
            self.function = function

        def __get__(self, instance: Any, owner: Any = None) -> Callable[..., Any]:
            return self.function if instance is None else functools.partial(self.function, instance)
