"""MesaNet: H_t = γ H_{t-1} + β k kᵀ, G_t = γ G_{t-1} + β k vᵀ;  y_t = W_o RMSNorm(G_tᵀ (H_t + Λ)^{-1} q).

That is ridge regression of the values on the keys seen so far, asked at q. q and k pass a causal convolution and SiLU
and have length 1; β = σ(W_b x + b) and γ = σ(W_a x + b) are numbers a head, Λ = softplus(λ) + ¼ is a diagonal. H and G
are one memory with keys β k and values (k, v). The names are those of the layer in flash-linear-attention (arXiv
2506.05233), which comes near in 30 steps of conjugate gradients to what is solved here.
"""

from __future__ import annotations

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from underhood.architectures.stack.cell import register_stack
from underhood.core.arrays import DType
from underhood.core.errors import UnderhoodError
from underhood.core.model import part, tensor
from underhood.layers.convolution import Convolution, Past
from underhood.layers.memory import (
    AbstractMemoryCell,
    Gates,
    Memory,
    Signals,
    by_head,
    empty_memory,
    flat,
    heads_of_width,
    memory_scan,
)
from underhood.layers.norm import Norm, l2_normalised, require_positive
from underhood.layers.projection import Projection
from underhood.layers.shares import Shares

WIDTH = 4  # of the convolutions, in a model made by name

MesaState = tuple[Past, Past, Memory]


class MesaNet(AbstractMemoryCell):
    """Rows of q_proj and k_proj: (heads, d_k); of v_proj: (heads, d_v); of a_proj and b_proj: heads."""

    kind: ClassVar[str] = "mesanet-cell"

    q_proj: Projection = part("projection", rows="keys", columns="d")
    k_proj: Projection = part("projection", rows="keys", columns="d")
    v_proj: Projection = part("projection", rows="values", columns="d")
    a_proj: Projection = part("projection", rows="heads", columns="d")
    b_proj: Projection = part("projection", rows="heads", columns="d")
    q_conv1d: Convolution = part("convolution", channels="keys")
    k_conv1d: Convolution = part("convolution", channels="keys")
    lambda_params: Float[Array, " keys"] = tensor(recurrent=True)
    o_norm: Norm = part("norm", channels="values//heads")
    o_proj: Projection = part("projection", rows="d_out", columns="values")
    lambda_lower_bound: float = eqx.field(static=True, default=0.25)

    def _check(self) -> None:
        keys, values = self.q_proj.rows, self.v_proj.rows
        if keys % self.heads or values % self.heads:
            raise UnderhoodError(f"expected keys and values that {self.heads} heads divide", f"{keys} and {values}")
        require_positive("lambda_lower_bound", self.lambda_lower_bound)

    @property
    def d(self) -> int:
        return self.q_proj.columns

    @property
    def d_out(self) -> int:
        return self.o_proj.rows

    @property
    def heads(self) -> int:
        return self.a_proj.rows

    @property
    def _d_key(self) -> int:
        return self.q_proj.rows // self.heads

    @classmethod
    def random(cls, *, d: int, heads: int, d_key: int, d_value: int, key: Array, dtype: DType = jnp.float32) -> MesaNet:
        """Λ = 1 in the beginning, as its authors have it."""
        keys = jax.random.split(key, 8)
        rows = {"q_proj": heads * d_key, "k_proj": heads * d_key, "v_proj": heads * d_value}
        projections = {
            name: Projection.random(d, size, key=one, dtype=dtype)
            for (name, size), one in zip(rows.items(), keys[:3], strict=True)
        }
        zero, lower = jnp.zeros(heads, dtype), cls.lambda_lower_bound
        return cls(
            **projections,
            a_proj=Projection.random(d, heads, key=keys[3], bias=zero, dtype=dtype),
            b_proj=Projection.random(d, heads, key=keys[4], bias=zero, dtype=dtype),
            q_conv1d=Convolution.random(heads * d_key, WIDTH, key=keys[5], bias=False, dtype=dtype),
            k_conv1d=Convolution.random(heads * d_key, WIDTH, key=keys[6], bias=False, dtype=dtype),
            lambda_params=jnp.full(heads * d_key, jnp.log(jnp.expm1(1 - lower)), dtype),
            o_norm=Norm(jnp.ones(d_value, dtype)),
            o_proj=Projection.random(heads * d_value, d, key=keys[7], dtype=dtype),
        )

    def _initial_state(self) -> MesaState:
        d_value = self.v_proj.rows // self.heads
        memory = empty_memory(self.heads, self._d_key, self._d_key + d_value, self.dtype)
        return self.q_conv1d.initial_past(), self.k_conv1d.initial_past(), memory

    def _scan(self, xs: Float[Array, "t d"], state: MesaState) -> tuple[Float[Array, "t d_o"], MesaState]:
        q_past, k_past, memory = state
        signals, pasts = self._signals(xs, q_past, k_past, memory)
        outputs, memory = memory_scan(memory, signals.held())
        return self.o_proj(flat(self.o_norm(outputs[:, :, self._d_key :]))), (*pasts, memory)

    def propagate_contributions(self, x: Shares) -> Shares:
        read = self.v_proj.shared(x).remembered(*self._gates(x.signal))
        return self.o_proj.shared(self.o_norm.shared(read, self.heads))

    @eqx.filter_jit
    def _gates(self, xs: Float[Array, "t d"]) -> Gates:
        return self._signals(xs, *self._initial_state())[0].gates

    def _signals(
        self, xs: Float[Array, "t d"], past_q: Past, past_k: Past, memory: Memory
    ) -> tuple[Signals, tuple[Past, Past]]:
        """What goes into the memory, with (H + Λ)^{-1} q for a query, and the convolutions' next pasts."""
        q, past_q = self.q_conv1d.scan(self.q_proj(xs), past_q)
        k, past_k = self.k_conv1d.scan(self.k_proj(xs), past_k)
        q, k = (l2_normalised(by_head(jax.nn.silu(one), self.heads)) for one in (q, k))
        written = jax.nn.sigmoid(self.b_proj(xs))[:, :, None] * k
        values = jnp.concatenate([k, by_head(self.v_proj(xs), self.heads)], axis=2)
        log_decay = jax.nn.log_sigmoid(self.a_proj(xs))
        ridge = (jax.nn.softplus(self.lambda_params) + self.lambda_lower_bound).reshape(self.heads, -1)
        asked = _solved(memory[:, :, : k.shape[2]], written, k, log_decay, ridge, q)
        return Signals(asked, written, values, log_decay), (past_q, past_k)


