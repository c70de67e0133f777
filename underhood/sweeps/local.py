"""Worker processes on this machine, one core each."""

from __future__ import annotations

import concurrent.futures
import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from underhood.core.folders import Folder
from underhood.core.interrupts import interrupts_blocked
from underhood.sweeps.job import Result, failures, run_job

ATTEMPTS = 3  # of a job whose worker dies: killed for want of memory, say
ONE_THREAD = ("NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def run_here(
    jobs: Sequence[dict[str, Any]], folder: Folder, workers: int, done: Callable[[dict[str, Any], list[Result]], Any]
) -> None:
    """Every job once; `done` is called here, with each job and its results as it ends."""
    waiting, attempts = {job["id"]: job for job in jobs}, dict.fromkeys((job["id"] for job in jobs), 0)
    with _one_thread_each():
        while waiting:
            # Which job killed a worker is not known: those that were under way go on from a checkpoint, each alone, so
            # that a job that is given up is the one that did it.
            suspects = [job for identity, job in waiting.items() if attempts[identity]]
            now = suspects[:1] or list(waiting.values())
            try:
                pooled = _pooled(now, folder, min(workers, len(now)), attempts)
                with contextlib.closing(pooled):  # an error of `done` ends the workers, too
                    for identity, results in pooled:
                        done(waiting.pop(identity), results)
                        folder.inside(identity).remove_tree()
            except BrokenProcessPool:
                for identity in [identity for identity in waiting if attempts[identity] >= ATTEMPTS]:
                    reason, job = f"its worker died {ATTEMPTS} times: too little memory?", waiting.pop(identity)
                    done(job, failures(job, reason, own=False))
    folder.remove_tree()


def _pooled(
    jobs: Sequence[dict[str, Any]], folder: Folder, workers: int, attempts: dict[str, int]
) -> Generator[tuple[str, list[Result]], None, None]:
    spawn = multiprocessing.get_context("spawn")  # a fork of a process with threads may hang
    pool = concurrent.futures.ProcessPoolExecutor(workers, spawn, _begin, (os.getpid(),))
    queue, running = list(jobs), {}
    try:
        while queue or running:
            while queue and len(running) < workers:
                job = queue.pop(0)
                attempts[job["id"]] += 1
                with interrupts_blocked():  # from the first line of a worker on, Ctrl-C is the parent's business
                    future = pool.submit(run_job, job, str(folder.make().path / job["id"]))
                running[future] = job["id"]
            ended, _ = concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED)
            for future in ended:
                identity = running.pop(future)
                yield identity, future.result()
    except BaseException:
        for process in list((pool._processes or {}).values()):  # public from Python 3.14 on: kill_workers
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        raise
    finally:
        # Waits for the pool's own thread, which is the one that waits for its workers: of two that wait for one child,
        # only one is told of its end.
        pool.shutdown(cancel_futures=True)


def _begin(parent: int) -> None:
    """In each worker: Ctrl-C is the parent's business, and a worker does not outlive it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.2)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextlib.contextmanager
def _one_thread_each() -> Iterator[None]:
    """Two processes of one thread do twice the work of one with two, on networks of this size."""
    before = {name: os.environ.get(name) for name in ONE_THREAD}
    os.environ.update(dict.fromkeys(ONE_THREAD, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
