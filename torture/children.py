"""Victims: commands in forked children of a process that has imported everything and started no backend of jax's.

An import of all that a command needs takes seconds; a fork takes milliseconds. A fork after jax has started its
threads would hang, so that this process never computes anything itself.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import importlib
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from underhood.core.interrupts import exit_on_interrupt

ONE_THREAD = dict.fromkeys(("NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
ESCAPED = 99  # exit code of a child whose command raised


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a child ended; `code` is minus the signal's number where one ended it."""

    code: int
    err: str
    out: str
    seconds: float

    @property
    def is_refusal(self) -> bool:
        """Exit code 2 and one line that says why."""
        return self.code == 2 and self.err.startswith("underhood: ") and self.err.count("\n") == 1

    def __str__(self) -> str:
        return f"exit code {self.code}: {self.err.strip()[-300:] or 'nothing on stderr'}"


def preload() -> None:
    """Import what the commands import late, and start nothing."""
    os.environ.update(ONE_THREAD)
    import underhood.cli
    import underhood.compiler.compile
    import underhood.decompiler.decompile
    import underhood.interop.onnx_graphs
    import underhood.interop.torch
    import underhood.studies.constructions
    import underhood.sweeps  # noqa: F401

    for late in ("matplotlib.pyplot", "optax", "scipy.optimize", "torch", "onnx", "onnxruntime", "jax2onnx"):
        with contextlib.suppress(ImportError):
            importlib.import_module(late)
    if "onnxruntime" in sys.modules:
        sys.modules["onnxruntime"].disable_telemetry_events()
    from jax._src import xla_bridge

    if xla_bridge.backends_are_initialized():
        raise RuntimeError("an import started jax's backend: children forked from here would hang")


class Child:
    """`call` in a process of its own, with its output in files."""

    def __init__(self, call: Callable[[], int]) -> None:
        self._out, self._err = (tempfile.TemporaryFile() for _ in range(2))  # noqa: SIM115 (closed by wait)
        self._began = time.monotonic()
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            self._become(call)

    def _become(self, call: Callable[[], int]) -> None:
        code = ESCAPED
        try:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.dup2(self._out.fileno(), 1)
            os.dup2(self._err.fileno(), 2)
            sys.stdout = os.fdopen(1, "w", closefd=False)
            sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
            exit_on_interrupt()  # as in a process of the command line
            code = call()
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else ESCAPED
        except BaseException:
            traceback.print_exc()
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            with contextlib.suppress(BaseException):
                gc.collect()  # as at the end of a process: semaphores of workers are given back
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def wait(self) -> Ended:
        _, status = os.waitpid(self.pid, 0)
        texts = []
        for file in (self._err, self._out):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
            file.close()
        return Ended(os.waitstatus_to_exitcode(status), *texts, time.monotonic() - self._began)


def command(*arguments: Any) -> Callable[[], int]:
    """`underhood …` as a call."""

    def call() -> int:
        from underhood.cli import main

        return main([str(argument) for argument in arguments])

    return call


def run(*arguments: Any) -> Ended:
    """`underhood …` in a child, to its end."""
    return Child(command(*arguments)).wait()


def done(*arguments: Any, codes: Sequence[int] = (0,)) -> Ended:
    """The same where it must work: what is tortured has to be sound first."""
    ended = run(*arguments)
    if ended.code not in codes:
        raise RuntimeError(f"underhood {' '.join(map(str, arguments))}: {ended}")
    return ended


def said(what: str, ended: Ended) -> str | None:
    """The problem that a child printed as JSON, with `what` it was at; one that printed nothing broke down."""
    try:
        problem = json.loads(ended.out)
    except ValueError:
        problem = str(ended)
    return problem and f"{what}: {problem}"


def in_processes(calls: Sequence[Callable[[], Any]], workers: int) -> list[Any]:
    """The results of all calls, in processes that are forked before any of them starts a thread."""
    with ProcessPoolExecutor(workers, mp_context=get_context("fork")) as pool:
        futures = [pool.submit(call) for call in calls]
        for count, _ in enumerate(as_completed(futures), start=1):
            if sys.stderr.isatty():
                sys.stderr.write(f"\r{count}/{len(futures)} ")
        return [future.result() for future in futures]


def snapshot(folder: Path, *, without: Sequence[str] = ()) -> dict[str, bytes]:
    """Every file that a reader would take for a result: all but what a kill leaves of a write, and locks."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        part = path.name.startswith(".")
        if path.is_file() and not part and not any(name == other or path.name == other for other in without):
            found[name] = path.read_bytes()
    return found
