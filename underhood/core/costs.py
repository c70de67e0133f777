"""seconds = a · s^b and gigabytes = a · s^b: what a command will take, from measurements at smaller sizes.

s is d, or more where several heads or many neurons make a network as large as that of a larger d. `COSTS` is what
`python -m benchmarks.sizes` fitted (results/bench/sizes.json, `growth`; a test compares), on one core of the machine
that made results/. An estimate is good to a factor of two or so: it is shown before the work starts, and half of its
memory must be free.
"""

from __future__ import annotations

from typing import NamedTuple

from underhood.core.memory import readable, require_memory

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


COSTS: dict[str, Cost] = {
    "levenberg": Cost((7.1e-05, 4.99), (0.0097, 0.83)),
    "decompile": Cost((6.3e-06, 3.61), (1.7e-06, 2.97)),
    "compile": Cost((0.073, 0.85), (0.04, 0.51)),
    "compile gla": Cost((0.038, 0.94), (0.0067, 0.39)),
    "compile mlstm": Cost((0.064, 0.86), (0.012, 0.39)),
    "compile lru-in-out, sparse": Cost((0.22, 0.67), (0.47, 0.00)),
    "compile mamba, sparse": Cost((0.65, 0.50), (0.84, 0.08)),
    "probe": Cost((8.9e-06, 2.60), (6.2e-06, 1.97)),
    "compile lru": Cost((0.0048, 1.66), (1.7e-06, 3.42)),
    "compile lru-in-out": Cost((0.0024, 1.81), (2.3e-07, 3.96)),
    "compile lru-in-skip": Cost((0.0063, 1.45), (2e-07, 3.86)),
    "compile gru": Cost((0.0008, 2.85), (3e-06, 3.52)),
    "compile griffin": Cost((0.00066, 2.23), (0.00031, 1.94)),
    "compile mingru": Cost((2.6e-05, 3.36), (3.7e-07, 4.20)),
    "compile gated-rnn-compact": Cost((1.1e-05, 2.98), (9.2e-08, 3.78)),
    "compile gated-rnn-minimal": Cost((0.0014, 1.58), (1.3e-07, 3.42)),
    "compile lstm": Cost((0.012, 1.15), (3.2e-06, 2.70)),
    "compile mamba": Cost((0.055, 0.58), (0.0002, 1.00)),
    "compile mamba2": Cost((0.97, 0.00), (0.046, 0.00)),
    "compile gated-deltanet": Cost((1.3, 0.00), (0.079, 0.00)),
    "compile rwkv7": Cost((0.42, 0.16), (0.0059, 0.37)),
    "compile mesanet": Cost((1.3, 0.00), (0.083, 0.00)),
    "compile mamba, heads": Cost((0.00087, 1.94), (2e-06, 3.01)),
}


def expected_cost(name: str, size: int | float, times: int = 1) -> Expected | None:
    """For `times` runs one after the other; None for what was not measured."""
    cost = COSTS.get(name)
    if cost is None:
        return None
    (seconds, grows), (gigabytes, widens) = cost
    return Expected(times * seconds * size**grows, 1e9 * gigabytes * size**widens)


def estimate_cost(name: str, size: int | float, what: str, times: int = 1) -> str | None:
    """A line to show before the work starts where it is long or large; refused where its memory is not there."""
    cost = expected_cost(name, size, times)
    if cost is None:
        return None
    require_memory(SURE * cost.bytes, what)
    return f"{what} will take {cost}" if cost.seconds > LONG or cost.bytes > LARGE else None


def _duration(seconds: float) -> str:
    for unit, length in (("days", 86400), ("hours", 3600), ("min", 60)):
        if seconds >= 1.5 * length:
            return f"{seconds / length:.2g} {unit}" if seconds < 10 * length else f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
