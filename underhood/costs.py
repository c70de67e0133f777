"""seconds = a · s^b and gigabytes = a · s^b: what a command will take, from measurements at smaller sizes.

s is d, or more where several heads or many neurons make a network as large as that of a larger d. `COSTS` is what
`python -m benchmarks.sizes` fitted (results/bench/sizes.json, `growth`; tests/test_costs.py compares), on one core of
the machine that made results/. An estimate is good to a factor of two or so: it is shown before the work starts, and
half of its memory must be free.
"""

from __future__ import annotations

from typing import NamedTuple

from underhood.memory import readable, require_memory

LONG, LARGE = 60.0, 2e9  # seconds and bytes from which a person wants to know beforehand
SURE = 0.5  # share of the memory expected that is needed in any case


class Cost(NamedTuple):
    """(factor, exponent) of seconds and of gigabytes."""

    seconds: tuple[float, float]
    gigabytes: tuple[float, float]


class Expected(NamedTuple):
    """What one run will take."""

    seconds: float
    bytes: float

    def __str__(self) -> str:
        return f"about {_duration(self.seconds)} and {readable(self.bytes)}"


COSTS: dict[str, Cost] = {}


def expected(name: str, size: float, times: int = 1) -> Expected | None:
    """For `times` runs one after the other; None for what was not measured."""
    cost = COSTS.get(name)
    if cost is None:
        return None
    (seconds, grows), (gigabytes, widens) = cost
    return Expected(times * seconds * size**grows, 1e9 * gigabytes * size**widens)


def foretold(name: str, size: float, what: str, times: int = 1) -> str | None:
    """A line to show before the work starts where it is long or large; refused where its memory is not there."""
    cost = expected(name, size, times)
    if cost is None:
        return None
    require_memory(SURE * cost.bytes, what)
    return f"{what} will take {cost}" if cost.seconds > LONG or cost.bytes > LARGE else None


def _duration(seconds: float) -> str:
    for unit, length in (("days", 86400), ("hours", 3600), ("min", 60)):
        if seconds >= 1.5 * length:
            return f"{seconds / length:.2g} {unit}" if seconds < 10 * length else f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
