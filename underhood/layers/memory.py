"""A matrix memory: S_t = A_t S_{t-1} + k_t v_tᵀ;  o_t = S_tᵀ q_t, for each head.

A_t is a number a_t, a diagonal diag(a_t), or one of them plus a matrix of rank one, l_t r_tᵀ:

    Mamba-2, mLSTM, MesaNet  a number            Gated DeltaNet  a number and −β a k kᵀ
    GLA                      a diagonal          RWKV-7          a diagonal and −(κ ⊙ a) κᵀ

Decays come as logarithms, finite and at most 0. With a number, `memory_scan` does a chunk of the sequence in a few
products of matrices: with D[t, s] = a_{s+1} ⋯ a_t, o = (D ⊙ q kᵀ) v and what the state before the chunk adds. In the
delta rule, l_t = −a_t k_t, what is written is w_t = v_t − a_t S_{t-1}ᵀ r_t instead of v_t: a triangular system,
w + (D ⊙ r kᵀ below the diagonal) w = v. Each log D[t, s] is the sum of its own terms; a difference of cumulative sums
would lose the digits that small decays need.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Inexact

from underhood.core.arrays import DType
from underhood.core.model import AbstractModel
from underhood.layers.held import gate

CHUNK = 32  # the paper's sequence length: one chunk, so the loop disappears
MOST_HEADS = 4

Memory = Inexact[Array | np.ndarray, "h k v"]  # NumPy's only where it is empty


def empty_memory(heads: int, d_key: int, d_value: int, dtype: DType) -> Memory:
    """S_0 = 0, an array of NumPy's: jax then knows its value while it traces, and the products with it are left out."""
    return np.zeros((heads, d_key, d_value), dtype)


Gates = tuple[Array, Array, Array, Array | None, Array | None]


class Signals(NamedTuple):
    """What a layer hands to its memory, for all heads and each step of a sequence."""

    q: Inexact[Array, "t h k"]
    k: Inexact[Array, "t h k"]
    v: Inexact[Array, "t h v"]
    log_decay: Inexact[Array, "t h"] | Inexact[Array, "t h k"]
    left: Inexact[Array, "t h k"] | None = None  # l of l rᵀ; where the decay is a number, −a k
    right: Inexact[Array, "t h k"] | None = None  # r

    @property
    def gates(self) -> Gates:
        """All but the values: q, k, log_decay, left and right."""
        return self.q, self.k, self.log_decay, self.left, self.right

    def held(self) -> Signals:
        """As they are; constants but for the values where a layer is held."""
        q, k, log_decay, left, right = (signal if signal is None else gate(signal) for signal in self.gates)
        return self._replace(q=q, k=k, log_decay=log_decay, left=left, right=right)


def memory_step(state: Memory, now: Signals) -> tuple[Memory, Inexact[Array, "h v"]]:
    """One step; the signals have no axis of time."""
    decay = jnp.exp(now.log_decay)
    new = (decay[:, None, None] if decay.ndim == 1 else decay[:, :, None]) * state + now.k[:, :, None] * now.v[:, None]
    if now.left is not None and now.right is not None:
        new = new + now.left[:, :, None] * jnp.einsum("hkv,hk->hv", state, now.right)[:, None]
    return new, jnp.einsum("hkv,hk->hv", new, now.q)


