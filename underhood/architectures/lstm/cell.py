"""Eq. 10–15, the LSTM: c_t = f_t ⊙ c_{t-1} + g_t ⊙ c̃_t;  h_t = o_t ⊙ tanh(c_t)."""

from __future__ import annotations

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from underhood.architectures.stack.cell import register_stack
from underhood.core.arrays import DType
from underhood.core.model import AbstractModel, tensor
from underhood.layers.gauge import SIGNS, Signal
from underhood.layers.held import by_step, constant, factor, gate
from underhood.layers.linear import lecun_normal
from underhood.layers.shares import Shares

# Rows of u, v and b, in the order of Eq. 10, 11, 12 and 14.
FORGET, CANDIDATE, INPUT, OUTPUT = range(4)

LSTMState = tuple[Float[Array, " n"], Float[Array, " n"]]  # (h, c)


class AbstractGates(AbstractModel):
    """What LSTM and GRU share: `u` has a row a gate, and the hidden neurons are the output."""

    is_marked: ClassVar[bool] = True
    default_map: ClassVar[str] = "deletion"  # their gates read the state

    u: eqx.AbstractVar[Float[Array, "g n d"]]

    @property
    def d(self) -> int:
        return self.u.shape[2]

    @property
    def d_out(self) -> int:
        return self.hidden

    @property
    def hidden(self) -> int:
        return self.u.shape[1]


class LSTM(AbstractGates):
    """f, g, o = σ(U x + V h + b), c̃ = tanh(U x + V h + b), each with its row of `u`, `v` and `b`."""

    kind: ClassVar[str] = "lstm-cell"
    name: ClassVar[str] = "LSTM"
    state_names: ClassVar[tuple[str, ...]] = ("h", "c")
    gates: ClassVar[tuple[str, ...]] = ("forget", "candidate", "input", "output")

    u: Float[Array, "4 hidden d"] = tensor()
    v: Float[Array, "4 hidden hidden"] | None = tensor(optional=True)  # none: the gates do not read h (Table 4)
    b: Float[Array, "4 hidden"] = tensor()

    @classmethod
    def random(cls, *, d: int, hidden: int, key: Array, dtype: DType = jnp.float32) -> LSTM:
        return cls(*random_gates(4, d, hidden, key, dtype))

    def _initial_state(self) -> LSTMState:
        return jnp.zeros(self.hidden, self.dtype), jnp.zeros(self.hidden, self.dtype)

    def display_state(self, state: LSTMState) -> Float[Array, " n"]:
        return state[1]

    def disguise_weights(self, signal: Signal, random: np.random.Generator) -> tuple[LSTM, Signal]:
        *weights, neurons = disguised_gates(self, CANDIDATE, signal, random)
        return LSTM(*weights), neurons

    def _driven_step(self, state: LSTMState, driven: Float[Array, "4 n"]) -> tuple[LSTMState, Float[Array, " n"]]:
        h, c = state
        gates = driven if self.v is None else driven + self.v @ h
        sigma = jax.nn.sigmoid
        c = gate(sigma(gates[FORGET])) * c + gate(sigma(gates[INPUT])) * factor(jnp.tanh, gates[CANDIDATE])
        h = gate(sigma(gates[OUTPUT])) * factor(jnp.tanh, c)
        return (h, c), h

    def _step(self, state: LSTMState, x: Float[Array, " d"]) -> tuple[LSTMState, Float[Array, " n"]]:
        return self._driven_step(state, self.u @ x + self.b)

    def propagate_contributions(self, x: Shares) -> Shares:
        """f, g, o and r = tanh(·)/· of both tanh held: c_t = f c_{t-1} + g r (U x + b + V h_{t-1}), h = o r c."""
        forget, gain, opened, fed_back = _held(self, x.signal)
        driven = x.linear(self.u[CANDIDATE], self.b[CANDIDATE]).scaled(gain)
        if self.v is None:
            c = driven.accumulated(jax.nn.log_sigmoid(forget))
        else:
            c = driven.recurrent(jax.nn.sigmoid(forget), gain, self.v[CANDIDATE], fed_back)
        return c.activated(jnp.tanh).scaled(opened)

    def _scan(self, xs: Float[Array, "t d"], state: LSTMState) -> tuple[Float[Array, "t n"], LSTMState]:
        return scan_driven(self, xs, state)


