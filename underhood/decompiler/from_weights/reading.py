"""h_i(t) = Σ_{s≤t} λ_i^{t-s} f_i(x̃_s),  y_k(t) = Σ_j D_kj (left_j·h)(right_j·h).

A gated RNN read as quadratic forms: neuron i holds the form f_i(x̃) = (w_m·x̃)(w_x·x̃) in x̃ = [x, 1].
Everything the decompiler decides, it decides on these forms and on what the output gating reads of them,
so that permutations, scalings, mixings and copies of neurons, which leave the function alone, leave the
reading alone too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float, Inexact

from underhood.algebra.gated import Recurrence
from underhood.algebra.quadratic import Array, append_one, pair_indices, pair_products, product_forms
from underhood.architectures.gated_rnn.cell import DenseGatedRNN, GatedRNN
from underhood.core.errors import UnderhoodError
from underhood.layers.linear import dense

# Inputs up to which T is written out, d_out·d³ numbers, and polynomials of degree 4. Beyond it, all comes from factors.
MOST_DENSE = 16

# Eigenvectors of a dense recurrence worse conditioned than this lose more digits than a reading can spare.
WORST_CONDITION = 1e8


class NotDiagonalisable(UnderhoodError):
    """A dense recurrence without eigenvectors to read it in."""


@dataclass(frozen=True, kw_only=True)
class Reading(Recurrence):
    """A gated RNN as forms, decay factors and two linear readings of the state: g_in(x̃)_i = f_i(x̃)."""

    forms: Inexact[Array, "n p"]
    d: int
    unit: float  # rounding unit of the dtype in which the network computes

    _inputs = ("forms",)

    @cached_property
    def degree(self) -> Array:
        """Degree in x of each monomial of x̃: 2 (x_a x_b), 1 (x_a·1) or 0 (1·1)."""
        rows, columns = pair_indices(self.d + 1)
        return (rows < self.d).astype(int) + (columns < self.d)

    def driven(self, xs: Float[Array, "... t d"]) -> Inexact[Array, "... t n"]:
        """f(x̃_t)."""
        return pair_products(append_one(xs)) @ self.forms.T

    def without_silent_neurons(self) -> Reading:
        """The same reading, with no weight on neurons that hold nothing: they would hide which rows are alike."""
        silent = ~self.forms.any(axis=1)
        return replace(self, left=np.where(silent, 0.0, self.left), right=np.where(silent, 0.0, self.right))


def is_readable(model: object) -> bool:
    """Whether the weights themselves say what the network computes (Eq. 2, diagonal or dense)."""
    return isinstance(model, GatedRNN | DenseGatedRNN)


def read(model: Any) -> Reading:
    """The forms of a gated RNN; a dense recurrence A = U diag(λ) U⁻¹ is read in its eigenvectors."""
    parts = (model.input_gating.w_m, model.input_gating.w_x, model.output_gating.w_m, model.output_gating.w_x)
    w_m, w_x, left, right = map(_array, parts)
    forms, unit = product_forms(w_m, w_x), float(np.finfo(model.dtype).eps) / 2
    if isinstance(model, DenseGatedRNN):
        lambda_, forms, left, right = _diagonalised(_array(model.recurrence), forms, left, right)
    else:
        _array(model.nu)
        lambda_ = model.arrays.lambda_
    return Reading(lambda_, left, right, _array(model.readout), forms=forms, d=w_m.shape[1] - 1, unit=unit)


def _diagonalised(recurrence: Array, forms: Array, left: Array, right: Array) -> tuple[Array, ...]:
    lambda_, vectors = np.linalg.eig(recurrence)
    condition = np.linalg.cond(vectors)
    if not condition < WORST_CONDITION:
        raise NotDiagonalisable(
            f"expected a dense recurrence with eigenvectors of condition below {WORST_CONDITION:.0e}",
            f"{condition:.1e}",
            "Use uh.probe(model, d=...), which needs no weights.",
        )
    return lambda_, np.linalg.solve(vectors, forms.astype(vectors.dtype)), left @ vectors, right @ vectors


def _array(values: Any) -> Array:
    array = np.asarray(dense(values), dtype=np.float64)
    bad = ~np.isfinite(array)
    if bad.any():
        raise UnderhoodError(
            "expected finite weights",
            f"{int(bad.sum())} that are NaN or infinite",
            "Check the file or the training run it came from.",
        )
    return array


def is_strictly_causal(ys: Float[Array, "b t d_out"], tolerance: float) -> bool:
    """Whether the first output is zero whatever the input: each step attends to those before it, not to itself.

    A head of decay 0 can take the step's own share back, so that this is a sum of heads. Nobody would call it attention
    that fades: it is told as what it is.
    """
    size = np.sqrt(np.mean(ys**2))
    return bool(size > 0 and np.sqrt(np.mean(ys[:, 0] ** 2)) <= tolerance * size)
