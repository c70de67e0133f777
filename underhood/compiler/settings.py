"""The numbers that the compiler was tuned to, each with why."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Settings:
    """What no equation says."""

    most_steps: int = 2**53
    """Longest horizon: beyond it, float64 cannot count steps."""
    most_orders: int = 4
    """Beyond it, rounding of the coefficients eats what the cancellation gains."""
    slack: float = 50.0
    """A bound is for the worst of all inputs, a tolerance for those met: how much larger the bound may be."""
    margin: float = 0.3
    """Other inputs than the probes may err more: this near to the tolerance, a second form is tried."""
    telling: float = 300.0
    """A second form is tried as well where the bound is this many times the error measured."""
    longest_probe: int = 20_000
    """Steps of a probe; beyond, the bound speaks alone, and `measured_steps` says so."""
    most_states: int = 20_000_000
    """Numbers remembered times steps of a probe: about a second."""
    few_inputs: int = 64
    """Inputs up to which corners are searched one flip at a time, from several starts."""
    most_signs: int = 12
    """Keys up to which all combinations of signs are tried, 2¹¹ forms of a head."""
    most_corners: int = 2**10
    """Corners of the inputs up to which all are tried."""
    most_rows: int = 2**18
    """Numbers in a projection with a row for each product; d = 64 with one head has about as many."""
    most_bytes: int = 2**30
    """Of a matrix in a form that is there for accuracy only: d = 27."""
    large: int = 10_000_000
    """Entries of a dense gating of the states, 80 MB in float64: sparse from here on."""


SETTINGS = Settings()
