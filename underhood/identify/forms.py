"""h_i(t) = Σ_{s≤t} λ_i^{t-s} f_i(x̃_s),  y_k(t) = Σ_j D_kj (left_j·h)(right_j·h).

A gated RNN read as quadratic forms: neuron i holds the form f_i(x̃) = (w_m·x̃)(w_x·x̃) in x̃ = [x, 1].
Everything the decompiler decides, it decides on these forms and on what the output gating reads of them,
so that permutations, scalings, mixings and copies of neurons, which leave the function alone, leave the
reading alone too.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float, Inexact

from underhood.cells.gated_rnn import DenseGatedRNN, GatedRNN
from underhood.cells.linear import dense
from underhood.errors import UnderhoodError

Array = np.ndarray

# Eigenvectors of a dense recurrence worse conditioned than this lose more digits than a reading can spare.
WORST_CONDITION = 1e8


def pair_indices(size: int) -> tuple[Array, Array]:
    """The pairs (a, b), a ≤ b, that index the monomials x_a x_b."""
    return np.triu_indices(size)


def pair_products(xs: Float[Array, "... d"]) -> Float[Array, "... p"]:
    """x_a x_b for all a ≤ b."""
    rows, columns = pair_indices(xs.shape[-1])
    return xs[..., rows] * xs[..., columns]


def append_one(xs: Float[Array, "... d"]) -> Float[Array, "... d1"]:
    """x̃ = [x, 1]."""
    return np.concatenate([xs, np.ones((*xs.shape[:-1], 1), xs.dtype)], axis=-1)


def product_forms(first: Inexact[Array, "n d"], second: Inexact[Array, "n d"]) -> Inexact[Array, "n p"]:
    """(first·x)(second·x) as coefficients of x_a x_b, a ≤ b."""
    rows, columns = pair_indices(first.shape[-1])
    crossed = first[:, rows] * second[:, columns] + first[:, columns] * second[:, rows]
    return np.where(rows == columns, first[:, rows] * second[:, rows], crossed)


@dataclass(frozen=True)
class Reading:
    """A gated RNN as forms, decay factors and two linear readings of the state."""

    forms: Inexact[Array, "n p"]
    lambda_: Inexact[Array, " n"]
    left: Inexact[Array, "m n"]
    right: Inexact[Array, "m n"]
    readout: Float[Array, "d_out m"]
    d: int
    unit: float  # rounding unit of the dtype in which the network computes

    @property
    def hidden(self) -> int:
        return len(self.lambda_)

    @property
    def pre_readout(self) -> int:
        return len(self.left)

    @property
    def d_out(self) -> int:
        return len(self.readout)

    @cached_property
    def degree(self) -> Array:
        """Degree in x of each monomial of x̃: 2 (x_a x_b), 1 (x_a·1) or 0 (1·1)."""
        rows, columns = pair_indices(self.d + 1)
        return (rows < self.d).astype(int) + (columns < self.d)

    def states(self, xs: Float[Array, "... t d"]) -> Inexact[Array, "... t n"]:
        """h_t = λ⊙h_{t-1} + f(x̃_t)."""
        drive = pair_products(append_one(xs)) @ self.forms.T
        return decayed_sums(drive, self.lambda_)

    def __call__(self, xs: Float[Array, "... t d"]) -> Float[Array, "... t d_out"]:
        states = self.states(xs)
        return np.real(((states @ self.left.T) * (states @ self.right.T)) @ self.readout.T)

    def keep(self, hidden: Array) -> Reading:
        """The reading with only some of its hidden neurons."""
        return Reading(
            self.forms[hidden],
            self.lambda_[hidden],
            self.left[:, hidden],
            self.right[:, hidden],
            self.readout,
            self.d,
            self.unit,
        )


def decayed_sums(drive: Inexact[Array, "... t n"], lambda_: Any) -> Inexact[Array, "... t n"]:
    """S_t = λ S_{t-1} + drive_t."""
    sums = np.array(drive, dtype=np.result_type(drive, lambda_, np.float64))
    for t in range(1, sums.shape[-2]):
        sums[..., t, :] += lambda_ * sums[..., t - 1, :]
    return sums


def is_readable(model: object) -> bool:
    """Whether the weights themselves say what the network computes (Eq. 2, diagonal or dense)."""
    return isinstance(model, GatedRNN | DenseGatedRNN)


def read(model: Any) -> Reading:
    """The forms of a gated RNN; a dense recurrence A = U diag(λ) U⁻¹ is read in its eigenvectors."""
    w_m, w_x = _array(model.input_gating.w_m), _array(model.input_gating.w_x)
    left, right = _array(model.output_gating.w_m), _array(model.output_gating.w_x)
    forms = product_forms(w_m, w_x)
    unit = float(np.finfo(model.dtype).eps) / 2
    if isinstance(model, DenseGatedRNN):
        lambda_, forms, left, right = _diagonalised(_array(model.recurrence), forms, left, right)
    else:
        _array(model.nu)
        with np.errstate(under="ignore", over="ignore"):  # λ of exactly 0 underflows
            lambda_ = np.exp(-np.exp(np.asarray(model.nu))).astype(np.float64)
    return Reading(forms, lambda_, left, right, _array(model.readout), w_m.shape[1] - 1, unit)


def _diagonalised(recurrence: Array, forms: Array, left: Array, right: Array) -> tuple[Array, ...]:
    lambda_, vectors = np.linalg.eig(recurrence)
    condition = np.linalg.cond(vectors)
    if not condition < WORST_CONDITION:
        raise UnderhoodError(
            "a dense recurrence is read in its eigenvectors",
            f"eigenvectors with condition number {condition:.1e}: the matrix does not diagonalise",
            "use uh.probe(model, d=...), which needs no weights",
        )
    return lambda_, np.linalg.solve(vectors, forms.astype(vectors.dtype)), left @ vectors, right @ vectors


def _array(values: Any) -> Array:
    array = np.asarray(dense(values), dtype=np.float64)
    bad = ~np.isfinite(array)
    if bad.any():
        raise UnderhoodError(
            "the weights of a network to decompile are finite numbers",
            f"{int(bad.sum())} that are NaN or infinite",
            "check the file or the training run it came from",
        )
    return array