def memory_scan(state: Memory, signals: Signals) -> tuple[Inexact[Array, "t h v"], Memory]:
    """A sequence: in chunks where the decay is a number, step by step where it is a diagonal.

    A memory that is one wider than the values counts: its last column has values 1, and so have the outputs.
    """
    if state.shape[2] > signals.v.shape[2] and (len(signals.q) == 1 or signals.log_decay.ndim == 3):
        ones = jnp.ones((*signals.v.shape[:2], 1), signals.v.dtype)
        signals = signals._replace(v=jnp.concatenate([signals.v, ones], axis=2))
    length = len(signals.q)
    if length == 1:
        state, output = memory_step(state, jax.tree.map(lambda signal: signal[0], signals))
        return output[None], state
    if signals.log_decay.ndim == 3:
        state, outputs = jax.lax.scan(memory_step, state, signals)
        return outputs, state
    if length <= CHUNK:
        state, outputs = _chunk(state, signals)
        return outputs, state
    # Zeros at the end leave the state as it is: keys and values 0, the logarithm of decay 1.
    chunks, missing = -(-length // CHUNK), -length % CHUNK

    def cut(signal: Array) -> Array:
        padded = jnp.pad(signal, [(0, missing)] + [(0, 0)] * (signal.ndim - 1))
        return padded.reshape(chunks, CHUNK, *signal.shape[1:])

    state, outputs = jax.lax.scan(_chunk, state, jax.tree.map(cut, signals))
    return outputs.reshape(chunks * CHUNK, *outputs.shape[2:])[:length], state


def _chunk(state: Memory, signals: Signals) -> tuple[Memory, Inexact[Array, "t h v"]]:
    """The heads go first: products of their matrices then need no copies in between."""
    q, k, v = (jnp.swapaxes(one, 0, 1) for one in signals[:3])
    decay, from_start = _decays(signals.log_decay)
    transposed, empty = jnp.swapaxes(k, 1, 2), isinstance(state, np.ndarray) and not state.any()
    if signals.right is not None:
        r = jnp.swapaxes(signals.right, 0, 1)
        answers = jnp.asarray(np.tri(len(decay[0]), k=-1), decay.dtype)[None] * decay * _scores(r, k)
        v = _solved(answers, v if empty else v - from_start[:, :, None] * (r @ state))
    read, kept = decay * _scores(q, k), decay[:, -1, None] * transposed
    outputs, new = jnp.swapaxes(_product(read, v), 0, 1), kept @ v
    if state.shape[2] > v.shape[2]:
        outputs = jnp.concatenate([outputs, jnp.sum(read, axis=2).T[:, :, None]], axis=2)
        new = jnp.concatenate([new, jnp.sum(kept, axis=2, keepdims=True)], axis=2)
    if not empty:
        outputs = outputs + jnp.swapaxes(from_start[:, :, None] * (q @ state), 0, 1)
        new = new + from_start[:, -1, None, None] * state
    return new, outputs


@jax.custom_jvp
def _solved(below: Inexact[Array, "h t t"], v: Inexact[Array, "h t v"]) -> Inexact[Array, "h t v"]:
    """w + below w = v, with zeros in `below` on the diagonal and above it."""
    # From the right, (I + below)ᵀ: LAPACK's matrices go by columns, and so do these as they lie.
    system, known = (jnp.swapaxes(one, 1, 2) for one in (jnp.eye(v.shape[1], dtype=v.dtype)[None] + below, v))
    return jnp.swapaxes(jax.lax.linalg.triangular_solve(system, known, unit_diagonal=True), 1, 2)


@_solved.defjvp
def _solved_slope(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    (below, v), (to_below, to_v) = primals, tangents
    w = _solved(below, v)
    return w, _solved(below, to_v - jax.lax.optimization_barrier(to_below @ w))


# The compiler is twice as fast at A B as at Aᵀ B, so the slopes of the two products are written such that their
# gradients are of the first kind: backwards, `_turned` is a copy of what comes back.
@jax.custom_jvp
def _scores(q: Inexact[Array, "h t k"], k: Inexact[Array, "h s k"]) -> Inexact[Array, "h t s"]:
    return q @ jnp.swapaxes(k, 1, 2)


@_scores.defjvp
def _scores_slope(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    (q, k), (to_q, to_k) = primals, tangents
    from_k = _turned(jnp.einsum("hsk,htk->hst", to_k, q))
    return _scores(q, k), jnp.einsum("htk,hsk->hts", to_q, k) + from_k


@jax.custom_jvp
def _product(left: Inexact[Array, "h t s"], right: Inexact[Array, "h s v"]) -> Inexact[Array, "h t v"]:
    return left @ right


@_product.defjvp
def _product_slope(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    (left, right), (to_left, to_right) = primals, tangents
    from_right = _turned(jnp.einsum("hts,hsv->hvt", left, to_right))
    across = jax.lax.optimization_barrier(jnp.swapaxes(right, 1, 2))
    return left @ right, jnp.einsum("hts,hvs->htv", to_left, across) + from_right


def _turned(matrix: Inexact[Array, "h m n"]) -> Inexact[Array, "h n m"]:
    return jnp.swapaxes(jax.lax.optimization_barrier(matrix), 1, 2)


def _decays(log_decay: Inexact[Array, "t h"]) -> tuple[Inexact[Array, "h t t"], Inexact[Array, "h t"]]:
    """D[t, s] = exp(Σ_{s<r≤t} log a_r) for s ≤ t, else 0; and exp(Σ_{r≤t} log a_r)."""
    length, dtype = len(log_decay), log_decay.dtype
    step = np.arange(length)
    within = (step[:, None, None] > step[None, None, :]) & (step[:, None, None] <= step[None, :, None])
    sums = log_decay.T @ jnp.asarray(within.reshape(length, -1), dtype)
    later = jnp.asarray(np.where(np.tri(length, dtype=bool), 0, -np.inf).reshape(1, -1), dtype)
    decay = jnp.exp(sums + later).reshape(-1, length, length)
    return decay, jnp.exp(log_decay.T @ jnp.asarray(np.tri(length).T, dtype))


class AbstractMemoryCell(AbstractModel):
    """A layer around a matrix memory: it writes `_initial_state` and `_scan`, and a step is a scan of length 1."""

    is_marked: ClassVar[bool] = True

    def _step(self, state: Any, x: Float[Array, " d"]) -> tuple[Any, Float[Array, " d_o"]]:
        ys, state = self._scan(x[None], state)
        return state, ys[0]

    @property
    def hidden(self) -> int:
        """Numbers of the memory: h·k·v, without the last inputs that some layers keep."""
        return sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(self.initial_state)) if leaf.ndim == 3)


def by_head(signal: Float[Array, "t n"], heads: int) -> Float[Array, "t h k"]:
    return signal.reshape(len(signal), heads, -1)


def flat(signal: Float[Array, "t h v"]) -> Float[Array, "t n"]:
    return signal.reshape(len(signal), -1)


def heads_of_width(width: int) -> int:
    """How many heads a layer of this width gets by default: 4, or what divides it."""
    return int(np.gcd(width, MOST_HEADS))
