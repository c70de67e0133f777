"""Mamba (S6): h_t = e^{Δ_t A} ⊙ h_{t-1} + (Δ_t u_t) B_tᵀ;  y_t = W_out [(h_t C_t + D u_t) ⊙ SiLU(z_t)].

    (u', z) = W_in x;   u = SiLU(conv(u'));   (δ, B, C) = W_x u;   Δ = softplus(W_δ δ + b_δ);   A = −exp(A_log)

Gu and Dao, "Mamba: Linear-Time Sequence Modeling with Selective State Spaces" (2023), as `MambaMixer` of transformers
computes it; δ, B and C may pass an RMS norm each, as in Jamba and FalconMamba. The state is (N, channels), and the last
inputs of the convolution.
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
from underhood.core.model import AbstractModel, part, tensor
from underhood.layers.convolution import Convolution
from underhood.layers.draws import uniform
from underhood.layers.held import constant, factor, gate, gated
from underhood.layers.linear import Matrix, apply, dense, lecun_normal
from underhood.layers.norm import Norm
from underhood.layers.shares import Shares

TOGETHER = 4  # steps between the states that are kept for the gradient
MambaState = tuple[Float[Array, "past c"], Float[Array, "n c"]]


class Mamba(AbstractModel):
    """A selective state space of N numbers for each of c channels, between two projections."""

    kind: ClassVar[str] = "mamba-cell"
    state_names: ClassVar[tuple[str, ...]] = ("past", "h")
    is_marked: ClassVar[bool] = True

    in_proj: Matrix = tensor("2*channels d", sparse=True)
    conv1d: Convolution = part("convolution", channels="channels")
    x_proj: Matrix = tensor("rank+2*state channels", sparse=True)
    dt_proj: Matrix = tensor("channels rank", sparse=True)
    dt_bias: Float[Array, " channels"] = tensor(recurrent=True)
    a_log: Float[Array, "channels state"] = tensor(recurrent=True)
    skip: Float[Array, " channels"] = tensor()  # D
    out_proj: Matrix = tensor("d_out channels", sparse=True)
    in_bias: Float[Array, " 2*channels"] | None = tensor(optional=True, default=None)
    out_bias: Float[Array, " d_out"] | None = tensor(optional=True, default=None)
    dt_norm: Norm | None = part("norm", channels="rank", optional=True, default=None)  # Jamba's and FalconMamba's
    b_norm: Norm | None = part("norm", channels="state", optional=True, default=None)
    c_norm: Norm | None = part("norm", channels="state", optional=True, default=None)

    @property
    def d(self) -> int:
        return self.in_proj.shape[1]

    @property
    def d_out(self) -> int:
        return self.out_proj.shape[0]

    @property
    def hidden(self) -> int:
        """Numbers of the recurrent state."""
        return self.a_log.size

    @classmethod
    def random(
        cls,
        *,
        d: int,
        channels: int,
        d_out: int,
        state: int = 16,
        width: int = 4,
        key: Array,
        dtype: DType = jnp.float32,
    ) -> Mamba:
        """The paper's: A = −1 … −N, D = 1, Δ from 0.001 to 0.1 at rest; projections of unit gain."""
        keys = jax.random.split(key, 6)
        rank = -(-d // 16)
        low, high = jnp.log(jnp.asarray(0.001, dtype)), jnp.log(jnp.asarray(0.1, dtype))
        resting = jnp.exp(uniform(keys[4], (channels,), dtype, low, high))
        return cls(
            in_proj=lecun_normal(keys[0], (2 * channels, d), dtype),
            conv1d=Convolution.random(channels, width, key=keys[1], dtype=dtype),
            x_proj=lecun_normal(keys[2], (rank + 2 * state, channels), dtype),
            dt_proj=uniform(keys[3], (channels, rank), dtype, -(rank**-0.5), rank**-0.5),
            dt_bias=resting + jnp.log(-jnp.expm1(-resting)),  # softplus of it is `resting`
            a_log=jnp.broadcast_to(jnp.log(jnp.arange(1, state + 1, dtype=dtype))[None], (channels, state)),
            skip=jnp.ones(channels, dtype),
            out_proj=lecun_normal(keys[5], (d_out, channels), dtype),
        )

    def _initial_state(self) -> MambaState:
        return self.conv1d.initial_past(), jnp.zeros(self.a_log.shape[::-1], self.dtype)

    def _projected(self, x: Float[Array, "*t d"]) -> tuple[Float[Array, "*t c"], Float[Array, "*t c"]]:
        """What the convolution reads, and z."""
        both = apply(self.in_proj, x)
        if self.in_bias is not None:
            both = both + constant(jax.lax.expand_dims(self.in_bias, range(x.ndim - 1)))
        channels = len(self.skip)
        return both[..., :channels], both[..., channels:]

    def _selected(
        self, u: Float[Array, "*t c"]
    ) -> tuple[Float[Array, "*t c"], Float[Array, "*t c"], Float[Array, "*t n"], Float[Array, "*t n"]]:
        """Δ, Δ u, B and C."""
        rank, state = self.dt_proj.shape[1], self.a_log.shape[1]
        projected = jnp.split(apply(self.x_proj, u), [rank, rank + state], axis=-1)
        norms = self.dt_norm, self.b_norm, self.c_norm
        low_rank, b, c = (x if norm is None else norm.of_last(x) for norm, x in zip(norms, projected, strict=True))
        step = jax.nn.softplus(apply(self.dt_proj, low_rank) + jax.lax.expand_dims(self.dt_bias, range(u.ndim - 1)))
        return gate(step), gate(step) * u, gate(b), gate(c)

    def _output(self, read: Float[Array, "*t c"], u: Array, z: Float[Array, "*t c"]) -> Float[Array, "*t d_o"]:
        y = gated(read + jax.lax.expand_dims(self.skip, range(u.ndim - 1)) * u, jax.nn.silu, z)
        y = apply(self.out_proj, y)
        return y if self.out_bias is None else y + constant(jax.lax.expand_dims(self.out_bias, range(u.ndim - 1)))

    def _step(self, state: MambaState, x: Float[Array, " d"]) -> tuple[MambaState, Float[Array, " d_o"]]:
        past, h = state
        before, z = self._projected(x)
        past, u = self.conv1d.step(past, before)
        u = jax.nn.silu(u)
        h, read = _remember(-jnp.exp(self.a_log.T), h, self._selected(u))
        return (past, h), self._output(read, u, z)

    def propagate_contributions(self, x: Shares) -> Shares:
        channels, bias = len(self.skip), None if self.in_bias is None else np.asarray(self.in_bias)[: len(self.skip)]
        u = x.linear(dense(self.in_proj)[:channels], bias).banded(self.conv1d).activated(jax.nn.silu)
        *gates, opened = self._gates(x.signal, u.signal)
        return (u.remembered(*gates) + u.scaled(self.skip)).scaled(opened).linear(self.out_proj, self.out_bias)

    @eqx.filter_jit
    def _gates(self, xs: Float[Array, "t d"], u: Float[Array, "t c"]) -> tuple[Array, Array, Array, Array]:
        """Queries C, keys Δ B and log decays Δ A of a memory for each channel, and SiLU(z)."""
        step, _, b, c = self._selected(u)
        keys = step[:, :, None] * b[:, None]
        log_decay = -step[:, :, None] * jnp.exp(self.a_log)[None]
        return jnp.broadcast_to(c[:, None], keys.shape), keys, log_decay, jax.nn.silu(self._projected(xs)[1])

    def _scan(self, xs: Float[Array, "t d"], state: MambaState) -> tuple[Float[Array, "t d_o"], MambaState]:
        past, h = state
        before, z = self._projected(xs)
        u, past = self.conv1d.scan(before, past)
        u = factor(jax.nn.silu, u)
        h, read = _remember_all(-jnp.exp(self.a_log.T), h, self._selected(u))
        return self._output(read, u, z), (past, h)


def _remember(
    rates: Float[Array, "n c"], h: Float[Array, "n c"], selected: tuple[Array, Array, Array, Array]
) -> tuple[Float[Array, "n c"], Float[Array, " c"]]:
    """One step of the recurrence, channels last: that is how processors take them fastest."""
    step, driven, b, c = selected
    h = jnp.exp(step[None] * rates) * h + b[:, None] * driven[None]
    return h, c @ h


def _remember_all(
    rates: Float[Array, "n c"], h: Float[Array, "n c"], selected: tuple[Array, Array, Array, Array]
) -> tuple[Float[Array, "n c"], Float[Array, "t c"]]:
    """A sequence. Of n·c numbers a step only every fourth h is kept for the gradient, and the rest is computed again.

    With all of it in memory, a training step takes three times as long. With every h it needs more than the 32 MB
    that the allocator hands out again: new pages would be two thirds on top.
    """
    length = len(selected[0])

    def body(h: Array, some: tuple[Array, Array, Array, Array]) -> tuple[Array, Array]:
        reads = []
        for index in range(TOGETHER):
            h, read = _remember(rates, h, jax.tree.map(lambda one, index=index: one[index], some))
            reads.append(read)
        return h, jnp.stack(reads)

    def cut(one: Array) -> Array:  # zeros at the end leave h as it is: a step of 0
        padded = jnp.pad(one, ((0, -length % TOGETHER), (0, 0)))
        return padded.reshape(-1, TOGETHER, one.shape[1])

    h, reads = jax.lax.scan(jax.checkpoint(body, prevent_cse=False), h, jax.tree.map(cut, selected))
    return h, reads.reshape(-1, reads.shape[2])[:length]


@register_stack("mamba", label="Mamba", colour="#332288")
def _mamba(inputs: int, hidden: int, key: Array, dtype: DType) -> Mamba:
    return Mamba.random(d=inputs, channels=2 * hidden, d_out=hidden, key=key, dtype=dtype)
