"""Eq. 6–9: h_t = λ ⊙ h_{t-1} + γ ⊙ (B u_t);  ŷ_t = Re[C h_t] + D u_t;  y_t = σ(W_m ·) ⊙ (W_x ŷ_t).

Three forms (Appendix A.1):

    out      u = x              the m branch of the output gating reads ŷ     (the usual LRU)
    in-out   u = GLU(x)         the m branch reads ŷ
    in-skip  u = GLU(x)         the m branch reads x
"""

from __future__ import annotations

from typing import ClassVar, Literal, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Complex, Float

from underhood.architectures.gated_rnn.cell import Gating
from underhood.architectures.stack.cell import register_stack
from underhood.core.arrays import DType, precision_of
from underhood.core.errors import UnderhoodError
from underhood.core.model import AbstractModel, part, tensor
from underhood.layers.draws import uniform
from underhood.layers.gauge import SIGNS, Signal
from underhood.layers.linear import Matrix, apply, dense, lecun_normal
from underhood.layers.scan import diagonal_scan
from underhood.layers.shares import Shares

Form = Literal["out", "in-out", "in-skip"]
LRUState = tuple[Float[Array, " n"], Float[Array, " n"]]  # the real and the imaginary part of h


def glu(gating: Gating, m: Float[Array, "*t a"], x: Float[Array, "*t b"]) -> Float[Array, "*t d_o"]:
    """GLU: σ(W_m m) ⊙ (W_x x)."""
    return jax.nn.sigmoid(apply(gating.w_m, m)) * apply(gating.w_x, x)


def _glu_shared(gating: Gating, m: Shares, x: Shares) -> Shares:
    return m.linear(gating.w_m).opened(jax.nn.sigmoid).times(x.linear(gating.w_x))


