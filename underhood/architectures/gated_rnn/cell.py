"""Eq. 2: h_t = λ ⊙ h_{t-1} + g_in(x̃_t);  y_t = D g_out(h_t);  g(x) = (W_m x) ⊙ (W_x x);  x̃ = (x, 1).

The inclusive form of Eq. 2: y_t sees x_t, as the sum of Eq. 1 does (docs/fidelity.md).
"""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from underhood.algebra.gated import GatedArrays
from underhood.core.arrays import DType, precision_of
from underhood.core.errors import UnderhoodError
from underhood.core.model import AbstractModel, Part, architecture, part, tensor
from underhood.layers.draws import uniform
from underhood.layers.linear import Matrix, apply, dense, lecun_normal
from underhood.layers.scan import diagonal_scan
from underhood.layers.shares import Shares

NU_MEMORY = -40.0  # λ = exp(−exp(ν)) is exactly 1 here, in float32 and in float64
NU_FORGET = 7.0  # and exactly 0 here


def nu_of(lambda_: Any) -> np.ndarray:
    """ν with exp(−exp(ν)) = λ; exactly 0 and 1 at the ends."""
    lambda_ = np.asarray(lambda_)
    lambda_ = lambda_.astype(
        np.float32 if lambda_.dtype.itemsize <= 4 and lambda_.dtype.kind not in "iub" else np.float64
    )
    if not np.all((lambda_ >= 0) & (lambda_ <= 1)):
        got = f"{np.min(lambda_)} to {np.max(lambda_)}"
        raise UnderhoodError("expected λ in [0, 1], or hidden states explode", got)
    inner = np.clip(lambda_, np.finfo(lambda_.dtype).tiny, 1 - np.finfo(lambda_.dtype).epsneg)
    nu = np.log(-np.log(inner))
    return np.where(lambda_ == 1, NU_MEMORY, np.where(lambda_ == 0, NU_FORGET, nu)).astype(lambda_.dtype)


class Gating(Part):
    """g(x) = (W_m x) ⊙ (W_x x): the linear gating of Eq. 2."""

    kind: ClassVar[str] = "gating"

    # The branches of an LRU's In-Skip gating read different inputs; the zero attention has no neurons.
    w_m: Matrix = tensor("neurons inputs_m", sparse=True)
    w_x: Matrix = tensor("neurons inputs_x", sparse=True)
    may_be_empty: ClassVar = ("neurons", "inputs_m", "inputs_x")

    def __call__(self, x: Float[Array, "*t inputs"]) -> Float[Array, "*t neurons"]:
        return apply(self.w_m, x) * apply(self.w_x, x)

    def shared(self, x: Shares) -> Shares:
        return x.linear(self.w_m).times(x.linear(self.w_x))

    def branches(self, x: Float[Array, "*t inputs"]) -> tuple[Array, Array, Array]:
        """Both factors and their product."""
        m, x = apply(self.w_m, x), apply(self.w_x, x)
        return m, x, m * x

    @classmethod
    def random(cls, inputs: int, neurons: int, *, key: Array, dtype: DType) -> Gating:
        key_m, key_x = jax.random.split(key)
        return cls(lecun_normal(key_m, (neurons, inputs), dtype), lecun_normal(key_x, (neurons, inputs), dtype))


def append_one(x: Float[Array, "*t d"]) -> Float[Array, "*t d+1"]:
    """x̃ = (x, 1): the networks of Eq. 2 have no biases."""
    return jnp.concatenate([x, jnp.ones((*x.shape[:-1], 1), x.dtype)], axis=-1)


