"""Ctrl-C is heard wherever it strikes: it ends a command with exit code 130, and leaves no traceback.

Python can only print what is raised in a hook of the garbage collector, in `__del__` or in a callback of a library's,
and goes on as if nothing had happened. Here the interrupt comes once more, a moment later.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

MOMENT = 0.05  # seconds: the hook has returned by then, and a person has not noticed


@contextlib.contextmanager
def interrupts_are_heard() -> Iterator[None]:
    """Within it, a KeyboardInterrupt that Python would print and forget is raised again."""
    unraisable, uncaught = sys.unraisablehook, sys.excepthook
    over = False

    def again() -> None:
        time.sleep(MOMENT)
        if not over:
            os.kill(os.getpid(), signal.SIGINT)

    def on_unraisable(what: Any) -> None:
        if issubclass(what.exc_type, KeyboardInterrupt):
            # Not threading.Thread: its start waits for the thread, and an interrupt that strikes there is lost.
            _thread.start_new_thread(again, ())
        else:
            unraisable(what)

    def on_uncaught(kind: type[BaseException], *rest: Any) -> None:
        if issubclass(kind, KeyboardInterrupt):
            _thread.start_new_thread(again, ())
        else:
            uncaught(kind, *rest)

    sys.unraisablehook, sys.excepthook = on_unraisable, on_uncaught
    try:
        yield
    finally:
        over = True
        sys.unraisablehook, sys.excepthook = unraisable, uncaught
