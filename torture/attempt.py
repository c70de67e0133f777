"""One damaged input through a command: refused in one line with exit code 2, or answered as if nothing were wrong.

Whatever else happens is a loss: a traceback, another exit code, two lines, five seconds of computing, a gigabyte, a
result that is no JSON or cannot be read back, a file that was written though the input was refused.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

SECONDS = 5.0  # of computing; a busy machine makes a clock on the wall say nothing
PATIENCE, IDLE = 60.0, 0.3  # seconds on the wall with fewer of computing: it waits
MEMORY = 2**30

REFUSED, ANSWERED = "refused", "answered"


class Hung(BaseException):
    """Not an Exception: no handler of errors may take it for one."""


def attempt(
    call: Callable[[], int],
    *,
    out: Path | None = None,
    seconds: float = SECONDS,
    memory: int = MEMORY,
    prints: bool = True,
    lines: int = 1,
) -> tuple[str | None, str]:
    """(what was lost, or None; refused or answered). `out` is what the command would write; a refusal has `lines`."""
    before = _resident()
    _forget_peak()
    with _captured() as texts, alarms(seconds):
        code, escaped = _code_of(call)
    out_text, err = texts
    grown = _peak() - before
    if escaped:
        return escaped, ""
    if grown > memory:
        return f"{grown / 2**20:.0f} MB for a small file (exit code {code})", ""
    if code == 2:
        if err.count("\n") != lines or not err.startswith("underhood: "):
            return f"exit code 2 without one line that says why: {err[-300:]!r}", ""
        if out is not None and out.exists():
            return f"a refused input left {out.name}", ""
        return None, REFUSED
    if code not in (0, 1):
        return f"exit code {code}: {err[-300:]!r}", ""
    return _unusable(out_text, out, prints), ANSWERED


def _code_of(call: Callable[[], int]) -> tuple[int, str]:
    try:
        return call(), ""
    except SystemExit as stop:
        return (stop.code if isinstance(stop.code, int) else 1), ""
    except Hung as hung:
        return -1, str(hung)
    except BaseException as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(where.filename).name}:{where.lineno}"
        return -1, f"traceback: {type(error).__name__} at {place}: {str(error)[:160]}"


def _unusable(printed: str, out: Path | None, prints: bool) -> str | None:
    """An answer is one JSON object, and a file that can be read again."""
    if prints:
        try:
            answer = json.loads(printed)
        except ValueError:
            return f"no JSON printed: {printed[-200:]!r}"
        if not isinstance(answer, dict):
            return f"no object printed: {printed[-200:]!r}"
    if out is not None and out.exists() and out.suffix == ".safetensors":
        from underhood.interop.readers import read_state_dict

        try:
            read_state_dict(out)
        except Exception as error:
            return f"the file written cannot be read: {error}"
    return None


def guarded(call: Callable[[], Any]) -> Callable[[], int]:
    """A reader as a command: what `underhood.cli.main` does with its errors."""
    from underhood.core.errors import UnderhoodError, one_line

    def command() -> int:
        try:
            call()
            return 0
        except UnderhoodError as error:
            sys.stderr.write(f"underhood: {one_line(error)}\n")
            return 2

    return command


@contextlib.contextmanager
def _captured() -> Iterator[list[str]]:
    """All that is written to stdout and stderr, by libraries below Python too; filled in at the end."""
    texts: list[str] = []
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [os.dup(number) for number in (1, 2)]
    streams = sys.stdout, sys.stderr
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        sys.stdout = os.fdopen(1, "w", closefd=False, encoding="utf-8", errors="backslashreplace")
        sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False, encoding="utf-8", errors="backslashreplace")
        try:
            yield texts
        finally:
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError, ValueError):
                    stream.flush()
            sys.stdout, sys.stderr = streams
            for number, descriptor in zip((1, 2), kept, strict=True):
                os.dup2(descriptor, number)
                os.close(descriptor)
            for file in (out, err):
                file.seek(0)
                texts.append(file.read().decode(errors="replace"))


@contextlib.contextmanager
def alarms(seconds: float = SECONDS) -> Iterator[None]:
    """Raises Hung after so many seconds of computing, or where nothing is computed for as long as patience lasts."""
    computed = time.process_time()

    def ring(number: int, frame: Any) -> None:
        nonlocal computed
        if number == signal.SIGPROF:
            raise Hung(f"hang: {seconds:g} s of computing")
        before, computed = computed, time.process_time()
        if computed - before < IDLE:
            raise Hung(f"hang: {PATIENCE:g} s without an end")

    before = {number: signal.signal(number, ring) for number in (signal.SIGPROF, signal.SIGALRM)}
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE, PATIENCE)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    return 0


def _resident() -> int:
    return _status("VmRSS")


def _peak() -> int:
    return _status("VmHWM")


def _forget_peak() -> None:
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
