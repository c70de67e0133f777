"""How far a long run is, on stderr, once in a while."""

from __future__ import annotations

import sys
import time

import numpy as np

EVERY = 30.0  # seconds


class Pace:
    """`fit_population(…, watch=Pace("table1", steps))`: step, loss and the time that is left at the pace so far."""

    def __init__(self, name: str, steps: int) -> None:
        self._name, self._steps = name, steps
        self._first: tuple[int, float] | None = None
        self._told = time.monotonic()

    def __call__(self, step: int, losses: np.ndarray) -> None:
        now = time.monotonic()
        if self._first is None:
            self._first = step, now  # the first chunk compiles, and a resumed run begins late
        if now - self._told < EVERY or step == self._first[0]:
            return
        self._told = now
        left = (now - self._first[1]) / (step - self._first[0]) * (self._steps - step) / 60
        loss = f"loss {np.mean(losses):.2e}"
        sys.stderr.write(f"{self._name}: {step:,} of {self._steps:,} steps · {loss} · {left:.0f} min left\n")
