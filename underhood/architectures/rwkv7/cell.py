"""RWKV-7: S_t = (diag(w) − (κ ⊙ a) κᵀ) S_{t-1} + k vᵀ;  y_t = W_o ((GroupNorm(S_tᵀ r) + (r·(k ⊙ r_k)) v) ⊙ g).

Each of r, w, k, v, a, g reads its own mixture x + x_• ⊙ (x_{t-1} − x) of the input with the one before. log w = −e^{-½}
σ(W₂ tanh(W₁ ·) + w₀), a = σ(W₂ W₁ · + a₀), g = W₂ σ(W₁ ·); κ is k ⊙ k_k at length 1, and k ⊙ (1 + (a − 1) ⊙ k_a) is
written. The names are those of the layer in flash-linear-attention (arXiv 2503.14456); the values of a layer below have
no part in it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from underhood.architectures.stack.cell import register_stack
from underhood.core.arrays import DType
from underhood.core.errors import UnderhoodError
from underhood.core.model import part, tensor
from underhood.layers.convolution import Convolution
from underhood.layers.held import gate, gated
from underhood.layers.memory import AbstractMemoryCell, Memory, Signals, by_head, flat, heads_of_width, memory_scan
from underhood.layers.norm import Norm, unit
from underhood.layers.projection import LowRank, Projection
from underhood.layers.shares import Shares

FASTEST = -float(np.exp(-0.5))  # log w where σ is 1: no channel forgets more than 45 % a step
POWERS = (0.2, 0.9, 0.7, 0.7, 0.9, 0.2)  # of the mixtures over the channels, in the order r, w, k, v, a, g
RANK = 8  # of the bottlenecks, in a model made by name

RWKV7State = tuple[Float[Array, " d"], Memory]  # the input before, S


class RWKV7(AbstractMemoryCell):
    """Rows of r_proj, k_proj, w_lora and a_lora: (heads, d_k); of v_proj and g_lora: (heads, d_v)."""

    kind: ClassVar[str] = "rwkv7-cell"

    x_r: Float[Array, " d"] = tensor()
    x_w: Float[Array, " d"] = tensor()
    x_k: Float[Array, " d"] = tensor()
    x_v: Float[Array, " d"] = tensor()
    x_a: Float[Array, " d"] = tensor()
    x_g: Float[Array, " d"] = tensor()
    r_proj: Projection = part("projection", rows="heads*d_key", columns="d")
    k_proj: Projection = part("projection", rows="heads*d_key", columns="d")
    v_proj: Projection = part("projection", rows="values", columns="d")
    w_lora: LowRank = part("low-rank", rows="heads*d_key", columns="d")
    a_lora: LowRank = part("low-rank", rows="heads*d_key", columns="d")
    g_lora: LowRank = part("low-rank", rows="values", columns="d")
    k_k: Float[Array, " heads*d_key"] = tensor()
    k_a: Float[Array, " heads*d_key"] = tensor()
    r_k: Float[Array, "heads d_key"] = tensor()
    g_norm: Norm = part("norm", channels="values")
    o_proj: Projection = part("projection", rows="d_out", columns="values")

    def _check(self) -> None:
        if self.v_proj.rows % self.heads:
            raise UnderhoodError(f"expected values that {self.heads} heads divide", self.v_proj.rows)

    @property
    def d(self) -> int:
        return self.r_proj.columns

    @property
    def d_out(self) -> int:
        return self.o_proj.rows

    @property
    def heads(self) -> int:
        return self.r_k.shape[0]

    @classmethod
    def random(cls, *, d: int, heads: int, head_dim: int, key: Array, dtype: DType = jnp.float32) -> RWKV7:
        """Near what its authors begin with: mixtures and decays spread over the channels, k_a = 1.02, r_k = −0.04."""
        keys = jax.random.split(key, 7)
        size = heads * head_dim
        along, spread = jnp.arange(d, dtype=dtype) / d, jnp.linspace(0, 1, size, dtype=dtype)
        mixtures = {f"x_{name}": 1 - along**power for name, power in zip("rwkvag", POWERS, strict=True)}
        projections = {
            f"{name}_proj": Projection.random(d, size, key=one, dtype=dtype)
            for name, one in zip("rkv", keys[:3], strict=True)
        }
        return cls(
            **mixtures,
            **projections,
            w_lora=LowRank.random(d, size, RANK, key=keys[3], bias=6 * spread - 5.5, activation="tanh", dtype=dtype),
            a_lora=LowRank.random(d, size, RANK, key=keys[4], bias=0.4 * spread - 0.39, dtype=dtype),
            g_lora=LowRank.random(d, size, RANK, key=keys[5], activation="sigmoid", dtype=dtype),
            k_k=0.76 - 0.1 * spread,
            k_a=jnp.full(size, 1.02, dtype),
            r_k=jnp.full((heads, head_dim), -0.04, dtype),
            g_norm=Norm(jnp.ones(size, dtype), jnp.zeros(size, dtype), eps=1e-5 * head_dim, centred=True),
            o_proj=Projection.random(size, d, key=keys[6], dtype=dtype),
        )

    def _initial_state(self) -> RWKV7State:
        sizes = (self.heads, self.r_k.shape[1], self.v_proj.rows // self.heads)
        return jnp.zeros(self.d, self.dtype), jnp.zeros(sizes, self.dtype)

    def _scan(self, xs: Float[Array, "t d"], state: RWKV7State) -> tuple[Float[Array, "t d_o"], RWKV7State]:
        past, memory = state
        mixed = _mixtures(xs, past)
        signals = self._signals(mixed)
        outputs, memory = memory_scan(memory, signals.held())
        now = gate(self._bonus(signals)) * signals.v
        opened = gated(flat(self.g_norm(outputs) + now), _identity, self.g_lora(mixed(self.x_g)))
        return self.o_proj(opened), (xs[-1], memory)

    def propagate_contributions(self, x: Shares) -> Shares:
        signals, bonus, opened = self._gates(x.signal)
        share = np.asarray(self.x_v)
        values = self.v_proj.shared(x.banded(Convolution(np.stack([share, 1 - share], axis=1))))
        read = self.g_norm.shared(values.remembered(*signals.gates), self.heads)
        return self.o_proj.shared((read + values.scaled(bonus)).scaled(opened))

    @eqx.filter_jit
    def _gates(self, xs: Float[Array, "t d"]) -> tuple[Signals, Float[Array, "t n"], Float[Array, "t n"]]:
        """What goes into the memory, what multiplies a value at once, and g."""
        mixed = _mixtures(xs, self._initial_state()[0])
        signals = self._signals(mixed)
        bonus = jnp.repeat(self._bonus(signals)[:, :, 0], signals.v.shape[2], axis=1)
        return signals, bonus, self.g_lora(mixed(self.x_g))

    def _bonus(self, signals: Signals) -> Float[Array, "t h 1"]:
        """r·(k ⊙ r_k)."""
        return jnp.sum(signals.q * signals.k * self.r_k[None], axis=2, keepdims=True)

    def _signals(self, mixed: Any) -> Signals:
        r, k, v = self.r_proj(mixed(self.x_r)), self.k_proj(mixed(self.x_k)), self.v_proj(mixed(self.x_v))
        log_decay = FASTEST * jax.nn.sigmoid(self.w_lora(mixed(self.x_w)))
        a = jax.nn.sigmoid(self.a_lora(mixed(self.x_a)))
        removed = unit(by_head(k * self.k_k[None], self.heads))
        written = k * (1 + (a - 1) * self.k_a[None])
        r, written, v, log_decay, a = (by_head(one, self.heads) for one in (r, written, v, log_decay, a))
        return Signals(r, written, v, log_decay, -removed * a, removed)


def _identity(x: Array) -> Array:
    return x


def _mixtures(xs: Float[Array, "t d"], past: Float[Array, " d"]) -> Callable[[Array], Float[Array, "t d"]]:
    """A share of each channel to what the input is with that share of the one before in it."""
    change = jnp.concatenate([past[None], xs[:-1]]) - xs
    return lambda share: xs + share[None] * change


@register_stack("rwkv7", label="RWKV-7", colour="#cc6677")
def _rwkv7(inputs: int, hidden: int, key: Array, dtype: DType) -> RWKV7:
    heads = heads_of_width(hidden)
    return RWKV7.random(d=inputs, heads=heads, head_dim=hidden // heads, key=key, dtype=dtype)
