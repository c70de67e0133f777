"""Sweeps: two workers against one, and what a scheduler costs; results/bench/sweep.json.

python -m benchmarks.sweep

Both from runs of about a minute. The overhead is the wall time of a sweep, on one worker of a dask cluster on this
machine, against the seconds that its runs themselves took.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.measure import row, show, store


def spec(jobs: int, steps: int) -> dict[str, Any]:
    """Jobs of equal work: the same shape, but for a rate of decay that tells them apart as shapes."""
    common = {"task": "teacher-student", "d": 4, "hidden": 64, "steps": steps}
    return {"runs": [{**common, "length": 32, "teacher_seed": seed} for seed in range(jobs)]}


def seconds_here(jobs: int, workers: int, steps: int) -> float:
    """Wall seconds of a sweep on this machine."""
    from underhood.sweeps.sweep import run_sweep

    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        run_sweep(spec(jobs, steps), Path(folder) / "sweep", workers=workers)
        return time.perf_counter() - began


def overhead(steps: int) -> tuple[float, float]:
    """(Wall seconds on the cluster, seconds of the same job in this process) for one run."""
    from underhood.sweeps.job import jobs_of, run_job
    from underhood.sweeps.spec import parse
    from underhood.sweeps.sweep import run_sweep

    with tempfile.TemporaryDirectory() as folder, cluster() as address:
        warm = {"runs": [{"task": "teacher-student", "hidden": 4, "steps": 1}]}
        run_sweep(warm, Path(folder) / "warm", scheduler=address)  # imports and the first connection
        began = time.perf_counter()
        run_sweep(spec(1, steps), Path(folder) / "sweep", scheduler=address)
        there = time.perf_counter() - began
    (job,) = jobs_of(parse(spec(1, steps)).expanded(), checkpoint_every=10**9, keep_models=False)
    began = time.perf_counter()
    run_job(job)
    return there, time.perf_counter() - began


@contextmanager
def cluster() -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address = f"tcp://127.0.0.1:{port}"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    where = ["--host", "127.0.0.1", "--port", str(port), "--no-dashboard"]
    module = [sys.executable, "-m"]
    scheduler = subprocess.Popen([*module, "distributed.cli.dask_scheduler", *where], **quiet)
    flags = ["--nthreads", "1", "--memory-limit", "0", "--no-dashboard", "--no-nanny"]
    worker = subprocess.Popen([*module, "distributed.cli.dask_worker", address, *flags], **quiet)
    try:
        time.sleep(5)
        yield address
    finally:
        for process in (worker, scheduler):
            process.kill()
            process.wait()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40_000, help="of one run; about a minute")
    flags = parser.parse_args()
    one, two = (seconds_here(2, workers, flags.steps) for workers in (1, 2))
    there, here = overhead(flags.steps)
    rows = [
        row("two workers against one", one / two, unit="×", at_least=1.8, detail=f"{one:.1f} against {two:.1f} s"),
        row(
            "run of a minute: share of the wall time that the scheduler does not add",
            here / there,
            at_least=0.95,
            detail=f"{there:.1f} s on the cluster, {here:.1f} s in one process",
        ),
    ]
    show("sweeps", rows)
    store("sweep", rows, {"steps": flags.steps})


if __name__ == "__main__":
    os.environ.update(dict.fromkeys(("NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"))
    main()
