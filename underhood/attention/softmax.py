"""y_t = Σ_heads Σ_{s≤t} softmax_s(scale · q_t·k_s) v_s, with v, k, q = W_V x, W_K x, W_Q x + b_Q."""

from __future__ import annotations

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from underhood.attention.linear import with_heads
from underhood.core import dispatch
from underhood.core.arrays import as_input, like_input, precision_of
from underhood.core.errors import UnderhoodError
from underhood.core.model import AbstractModel, tensor

ROWS = 256  # queries whose scores are made at once
FIRST_ROOM = 8  # steps that a growing state begins with; it doubles when it is full
MASKED = -1e30  # instead of −∞, which JSON has no word for

Past = tuple[
    Float[Array | np.ndarray, "h _ d_k"], Float[Array | np.ndarray, "h _ d_v"], Float[Array | np.ndarray, " _"]
]


class AbstractAttention(AbstractModel):
    """Values, keys and queries of heads, and an output that is an average of values: what normalised attentions share.

    Heads are summed. A concatenation of heads with an output projection W_O has values W_O[:, block] W_V[block].
    """

    w_value: eqx.AbstractVar[Float[Array, "heads d_value d"]]
    w_key: eqx.AbstractVar[Float[Array, "heads d_key d"]]
    w_query: eqx.AbstractVar[Float[Array, "heads d_key d"]]

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


