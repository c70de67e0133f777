"""ŷ = η Σ_s y_s x_sᵀ x_t (Eq. 4): the gradient step of a network of Section 4, read off (Table 2)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from underhood.errors import UnderhoodError
from underhood.identify.polynomial import Polynomial


@dataclass(frozen=True)
class InContext:
    """Coefficients of x_i² y_1 in the first prediction; one optimal step has them all at `optimum`."""

    terms: tuple[float, ...]
    residual_norm: float
    optimum: float

    @property
    def learning_rate(self) -> float:
        return float(np.mean(self.terms))


def optimal_learning_rate(d_x: int, observations: int) -> float:
    """η* = 1 / (T + d_x − 1/5): Appendix C.2, for inputs uniform on (−√3, √3)."""
    return 1.0 / (observations + d_x - 0.2)


def read_in_context(polynomial: Polynomial, d_x: int, d_y: int, observations: int) -> InContext:
    """Table 2 from the instantaneous polynomial; elements are (x, y), predictions the last d_y outputs."""
    d, d_out = polynomial.exponents.shape[1], len(polynomial.coefficients)
    if d != d_x + d_y or d_out not in (d_y, d_x + d_y):
        raise UnderhoodError(
            "an in-context network reads (x, y) and predicts y",
            f"{d} inputs and {d_out} outputs for d_x={d_x}, d_y={d_y}",
        )
    row = d_out - d_y
    terms, rest = [], polynomial.coefficients[row].copy()
    for i in range(d_x):
        exponents = np.zeros(d, int)
        exponents[i], exponents[d_x] = 2, 1
        (where,) = np.flatnonzero((polynomial.exponents == exponents).all(axis=1))
        terms.append(float(rest[where]))
        rest[where] = 0.0
    return InContext(tuple(terms), float(np.linalg.norm(rest)), optimal_learning_rate(d_x, observations))
