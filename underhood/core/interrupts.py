"""Ctrl-C ends a command at once, with exit code 130 and one line, wherever it strikes.

An exception in the middle of an import, or in a callback out of compiled code, crashes the interpreter now and then;
one in a hook of the garbage collector is printed and forgotten. So nothing is raised: the handler itself says what to
do next, and leaves. A write is finished first (`interrupts_blocked`); work that has something to put in order asks for
a KeyboardInterrupt (`interruptible`). Only a process of the command line does this; a library leaves signals alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

INTERRUPTED = 130  # 128 + SIGINT

_advice: list[str] = []
_blocked: list[bool] = []  # an entry for each block that is open: whether Ctrl-C came in it


def exit_on_interrupt() -> None:
    """From here on Ctrl-C ends this process at once."""
    signal.signal(signal.SIGINT, _exit)


def _exit(number: int, frame: FrameType | None) -> None:
    if _blocked:
        _blocked[0] = True
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    message = "; ".join(["stopped by Ctrl-C", *_advice[-1:]])
    with contextlib.suppress(OSError):  # not through sys.stdout, which may be in the middle of something
        if "--json" in sys.argv[1:]:
            os.write(1, (json.dumps({"error": message}) + "\n").encode())
        os.write(2, f"underhood: {message}\n".encode("ascii", "backslashreplace"))
    os._exit(INTERRUPTED)


@contextlib.contextmanager
def advice(text: str) -> Iterator[None]:
    """Within it, Ctrl-C says so: how to go on."""
    _advice.append(text)
    try:
        yield
    finally:
        _advice.pop()


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Within it, Ctrl-C raises KeyboardInterrupt: for loops in Python that have something to put in order."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is not _exit:
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, _exit)


@contextlib.contextmanager
def interrupts_blocked() -> Iterator[None]:
    """Within it, Ctrl-C waits; a process that is started here never hears of one."""
    # The mask alone is no help: another thread takes the signal, and Python runs the handler in this one.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    _blocked.append(False)
    try:
        yield
    finally:
        came = _blocked.pop()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if came:
            signal.raise_signal(signal.SIGINT)