class SoftmaxAttention(AbstractAttention):
    """y_t = Σ_heads Σ_{s≤t} softmax_s(scale · q_t·k_s) v_s + b, with v, k, q = W_V x, W_K x, W_Q x + b_Q.

    The state is the keys and values of all steps so far and grows with them; with a `window`, those of the last so many
    steps, and steps before them are not attended to. A bias of keys changes all scores of a query alike, which softmax
    does not see: there is none.

    **Arguments:**

    - `w_value`: W_V, (d_v, d), or (heads, d_v, d).
    - `w_key`, `w_query`: W_K and W_Q, (d_k, d), or with a leading heads axis.
    - `bias_query`: b_Q, (d_k,) or (heads, d_k); none unless given.
    - `bias`: b of the output, (d_v,): values' biases add up to one, since weights add up to 1.
    - `scale`: of the scores; Transformers have 1/√d_k.
    - `window`: number of steps attended to, this one included; all unless given.
    """

    kind: ClassVar[str] = "softmax-attention"
    name: ClassVar[str] = "Softmax attention"

    w_value: Float[Array, "heads d_value d"] = tensor(converter=with_heads)
    w_key: Float[Array, "heads d_key d"] = tensor(converter=with_heads)
    w_query: Float[Array, "heads d_key d"] = tensor(converter=with_heads)
    bias_query: Float[Array, "heads d_key"] | None = tensor(optional=True, default=None, converter=lambda b: _rows(b))
    bias: Float[Array, " d_value"] | None = tensor(optional=True, default=None)
    scale: float = eqx.field(static=True, default=1.0)
    window: int | None = eqx.field(static=True, default=None)

    def _check(self) -> None:
        if isinstance(self.scale, bool) or not isinstance(self.scale, int | float) or not np.isfinite(self.scale):
            raise UnderhoodError("expected a finite scale", repr(self.scale))
        if self.window is not None and (not isinstance(self.window, int) or self.window < 1):
            raise UnderhoodError(
                "expected a window of 1 step or more", repr(self.window), "Leave it out for all steps."
            )

    @property
    def key_query(self) -> np.ndarray:
        """scale · W_KᵀW_Q of each head, (h, d, d), in float64: all of keys and queries that the function can show."""
        keys, queries = np.asarray(self.w_key, np.float64), np.asarray(self.w_query, np.float64)
        return self.scale * np.einsum("hka,hkb->hab", keys, queries)

    @property
    def key_offset(self) -> np.ndarray:
        """scale · W_Kᵀ b_Q of each head, (h, d): what a key adds to its score whatever is asked."""
        if self.bias_query is None:
            return np.zeros((self.heads, self.d))
        return self.scale * np.einsum("hka,hk->ha", *(np.asarray(w, np.float64) for w in (self.w_key, self.bias_query)))

    def _initial_state(self) -> Past:
        room = self.window or 0
        heads = self.heads
        keys, values = jnp.zeros((heads, room, self.d_key)), jnp.zeros((heads, room, self.d_out))
        return keys.astype(self.dtype), values.astype(self.dtype), jnp.zeros(room, self.dtype)

    def _step(self, state: Past, x: Float[Array, " d"]) -> tuple[Past, Float[Array, " d_v"]]:
        return _within(self, state if self.window else _widened(state, 1), x)

    @dispatch.unwrapped
    def step(self, state: Past, x: Any) -> tuple[Past, Any]:
        """One input (d,) → the next state and the output (d_out,); a state that grows doubles when it is full.

        **Arguments:**

        - `state`: what `initial_state()` or the step before gave.
        - `x`: the input, (d,).

        **Returns:** The next state and the output.
        """
        filled = state[2]
        if self.window or isinstance(filled, jax.core.Tracer):
            return super().step(state, x)
        with precision_of(self):
            if not len(filled) or filled[0] != 0:
                state = _widened(jax.tree.map(np.asarray, state), max(FIRST_ROOM, len(filled)))
            state, y = dispatch.call(_within, self, state, as_input(x, self.d, self.dtype))
            return state, like_input(y, x)

    def _scan(self, xs: Float[Array, "t d"], state: Past) -> tuple[Float[Array, "t d_v"], Past]:
        """The scores of some queries at a time."""
        values, keys, queries = self._signals(xs)
        before, length = len(state[2]), len(xs)
        filled = jnp.concatenate([state[2], jnp.ones(length, state[2].dtype)])
        past = (jnp.concatenate([state[0], keys], 1), jnp.concatenate([state[1], values], 1), filled)
        rows = min(ROWS, length)
        chunks = -(-length // rows)
        padded = jnp.pad(queries, ((0, 0), (0, chunks * rows - length), (0, 0)))

        def some(start: Array) -> Float[Array, "h r d_v"]:
            asked = jax.lax.dynamic_slice_in_dim(padded, start, rows, 1)
            return self._averages(asked, before + start + jnp.arange(rows), past)

        reads = jax.lax.map(some, jnp.arange(chunks) * rows)
        outputs = self._out(jnp.swapaxes(reads, 0, 1).reshape(self.heads, chunks * rows, -1)[:, :length])
        return outputs, jax.tree.map(lambda kept: _last(kept, self.window), past)

    def naive(self, xs: Any) -> Any:
        """The whole matrix of weights at once: softmax(mask + scale · Q Kᵀ) V.

        **Arguments:**

        - `xs`: a sequence, (t, d).

        **Returns:** The outputs, (t, d_v).
        """
        return self._public(_naive, xs)

    def weights(self, xs: Any) -> Any:
        """softmax_s(scale · q_t·k_s) of each head.

        **Arguments:**

        - `xs`: a sequence, (t, d).

        **Returns:** The weights, (heads, t, t), whose rows add up to 1.
        """
        return self._public(_weights, xs)

    def _signals(self, xs: Float[Array, "t d"]) -> tuple[Array, Array, Array]:
        """Values, keys and scaled queries, by head."""
        values, keys, queries = (jnp.einsum("td,hkd->htk", xs, w) for w in (self.w_value, self.w_key, self.w_query))
        if self.bias_query is not None:
            queries = queries + self.bias_query[:, None]
        return values, keys, self.scale * queries

    def _averages(self, queries: Float[Array, "h r k"], at: Array, past: Past) -> Float[Array, "h r v"]:
        """Σ_s softmax_s(q_t·k_s) v_s for queries that stand `at` these places of the past."""
        keys, values, filled = past
        return jnp.einsum("hts,hsv->htv", self._softmax(queries, keys, at, filled), values)

    def _softmax(self, queries: Array, keys: Any, at: Array, filled: Any) -> Float[Array, "h r s"]:
        place = jnp.arange(keys.shape[1])
        seen = (place[None] <= at[:, None]) & (filled[None] > 0)
        if self.window:
            seen = seen & (place[None] > at[:, None] - self.window)
        scores = jnp.where(seen[None], jnp.einsum("htk,hsk->hts", queries, keys), MASKED)
        return jax.nn.softmax(scores, axis=2)

    def _out(self, reads: Float[Array, "h t v"]) -> Float[Array, "t v"]:
        outputs = jnp.sum(reads, axis=0)
        return outputs if self.bias is None else outputs + self.bias[None]

    def propagate_contributions(self, x: Any) -> Any:
        """The weights are the scores of a memory with a key for each step."""
        weights = np.moveaxis(np.asarray(self.weights(x.value)), 0, 1)
        keys = np.broadcast_to(np.eye(len(weights), dtype=weights.dtype)[:, None], weights.shape)
        values = x.linear(np.asarray(self.w_value).reshape(-1, self.d))
        read = values.remembered(weights, keys, np.zeros(weights.shape[:2], weights.dtype))
        return read.linear(np.tile(np.eye(self.d_out, dtype=self.dtype), (1, self.heads)), self.bias)


def _rows(bias: Any) -> Any:
    """(d_k,) becomes (1, d_k)."""
    return with_heads(bias, axes=1)


def _last(kept: Array, window: int | None) -> Array:
    """What a window of steps leaves; the axis of steps is the last of one, the second of three."""
    return kept if window is None else kept[-window:] if kept.ndim == 1 else kept[:, -window:]


def _widened(state: Past, room: int) -> Past:
    """Empty places before the first step."""
    keys, values, filled = state
    wide = [(0, 0), (room, 0), (0, 0)]
    return jnp.pad(keys, wide), jnp.pad(values, wide), jnp.pad(filled, (room, 0))


def _within(model: SoftmaxAttention, state: Past, x: Float[Array, " d"]) -> tuple[Past, Float[Array, " d_v"]]:
    """A step in a state with room: everything moves up one place, and the first is lost."""
    values, keys, queries = model._signals(x[None])
    filled = jnp.concatenate([state[2][1:], jnp.ones(1, state[2].dtype)])
    state = (jnp.concatenate([state[0][:, 1:], keys], 1), jnp.concatenate([state[1][:, 1:], values], 1), filled)
    scores = jnp.where(filled[None, None] > 0, jnp.einsum("htk,hsk->hts", queries, state[0]), MASKED)
    apart = jnp.exp(scores - jnp.max(scores, axis=2, keepdims=True))
    read = jnp.einsum("hts,hsv->htv", apart, state[1]) / jnp.sum(apart, axis=2)[:, :, None]
    return state, model._out(read)[0]


def _weights(model: SoftmaxAttention, xs: Float[Array, "t d"]) -> Float[Array, "h t t"]:
    _, keys, queries = model._signals(xs)
    return model._softmax(queries, keys, jnp.arange(len(xs)), jnp.ones(len(xs), keys.dtype))


def _naive(model: SoftmaxAttention, xs: Float[Array, "t d"]) -> Float[Array, "t d_v"]:
    return model._out(jnp.einsum("hts,hsv->htv", _weights(model, xs), model._signals(xs)[0]))
