"""Determinism: the same seed gives the same bits twice, with one worker and with two, resumed or not, on dask too."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from torture import healthy
from torture.children import ONE_THREAD, Child, command, done, in_processes
from torture.crashes import without_clocks
from torture.disk import make_inputs, ways
from torture.tally import Tally


def differences(one: dict[str, bytes], other: dict[str, bytes]) -> str | None:
    names = [name for name in sorted({*one, *other}) if one.get(name) != other.get(name)]
    return f"other bits in {', '.join(names)[:200]}" if names or not one else None


def twice(inputs: Path, scale: str, index: int) -> str | None:
    """Two processes, two folders, the same files."""
    name, arguments, _ = ways(inputs, scale)[index]
    with tempfile.TemporaryDirectory() as temporary:
        folders = [Path(temporary, str(number)) for number in range(2)]
        for folder in folders:
            folder.mkdir()
            done(*(str(argument).replace("OUT", str(folder)) for argument in arguments), codes=(0, 1))
        problem = differences(*map(without_clocks, folders))
        return problem and f"{name}: {problem}"


def resumed(arguments: list[Any], stop: signal.Signals) -> str | None:
    """Stopped in the middle and resumed, against a run that was left alone."""
    with tempfile.TemporaryDirectory() as temporary:
        alone, broken = Path(temporary, "alone"), Path(temporary, "broken")
        done(*arguments, "--out", alone)
        child = Child(command(*arguments, "--out", broken))
        while not list(broken.glob("checkpoints/*.safetensors")):
            time.sleep(0.01)
            if os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                break
        os.kill(child.pid, stop)
        child.wait()
        done(*arguments, "--resume", "--out", broken)
        return differences(without_clocks(alone), without_clocks(broken))


def sweeps(spec: Path, first: list[Any], second: list[Any], dask: bool) -> str | None:
    """A sweep in two ways."""
    with tempfile.TemporaryDirectory() as temporary:
        folders = [Path(temporary, str(number)) for number in range(2)]
        done("sweep", spec, *first, "--out", folders[0])
        with _cluster() if dask else contextlib.nullcontext("") as address:
            done("sweep", spec, *second, *([address] if dask else []), "--out", folders[1])
        return differences(*map(without_clocks, folders))


@contextlib.contextmanager
def _cluster() -> Iterator[str]:
    """A dask scheduler and one worker on this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address = f"tcp://127.0.0.1:{port}"
    environment = {**os.environ, **ONE_THREAD, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": environment}
    python = [sys.executable, "-m"]
    where = ["--host", "tcp://127.0.0.1", "--port", str(port), "--no-dashboard"]
    flags = ["--host", "127.0.0.1", "--nthreads", "1", "--memory-limit", "0", "--no-dashboard", "--no-nanny"]
    processes = [
        subprocess.Popen([*python, "distributed.cli.dask_scheduler", *where], **quiet),
        subprocess.Popen([*python, "distributed.cli.dask_worker", address, *flags], **quiet),
    ]
    try:
        yield address
    finally:
        for process in processes:
            process.kill()
            process.wait()


def run(scale: str, workers: int = 2, seed: int = 0) -> list[Tally]:
    with tempfile.TemporaryDirectory() as temporary:
        inputs = Path(temporary)
        make_inputs(inputs)
        spec, entry = inputs / "sweep.json", {**healthy.SPEC["runs"][0], "seeds": 2, "probe": True}
        spec.write_text(json.dumps({**healthy.SPEC, "keep_models": True, "runs": [entry]}))
        train = [*healthy.TRAIN, "--steps", "2000", "--checkpoint-every", "50"]
        one, two = ["--workers", 1], ["--workers", 2]
        stops = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
        cases = {
            "every command twice": [partial(twice, inputs, scale, i) for i in range(len(ways(inputs, scale)))],
            "a run resumed": [partial(resumed, train, stop) for stop in (stops if scale == "long" else stops[:1])],
        }
        if scale == "long":
            cases["a sweep with one worker and with two"] = [partial(sweeps, spec, one, two, False)]
        skipped = "" if importlib.util.find_spec("distributed") else "the extra `distributed` is not installed"
        if scale == "long" and not skipped:
            cases["a sweep here and on dask"] = [partial(sweeps, spec, one, ["--scheduler"], True)]
        problems = iter(in_processes([call for calls in cases.values() for call in calls], workers))
        tallies = []
        for name, calls in cases.items():
            tallies.append(Tally("determinism", name, detail="byte by byte, clocks aside"))
            for _ in calls:
                tallies[-1].count(next(problems))
        if scale == "long" and skipped:
            tallies.append(Tally("determinism", "a sweep here and on dask", skipped=skipped))
        return tallies
