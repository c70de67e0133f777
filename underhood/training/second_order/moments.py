"""With every λ in {0, 1}, y_i = φᵀ Q_i φ: a sequence enters only through φ_t = (Σ_{s≤t} x̃_s x̃_sᵀ, x̃_t x̃_tᵀ).

A perfect-memory neuron reads a linear functional of the sum, a perfect-forget neuron one of the present, and a
pre-readout neuron multiplies two such functionals. So outputs are linear in the products φ_a φ_b, and the
squared error over any number of sequences is, exactly, that of as many rows as there are products:

    Σ_rows (Φ c − y)² = (R c − z)² + const,    [Φ y] = Q [R z; 0 const]

This is a QR decomposition, taken a slice of rows at a time, and not a Gram matrix, which would lose half the digits:
a loss of 1e-20 would drown in rounding. φ is whitened first, so that R is near the identity.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy.linalg  # a dependency of jax itself; its QR is 25 times as fast as NumPy's here
from jaxtyping import Float

from underhood.algebra.quadratic import append_one, pair_indices, pair_products
from underhood.core.errors import UnderhoodError

SLICE = 8192
NULL = 1e-11  # directions of φ with less than this share of the largest variance are constant on the data
MOST_PRODUCTS = 6000  # d = 9; beyond it the reduced rows alone take gigabytes


class Moments(NamedTuple):
    """F_j = tensor[:, a, b] u_a v_b is what a product of two functionals u, v of whitened φ gives, row by row."""

    tensor: Float[np.ndarray, "r q q"]
    targets: Float[np.ndarray, "r d_o"]
    basis: Float[np.ndarray, "q p2"]
    power: float
    unexplained: float

    @property
    def d(self) -> int:
        return round((self.basis.shape[1] + 0.25) ** 0.5 - 1.5)

    @property
    def scales(self) -> tuple[float, float]:
        """How long functionals of unit weights are, of the past and of the present: the units of hidden neurons."""
        p = self.basis.shape[1] // 2
        past, present = (np.sqrt(np.mean(np.sum(part**2, axis=0))) for part in (self.basis[:, :p], self.basis[:, p:]))
        return float(past) or 1.0, float(present) or 1.0

    def half_mean(self, loss: float) -> float:
        """½ · mean over rows and coordinates for a squared error `loss` in the scaled, reduced targets."""
        return 0.5 * (loss * self.power + self.unexplained) / self.targets.shape[1]


def triangle(block: np.ndarray) -> np.ndarray:
    """R of the QR decomposition, at most as many rows as columns; `block` is used up."""
    factor: Any = scipy.linalg.qr(block, mode="r", overwrite_a=True, check_finite=False)
    return factor[0][: min(block.shape)]


def present_and_past(xs: Float[np.ndarray, "b t d"]) -> Float[np.ndarray, "b t p2"]:
    """φ_t: the distinct entries of Σ_{s≤t} x̃_s x̃_sᵀ, then those of x̃_t x̃_tᵀ."""
    present = pair_products(append_one(xs))
    return np.concatenate([np.cumsum(present, axis=1), present], axis=-1)


def present_and_past_at_last(xs: Float[np.ndarray, "b t d"]) -> Float[np.ndarray, "b p2"]:
    """φ of the last step alone, without the steps on the way."""
    xs = append_one(xs)
    row, column = pair_indices(xs.shape[-1])
    past = np.matmul(xs.transpose(0, 2, 1), xs)[:, row, column]
    return np.concatenate([past, pair_products(xs[:, -1])], axis=-1)


def check_sequences(xs: Any, ys: Any, targets_at: str) -> tuple[np.ndarray, np.ndarray]:
    """Float64 sequences (b, t, d) and wanted outputs (b, t, d_o); (b, d_o) where only the last step counts."""
    xs, ys = np.asarray(xs, np.float64), np.asarray(ys, np.float64)
    if targets_at not in ("every", "last"):
        raise UnderhoodError("expected targets_at 'every' or 'last'", targets_at)
    if xs.ndim != 3:
        raise UnderhoodError("expected sequences of shape (batch, time, d)", xs.shape)
    if targets_at == "last" and ys.ndim == 3:
        ys = ys[:, -1]
    wanted = xs.shape[:2] if targets_at == "every" else xs.shape[:1]
    if ys.shape[:-1] != wanted:
        raise UnderhoodError(f"expected outputs of shape {(*wanted, 'd_out')}", ys.shape)
    for name, values in (("sequences", xs), ("outputs", ys)):
        if not np.all(np.isfinite(values)):
            raise UnderhoodError(f"expected finite {name}", "nan or inf", "Scale the task down or mend its data.")
    return xs, ys


def reduce_data(xs: Any, ys: Any, *, targets_at: str = "every") -> Moments:
    """All that a network with λ in {0, 1} can learn from these sequences, in at most q(q+1)/2 rows."""
    xs, ys = check_sequences(xs, ys, targets_at)
    d_out = ys.shape[-1]
    basis, whiten = _whitening(xs, targets_at)
    q, count = len(basis), len(ys.reshape(-1, d_out))
    products = q * (q + 1) // 2
    if products > MOST_PRODUCTS:
        raise UnderhoodError(
            f"expected at most {MOST_PRODUCTS} products with λ fixed to 0 and 1", products, "Use a smaller d."
        )
    left, right = pair_indices(q)
    factor = np.zeros((0, products + d_out))
    per_slice = max(1, SLICE // xs.shape[1] if targets_at == "every" else SLICE)
    for start in range(0, len(xs), per_slice):
        rows = whiten(xs[start : start + per_slice])
        block = np.empty((len(factor) + len(rows), products + d_out), order="F")
        block[: len(factor)] = factor
        np.multiply(rows[:, left], rows[:, right], out=block[len(factor) :, :products])
        block[len(factor) :, products:] = ys[start : start + per_slice].reshape(-1, d_out)
        block[len(factor) :] /= np.sqrt(count)
        factor = triangle(block)
    reduced, targets = factor[:products, :products], factor[:products, products:]
    tensor = np.empty((len(reduced), q, q))
    tensor[:, left, right] = reduced
    tensor[:, right, left] = reduced
    used = np.linalg.norm(reduced, axis=1) > 1e-13 * np.linalg.norm(reduced)
    # Dependent products leave rows in which only targets stand: no network reaches them.
    unexplained = float(np.sum(factor[products:, products:] ** 2) + np.sum(targets[~used] ** 2))
    power = float(np.sum(targets[used] ** 2)) or 1.0
    return Moments(tensor[used], targets[used] / power**0.5, basis, power, unexplained)


def _whitening(xs: np.ndarray, targets_at: str) -> tuple[np.ndarray, Any]:
    """φ = basisᵀ φ_w with E[φ_w φ_wᵀ] = 1, and the map from sequences to rows of φ_w."""

    def rows_of(xs: np.ndarray) -> np.ndarray:
        rows = present_and_past_at_last(xs) if targets_at == "last" else present_and_past(xs)
        return rows.reshape(-1, rows.shape[-1])

    basis, whiten = whitening_of(rows_of(xs[: max(64, 65536 // xs.shape[1])]))
    return basis, lambda xs: rows_of(xs) @ whiten


def whitening_of(sample: Float[np.ndarray, "r k"]) -> tuple[Float[np.ndarray, "q k"], Float[np.ndarray, "k q"]]:
    """(basis, W): rows W have the identity as second moment, and (rows W) basis = rows."""
    spread = np.sqrt(np.mean(sample**2, axis=0))
    spread[spread == 0] = 1.0
    variance, directions = np.linalg.eigh((sample / spread).T @ (sample / spread) / len(sample))
    kept = variance > NULL * variance[-1]
    variance, directions = variance[kept], directions[:, kept]
    return np.sqrt(variance)[:, None] * directions.T * spread, directions / np.sqrt(variance) / spread[:, None]