class _AbstractGatedRNN(AbstractModel):
    """Eq. 2 without its recurrence; the fields stand in each class, in the order of the data's way."""

    may_be_empty: ClassVar = ("hidden", "pre_readout")  # of a network whose output is zero

    @property
    def d(self: Any) -> int:
        return self.input_gating.w_m.shape[1] - 1

    @property
    def d_out(self: Any) -> int:
        return self.readout.shape[0]

    @property
    def hidden(self: Any) -> int:
        return self.input_gating.w_m.shape[0]

    @property
    def pre_readout(self: Any) -> int:
        return self.output_gating.w_m.shape[0]

    def _check(self: Any) -> None:
        if self.d < 1:
            raise UnderhoodError("expected 2 columns or more in input_gating, which reads (x, 1)", self.d + 1)

    def _initial_state(self: Any) -> Float[Array, " n"]:
        return jnp.zeros(self.hidden, self.dtype)

    def display_extras(self: Any, state: Float[Array, " n"], x: Float[Array, " d"]) -> dict[str, Float[Array, "3 _"]]:
        return {
            "input": jnp.stack(self.input_gating.branches(append_one(x))),
            "output": jnp.stack(self.output_gating.branches(state)),
        }

    def _entering(self: Any, x: Shares) -> Shares:
        """g_in(x̃)."""
        constant = np.append(np.zeros(self.d), 1.0).astype(self.dtype)
        return self.input_gating.shared(x.linear(np.eye(self.d + 1, self.d, dtype=self.dtype), constant))

    def _read(self: Any, h: Shares) -> Shares:
        return self.output_gating.shared(h).linear(self.readout)

    def _output(self: Any, h: Float[Array, "*t n"]) -> Float[Array, "*t d_o"]:
        return apply(self.readout, self.output_gating(h))


class GatedRNN(_AbstractGatedRNN):
    """Eq. 2 with diagonal recurrence, λ = exp(−exp(ν)) in [0, 1]."""

    kind: ClassVar[str] = "gated-rnn"
    name: ClassVar[str] = "Gated RNN of Eq. 2"
    aliases: ClassVar = {"lambda_": ("nu", nu_of)}

    input_gating: Gating = part("gating", neurons="hidden", inputs_m="inputs", inputs_x="inputs")
    nu: Float[Array, " hidden"] = tensor(recurrent=True)
    output_gating: Gating = part("gating", neurons="pre_readout", inputs_m="hidden", inputs_x="hidden")
    readout: Matrix = tensor("d_out pre_readout", sparse=True)

    @property
    def lambda_(self) -> Float[Array, " n"]:
        with precision_of(self):
            return jnp.exp(-jnp.exp(self.nu))

    @classmethod
    def from_lambda(cls, input_gating: Gating, lambda_: Any, output_gating: Gating, readout: Any) -> GatedRNN:
        """The network with these λ in [0, 1]; 0 and 1 are met exactly."""
        return cls(input_gating, nu_of(lambda_), output_gating, readout)

    @classmethod
    def from_arrays(cls, arrays: GatedArrays, dtype: DType = np.float64) -> GatedRNN:
        """The network with these arrays as weights."""
        w_m, w_x, left, right, readout = (
            array.astype(dtype) for array in (arrays.w_m, arrays.w_x, arrays.left, arrays.right, arrays.readout)
        )
        nu = nu_of(np.asarray(arrays.lambda_, np.float64)).astype(dtype)
        return cls(Gating(w_m, w_x), nu, Gating(left, right), readout)

    @property
    def arrays(self) -> GatedArrays:
        """The weights in float64, with λ as the network computes it in its own dtype."""
        with np.errstate(under="ignore", over="ignore"):  # λ of exactly 0 underflows
            lambda_ = np.exp(-np.exp(np.asarray(self.nu))).astype(np.float64)
        return GatedArrays(
            lambda_,
            *_float64(self.output_gating),
            dense(self.readout).astype(np.float64),
            **dict(zip(("w_m", "w_x"), _float64(self.input_gating), strict=True)),
        )

    @classmethod
    def random(
        cls,
        *,
        d: int,
        hidden: int,
        key: Array,
        pre_readout: int | None = None,
        d_out: int | None = None,
        dtype: DType = jnp.float32,
    ) -> GatedRNN:
        """Normal weights of variance 1/inputs; λ uniform on (0, 1) (docs/fidelity.md)."""
        pre_readout, d_out = pre_readout or hidden, d_out or d
        keys = jax.random.split(key, 4)
        lambda_ = uniform(keys[1], (hidden,), dtype, 0.01, 0.99)
        return cls(
            Gating.random(d + 1, hidden, key=keys[0], dtype=dtype),
            jnp.log(-jnp.log(lambda_)),
            Gating.random(hidden, pre_readout, key=keys[2], dtype=dtype),
            lecun_normal(keys[3], (d_out, pre_readout), dtype),
        )

    def _step(
        self, state: Float[Array, " n"], x: Float[Array, " d"]
    ) -> tuple[Float[Array, " n"], Float[Array, " d_o"]]:
        state = self.lambda_ * state + self.input_gating(append_one(x))
        return state, self._output(state)

    def propagate_contributions(self, x: Shares) -> Shares:
        return self._read(self._entering(x).accumulated(-np.exp(self.nu)))

    def _scan(
        self, xs: Float[Array, "t d"], state: Float[Array, " n"]
    ) -> tuple[Float[Array, "t d_o"], Float[Array, " n"]]:
        states = diagonal_scan(self.lambda_, self.input_gating(append_one(xs)), state)
        return self._output(states), states[-1]


