"""Griffin's recurrent block: y_t = W_o [GELU(W_y x_t + b_y) ⊙ h_t] + b_o around the RG-LRU,

    h_t = a_t ⊙ h_{t-1} + √(1 − a_t²) ⊙ i_t ⊙ u_t;   log a_t = −8 softplus(Λ) ⊙ r_t;   u = conv(W_x x + b_x)

with the gates i, r = σ(W u + b), W block-diagonal. The first input is multiplied by 1 instead of √(1 − a²): the state
remembers whether there was one. De et al., "Griffin: Mixing Gated Linear Recurrences with Local Attention" (2024), as
`RecurrentGemmaRecurrentBlock` of transformers computes it.
"""

from __future__ import annotations

from typing import ClassVar, Literal, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from underhood.architectures.stack.cell import register_stack
from underhood.core.arrays import DType
from underhood.core.errors import UnderhoodError
from underhood.core.model import AbstractModel, Part, part, tensor
from underhood.layers.convolution import Convolution
from underhood.layers.draws import uniform
from underhood.layers.held import constant, gate, gated
from underhood.layers.linear import Linear, lecun_normal
from underhood.layers.selective import selective_scan
from underhood.layers.shares import Shares

DECAY = 8.0  # the paper's c
WIDE = 128  # columns of a product, up to which blocks are merged
STEEPEST = 1000.0  # slope of the square root, which has none at a = 1, where training would divide by zero

Activation = Literal["gelu_pytorch_tanh", "gelu"]
# The convolution's past, h, and 1 after the first input.
GriffinState = tuple[Float[Array, "past n"], Float[Array, " n"], Float[Array, ""]]


class BlockGate(Part):
    """σ(W u + b) with a block-diagonal W; each block is written as it is multiplied from the right, u W."""

    kind: ClassVar[str] = "block-gate"

    weight: Float[Array, "blocks width width"] = tensor()
    bias: Float[Array, "blocks width"] = tensor()

    @classmethod
    def random(cls, blocks: int, width: int, *, key: Array, dtype: DType) -> BlockGate:
        return cls(lecun_normal(key, (blocks, width, width), dtype), jnp.zeros((blocks, width), dtype))


def block_gates(u: Float[Array, "t n"], *gates: BlockGate) -> list[Float[Array, "t n"]]:
    """The values of several gates with the same blocks, out of one product."""
    weight = jnp.concatenate([merged_blocks(gate.weight).swapaxes(1, 2) for gate in gates], axis=1)  # as W u
    bias = jnp.concatenate([gate.bias.reshape(len(weight), -1) for gate in gates], axis=1)
    if len(weight) == 1:
        return jnp.split(jax.nn.sigmoid(u @ weight[0].T + bias), len(gates), axis=1)
    blocks = u.reshape(len(u), len(weight), -1).swapaxes(0, 1)
    values = jax.nn.sigmoid(blocks @ weight.swapaxes(1, 2) + bias[:, None])  # (blocks, t, gates × width)
    return [value.swapaxes(0, 1).reshape(u.shape) for value in jnp.split(values, len(gates), axis=2)]


def merged_blocks(weight: Float[Array, "blocks w w"]) -> Float[Array, "merged x x"]:
    """Neighbouring blocks as larger ones with zeros between them: narrow products take longer than the zeros do."""
    blocks, width, _ = weight.shape
    together = max(many for many in range(1, blocks + 1) if blocks % many == 0 and many * width <= max(WIDE, width))
    side_by_side = weight.reshape(-1, together, width, width)
    apart = jnp.einsum("mbij,bc->mbicj", side_by_side, jnp.eye(together, dtype=weight.dtype))
    return apart.reshape(-1, together * width, together * width)


