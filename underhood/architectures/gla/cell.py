"""Gated linear attention: S_t = diag(α_t) S_{t-1} + k_t v_tᵀ;  y_t = W_o (RMSNorm(S_tᵀ q_t/√d_k) ⊙ SiLU(g_t)).

α = σ(W₂ W₁ x + b)^{1/16}; q, k, v and g are projections of the input. The names are those of the layer in
flash-linear-attention (arXiv 2312.06635). With W₂ = 0 the decay is a constant of each channel, as in RetNet without its
rotation.
"""

from __future__ import annotations

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from underhood.architectures.stack.cell import register_stack
from underhood.core.arrays import DType
from underhood.core.errors import UnderhoodError
from underhood.core.model import part
from underhood.layers.held import gated
from underhood.layers.memory import AbstractMemoryCell, Memory, Signals, by_head, flat, heads_of_width, memory_scan
from underhood.layers.norm import Norm, require_positive
from underhood.layers.projection import LowRank, Projection
from underhood.layers.shares import Shares

RANK = 16  # of the gate's bottleneck, in a model made by name


class GLA(AbstractMemoryCell):
    """Rows of q_proj, k_proj and gk_proj: (heads, d_k); of v_proj and g_proj: (heads, d_v)."""

    kind: ClassVar[str] = "gla-cell"

    q_proj: Projection = part("projection", rows="keys", columns="d")
    k_proj: Projection = part("projection", rows="keys", columns="d")
    v_proj: Projection = part("projection", rows="values", columns="d")
    gk_proj: LowRank = part("low-rank", rows="keys", columns="d")
    g_proj: Projection = part("projection", rows="values", columns="d")
    g_norm: Norm = part("norm", channels="values//heads")
    o_proj: Projection = part("projection", rows="d_out", columns="values")
    heads: int = eqx.field(static=True)
    gate_logit_normalizer: float = eqx.field(static=True, default=16.0)

    def _check(self) -> None:
        keys, values = self.q_proj.rows, self.v_proj.rows
        if not (isinstance(self.heads, int) and self.heads >= 1) or keys % self.heads or values % self.heads:
            raise UnderhoodError(f"expected heads that divide {keys} keys and {values} values", repr(self.heads))
        require_positive("gate_logit_normalizer", self.gate_logit_normalizer)

    @property
    def d(self) -> int:
        return self.q_proj.columns

    @property
    def d_out(self) -> int:
        return self.o_proj.rows

    @classmethod
    def random(cls, *, d: int, heads: int, d_key: int, d_value: int, key: Array, dtype: DType = jnp.float32) -> GLA:
        """Normal weights, no bias of the gate: α = 2^{-1/16} on average."""
        keys = jax.random.split(key, 6)
        rows = {"q_proj": heads * d_key, "k_proj": heads * d_key, "v_proj": heads * d_value, "g_proj": heads * d_value}
        projections = {
            name: Projection.random(d, size, key=one, dtype=dtype)
            for (name, size), one in zip(rows.items(), keys[:4], strict=True)
        }
        zero = jnp.zeros(heads * d_key, dtype)
        return cls(
            **projections,
            gk_proj=LowRank.random(d, heads * d_key, RANK, key=keys[4], bias=zero, dtype=dtype),
            g_norm=Norm(jnp.ones(d_value, dtype)),
            o_proj=Projection.random(heads * d_value, d, key=keys[5], dtype=dtype),
            heads=heads,
        )

    def _initial_state(self) -> Memory:
        sizes = (self.heads, self.q_proj.rows // self.heads, self.v_proj.rows // self.heads)
        return jnp.zeros(sizes, self.dtype)

    def _signals(self, xs: Float[Array, "t d"]) -> Signals:
        q, k, v = (by_head(project(xs), self.heads) for project in (self.q_proj, self.k_proj, self.v_proj))
        log_decay = jax.nn.log_sigmoid(self.gk_proj(xs)) / self.gate_logit_normalizer
        return Signals(q * q.shape[2] ** -0.5, k, v, by_head(log_decay, self.heads))

    def propagate_contributions(self, x: Shares) -> Shares:
        signals, opened = self._gates(x.signal)
        read = self.v_proj.shared(x).remembered(*signals.gates)
        return self.o_proj.shared(self.g_norm.shared(read, self.heads).scaled(opened))

    @eqx.filter_jit
    def _gates(self, xs: Float[Array, "t d"]) -> tuple[Signals, Float[Array, "t n"]]:
        return self._signals(xs), jax.nn.silu(self.g_proj(xs))

    def _scan(self, xs: Float[Array, "t d"], state: Memory) -> tuple[Float[Array, "t d_o"], Memory]:
        outputs, state = memory_scan(state, self._signals(xs).held())
        return self.o_proj(gated(flat(self.g_norm(outputs)), jax.nn.silu, self.g_proj(xs))), state


@register_stack("gla", label="GLA", colour="#aa4499")
def _gla(inputs: int, hidden: int, key: Array, dtype: DType) -> GLA:
    heads = heads_of_width(hidden)
    size = hidden // heads
    return GLA.random(d=inputs, heads=heads, d_key=size, d_value=size, key=key, dtype=dtype)
