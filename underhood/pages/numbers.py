"""Numbers as a person writes them."""

from __future__ import annotations

import math
from typing import Any


def text_of(value: Any) -> str:
    """A number as a person writes it: 3.1·10⁻⁹."""
    if value is None:
        return "–"
    if not isinstance(value, float):
        return str(value)
    if value == 0:
        return "0"
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "∞" if value > 0 else "-∞"
    mantissa, power = f"{value:.1e}".split("e")
    exponent = int(power)
    if -3 <= exponent <= 4:
        return f"{value:.3g}" if exponent < 3 else f"{float(f'{value:.2e}'):,.0f}"
    digits = str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"{mantissa}·10{digits}"