def _float64(gating: Gating) -> tuple[np.ndarray, np.ndarray]:
    return dense(gating.w_m).astype(np.float64), dense(gating.w_x).astype(np.float64)


class DenseGatedRNN(_AbstractGatedRNN):
    """Eq. 2 with dense linear recurrence: h_t = A h_{t-1} + g_in(x̃_t) (Section 3.3)."""

    kind: ClassVar[str] = "gated-rnn-dense"
    name: ClassVar[str] = "Gated RNN with dense recurrence"

    input_gating: Gating = part("gating", neurons="hidden", inputs_m="inputs", inputs_x="inputs")
    recurrence: Float[Array, "hidden hidden"] = tensor(recurrent=True)
    output_gating: Gating = part("gating", neurons="pre_readout", inputs_m="hidden", inputs_x="hidden")
    readout: Matrix = tensor("d_out pre_readout", sparse=True)

    @classmethod
    def random(cls, *, d: int, hidden: int, key: Array, **sizes: Any) -> DenseGatedRNN:
        """As the diagonal network; the recurrence is diag(λ) plus small normal entries of norm about 1/10."""
        key_cell, key_dense = jax.random.split(key)
        cell = GatedRNN.random(d=d, hidden=hidden, key=key_cell, **sizes)
        noise = 0.1 * lecun_normal(key_dense, (hidden, hidden), cell.dtype)
        return cls(cell.input_gating, jnp.diag(cell.lambda_) + noise, cell.output_gating, cell.readout)

    def _step(
        self, state: Float[Array, " n"], x: Float[Array, " d"]
    ) -> tuple[Float[Array, " n"], Float[Array, " d_o"]]:
        state = self.recurrence @ state + self.input_gating(append_one(x))
        return state, self._output(state)

    def propagate_contributions(self, x: Shares) -> Shares:
        return self._read(self._entering(x).recurrent(0, 1, self.recurrence, 1))

    def _scan(
        self, xs: Float[Array, "t d"], state: Float[Array, " n"]
    ) -> tuple[Float[Array, "t d_o"], Float[Array, " n"]]:
        def body(state: Array, inputs: Array) -> tuple[Array, Array]:
            state = self.recurrence @ state + inputs
            return state, state

        state, states = jax.lax.scan(body, state, self.input_gating(append_one(xs)))
        return self._output(states), state


@architecture(
    "gated-rnn", label="gated RNN", colour="#0072b2", most_layers=1, sizes=("pre_readout",), second_order=True
)
def _gated_rnn(d: int, *, layers: int, **sizes: Any) -> GatedRNN:
    return GatedRNN.random(d=d, **sizes)


@architecture("gated-rnn-dense", label="gated RNN, dense", colour="#56b4e9", most_layers=1, sizes=("pre_readout",))
def _dense_gated_rnn(d: int, *, layers: int, **sizes: Any) -> DenseGatedRNN:
    return DenseGatedRNN.random(d=d, **sizes)
