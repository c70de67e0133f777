"""What a construction hands to the verifier."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float


@dataclasses.dataclass(frozen=True)
class Lowered:
    """A network, in float64, and how far it may be from its source, relative to the largest outputs possible."""

    model: Any
    relative_bound: float
    output_bounds: Float[np.ndarray, " d_o"]
    # The same through a form that is larger, or further from the paper's, and rounds less: for sources on which this
    # one is measured to come near the tolerance.
    otherwise: Callable[[], Lowered] | None = None

    @classmethod
    def within(cls, model: Any, errors: Float[np.ndarray, " d_o"], output_bounds: Float[np.ndarray, " d_o"]) -> Lowered:
        """Outputs within so much of their source's."""
        return cls(model, float(np.max(errors) / (np.max(output_bounds) or 1.0)), output_bounds)

    @property
    def error_bound(self) -> float:
        """max |y_network − y_source| over all inputs and steps of the envelope."""
        return float(self.relative_bound * np.max(self.output_bounds, initial=0.0))
