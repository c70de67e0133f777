"""If signs g may be put on a task without changing it, average over them exactly:  E_g[Φᵀ Φ] is block diagonal.

In-context regression keeps its distribution when a coordinate of x, or of y, changes sign throughout, or the query
alone, or every example alone. Each entry of φ (here past and present apart) then only changes sign too, with a
character χ: one bit for each generator. Products with different characters are uncorrelated after averaging, so the
data of all 2^k mirrored copies of a sample are reduced by one small QR for each character, at the cost of one copy.
What is left is the noise of the few products that transform as the output does: it falls from some 700 products
to 3 for an output, and the excess of the fitted network with it.
"""

from __future__ import annotations

import numpy as np

from underhood.algebra.quadratic import append_one, pair_indices, pair_products
from underhood.core.errors import UnderhoodError
from underhood.training.second_order.moments import (
    NULL,
    SLICE,
    Moments,
    check_sequences,
    present_and_past_at_last,
    triangle,
)
from underhood.training.tasks.task import Signs


def _characters(signs: np.ndarray) -> np.ndarray:
    """One whole number for each column of ±1: its bits are the generators that flip it."""
    return (signs < 0).T @ (1 << np.arange(len(signs)))


def _entry_signs(signs: np.ndarray) -> np.ndarray:
    """Signs of the distinct entries of x̃x̃ᵀ."""
    return pair_products(append_one(signs))


def _past_apart(xs: np.ndarray) -> np.ndarray:
    """(Σ_{s<T} x̃x̃ᵀ, x̃_T x̃_Tᵀ) at the last step."""
    rows = present_and_past_at_last(xs)
    p = rows.shape[1] // 2
    return np.concatenate([rows[:, :p] - rows[:, p:], rows[:, p:]], axis=1)


def reduce_symmetric(xs: np.ndarray, ys: np.ndarray, signs: Signs) -> Moments:
    """As `reduce_data(…, targets_at="last")` on all mirrored copies of the sequences."""
    xs, ys = check_sequences(xs, ys, "last")
    if signs.examples.shape[1] != xs.shape[2] or signs.outputs.shape[1] != ys.shape[1]:
        raise UnderhoodError(
            "expected signs with a column for each coordinate", f"{signs.examples.shape}, {signs.outputs.shape}"
        )
    entry = np.concatenate([_characters(_entry_signs(signs.examples)), _characters(_entry_signs(signs.query))])
    output = _characters(signs.outputs)
    basis, whiten, character = _whitening(xs, entry)
    left, right = pair_indices(len(basis))
    product = character[left] ^ character[right]
    groups = {int(c): (np.flatnonzero(product == c), np.flatnonzero(output == c)) for c in np.unique(product)}
    factors = {c: np.zeros((0, len(members) + len(wanted))) for c, (members, wanted) in groups.items()}
    for first in range(0, len(xs), SLICE):
        rows, targets = _past_apart(xs[first : first + SLICE]) @ whiten, ys[first : first + SLICE]
        for c, (members, wanted) in groups.items():
            products = rows[:, left[members]] * rows[:, right[members]]
            block = np.concatenate([products, targets[:, wanted]], axis=1) / np.sqrt(len(xs))
            stacked = np.concatenate([factors[c], block])
            factors[c] = triangle(stacked)
    tensors, reduced, explained = [], [], 0.0
    for c, (members, wanted) in groups.items():
        factor = factors[c][: len(members)]
        tensor = np.zeros((len(factor), len(basis), len(basis)))
        tensor[:, left[members], right[members]] = factor[:, : len(members)]
        tensor[:, right[members], left[members]] = factor[:, : len(members)]
        block = np.zeros((len(factor), ys.shape[1]))
        block[:, wanted] = factor[:, len(members) :]
        tensors.append(tensor)
        reduced.append(block)
        explained += float(np.sum(block**2))
    power = explained or 1.0
    unexplained = max(float(np.mean(np.sum(ys**2, axis=1))) - explained, 0.0)
    return Moments(np.concatenate(tensors), np.concatenate(reduced) / power**0.5, basis, power, unexplained)


def _whitening(xs: np.ndarray, entry: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Basis of φ and whitening of (past, present), each new direction with one character."""
    sample = _past_apart(xs[:65536])
    spread = np.sqrt(np.mean(sample**2, axis=0))
    spread[spread == 0] = 1.0
    scaled = sample / spread
    variances, directions, characters = [], [], []
    for c in np.unique(entry):
        members = np.flatnonzero(entry == c)
        variance, vectors = np.linalg.eigh(scaled[:, members].T @ scaled[:, members] / len(scaled))
        kept = variance > NULL * max(variance[-1], 1e-12)
        full = np.zeros((len(entry), int(kept.sum())))
        full[members] = vectors[:, kept]
        variances.append(variance[kept])
        directions.append(full)
        characters.append(np.full(int(kept.sum()), c))
    variance, direction = np.concatenate(variances), np.concatenate(directions, axis=1)
    apart = np.sqrt(variance)[:, None] * direction.T * spread
    p = len(entry) // 2
    basis = np.concatenate([apart[:, :p] + apart[:, p:], apart[:, p:]], axis=1)  # a memory reads past and present
    return basis, direction / spread[:, None] / np.sqrt(variance), np.concatenate(characters)
