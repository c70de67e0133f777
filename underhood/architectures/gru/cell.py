"""Eq. 16–19, the GRU: h_t = (1 − z_t) ⊙ h_{t-1} + z_t ⊙ h̃_t.

The reset gate acts before the recurrent product in the paper (Eq. 17) and after it in torch; `reset` says which:

    before   h̃ = tanh(U x + V (r ⊙ h) + b)
    after    h̃ = tanh(U x + b + r ⊙ (V h + b_hn))
"""

from __future__ import annotations

from typing import ClassVar, Literal, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from underhood.architectures.lstm.cell import (
    AbstractGates,
    delayed,
    disguised_gates,
    gates_of,
    random_gates,
    ratio,
    scan_driven,
)
from underhood.architectures.stack.cell import register_stack
from underhood.core.arrays import DType
from underhood.core.errors import UnderhoodError
from underhood.core.model import tensor
from underhood.layers.gauge import Signal
from underhood.layers.held import constant, factor, gate
from underhood.layers.shares import Shares

# Rows of u, v and b, in the order of Eq. 16, 17 and 18.
RESET, CANDIDATE, UPDATE = range(3)

Reset = Literal["before", "after"]


class GRU(AbstractGates):
    """r, z = σ(U x + V h + b), h̃ = tanh(U x + V (r ⊙ h) + b), each with its row of `u`, `v` and `b`."""

    kind: ClassVar[str] = "gru-cell"
    name: ClassVar[str] = "GRU"
    state_names: ClassVar[tuple[str, ...]] = ("h",)
    gates: ClassVar[tuple[str, ...]] = ("reset", "candidate", "update")

    u: Float[Array, "3 hidden d"] = tensor()
    v: Float[Array, "3 hidden hidden"] = tensor()
    b: Float[Array, "3 hidden"] = tensor()
    b_hn: Float[Array, " hidden"] | None = tensor(optional=True, default=None)  # torch's, inside the reset
    reset: Reset = eqx.field(static=True, default="before")

    def _check(self) -> None:
        if self.reset not in get_args(Reset):
            raise UnderhoodError("expected reset before or after", repr(self.reset))
        if (self.b_hn is None) != (self.reset == "before"):
            got = f"reset={self.reset!r} {'without' if self.b_hn is None else 'with'} b_hn"
            raise UnderhoodError("expected b_hn with reset='after', and only there", got)

    @classmethod
    def random(cls, *, d: int, hidden: int, key: Array, dtype: DType = jnp.float32, reset: Reset = "before") -> GRU:
        b_hn = jnp.zeros(hidden, dtype) if reset == "after" else None
        return cls(*random_gates(3, d, hidden, key, dtype), b_hn, reset)

    def _initial_state(self) -> Float[Array, " n"]:
        return jnp.zeros(self.hidden, self.dtype)

    def disguise_weights(self, signal: Signal, random: np.random.Generator) -> tuple[GRU, Signal]:
        *weights, neurons = disguised_gates(self, CANDIDATE, signal, random)
        b_hn = None if self.b_hn is None else neurons.of(self.b_hn)
        return GRU(*weights, b_hn, self.reset), neurons

    def _driven_step(
        self, h: Float[Array, " n"], driven: Float[Array, "3 n"]
    ) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        reset = gate(jax.nn.sigmoid(driven[RESET] + self.v[RESET] @ h))
        update = gate(jax.nn.sigmoid(driven[UPDATE] + self.v[UPDATE] @ h))
        if self.b_hn is None:
            recurrent = self.v[CANDIDATE] @ (reset * h)
        else:
            recurrent = reset * (self.v[CANDIDATE] @ h + constant(self.b_hn))
        candidate = factor(jnp.tanh, driven[CANDIDATE] + recurrent)
        h = (1 - update) * h + update * candidate
        return h, h

    def _step(self, state: Float[Array, " n"], x: Float[Array, " d"]) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        return self._driven_step(state, self.u @ x + self.b)

    def propagate_contributions(self, x: Shares) -> Shares:
        """r, z and e = tanh(·)/· held: h_t = (1 − z) h_{t-1} + z e (U x + b + V (r ⊙ h_{t-1}))."""
        keep, gain, outside, inside, constant = self._held(x.signal)
        driven = x.linear(self.u[CANDIDATE], self.b[CANDIDATE]).plus(constant).scaled(gain)
        return driven.recurrent(keep, gain * outside, self.v[CANDIDATE], inside, held=True)

    @eqx.filter_jit
    def _held(self, xs: Float[Array, "t d"]) -> tuple[Array, Array, Array, Array, Array]:
        """1 − z, z e, what multiplies V h from outside and from inside, and what is added to it."""
        hs, _ = self._scan(xs, self._initial_state())
        gates, before = gates_of(self, xs, hs), delayed(hs)
        reset, update = jax.nn.sigmoid(gates[:, RESET]), jax.nn.sigmoid(gates[:, UPDATE])
        one = jnp.ones_like(reset)
        if self.b_hn is None:
            outside, inside, constant = one, reset, jnp.zeros_like(reset)
        else:
            outside, inside, constant = reset, one, reset * self.b_hn[None]
        recurrent = outside * ((inside * before) @ self.v[CANDIDATE].T) + constant
        entered = xs @ self.u[CANDIDATE].T + self.b[CANDIDATE][None]
        return 1 - update, update * ratio(entered + recurrent), outside, inside, constant

    def _scan(
        self, xs: Float[Array, "t d"], state: Float[Array, " n"]
    ) -> tuple[Float[Array, "t n"], Float[Array, " n"]]:
        return scan_driven(self, xs, state)


@register_stack("gru", label="GRU", colour="#cc79a7")
def _gru(inputs: int, hidden: int, key: Array, dtype: DType) -> GRU:
    return GRU.random(d=inputs, hidden=hidden, key=key, dtype=dtype)


@register_stack("gru-after", label="GRU, reset after", colour="#882255")
def _gru_after(inputs: int, hidden: int, key: Array, dtype: DType) -> GRU:
    return GRU.random(d=inputs, hidden=hidden, key=key, dtype=dtype, reset="after")
