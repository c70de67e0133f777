"""R² of the best linear attention on sequences of one's own: fitted on one half of them, tested on the other."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float

from underhood.algebra.quadratic import Array
from underhood.algebra.statistics import r_squared
from underhood.core.arrays import require_real
from underhood.core.errors import UnderhoodError
from underhood.core.foreign import as_function
from underhood.decompiler.from_outputs.functions import Batched, as_numpy_function
from underhood.decompiler.from_outputs.nearest import nearest_heads
from underhood.decompiler.from_outputs.regression import features, least_squares, unknowns
from underhood.decompiler.from_outputs.search import SMALL, FactoredAttention

FEWEST, PER_UNKNOWN = 64, 5  # sequences, and steps in the fitted half per number that is fitted
MOST_NEEDED = 512  # for wide inputs, where a descent of few steps stands in for the regression, and fits less


def closeness(function: Any, xs: Float[Array, "b t d"], *, last: bool = False) -> float:
    """R² of the best linear attention on sequences (b, t, d) of your own, at every step or at the last one only.

    It is fitted on the first half of them and tested on the second. A network that is asked about one distribution
    of inputs, as in-context regression is, may be attention there and nowhere else.
    """
    xs = own_sequences(xs)
    function, _ = as_function(function, xs.shape[2])
    return closeness_of(as_numpy_function(function, xs.shape[2]), xs, last=last)


def own_sequences(given: Any, d: int | None = None) -> Float[Array, "b t d"]:
    """Sequences that a user gave, (b, t, d) and finite."""
    require_real("numbers in the sequences", given)
    xs = np.asarray(given, np.float64)
    if xs.ndim != 3 or len(xs) < 2 or not xs.size:
        raise UnderhoodError("expected two or more sequences, of shape (b, t, d)", f"shape {xs.shape}")
    if d is not None and xs.shape[2] != d:
        raise UnderhoodError(
            f"expected sequences with {d} inputs, as d says", f"{xs.shape[2]} inputs", "Leave out `d`."
        )
    if not np.isfinite(xs).all():
        raise UnderhoodError("expected finite numbers in the sequences", "NaN or infinite ones")
    return xs


def sequences_needed(d: int, steps: int) -> int:
    """How many sequences, with so many steps that count, tell R² from what a fit to few of them would have."""
    if d > SMALL:
        return min(max(FEWEST, 2 * -(-PER_UNKNOWN * 2 * d * d // steps)), MOST_NEEDED)
    return max(FEWEST, 2 * -(-PER_UNKNOWN * unknowns(d) // steps))


def closeness_of(call: Batched, xs: Float[Array, "b t d"], *, last: bool) -> float:
    d, at = xs.shape[-1], slice(-1 if last else 0, None)
    need = sequences_needed(d, 1 if last else xs.shape[1])
    if len(xs) < need:
        rule = f"expected {need} sequences or more of {xs.shape[1]} steps, to fit an attention to one half of them"
        raise UnderhoodError(rule, len(xs), "Give more sequences, or leave them out.")
    ys, half = call(xs)[:, at], len(xs) // 2
    if d <= SMALL:
        rows = features(xs, 1.0)[:, at]
        weights = least_squares(rows[:half].reshape(-1, rows.shape[2]), ys[:half].reshape(-1, ys.shape[2]))
        predicted = rows[half:] @ weights
    else:
        start = np.random.default_rng(0).standard_normal((1, d, d)) / np.sqrt(d)
        heads = nearest_heads(xs[:half], ys[:half], start)
        predicted = FactoredAttention((1.0,), (heads,))(xs[half:])[:, at]
    return r_squared(ys[half:], predicted)
