"""Eq. 1: y_t = (Σ_{s≤t} (W_V x_s)(W_K x_s)ᵀ) (W_Q x_t), summed over heads."""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from underhood.core.arrays import as_weight
from underhood.core.errors import UnderhoodError
from underhood.core.model import AbstractModel, tensor

FEW_KEYS = 8


def with_heads(value: Any, axes: int = 2) -> Any:
    """(d_v, d) becomes (1, d_v, d): one head is many heads with one of them."""
    weight = as_weight(value)
    if getattr(weight, "ndim", None) != axes:
        return weight
    with jax.enable_x64(True):
        return weight[None]


class LinearAttention(AbstractModel):
    """Eq. 1: y_t = Σ_heads Σ_{s≤t} decay^{t-s} v_s (k_s · q_t), with v, k, q = W_V x, W_K x, W_Q x.

    The paper's attention has decay 1, the default. Weights are given as matrices, or with a leading heads
    axis. The state is the effective weight matrix W_t = decay · W_{t-1} + v_t k_tᵀ of each head.
    """

    kind: ClassVar[str] = "linear-attention"

    w_value: Float[Array, "heads d_value d"] = tensor(converter=with_heads)
    w_key: Float[Array, "heads d_key d"] = tensor(converter=with_heads)
    w_query: Float[Array, "heads d_key d"] = tensor(converter=with_heads)
    decay: Float[Array, " heads"] | None = tensor(optional=True, default=None)

    @property
    def d(self) -> int:
        return self.w_value.shape[2]

    @property
    def d_out(self) -> int:
        return self.w_value.shape[1]

    @property
    def d_key(self) -> int:
        return self.w_key.shape[1]

    @property
    def heads(self) -> int:
        return self.w_value.shape[0]

    @property
    def key_query(self) -> np.ndarray:
        """W_KᵀW_Q of each head, (h, d, d), in float64: all of keys and queries that the function can show."""
        keys, queries = np.asarray(self.w_key, np.float64), np.asarray(self.w_query, np.float64)
        return np.einsum("hka,hkb->hab", keys, queries)

    def _decay(self) -> Float[Array, " h"]:
        return jnp.ones(self.heads, self.dtype) if self.decay is None else self.decay

    def _initial_state(self) -> Float[Array, "h d_v d_k"]:
        return jnp.zeros((self.heads, self.d_out, self.d_key), self.dtype)

    def _step(
        self, state: Float[Array, "h d_v d_k"], x: Float[Array, " d"]
    ) -> tuple[Float[Array, "h d_v d_k"], Float[Array, " d_v"]]:
        values, keys, queries = self.w_value @ x, self.w_key @ x, self.w_query @ x
        state = self._decay()[:, None, None] * state + values[:, :, None] * keys[:, None, :]
        return state, jnp.einsum("hvk,hk->v", state, queries)

    def propagate_contributions(self, x: Any) -> Any:
        keys, queries = (np.einsum("td,hkd->thk", x.value, np.asarray(weight)) for weight in (self.w_key, self.w_query))
        values = x.linear(np.asarray(self.w_value).reshape(-1, self.d))
        read = values.remembered(queries, keys, np.broadcast_to(np.log(self._decay()), keys.shape[:2]))
        return read.linear(np.tile(np.eye(self.d_out, dtype=self.dtype), (1, self.heads)))

    def naive(self, xs: Any) -> Any:
        """Eq. 1 as a masked matrix: y = Σ_heads (mask ⊙ Q Kᵀ) V, without a state."""
        return self._public(_naive, xs)


def _naive(attention: LinearAttention, xs: Float[Array, "t d"]) -> Float[Array, "t d_v"]:
    values, keys, queries = (
        jnp.einsum("td,hkd->htk", xs, weight) for weight in (attention.w_value, attention.w_key, attention.w_query)
    )
    lag = jnp.arange(len(xs))[:, None] - jnp.arange(len(xs))[None, :]
    decay = attention._decay()[:, None, None] ** jnp.maximum(lag, 0)[None]
    scores = jnp.where((lag >= 0)[None], decay * _scores(queries, keys), 0)
    return jnp.einsum("hts,hsv->tv", scores, values)


def _scores(queries: Float[Array, "h t k"], keys: Float[Array, "h s k"]) -> Float[Array, "h t s"]:
    """q_t · k_s. A few products and sums over (t, s) where there are few keys: for a batch of such sequences the
    compiler's product of matrices this thin took three times as long.
    """
    if queries.shape[2] > FEW_KEYS:
        return jnp.einsum("htk,hsk->hts", queries, keys)
    terms = [queries[:, :, None, k] * keys[:, None, :, k] for k in range(queries.shape[2])]
    return sum(terms[1:], start=terms[0])


def require_attention(source: Any) -> LinearAttention:
    """`source` as an attention, or an error that names what it is."""
    if not isinstance(source, LinearAttention):
        kind = getattr(source, "kind", type(source).__name__)
        remedy = "Draw one with underhood sample, or read it off a network with underhood decompile --out."
        raise UnderhoodError("expected a linear attention", kind, remedy)
    return source