class Griffin(AbstractModel):
    """The recurrent block with n channels, in blocks of equal width."""

    kind: ClassVar[str] = "griffin-cell"
    is_marked: ClassVar[bool] = True

    linear_x: Linear = part("linear", rows="channels", columns="d")
    linear_y: Linear = part("linear", rows="channels", columns="d")
    conv_1d: Convolution = part("convolution", channels="channels")
    input_gate: BlockGate = part("block-gate", blocks="blocks", width="width")
    recurrent_gate: BlockGate = part("block-gate", blocks="blocks", width="width")
    recurrent_param: Float[Array, " channels"] = tensor(recurrent=True)  # Λ
    linear_out: Linear = part("linear", rows="d_out", columns="channels")
    activation: Activation = eqx.field(static=True, default="gelu_pytorch_tanh")

    def _check(self) -> None:
        if self.activation not in get_args(Activation):
            raise UnderhoodError(f"expected an activation of {', '.join(get_args(Activation))}", repr(self.activation))
        (channels,), (blocks, width) = self.recurrent_param.shape, self.input_gate.bias.shape
        if blocks * width != channels:
            raise UnderhoodError(f"expected blocks of {channels} channels together", f"{blocks} of {width}")

    @property
    def d(self) -> int:
        return self.linear_x.weight.shape[1]

    @property
    def d_out(self) -> int:
        return self.linear_out.weight.shape[0]

    @property
    def hidden(self) -> int:
        return self.recurrent_param.shape[0]

    @classmethod
    def random(
        cls,
        *,
        d: int,
        channels: int,
        d_out: int,
        blocks: int = 1,
        width: int = 4,
        key: Array,
        dtype: DType = jnp.float32,
    ) -> Griffin:
        """|a|² uniform from 0.81 to 0.998 where r = 1/8, as the public module has it; all else of unit gain."""
        keys = jax.random.split(key, 7)
        squared = uniform(keys[5], (channels,), dtype, 0.9**2, 0.999**2)
        half = jnp.asarray(0.5, dtype)
        return cls(
            linear_x=Linear.random(d, channels, key=keys[0], dtype=dtype),
            linear_y=Linear.random(d, channels, key=keys[1], dtype=dtype),
            conv_1d=Convolution.random(channels, width, key=keys[2], dtype=dtype),
            input_gate=BlockGate.random(blocks, channels // blocks, key=keys[3], dtype=dtype),
            recurrent_gate=BlockGate.random(blocks, channels // blocks, key=keys[4], dtype=dtype),
            recurrent_param=jnp.log(jnp.expm1(-half * jnp.log(squared))),
            linear_out=Linear.random(channels, d_out, key=keys[6], dtype=dtype),
        )

    def _initial_state(self) -> GriffinState:
        return self.conv_1d.initial_past(), jnp.zeros(self.hidden, self.dtype), jnp.zeros((), self.dtype)

    def _projected(self, x: Float[Array, "t d"]) -> tuple[Float[Array, "t n"], Float[Array, "t n"]]:
        """What the convolution reads, and the branch before its GELU; one product for both."""
        weight, bias = (jnp.concatenate(pair) for pair in zip(*map(_pair, (self.linear_x, self.linear_y)), strict=True))
        before, branch = jnp.split(x @ weight.T + constant(bias[None]), 2, axis=1)
        return before, branch

    def _activated(self, branch: Float[Array, "*t n"]) -> Float[Array, "*t n"]:
        return jax.nn.gelu(branch, approximate=self.activation != "gelu")

    def _gated(self, u: Float[Array, "t n"]) -> tuple[Float[Array, "t n"], Float[Array, "t n"], Array]:
        """a, i ⊙ u, and √(1 − a²), which does not cancel where a is near 1."""
        opened, rate = block_gates(u, self.input_gate, self.recurrent_gate)
        log_a = self._log_a(rate)
        return gate(jnp.exp(log_a)), gate(opened) * u, gate(_root(-jnp.expm1(2 * log_a)))

    def _log_a(self, rate: Float[Array, "t n"]) -> Float[Array, "t n"]:
        return -DECAY * jax.nn.softplus(self.recurrent_param)[None] * rate

    def _step(self, state: GriffinState, x: Float[Array, " d"]) -> tuple[GriffinState, Float[Array, " d_o"]]:
        past, h, seen = state
        before, branch = self._projected(x[None])
        past, u = self.conv_1d.step(past, before[0])
        a, gated, scale = self._gated(u[None])
        h = a[0] * h + gated[0] * (1 + seen * (scale[0] - 1))
        return (past, h, jnp.ones_like(seen)), self.linear_out(self._activated(branch[0]) * h)

    def propagate_contributions(self, x: Shares) -> Shares:
        u = x.linear(self.linear_x.weight, self.linear_x.bias).banded(self.conv_1d)
        gain, log_a, branch = self._gates(x.signal, u.signal)
        states = u.scaled(gain).accumulated(log_a)
        return states.scaled(branch).linear(self.linear_out.weight, self.linear_out.bias)

    @eqx.filter_jit
    def _gates(self, xs: Float[Array, "t d"], u: Float[Array, "t n"]) -> tuple[Array, Array, Array]:
        """√(1 − a²) ⊙ i, log a and the branch."""
        opened, rate = block_gates(u, self.input_gate, self.recurrent_gate)
        log_a = self._log_a(rate)
        return opened * _root(-jnp.expm1(2 * log_a)).at[0].set(1), log_a, self._activated(self._projected(xs)[1])

    def _scan(self, xs: Float[Array, "t d"], state: GriffinState) -> tuple[Float[Array, "t d_o"], GriffinState]:
        past, h, seen = state
        before, branch = self._projected(xs)
        u, past = self.conv_1d.scan(before, past)
        a, opened, scale = self._gated(u)
        is_first = (jnp.arange(len(xs)) == 0)[:, None]
        scale = jnp.where(is_first, 1 + seen * (scale - 1), scale)
        states = selective_scan(a, opened * scale, h)
        return self.linear_out(gated(states, self._activated, branch)), (past, states[-1], jnp.ones_like(seen))


def _pair(linear: Linear) -> tuple[Array, Array]:
    return linear.weight, linear.bias


@jax.custom_jvp
def _root(x: Array) -> Array:
    return jnp.sqrt(x)


@_root.defjvp
def _root_slope(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (x,), (tangent,) = primals, tangents
    return jnp.sqrt(x), tangent / jnp.sqrt(jnp.maximum(4 * x, STEEPEST**-2))


def blocks_of(width: int) -> int:
    """Ten blocks in the public models; here the most up to eight that divide the width, and at least four wide."""
    return max(blocks for blocks in range(1, 9) if width % blocks == 0 and width // blocks >= min(4, width))


@register_stack("griffin", label="Griffin", colour="#117733")
def _griffin(inputs: int, hidden: int, key: Array, dtype: DType) -> Griffin:
    return Griffin.random(d=inputs, channels=hidden, d_out=hidden, blocks=blocks_of(hidden), key=key, dtype=dtype)
