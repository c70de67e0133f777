"""Mamba-2 (SSD): S_t = e^{Δ A} S_{t-1} + Δ B_t x_tᵀ;  y_t = W_out RMSNorm((S_tᵀ C_t + D x_t) ⊙ SiLU(z_t)).

z, x, B, C and Δ are projections of the input; x, B and C pass a causal convolution and SiLU, Δ a softplus. A is a
number a head, B and C are shared by the heads of a group. The names, the order of the rows and the norm over all
channels are those of transformers' Mamba2Mixer (arXiv 2405.21060).
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
from underhood.layers.norm import Norm
from underhood.layers.projection import Projection
from underhood.layers.shares import Shares

STATE_SIZE, WIDTH = 16, 4  # of a model made by name


class Mamba2(AbstractMemoryCell):
    """Rows of `in_proj`: z, x, B, C, Δ; `conv1d` runs over x, B, C."""

    kind: ClassVar[str] = "mamba2-cell"

    in_proj: Projection = part("projection", rows="inner+channels+heads", columns="d")
    conv1d: Convolution = part("convolution", channels="channels")
    dt_bias: Float[Array, " heads"] = tensor(recurrent=True)
    A_log: Float[Array, " heads"] = tensor(recurrent=True)
    D: Float[Array, " heads"] = tensor()
    norm: Norm | None = part("norm", channels="inner", optional=True)  # Falcon-H1 may have none
    out_proj: Projection = part("projection", rows="d_out", columns="inner")
    groups: int = eqx.field(static=True, default=1)
    least_step: float = eqx.field(static=True, default=0.0)  # bounds of Δ
    most_step: float | None = eqx.field(static=True, default=None)
    norm_groups: int = eqx.field(static=True, default=1)  # channels are normalised in so many groups
    norm_first: bool = eqx.field(static=True, default=False)  # the norm stands before the gate

    def _check(self) -> None:
        inner, both = self.out_proj.columns, self.conv1d.channels - self.out_proj.columns
        if not (isinstance(self.groups, int) and self.groups >= 1) or self.heads % self.groups:
            raise UnderhoodError(f"expected groups that divide {self.heads} heads", repr(self.groups))
        if not (isinstance(self.norm_groups, int) and self.norm_groups >= 1) or inner % self.norm_groups:
            raise UnderhoodError(f"expected norm_groups that divide {inner} channels", repr(self.norm_groups))
        if inner % self.heads:
            raise UnderhoodError(f"expected columns of out_proj in {self.heads} heads of one size", inner)
        if both < 2 * self.groups or both % (2 * self.groups):
            raise UnderhoodError(
                f"expected channels of conv1d for {inner} of x and {self.groups} groups of B and C", both
            )

    @property
    def d(self) -> int:
        return self.in_proj.columns

    @property
    def d_out(self) -> int:
        return self.out_proj.rows

    @property
    def heads(self) -> int:
        return self.dt_bias.shape[0]

    @property
    def state_size(self) -> int:
        return (self.conv1d.channels - self.out_proj.columns) // (2 * self.groups)

    @classmethod
    def random(
        cls, *, d: int, heads: int, head_dim: int, state_size: int, key: Array, dtype: DType = jnp.float32
    ) -> Mamba2:
        """As transformers draws it: A from 1 to the number of heads, Δ between 0.001 and 0.1."""
        keys = jax.random.split(key, 4)
        inner, channels = heads * head_dim, heads * head_dim + 2 * state_size
        step = jnp.exp(uniform(keys[2], (heads,), dtype, jnp.log(1e-3), jnp.log(0.1)))
        return cls(
            in_proj=Projection.random(d, inner + channels + heads, key=keys[0], dtype=dtype),
            conv1d=Convolution.random(channels, WIDTH, key=keys[1], dtype=dtype),
            dt_bias=step + jnp.log(-jnp.expm1(-step)),
            A_log=jnp.log(jnp.arange(1, heads + 1, dtype=dtype)),
            D=jnp.ones(heads, dtype),
            norm=Norm(jnp.ones(inner, dtype)),
            out_proj=Projection.random(inner, d, key=keys[3], dtype=dtype),
        )

    def _initial_state(self) -> tuple[Past, Memory]:
        head_dim = self.out_proj.columns // self.heads
        return self.conv1d.initial_past(), empty_memory(self.heads, self.state_size, head_dim, self.dtype)

    def _signals(self, xs: Float[Array, "t d"], past: Past) -> tuple[Signals, Float[Array, "t inner"], Past]:
        """What goes into the memory, z, and the convolution's next past."""
        inner, channels = self.out_proj.columns, self.conv1d.channels
        z, mixed, step = jnp.split(self.in_proj(xs), (inner, inner + channels), axis=1)
        mixed, past = self.conv1d.scan(mixed, past)
        x, b, c = jnp.split(factor(jax.nn.silu, mixed), (inner, (inner + channels) // 2), axis=1)
        b, c = (jnp.repeat(by_head(one, self.groups), self.heads // self.groups, axis=1) for one in (b, c))
        step = jnp.clip(jax.nn.softplus(step + self.dt_bias[None]), self.least_step, self.most_step)
        signals = Signals(c, step[:, :, None] * b, by_head(x, self.heads), -jnp.exp(self.A_log)[None] * step)
        return signals, z, past

    def propagate_contributions(self, x: Shares) -> Shares:
        signals, opened = self._gates(x.signal)
        inner = self.out_proj.columns
        values = self.in_proj[inner : 2 * inner].shared(x).banded(self.conv1d[:inner]).activated(jax.nn.silu)
        skipped = values.scaled(np.repeat(self.D, inner // self.heads))
        read = values.remembered(*signals.gates) + skipped
        if self.norm is None:
            return self.out_proj.shared(read.scaled(opened))
        if self.norm_first:
            return self.out_proj.shared(self.norm.shared(read, self.norm_groups).scaled(opened))
        return self.out_proj.shared(self.norm.shared(read.scaled(opened), self.norm_groups))

    @eqx.filter_jit
    def _gates(self, xs: Float[Array, "t d"]) -> tuple[Signals, Float[Array, "t inner"]]:
        signals, z, _ = self._signals(xs, self.conv1d.initial_past())
        return signals, jax.nn.silu(z)

    def _scan(
        self, xs: Float[Array, "t d"], state: tuple[Past, Memory]
    ) -> tuple[Float[Array, "t d_o"], tuple[Past, Memory]]:
        signals, z, past = self._signals(xs, state[0])
        outputs, memory = memory_scan(state[1], signals.held())
        read = flat(outputs + self.D[None, :, None] * signals.v)
        if self.norm_first:
            read = gated(self._normalised(read), jax.nn.silu, z)
        else:
            read = self._normalised(gated(read, jax.nn.silu, z))
        return self.out_proj(read), (past, memory)

    def _normalised(self, y: Float[Array, "t inner"]) -> Float[Array, "t inner"]:
        return y if self.norm is None else flat(self.norm(by_head(y, self.norm_groups)))


@register_stack("mamba2", label="Mamba-2", colour="#6a51a3")
def _mamba2(inputs: int, hidden: int, key: Array, dtype: DType) -> Mamba2:
    heads = heads_of_width(2 * hidden)
    head_dim = 2 * hidden // heads
    return Mamba2.random(d=inputs, heads=heads, head_dim=head_dim, state_size=STATE_SIZE, key=key, dtype=dtype)
