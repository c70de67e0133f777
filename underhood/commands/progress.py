"""A bar on stderr with loss, steps a second and time left; TensorBoard beside it where asked for."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from underhood.core.errors import UnderhoodError


class Progress:
    """`with Progress(steps) as progress: fit(…, watch=progress.update)`."""

    def __init__(self, steps: int, tensorboard: Path | None = None, members: Sequence[Any] = ()) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        self._writer = _event_writer(tensorboard) if tensorboard is not None else None
        self._members = members
        self._first: tuple[int, float] | None = None
        self._bar = Bar(
            TextColumn("{task.completed:,.0f}/{task.total:,.0f}"),
            BarColumn(),
            TextColumn("loss {task.fields[loss]}"),
            TextColumn("{task.fields[speed]} steps/s"),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=Console(file=sys.stderr),
            disable=not sys.stderr.isatty(),  # a log file wants no control characters
        )
        self._task = self._bar.add_task("train", total=steps, loss="–", speed="–")

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()
        if self._writer is not None:
            self._writer.close()

    def update(self, step: int, losses: np.ndarray) -> None:
        """After each chunk; the speed is that of this sitting, from its second chunk on (the first compiles)."""
        now = time.perf_counter()
        if self._first is None:
            self._first = step, now
        steps, seconds = step - self._first[0], now - self._first[1]
        speed = f"{steps / seconds:,.0f}" if seconds > 0 and steps else "–"
        self._bar.update(self._task, completed=step, loss=f"{np.mean(losses):.3e}", speed=speed)
        if self._writer is not None:
            for index, loss in enumerate(losses):
                self._writer.add_scalar(f"loss/{index}-seed-{self._members[index].seed}", float(loss), step)


def _event_writer(folder: Path) -> Any:
    try:
        from tensorboardX import SummaryWriter  # pyright: ignore[reportMissingImports]
    except ImportError:
        remedy = "pip install 'underhood[tensorboard]'"
        raise UnderhoodError("--tensorboard needs tensorboardX", remedy=remedy) from None
    return SummaryWriter(str(folder / "tensorboard"))
