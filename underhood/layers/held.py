"""f(u) = f(0) + e ⊙ u with e = (f(u) − f(0))/u held at its value: a network as it acts on this one sequence.

Within `holding()`, gates, norms and softmax weights are constants and activations are factors, so that a layer is
linear in its inputs. Its values do not change, and its gradient is that of the frozen map: `jax.vjp` of a layer's
`_scan` gives what each input step adds to any target, in one pass and O(t·d) memory.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

Products = Literal["values", "halves"]
"""Who has the share of a product value ⊙ f(u): the value, or both in halves."""
_HELD: contextvars.ContextVar[Products | None] = contextvars.ContextVar("held", default=None)


@contextlib.contextmanager
def holding(products: Products = "halves") -> Iterator[None]:
    """Trace layers as linear in their inputs. No cache knows of it: enter it inside the function that is traced."""
    token = _HELD.set(products)
    try:
        yield
    finally:
        _HELD.reset(token)


def gate(x: Array) -> Array:
    """x, a constant while holding."""
    return x if _HELD.get() is None else jax.lax.stop_gradient(x)


def factor(function: Callable[[Array], Array], u: Array) -> Array:
    """f(u), linear in u while holding."""
    if _HELD.get() is None:
        return function(u)
    at = jax.lax.stop_gradient(u)
    nought, slope = jax.jvp(function, (jnp.zeros_like(at),), (jnp.ones_like(at),))
    ratio = jnp.where(at == 0, slope, (function(at) - nought) / jnp.where(at == 0, 1, at))
    return nought + jax.lax.stop_gradient(ratio) * u


def gated(value: Float[Array, ...], function: Callable[[Array], Array], u: Float[Array, ...]) -> Array:
    """value ⊙ f(u); while holding, half of it is the value's with f(u) constant, and half is the other way round."""
    opened = factor(function, u)
    if _HELD.get() != "halves":
        return value * gate(opened)
    stop = jax.lax.stop_gradient
    return (value * stop(opened) + stop(value) * opened) / 2
