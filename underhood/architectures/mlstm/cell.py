"""mLSTM: C_t = f C_{t-1} + i k vᵀ, n_t = f n_{t-1} + i k;  h_t = C_tᵀ q / (max(|n_t·q|, 1) + ε e^{m_t}).

x and z are projections of the input; q and k are made from u = SiLU(conv(x)), v from x, and the gates i = e^ĩ and
f = σ(f̃), one of each a head, from (q, k, v). y = W_down ((LayerNorm(h) + skip ⊙ u) ⊙ SiLU(z)). The names are those of
xlstm's mLSTMLayer (arXiv 2405.04517). n is one more column of values that are all 1. So that e^ĩ cannot overflow, C and
n are kept times e^{-m}, m_t = max(m_{t-1} + log f, ĩ); but for ε = 1e-6 that changes nothing.
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
from underhood.core.model import part, tensor
from underhood.layers.convolution import Convolution, Past
from underhood.layers.draws import normal
from underhood.layers.held import factor, gate, gated
from underhood.layers.linear import lecun_normal
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
from underhood.layers.projection import Headwise, Projection, biased
from underhood.layers.shares import Shares

EPS = 1e-6
WIDTH = 4  # of the convolution, in a model made by name

MLSTMState = tuple[Past, Memory, Float[Array, " h"]]  # past, (C, n), m


class MLSTM(AbstractMemoryCell):
    """Rows of `proj_up`: x, z. The gates read q, k and v, in this order."""

    kind: ClassVar[str] = "mlstm-cell"

    proj_up: Projection = part("projection", rows="2*inner", columns="d")
    conv1d: Convolution = part("convolution", channels="inner")
    q_proj: Headwise = part("headwise", rows="inner", columns="inner")
    k_proj: Headwise = part("headwise", rows="inner", columns="inner")
    v_proj: Headwise = part("headwise", rows="inner", columns="inner")
    igate: Projection = part("projection", rows="heads", columns="3*inner")
    fgate: Projection = part("projection", rows="heads", columns="3*inner")
    outnorm: Norm = part("norm", channels="inner")
    learnable_skip: Float[Array, " inner"] = tensor()
    proj_down: Projection = part("projection", rows="d_out", columns="inner")

    def _check(self) -> None:
        (inner,) = self.learnable_skip.shape
        if inner % self.heads:
            raise UnderhoodError(f"expected an inner size that {self.heads} heads divide", inner)

    @property
    def d(self) -> int:
        return self.proj_up.columns

    @property
    def d_out(self) -> int:
        return self.proj_down.rows

    @property
    def heads(self) -> int:
        return self.igate.rows

    @classmethod
    def random(cls, *, d: int, heads: int, head_dim: int, blocks: int, key: Array, dtype: DType = jnp.float32) -> MLSTM:
        """As xlstm draws it: gates that read nothing yet, f̃ from 3 to 6 over the heads."""
        keys = jax.random.split(key, 7)
        inner = heads * head_dim
        blockwise = (
            Headwise(lecun_normal(one, (blocks, inner // blocks, inner // blocks), dtype)) for one in keys[2:5]
        )
        q_proj, k_proj, v_proj = blockwise
        no_weights = jnp.zeros((heads, 3 * inner), dtype)
        return cls(
            proj_up=Projection.random(d, 2 * inner, key=keys[0], dtype=dtype),
            conv1d=Convolution.random(inner, WIDTH, key=keys[1], dtype=dtype),
            q_proj=q_proj,
            k_proj=k_proj,
            v_proj=v_proj,
            igate=Projection(no_weights, 0.1 * normal(keys[5], (heads,), dtype)),
            fgate=Projection(no_weights, jnp.linspace(3, 6, heads, dtype=dtype)),
            outnorm=Norm(jnp.ones(inner, dtype), centred=True),
            learnable_skip=jnp.ones(inner, dtype),
            proj_down=Projection.random(inner, d, key=keys[6], dtype=dtype),
        )

    def _initial_state(self) -> MLSTMState:
        head_dim = self.learnable_skip.shape[0] // self.heads
        memory = empty_memory(self.heads, head_dim, head_dim + 1, self.dtype)
        return self.conv1d.initial_past(), memory, jnp.zeros(self.heads, self.dtype)

    def _scan(self, xs: Float[Array, "t d"], state: MLSTMState) -> tuple[Float[Array, "t d_o"], MLSTMState]:
        past, memory, largest = state
        u, z, signals, scales, past = self._entering(xs, past, largest)
        outputs, memory = memory_scan(memory, signals.held())
        h, n = jnp.split(outputs, (outputs.shape[2] - 1,), axis=2)
        h = h / gate(_normaliser(n, scales))
        opened = gated(flat(self.outnorm(h)) + self.learnable_skip[None] * u, jax.nn.silu, z)
        return self.proj_down(opened), (past, memory, scales[-1])

    def propagate_contributions(self, x: Shares) -> Shares:
        signals, opened, inverse = self._gates(x.signal)
        raised = self.proj_up[: len(self.learnable_skip)].shared(x)
        h = self.outnorm.shared(self.v_proj.shared(raised).remembered(*signals.gates).scaled(inverse), self.heads)
        skipped = raised.banded(self.conv1d).activated(jax.nn.silu).scaled(self.learnable_skip)
        return self.proj_down.shared((h + skipped).scaled(opened))

    @eqx.filter_jit
    def _gates(self, xs: Float[Array, "t d"]) -> tuple[Signals, Float[Array, "t inner"], Float[Array, "t inner"]]:
        """What goes into the memory, SiLU(z), and what divides the outputs."""
        past, memory, largest = self._initial_state()
        _, z, signals, scales, _ = self._entering(xs, past, largest)
        inverse = 1 / _normaliser(memory_scan(memory, signals)[0][:, :, -1:], scales)
        return signals, jax.nn.silu(z), jnp.repeat(inverse[:, :, 0], signals.q.shape[2], axis=1)

    def _entering(
        self, xs: Float[Array, "t d"], past: Past, largest: Float[Array, " h"]
    ) -> tuple[Float[Array, "t inner"], Float[Array, "t inner"], Signals, Float[Array, "t h"], Past]:
        """u, z, what goes into the memory with its m, and the convolution's next past."""
        x, z = jnp.split(self.proj_up(xs), 2, axis=1)
        u, past = self.conv1d.scan(x, past)
        u = factor(jax.nn.silu, u)
        return u, z, *self._signals(u, x, largest), past

    def _open(self, u: Float[Array, "t inner"], x: Float[Array, "t inner"]) -> tuple[Array, Array]:
        """ĩ and f̃. q, k and v are linear in u and x, so the gates' weights go to these: a tenth of the products."""
        weight = jnp.concatenate([self.igate.weight, self.fgate.weight])
        to_q, to_k, to_v = jnp.split(weight, 3, axis=1)
        read = u @ (self.q_proj.before(to_q) + self.k_proj.before(to_k)).T + x @ self.v_proj.before(to_v).T
        for projection, rows in ((self.q_proj, to_q), (self.k_proj, to_k), (self.v_proj, to_v)):
            read = read if projection.bias is None else read + (rows @ projection.bias)[None]
        for_i, for_f = jnp.split(read, 2, axis=1)
        return biased(for_i, self.igate.bias), biased(for_f, self.fgate.bias)

    def _signals(
        self, u: Float[Array, "t inner"], x: Float[Array, "t inner"], largest: Float[Array, " h"]
    ) -> tuple[Signals, Float[Array, "t h"]]:
        """The memory's signals times e^{-m}, and m."""
        q, k, v = (by_head(one, self.heads) for one in (self.q_proj(u), self.k_proj(u), self.v_proj(x)))
        log_input, forget = self._open(u, x)
        log_forget = jax.nn.log_sigmoid(forget)
        scales = _largest(log_forget, log_input, largest)
        before = jnp.concatenate([largest[None], scales[:-1]])
        opened = jnp.exp(log_input - scales) * k.shape[2] ** -0.5
        return Signals(q, opened[:, :, None] * k, v, log_forget + before - scales), scales


def _largest(log_forget: Float[Array, "t h"], log_input: Float[Array, "t h"], m: Float[Array, " h"]) -> Array:
    """m_1 … m_t from m_0. A loop: an associative scan is a hundred small operations, five times slower here."""

    def later(m: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        m = jnp.maximum(m + now[0], now[1])
        return m, m

    if len(log_input) == 1:  # a step by itself is no loop: torch, ONNX and the page run it as it is
        return later(m, (log_forget[0], log_input[0]))[1][None]
    return jax.lax.scan(later, m, (log_forget, log_input))[1]


def _normaliser(n: Float[Array, "t h 1"], scales: Float[Array, "t h"]) -> Float[Array, "t h 1"]:
    """max(|n·q|, 1) + ε, times e^{-m}."""
    return jnp.maximum(jnp.abs(n), jnp.exp(-scales)[:, :, None]) + EPS


@register_stack("mlstm", label="mLSTM", colour="#44aa99")
def _mlstm(inputs: int, hidden: int, key: Array, dtype: DType) -> MLSTM:
    heads = heads_of_width(2 * hidden)
    head_dim = 2 * hidden // heads
    return MLSTM.random(d=inputs, heads=heads, head_dim=head_dim, blocks=heads, key=key, dtype=dtype)