def _solved(
    h: Float[Array | np.ndarray, "h k k"],
    written: Float[Array, "t h k"],
    k: Float[Array, "t h k"],
    log_decay: Float[Array, "t h"],
    ridge: Float[Array, "h k"],
    q: Float[Array, "t h k"],
) -> Float[Array, "t h k"]:
    """(H_t + Λ)^{-1} q_t of every step: the matrices one after another, then all systems at once.

    One step by itself is eliminated by hand, in operations that torch, ONNX and the page have, too.
    """
    diagonal = ridge[:, :, None] * jnp.eye(h.shape[1], dtype=h.dtype)[None]
    if len(q) == 1:
        h = jnp.exp(log_decay[0])[:, None, None] * h + written[0][:, :, None] * k[0][:, None]
        return _eliminated(h + diagonal, q[0])[None]

    def body(h: Array, now: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        written, k, decay = now
        h = decay[:, None, None] * h + written[:, :, None] * k[:, None]
        return h, h

    _, matrices = jax.lax.scan(body, jnp.asarray(h), (written, k, jnp.exp(log_decay)))
    return jnp.linalg.solve(matrices + diagonal[None], q[..., None])[..., 0]


def _eliminated(matrix: Float[Array, "h k k"], q: Float[Array, "h k"]) -> Float[Array, "h k"]:
    """Gauss and Jordan: column after column becomes that of the identity. Positive definite, so without pivots."""
    both, one = jnp.concatenate([matrix, q[:, :, None]], axis=2), jnp.eye(q.shape[1], dtype=q.dtype)
    for column in range(q.shape[1]):
        row = both[:, column : column + 1] / both[:, column : column + 1, column : column + 1]
        both = both - (both[:, :, column : column + 1] - one[None, :, column : column + 1]) * row
    return both[:, :, -1]


@register_stack("mesanet", label="MesaNet", colour="#661100")
def _mesanet(inputs: int, hidden: int, key: Array, dtype: DType) -> MesaNet:
    heads = heads_of_width(hidden)
    size = hidden // heads
    return MesaNet.random(d=inputs, heads=heads, d_key=size, d_value=size, key=key, dtype=dtype)
