"""Gated DeltaNet: S_t = e^{g} (I − β k kᵀ) S_{t-1} + β k vᵀ;  y_t = W_out (RMSNorm(S_tᵀ q/√d_k) ⊙ SiLU(z_t)).

q, k and v pass a causal convolution and SiLU; q and k then have length 1. β = σ(b), g = −e^{A_log} softplus(a + b').
The names and the order of the rows are those of transformers' Qwen3NextGatedDeltaNet (arXiv 2412.06464). At A_log = −60
there is no decay, and it is DeltaNet.
"""

from __future__ import annotations

from typing import ClassVar, Literal, get_args

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
from underhood.layers.draws import uniform
from underhood.layers.held import factor, gated
from underhood.layers.memory import (
    AbstractMemoryCell,
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

WIDTH = 4  # of the convolution, in a model made by name
GateFunction = Literal["silu", "sigmoid"]


class GatedDeltaNet(AbstractMemoryCell):
    """Rows of `in_proj_qkvz`: q, k, v, z of each head of keys in turn, of `in_proj_ba`: b, a of each.

    A head of keys serves `heads / key_heads` heads of values. `conv1d` runs over all q, all k, all v.
    """

    kind: ClassVar[str] = "gated-deltanet-cell"

    in_proj_qkvz: Projection = part("projection", rows="channels+heads*d_value", columns="d")
    in_proj_ba: Projection = part("projection", rows="2*heads", columns="d")
    conv1d: Convolution = part("convolution", channels="channels")
    dt_bias: Float[Array, " heads"] = tensor(recurrent=True)
    A_log: Float[Array, " heads"] = tensor(recurrent=True)
    norm: Norm = part("norm", channels="d_value")
    out_proj: Projection = part("projection", rows="d_out", columns="heads*d_value")
    key_heads: int = eqx.field(static=True)
    most_written: float = eqx.field(static=True, default=1.0)  # β up to here: 2 lets a step reflect (OLMo Hybrid)
    gate: GateFunction = eqx.field(static=True, default="silu")  # of z (Qwen4's may be another)

    def _check(self) -> None:
        if self.gate not in get_args(GateFunction):
            raise UnderhoodError(f"expected a gate of {', '.join(get_args(GateFunction))}", repr(self.gate))
        require_positive("most_written", self.most_written)
        if not (isinstance(self.key_heads, int) and self.key_heads >= 1) or self.heads % self.key_heads:
            raise UnderhoodError(f"expected key_heads that divide {self.heads} heads", repr(self.key_heads))
        values = self.heads * self.d_value
        keys = self.conv1d.channels - values
        if keys < 2 * self.key_heads or keys % (2 * self.key_heads):
            raise UnderhoodError(f"expected channels of conv1d for {values} values and 2 × {self.key_heads} keys", keys)

    @property
    def d(self) -> int:
        return self.in_proj_qkvz.columns

    @property
    def d_out(self) -> int:
        return self.out_proj.rows

    @property
    def heads(self) -> int:
        return self.A_log.shape[0]

    @property
    def d_value(self) -> int:
        return self.norm.weight.shape[0]

    @property
    def d_key(self) -> int:
        return (self.conv1d.channels - self.heads * self.d_value) // (2 * self.key_heads)

    @classmethod
    def random(
        cls, *, d: int, heads: int, d_key: int, d_value: int, key: Array, dtype: DType = jnp.float32
    ) -> GatedDeltaNet:
        """As transformers draws it: e^A uniform on (0, 16), dt_bias 1."""
        keys = jax.random.split(key, 5)
        rows = 2 * heads * (d_key + d_value)
        return cls(
            in_proj_qkvz=Projection.random(d, rows, key=keys[0], dtype=dtype),
            in_proj_ba=Projection.random(d, 2 * heads, key=keys[1], dtype=dtype),
            conv1d=Convolution.random(rows - heads * d_value, WIDTH, key=keys[2], bias=False, dtype=dtype),
            dt_bias=jnp.ones(heads, dtype),
            A_log=jnp.log(uniform(keys[3], (heads,), dtype, 0.01, 16.0)),
            norm=Norm(jnp.ones(d_value, dtype), eps=1e-6),
            out_proj=Projection.random(heads * d_value, d, key=keys[4], dtype=dtype),
            key_heads=heads,
        )

    def _initial_state(self) -> tuple[Past, Memory]:
        return self.conv1d.initial_past(), empty_memory(self.heads, self.d_key, self.d_value, self.dtype)

    def _in_order(self, projection: Projection, sizes: tuple[int, ...]) -> Float[Array, "rows d"]:
        """The rows of all heads of keys side by side: all q, then all k, and so on."""
        by_key = projection.weight.reshape(self.key_heads, -1, self.d)
        ends = np.cumsum(sizes)[:-1] // self.key_heads
        return jnp.concatenate([rows.reshape(-1, self.d) for rows in jnp.split(by_key, ends, axis=1)])

    def _signals(self, xs: Float[Array, "t d"], past: Past) -> tuple[Signals, Float[Array, "t n"], Past]:
        """What goes into the memory, z, and the convolution's next past."""
        repeats, values = self.heads // self.key_heads, self.heads * self.d_value
        keys = self.key_heads * self.d_key
        sizes = (keys, keys, values, values)
        # The rows are put in order, not what they give: there are fewer of them.
        mixed, z = jnp.split(xs @ self._in_order(self.in_proj_qkvz, sizes).T, (2 * keys + values,), axis=1)
        b, a = jnp.split(xs @ self._in_order(self.in_proj_ba, (self.heads, self.heads)).T, 2, axis=1)
        mixed, past = self.conv1d.scan(mixed, past)
        q, k, v = jnp.split(factor(jax.nn.silu, mixed), (keys, 2 * keys), axis=1)
        q, k = (jnp.repeat(l2_normalised(by_head(one, self.key_heads)), repeats, axis=1) for one in (q, k))
        log_decay = -jnp.exp(self.A_log)[None] * jax.nn.softplus(a + self.dt_bias[None])
        written = (self.most_written * jax.nn.sigmoid(b))[:, :, None] * k
        forgotten = -jnp.exp(log_decay)[:, :, None] * written
        signals = Signals(q * self.d_key**-0.5, written, by_head(v, self.heads), log_decay, forgotten, k)
        return signals, z, past

    def propagate_contributions(self, x: Shares) -> Shares:
        signals, opened = self._gates(x.signal)
        keys, each = 2 * self.d_key, self.heads // self.key_heads * self.d_value
        rows = np.arange(self.in_proj_qkvz.rows).reshape(self.key_heads, -1)[:, keys : keys + each].reshape(-1)
        mixed = self.in_proj_qkvz[rows].shared(x).banded(self.conv1d[self.key_heads * keys :])
        read = mixed.activated(jax.nn.silu).remembered(*signals.gates)
        return self.out_proj.shared(self.norm.shared(read, self.heads).scaled(opened))

    @eqx.filter_jit
    def _gates(self, xs: Float[Array, "t d"]) -> tuple[Signals, Float[Array, "t n"]]:
        signals, z, _ = self._signals(xs, self.conv1d.initial_past())
        return signals, self._opened(z)

    def _scan(
        self, xs: Float[Array, "t d"], state: tuple[Past, Memory]
    ) -> tuple[Float[Array, "t d_o"], tuple[Past, Memory]]:
        signals, z, past = self._signals(xs, state[0])
        outputs, memory = memory_scan(state[1], signals.held())
        return self.out_proj(gated(flat(self.norm(outputs)), self._opened, z)), (past, memory)

    def _opened(self, z: Float[Array, "t n"]) -> Float[Array, "t n"]:
        return jax.nn.silu(z) if self.gate == "silu" else jax.nn.sigmoid(z)


@register_stack("gated-deltanet", label="Gated DeltaNet", colour="#b8860b")
def _gated_deltanet(inputs: int, hidden: int, key: Array, dtype: DType) -> GatedDeltaNet:
    heads = heads_of_width(hidden)
    size = hidden // heads
    return GatedDeltaNet.random(d=inputs, heads=heads, d_key=size, d_value=size, key=key, dtype=dtype)
