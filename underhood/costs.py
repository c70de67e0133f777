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


COSTS: dict[str, Cost] = {
    "levenberg": Cost((0.00022, 4.60), (0.017, 0.69)),
    "decompile": Cost((2e-06, 4.02), (1.6e-06, 3.02)),
    "compile": Cost((0.069, 0.90), (0.027, 0.60)),
    "compile gla": Cost((0.046, 0.91), (0.021, 0.30)),
    "compile mlstm": Cost((0.25, 0.66), (0.17, 0.01)),
    "compile lru-in-out, sparse": Cost((0.27, 0.66), (0.51, 0.00)),
    "compile mamba, sparse": Cost((1.1, 0.44), (0.95, 0.07)),
    "probe": Cost((1.3e-05, 2.57), (0.00012, 1.46)),
    "compile lru": Cost((0.0075, 1.63), (1.7e-05, 2.86)),
    "compile lru-in-out": Cost((0.0025, 1.89), (2.6e-06, 3.36)),
    "compile lru-in-skip": Cost((0.017, 1.25), (4.5e-06, 3.09)),
    "compile gru": Cost((7.5e-05, 3.64), (5e-06, 3.38)),
    "compile griffin": Cost((0.0018, 2.04), (1.2e-06, 3.45)),
    "compile mingru": Cost((0.00024, 2.83), (4.4e-07, 4.16)),
    "compile gated-rnn-compact": Cost((1.4e-06, 3.58), (2.9e-07, 3.53)),
    "compile gated-rnn-minimal": Cost((0.00048, 1.95), (3.4e-06, 2.73)),
    "compile lstm": Cost((0.0016, 1.70), (6.5e-05, 2.06)),
    "compile mamba": Cost((0.46, 0.21), (0.031, 0.15)),
    "compile mamba2": Cost((1.3, 0.01), (0.089, 0.00)),
    "compile gated-deltanet": Cost((2.1, 0.00), (0.12, 0.00)),
    "compile rwkv7": Cost((1.4, 0.00), (0.053, 0.00)),
    "compile mesanet": Cost((1.1, 0.13), (0.1, 0.00)),
    "compile mamba, heads": Cost((0.00015, 2.46), (2.4e-07, 3.50)),
}


def expected(name: str, size: int | float, times: int = 1) -> Expected | None:
    """For `times` runs one after the other; None for what was not measured."""
    cost = COSTS.get(name)
    if cost is None:
        return None
    (seconds, grows), (gigabytes, widens) = cost
    return Expected(times * seconds * size**grows, 1e9 * gigabytes * size**widens)


def foretold(name: str, size: int | float, what: str, times: int = 1) -> str | None:
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
