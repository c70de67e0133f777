"""An export is compared with its model before anyone relies on it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from underhood.core.model import AbstractModel, as_dtype

STEPS, SEQUENCES, BOUND = 100, 3, 2.0
# Swapped gates or a transposed matrix show as errors of order 1. Rounding does not pass 1e-6, though compiled LSTM
# and GRU networks magnify it by the small scales that they divide by.
TOLERANCE = 1e-6


@dataclasses.dataclass(frozen=True)
class Checked:
    """How far an exported network is from its model, on random sequences."""

    max_abs_error: float
    max_rel_error: float
    tolerance: float

    @property
    def verified(self) -> bool:
        return bool(self.max_rel_error <= self.tolerance)

    @property
    def report(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "verified": self.verified}


def check(
    model: AbstractModel,
    function: Callable[[np.ndarray], np.ndarray],
    tolerance: float = TOLERANCE,
    *,
    widen: bool = True,
    one_hot: bool = False,
) -> Checked:
    """Compare with the model in float64, so that what is left is what the export changed, not rounding.

    `one_hot`: on tokens, each a row with a single 1.
    """
    reference = as_dtype(model, np.float64) if widen else model
    random = np.random.default_rng(0)
    worst, largest = 0.0, np.finfo(np.float64).tiny
    for _ in range(SEQUENCES):
        xs = random.uniform(-BOUND, BOUND, (STEPS, model.d)).astype(np.float32).astype(np.float64)
        xs = np.eye(model.d)[np.argmax(xs, axis=1)] if one_hot else xs
        ys = np.asarray(reference(xs), np.float64)
        worst = np.maximum(worst, np.max(np.abs(function(xs) - ys)))  # NaN stays NaN: not verified
        largest = max(largest, float(np.max(np.abs(ys))))
    return Checked(float(worst), float(worst / largest), tolerance)
