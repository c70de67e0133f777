"""f(u) = f(0) + e ⊙ u with e = (f(u) − f(0))/u held at its value: a network as it acts on this one sequence.

Within `holding()`, gates, norms and softmax weights are constants and activations are factors, so that a layer is
linear in its inputs and in its biases. Its values do not change, and its gradient is that of the frozen map: `jax.vjp`
of a layer's `_scan` gives what each step adds to any target, in one pass and O(t·d) memory.

Cells mark what is held: `gate(q)`, `factor(jnp.tanh, u)`, `gated(read, jax.nn.silu, z)`, `constant(bias)`.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

Products = Literal["values", "halves"]
"""Who has the share of a product value ⊙ f(u): the value, or both in halves."""


class _Held(NamedTuple):
    products: Products
    present: Array | None  # ones, (t,) or a number: biases are multiplied by it, so that each counts for its step


_HELD: contextvars.ContextVar[_Held | None] = contextvars.ContextVar("held", default=None)


@contextlib.contextmanager
def holding(products: Products = "halves", present: Array | None = None) -> Iterator[None]:
    """Trace layers as linear in their inputs. No cache knows of it: enter it inside the function that is traced.

    `present`: ones, a number for each step; the derivative by it is what the biases of that step add.
    """
    token = _HELD.set(_Held(products, present))
    try:
        yield
    finally:
        _HELD.reset(token)


def is_holding() -> bool:
    return _HELD.get() is not None


def by_step(body: Callable[[Any, Any], tuple[Any, Any]], state: Any, xs: Any) -> tuple[Callable[..., Any], Any, Any]:
    """What `jax.lax.scan` takes, such that `constant` in the body means that of the step."""
    held = _HELD.get()
    if held is None or held.present is None:
        return body, state, xs

    def of_step(state: Any, now: tuple[Any, Array]) -> tuple[Any, Any]:
        with holding(held.products, now[1]):
            return body(state, now[0])

    return of_step, state, (xs, held.present)


def gate(x: Array) -> Array:
    """x, a constant while holding."""
    return x if _HELD.get() is None else jax.lax.stop_gradient(x)


def constant(bias: Float[Array, ...]) -> Float[Array, ...]:
    """b, which counts for the step that adds it. Outside of loops its first axis is that of time, of size 1 or t."""
    held = _HELD.get()
    if held is None or held.present is None:
        return bias
    return held.present.reshape(-1, *[1] * (bias.ndim - 1)) * bias if held.present.ndim else held.present * bias


def factor(function: Callable[[Array], Array], u: Array) -> Array:
    """f(u), linear in u while holding."""
    if _HELD.get() is None:
        return function(u)
    at = jax.lax.stop_gradient(u)
    at_zero, slope = jax.jvp(function, (jnp.zeros_like(at),), (jnp.ones_like(at),))
    ratio = jnp.where(at == 0, slope, (function(at) - at_zero) / jnp.where(at == 0, 1, at))
    return constant(at_zero) + jax.lax.stop_gradient(ratio) * u


def gated(value: Float[Array, ...], function: Callable[[Array], Array], u: Float[Array, ...]) -> Array:
    """value ⊙ f(u); while holding, the value has all of it, or each of the two has half."""
    held, stop = _HELD.get(), jax.lax.stop_gradient
    if held is None or held.products == "values":
        return value * gate(function(u))
    opened = factor(function, u)
    return (value * stop(opened) + stop(value) * opened) / 2
