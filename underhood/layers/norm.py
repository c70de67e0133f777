"""y / √(mean y² + ε) and its relatives: RMS, layer and group norm, and vectors of length 1."""

from __future__ import annotations

import functools
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from underhood.core.errors import UnderhoodError
from underhood.core.model import Part, tensor
from underhood.layers.held import constant, gate, is_holding
from underhood.layers.shares import Shares


class Norm(Part):
    """weight ⊙ y / √(mean y² + ε) + bias over the last axis; where `centred`, of y − mean y (layer and group norm).

    `weight` has the size of the last axis, or of the last two: a group norm has its own weights for each group.
    """

    kind: ClassVar[str] = "norm"

    weight: Float[Array, " channels"] = tensor()
    bias: Float[Array, " channels"] | None = tensor(optional=True, default=None)
    eps: float = eqx.field(static=True, default=1e-5)
    centred: bool = eqx.field(static=True, default=False)

    def _check(self) -> None:
        require_positive("eps", self.eps)

    def __call__(self, y: Float[Array, "t h v"]) -> Float[Array, "t h v"]:
        if self.centred:
            y = y - jnp.mean(y, axis=-1, keepdims=True)
        size = y.shape[-1]  # mean y² + ε = (Σ y² + size ε) / size
        weight = (size**0.5 * self.weight).reshape(1, -1, y.shape[-1])
        eps = size * self.eps
        y = weight * (y * gate(_inverse_length(y, eps)) if is_holding() else l2_normalised(y, eps))
        return y if self.bias is None else y + constant(self.bias.reshape(1, -1, y.shape[-1]))

    def of_last(self, y: Float[Array, "*t channels"]) -> Float[Array, "*t channels"]:
        """The norm of one vector, or of one for each step."""
        return self(y.reshape(-1, 1, y.shape[-1])).reshape(y.shape)

    def shared(self, y: Shares, heads: int) -> Shares:
        """The norm of each head held at its value."""
        if self.centred:
            y = y.centred(heads)
        blocks = y.value.reshape(len(y.value), heads, -1)
        inverse = 1 / np.sqrt(np.mean(blocks * blocks, axis=2, keepdims=True) + self.eps)
        weight = np.asarray(self.weight).reshape(1, -1, blocks.shape[2])
        y = y.scaled((inverse * weight).reshape(y.value.shape))
        return y if self.bias is None else y.plus(self.bias)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def l2_normalised(x: Float[Array, "t h k"], eps: float = 1e-6) -> Float[Array, "t h k"]:
    """y = x / √(Σ x² + ε)."""
    return x * _inverse_length(x, eps)


@l2_normalised.defjvp
def _l2_slope(eps: float, primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    """ẏ = (ẋ − y (y · ẋ)) / √(Σ x² + ε): half the passes of the chain rule, which meets the root's cube."""
    (x,), (tangent,) = primals, tangents
    inverse = _inverse_length(x, eps)
    y = x * inverse
    again = jax.lax.optimization_barrier(inverse)
    return y, again * (tangent - y * jnp.sum(y * tangent, axis=-1, keepdims=True))


def _inverse_length(x: Float[Array, "t h k"], eps: float) -> Float[Array, "t h 1"]:
    return jax.lax.rsqrt(jnp.sum(x * x, axis=-1, keepdims=True) + eps)


def unit(x: Float[Array, "t h k"], least: float = 1e-12) -> Float[Array, "t h k"]:
    """x / max(|x|, least); its gradient at 0 is that of x / least, where that of |x| would be undefined."""
    return x * jax.lax.rsqrt(jnp.maximum(jnp.sum(x * x, axis=-1, keepdims=True), least * least))


def require_positive(name: str, value: float) -> None:
    if not (isinstance(value, float | int) and np.isfinite(value) and value > 0):
        raise UnderhoodError(f"expected a positive {name}", repr(value))