def disguised_gates(
    cell: Any, candidate: int, signal: Signal, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray, Signal]:
    """u, v and b with neurons permuted; some with the sign of their candidate, and so of h, flipped: tanh is odd."""
    neurons = Signal.random(random, cell.hidden, SIGNS)
    u, b = signal.read(np.asarray(cell.u)[:, neurons.order]), np.asarray(cell.b)[:, neurons.order].copy()
    v = None if cell.v is None else neurons.read(np.asarray(cell.v)[:, neurons.order])
    for array in (u, b) if v is None else (u, v, b):
        array[candidate] *= np.reshape(neurons.scale, (-1, *[1] * (array.ndim - 2))).astype(array.dtype)
    return u, v, b, neurons


def random_gates(gates: int, d: int, hidden: int, key: Array, dtype: DType) -> tuple[Array, Array, Array]:
    """Flax's defaults, which the paper uses: normal input weights, orthogonal recurrent ones, no bias."""
    key_u, key_v = jax.random.split(key)
    orthogonal = jax.nn.initializers.orthogonal()
    v = jnp.stack([orthogonal(one, (hidden, hidden), dtype) for one in jax.random.split(key_v, gates)])
    return lecun_normal(key_u, (gates, hidden, d), dtype), v, jnp.zeros((gates, hidden), dtype)


def gates_of(cell: Any, xs: Float[Array, "t d"], hs: Float[Array, "t n"]) -> Float[Array, "t g n"]:
    """What the gates are functions of, from the inputs and the outputs that they led to."""
    driven = jnp.einsum("td,gnd->tgn", xs, cell.u) + cell.b[None]
    return driven if cell.v is None else driven + jnp.einsum("tn,gmn->tgm", delayed(hs), cell.v)


def delayed(signal: Float[Array, "t n"]) -> Float[Array, "t n"]:
    return jnp.concatenate([jnp.zeros_like(signal[:1]), signal[:-1]])


def ratio(u: Float[Array, "t n"]) -> Float[Array, "t n"]:
    """tanh(u)/u."""
    return jnp.where(u == 0, 1, jnp.tanh(u) / jnp.where(u == 0, 1, u))


@eqx.filter_jit
def _held(cell: LSTM, xs: Float[Array, "t d"]) -> tuple[Array, Array, Array, Array]:
    """What f is the σ of, g r, o, and o r of the step before."""

    def body(state: LSTMState, x: Array) -> tuple[LSTMState, LSTMState]:
        state, _ = cell._step(state, x)
        return state, state

    _, (hs, cs) = jax.lax.scan(body, cell._initial_state(), xs)
    gates = gates_of(cell, xs, hs)
    opened = jax.nn.sigmoid(gates[:, OUTPUT])
    gain = jax.nn.sigmoid(gates[:, INPUT]) * ratio(gates[:, CANDIDATE])
    return gates[:, FORGET], gain, opened, delayed(opened * ratio(cs))


def scan_driven(cell: Any, xs: Float[Array, "t d"], state: Any) -> tuple[Float[Array, "t n"], Any]:
    """U x + b of all steps in one product ahead of the loop: only V h has to wait for its turn."""
    driven = jnp.einsum("td,gnd->tgn", xs, cell.u) + constant(cell.b[None])

    def body(state: Any, current: Array) -> tuple[Any, Array]:
        return cell._driven_step(state, current)

    state, hs = jax.lax.scan(*by_step(body, state, driven))
    return hs, state


@register_stack("lstm", label="LSTM", colour="#009e73")
def _lstm(inputs: int, hidden: int, key: Array, dtype: DType) -> LSTM:
    return LSTM.random(d=inputs, hidden=hidden, key=key, dtype=dtype)