class LRU(AbstractModel):
    """Eq. 6–9, complex and diagonal: λ = exp(−exp(ν) + i exp(θ)), γ = exp(γ_log).

    Complex weights are kept as real and imaginary parts: that is what files, optimisers and torch take.
    """

    kind: ClassVar[str] = "lru-cell"
    name: ClassVar[str] = "LRU"

    nu_log: Float[Array, " hidden"] = tensor(recurrent=True)
    theta_log: Float[Array, " hidden"] = tensor(recurrent=True)
    gamma_log: Float[Array, " hidden"] = tensor(recurrent=True)
    b_real: Matrix = tensor("hidden inputs", sparse=True)
    b_imag: Matrix = tensor("hidden inputs", sparse=True)
    c_real: Matrix = tensor("read hidden", sparse=True)
    c_imag: Matrix = tensor("read hidden", sparse=True)
    skip: Matrix = tensor("read inputs", sparse=True)  # D of Eq. 7
    output_gating: Gating = part("gating", inputs_x="read")
    input_gating: Gating | None = part(
        "gating", optional=True, default=None, neurons="inputs", inputs_m="d", inputs_x="d"
    )
    form: Form = eqx.field(static=True, default="out")

    def _check(self) -> None:
        if self.form not in get_args(Form):
            raise UnderhoodError("expected form out, in-out or in-skip", repr(self.form))
        if (self.input_gating is None) != (self.form == "out"):
            got = f"form {self.form!r} {'without' if self.input_gating is None else 'with'} one"
            raise UnderhoodError("expected an input gating in the forms in-out and in-skip, and only there", got)
        reads, wanted = self.output_gating.w_m.shape[1], self.d if self.form == "in-skip" else self.c_real.shape[0]
        if reads != wanted:
            raise UnderhoodError(f"expected output_gating.w_m to read {wanted} numbers in the form {self.form}", reads)

    @property
    def d(self) -> int:
        return self.b_real.shape[1] if self.input_gating is None else self.input_gating.w_m.shape[1]

    @property
    def d_out(self) -> int:
        return self.output_gating.w_x.shape[0]

    @property
    def hidden(self) -> int:
        return self.nu_log.shape[0]

    @property
    def lambda_(self) -> Complex[Array, " n"]:
        with precision_of(self):
            return jnp.exp(jax.lax.complex(-jnp.exp(self.nu_log), jnp.exp(self.theta_log)))

    @classmethod
    def random(cls, *, d: int, hidden: int, d_out: int, form: Form, key: Array, dtype: DType = jnp.float32) -> LRU:
        """|λ|² uniform on (0, 1), phases uniform on (0, 2π), γ = √(1−|λ|²), B and C of unit gain."""
        keys = jax.random.split(key, 9)
        modulus_squared = uniform(keys[0], (hidden,), dtype, 1e-3, 1 - 1e-3)
        phase = uniform(keys[1], (hidden,), dtype, 1e-3, 2 * jnp.pi)
        half = jnp.asarray(0.5, dtype)
        return cls(
            nu_log=jnp.log(-half * jnp.log(modulus_squared)),
            theta_log=jnp.log(phase),
            gamma_log=half * jnp.log1p(-modulus_squared),
            b_real=lecun_normal(keys[2], (hidden, d), dtype) * jnp.sqrt(half),
            b_imag=lecun_normal(keys[3], (hidden, d), dtype) * jnp.sqrt(half),
            c_real=lecun_normal(keys[4], (hidden, hidden), dtype),
            c_imag=lecun_normal(keys[5], (hidden, hidden), dtype),
            skip=lecun_normal(keys[6], (hidden, d), dtype),
            output_gating=_random_glu((d if form == "in-skip" else hidden, hidden), d_out, keys[7], dtype),
            input_gating=None if form == "out" else _random_glu((d, d), d, keys[8], dtype),
            form=form,
        )

    def _initial_state(self) -> LRUState:
        return jnp.zeros(self.hidden, self.dtype), jnp.zeros(self.hidden, self.dtype)

    def _inputs(
        self, x: Float[Array, "*t d"]
    ) -> tuple[Float[Array, "*t d_u"], Float[Array, "*t n"], Float[Array, "*t n"]]:
        """u, and γ ⊙ (B u) in its real and imaginary part."""
        u = x if self.input_gating is None else glu(self.input_gating, x, x)
        gamma = jax.lax.expand_dims(jnp.exp(self.gamma_log), range(x.ndim - 1))
        return u, gamma * apply(self.b_real, u), gamma * apply(self.b_imag, u)

    def _output(
        self, real: Float[Array, "*t n"], imag: Float[Array, "*t n"], u: Float[Array, "*t d_u"], x: Float[Array, "*t d"]
    ) -> Float[Array, "*t d_o"]:
        read = apply(self.c_real, real) - apply(self.c_imag, imag) + apply(self.skip, u)
        return glu(self.output_gating, x if self.form == "in-skip" else read, read)

    def disguise_weights(self, signal: Signal, random: np.random.Generator) -> tuple[LRU, Signal]:
        """Neurons permuted and scaled; outputs permuted, some with their sign flipped in the linear branch."""
        neurons = Signal.random(random, self.hidden)
        outputs = Signal.random(random, self.d_out, SIGNS)
        gating, skips = self.input_gating, self.form == "in-skip"
        b_real, b_imag, skip = self.b_real, self.b_imag, self.skip
        if gating is None:
            b_real, b_imag, skip = signal.read(b_real), signal.read(b_imag), signal.read(skip)
        else:
            gating = Gating(signal.read(gating.w_m), signal.read(gating.w_x))
        w_m = dense(self.output_gating.w_m)
        changed = LRU(
            **{name: np.asarray(getattr(self, name))[neurons.order] for name in ("nu_log", "theta_log", "gamma_log")},
            b_real=neurons.of(b_real),
            b_imag=neurons.of(b_imag),
            c_real=neurons.read(self.c_real),
            c_imag=neurons.read(self.c_imag),
            skip=dense(skip),
            output_gating=Gating(
                (signal.read(w_m) if skips else w_m)[outputs.order], outputs.of(self.output_gating.w_x)
            ),
            input_gating=gating,
            form=self.form,
        )
        return changed, outputs

    def _step(self, state: LRUState, x: Float[Array, " d"]) -> tuple[LRUState, Float[Array, " d_o"]]:
        # In real arithmetic, so that every framework can run it.
        size, angle, (real, imag) = jnp.exp(-jnp.exp(self.nu_log)), jnp.exp(self.theta_log), state
        along, across = size * jnp.cos(angle), size * jnp.sin(angle)
        u, into_real, into_imag = self._inputs(x)
        state = along * real - across * imag + into_real, along * imag + across * real + into_imag
        return state, self._output(*state, u, x)

    def propagate_contributions(self, x: Shares) -> Shares:
        u = x if self.input_gating is None else _glu_shared(self.input_gating, x, x)
        gamma = np.exp(np.asarray(self.gamma_log))[:, None]
        states = u.linear(gamma * (dense(self.b_real) + 1j * dense(self.b_imag)))
        states = states.accumulated(-np.exp(self.nu_log) + 1j * np.exp(self.theta_log))
        read = states.linear(dense(self.c_real) + 1j * dense(self.c_imag)).real() + u.linear(self.skip)
        return _glu_shared(self.output_gating, x if self.form == "in-skip" else read, read)

    def _scan(self, xs: Float[Array, "t d"], state: LRUState) -> tuple[Float[Array, "t d_o"], LRUState]:
        u, into_real, into_imag = self._inputs(xs)
        states = diagonal_scan(self.lambda_, jax.lax.complex(into_real, into_imag), jax.lax.complex(*state))
        real, imag = states.real, states.imag
        return self._output(real, imag, u, xs), (real[-1], imag[-1])


def _random_glu(inputs: tuple[int, int], neurons: int, key: Array, dtype: DType) -> Gating:
    key_m, key_x = jax.random.split(key)
    return Gating(lecun_normal(key_m, (neurons, inputs[0]), dtype), lecun_normal(key_x, (neurons, inputs[1]), dtype))


def _register(name: str, form: Form, label: str, colour: str) -> None:
    @register_stack(name, label=label, colour=colour)
    def cell(inputs: int, hidden: int, key: Array, dtype: DType) -> LRU:
        return LRU.random(d=inputs, hidden=hidden, d_out=hidden, form=form, key=key, dtype=dtype)


_register("lru", "out", "LRU", "#e69f00")
_register("lru-in-out", "in-out", "LRU In-Out", "#d55e00")
_register("lru-in-skip", "in-skip", "LRU In-Skip", "#8c510a")
