"""minGRU: h_t = (1 − z_t) ⊙ h_{t-1} + z_t ⊙ h̃_t;  z_t = σ(W_z x_t);  h̃_t = W_h x_t, or g(W_h x_t).

Feng et al., "Were RNNs All We Needed?" (2024). Section 3 has the linear candidate. Appendix B keeps states positive,
for a scan in logarithms: g(u) = u + ½ for u ≥ 0, σ(u) below. That is what `minGRU` of minGRU-pytorch computes.
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
from underhood.core.model import AbstractModel, tensor
from underhood.layers.held import factor, gate
from underhood.layers.linear import lecun_normal
from underhood.layers.selective import selective_scan
from underhood.layers.shares import Shares

Candidate = Literal["positive", "linear"]


class MinGRU(AbstractModel):
    """n neurons; W_h above W_z in one matrix, as the public module has them."""

    kind: ClassVar[str] = "mingru-cell"
    is_marked: ClassVar[bool] = True

    to_hidden_and_gate: Float[Array, "2*hidden d"] = tensor()
    to_out: Float[Array, "d_out hidden"] | None = tensor(optional=True, default=None)
    candidate: Candidate = eqx.field(static=True, default="positive")

    def _check(self) -> None:
        if self.candidate not in get_args(Candidate):
            raise UnderhoodError("expected a candidate of positive or linear", repr(self.candidate))

    @property
    def d(self) -> int:
        return self.to_hidden_and_gate.shape[1]

    @property
    def d_out(self) -> int:
        return self.hidden if self.to_out is None else self.to_out.shape[0]

    @property
    def hidden(self) -> int:
        return self.to_hidden_and_gate.shape[0] // 2

    @classmethod
    def random(cls, *, d: int, hidden: int, key: Array, dtype: DType = jnp.float32) -> MinGRU:
        return cls(lecun_normal(key, (2 * hidden, d), dtype))

    def _initial_state(self) -> Float[Array, " n"]:
        return jnp.zeros(self.hidden, self.dtype)

    def _driven(self, x: Float[Array, "*t d"]) -> tuple[Float[Array, "*t n"], Float[Array, "*t n"]]:
        """1 − z and z ⊙ h̃."""
        candidate, opened = jnp.split(x @ self.to_hidden_and_gate.T, 2, axis=-1)
        if self.candidate == "positive":
            candidate = factor(_positive, candidate)
        return gate(jax.nn.sigmoid(-opened)), gate(jax.nn.sigmoid(opened)) * candidate

    def _output(self, h: Float[Array, "*t n"]) -> Float[Array, "*t d_o"]:
        return h if self.to_out is None else h @ self.to_out.T

    def _step(
        self, state: Float[Array, " n"], x: Float[Array, " d"]
    ) -> tuple[Float[Array, " n"], Float[Array, " d_o"]]:
        keep, add = self._driven(x)
        state = keep * state + add
        return state, self._output(state)

    def propagate_contributions(self, x: Shares) -> Shares:
        weight, gates = np.split(np.asarray(self.to_hidden_and_gate), 2)
        candidate, (opened, log_keep) = x.linear(weight), _gates(x.signal @ gates.T)
        if self.candidate == "positive":
            candidate = candidate.activated(_positive)
        states = candidate.scaled(opened).accumulated(log_keep)
        return states if self.to_out is None else states.linear(self.to_out)

    def _scan(
        self, xs: Float[Array, "t d"], state: Float[Array, " n"]
    ) -> tuple[Float[Array, "t d_o"], Float[Array, " n"]]:
        states = selective_scan(*self._driven(xs), state)
        return self._output(states), states[-1]


@jax.jit
def _gates(gate: Float[Array, "t n"]) -> tuple[Float[Array, "t n"], Float[Array, "t n"]]:
    """z and log(1 − z)."""
    return jax.nn.sigmoid(gate), jax.nn.log_sigmoid(-gate)


def _positive(u: Array) -> Array:
    return jnp.where(u >= 0, u + 0.5, jax.nn.sigmoid(u))


@register_stack("mingru", label="minGRU", colour="#999933")
def _mingru(inputs: int, hidden: int, key: Array, dtype: DType) -> MinGRU:
    return MinGRU.random(d=inputs, hidden=hidden, key=key, dtype=dtype)
