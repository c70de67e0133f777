"""How far long work is, on stderr: a bar where somebody looks at it, a line now and then in a log."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

import numpy as np

from underhood.core.errors import printable

EVERY = 30.0  # seconds between two lines of a log


class Progress:
    """`with Progress("train", steps, "steps") as progress: fit(…, watch=progress.losses)`.

    **Arguments:**

    - `name`: of the work.
    - `total`: how much there is to do; None where nobody knows.
    - `unit`: what is counted, for the lines of a log; shares of a whole have none.
    - `transient`: whether the bar goes when the work is done.
    """

    def __init__(self, name: str, total: int | float | None, unit: str = "", *, transient: bool = False) -> None:
        self.name, self.total, self.unit = name, total, unit
        self._transient, self._bar, self._task = transient, None, None
        self._first: tuple[float, float] | None = None
        self._shown = time.monotonic()

    def __enter__(self) -> Progress:
        if sys.stderr.isatty():  # a log wants no control characters
            self._bar = _bar(self.total is not None, self._transient)
            self._task = self._bar.add_task(self.name, total=self.total, detail="")
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        self._bar = None

    def update(self, done: int | float, detail: str = "", *, now: bool = False) -> None:
        """So much is done.

        **Arguments:**

        - `done`: of `total`.
        - `detail`: what else to say.
        - `now`: whether a log gets a line in any case.
        """
        moment = time.monotonic()
        if self._bar is not None:
            self._bar.update(self._task, completed=done, detail=detail)
            if now:
                self._bar.console.print(printable(f"{self.name}: {detail}"), markup=False, highlight=False)
            return
        first = self._first is None
        if self._first is None:
            self._first = done, moment  # the first part compiles, and resumed work begins late
        if not now and (first or moment - self._shown < EVERY):
            return
        self._shown = moment
        counted = f"{done:,.0f} of {self.total:,.0f} {self.unit}" if self.unit and self.total is not None else ""
        words = (counted, detail, self._left(done, moment))
        sys.stderr.write(printable(f"{self.name}: {' · '.join(word for word in words if word)}") + "\n")

    def losses(self, step: int, losses: np.ndarray) -> None:
        """The `watch` of `fit` and `fit_population`."""
        self.update(step, f"loss {np.mean(losses):.2e}")

    def _left(self, done: int | float, moment: float) -> str:
        """The time that is left at the pace so far."""
        if self._first is None or self.total is None or done <= self._first[0]:
            return ""
        minutes = (moment - self._first[1]) / (done - self._first[0]) * (self.total - done) / 60
        return f"{minutes:.0f} min left"


def _bar(counts: bool, transient: bool) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    texts = TextColumn("{task.description}", markup=False), TextColumn("{task.fields[detail]}", markup=False)
    share = TextColumn("{task.percentage:>3.0f} %")
    counting = BarColumn(), share, texts[1], TextColumn("left"), TimeRemainingColumn()
    columns = (texts[0], *(counting if counts else (texts[1], TimeElapsedColumn())))
    return Bar(*columns, console=Console(file=sys.stderr), transient=transient)
