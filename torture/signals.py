"""Signals: Ctrl-C at random moments of the first three seconds of every command, each in a process of its own.

Seconds are those of a quiet core: the moment is one of the processor time that the process has had, its imports
included. It must end with exit code 130 and one line, and leave no file that is half there; or it had ended before.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from functools import partial
from pathlib import Path
from random import Random

from torture.children import ONE_THREAD, in_processes
from torture.tally import Tally

INTERRUPTIONS = {"small": 6, "long": 200}
SECONDS, SLOWEST = 3.0, 10.0  # the last moment; how much slower than its processor time a process may be on the wall
TICKS = os.sysconf("SC_CLK_TCK")
INTERRUPTED = 130
ENDS = {".html": b"</html>", ".png": b"IEND\xaeB`\x82", ".json": b"}", ".jsonl": b"\n"}


def run(scale: str, workers: int, seed: int) -> list[Tally]:
    count = INTERRUPTIONS[scale]
    shares = [range(start, count, workers) for start in range(workers)]
    with tempfile.TemporaryDirectory() as temporary:
        prepare(Path(temporary))
        calls = [partial(interrupt, Path(temporary), list(share), seed) for share in shares]
        parts = in_processes(calls, workers)
    tally, ends = Tally("signals", "Ctrl-C in the first three seconds of every command"), Counter()
    for outcomes in parts:
        for end, problem in outcomes:
            ends[end] += 1
            tally.count(problem)
    tally.detail = ", ".join(f"{number} {end}" for end, number in sorted(ends.items()))
    tally.numbers = {"seconds": SECONDS, **ends}
    return [tally]


def prepare(folder: Path) -> None:
    """Inputs of all commands, made by the package in a process of its own: this one has to stay without threads."""
    code = """
import json, pathlib, sys
import numpy as np
import underhood as uh
from underhood.training.config import FitConfig
from underhood.training.runs import fit
folder = pathlib.Path(sys.argv[1])
attention = uh.random_attention(2, seed=0)
uh.save(attention, folder / "attention")
uh.save(uh.compile(attention, to="gated-rnn").model, folder / "network")
np.save(folder / "xs.npy", np.ones((5, 2)))
torch = {"weight_ih_l0": (16, 2), "weight_hh_l0": (16, 4), "bias_ih_l0": (16,), "bias_hh_l0": (16,)}
np.savez(folder / "lstm.npz", **{name: np.zeros(shape, np.float32) for name, shape in torch.items()})
runs = [{"task": "linear-regression", "hidden": [3, 4], "steps": 2000}]
(folder / "spec.json").write_text(json.dumps({"runs": runs}))
fit(uh.make_model("gru", 2, hidden=3), uh.make_task("teacher-student", d=2), FitConfig(steps=100), out=folder / "run")
"""
    environment = {**os.environ, **ONE_THREAD}
    subprocess.run([sys.executable, "-c", code, str(folder)], check=True, env=environment, capture_output=True)


def commands(inputs: Path, out: Path) -> list[list[str]]:
    """Every command that works for a while or writes."""
    attention, network, xs = (str(inputs / name) for name in ("attention", "network", "xs.npy"))
    short = ["--steps", "5000", "--hidden", "4"]

    def file(name: str) -> list[str]:
        return ["--out", str(out / name)]

    return [
        ["sample", "--d", "3", *file("a.safetensors")],
        ["compile", attention, "--to", "lstm", *file("a.safetensors")],
        ["compile", attention, "--to", "gru", "--json", *file("a.safetensors")],
        ["disguise", network, *file("a.safetensors")],
        ["decompile", network, "--against", attention, *file("a.safetensors")],
        ["probe", "numpy:tanh", "--d", "2", "--json"],
        ["in-context", network, "--d-x", "1", "--d-y", "1"],
        ["train", "--task", "teacher-student", "--d", "2", *short, *file("run")],
        ["train", "--optimizer", "levenberg", "--d", "2", *file("run")],
        ["plot", str(inputs / "run"), *file("a.png")],
        ["query", str(inputs / "run"), "select count(*) from metrics"],
        ["sweep", str(inputs / "spec.json"), "--workers", "2", *file("sweep")],
        ["reproduce", "figure1", *file("reproduce")],
        ["explore", network, *file("a.html")],
        ["attend", network, "--input", xs, *file("a.html")],
        ["attend", network, "--input", xs, *file("a.png")],
        ["export", network, "--to", "torch", *file("a.safetensors")],
        ["import", str(inputs / "lstm.npz"), "--kind", "lstm", *file("a.safetensors")],
    ]


def interrupt(inputs: Path, numbers: list[int], seed: int) -> list[tuple[str, str | None]]:
    """(how it ended, what was lost) of some of the interruptions, each a function of its number and the seed."""
    outcomes = []
    for number in numbers:
        random = Random(f"{seed} {number}")
        with tempfile.TemporaryDirectory() as temporary:
            out = Path(temporary)
            choices = commands(inputs, out)
            command = choices[number % len(choices)]
            moment = random.uniform(0, SECONDS)
            process = subprocess.Popen(
                [sys.executable, "-m", "underhood", *command],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, **ONE_THREAD},
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )
            wait_until(process, moment)
            process.send_signal(signal.SIGINT)
            printed, said = process.communicate()
            end, problem = judged(process.returncode, printed, said)
            problem = problem or half_written(out)
            what = f"{command[0]} after {moment:.2f} s: "
            outcomes.append((end, problem and what + problem))
    return outcomes


def wait_until(process: subprocess.Popen[str], moment: float) -> None:
    """The process has computed for so long, or has ended, or gets no processor."""
    began = time.monotonic()
    while process.poll() is None and time.monotonic() - began < SLOWEST * moment:
        if computed(process.pid) >= moment:
            return
        time.sleep(0.005)


def computed(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return float("inf")
    return (int(fields[11]) + int(fields[12])) / TICKS


def judged(code: int, printed: str, said: str) -> tuple[str, str | None]:
    """How it ended, and what is wrong with that."""
    if code == -signal.SIGINT and "underhood/core/interrupts" not in said:
        # Before the package's first line: Python itself ends by the signal, which a shell calls 130.
        return "in Python's own start", None
    if code in (0, 1) and "Traceback" not in said:
        return "had ended before", None
    if code == 1 and "underhood/core" not in said and ("runpy" in said or "site" in said):
        return "in Python's own start", None  # which prints what it was at, and ends with 1
    if code != INTERRUPTED:
        return "lost", f"exit code {code}: {said[-300:]}"
    if "Traceback" in said or not ("interrupted" in said or "stopped by Ctrl-C" in said):
        return "lost", f"exit code 130, and {said[-300:]!r}"
    if printed.startswith("{"):
        json.loads(printed)
    return "exit code 130", None


def half_written(out: Path) -> str | None:
    """A file that is there is whole; one that is being written has another name, and is gone."""
    for path in out.rglob("*"):
        if path.name.endswith(".part"):
            return f"left {path.name}"
        content = path.read_bytes() if path.is_file() else b""
        if path.suffix == ".safetensors" and path.is_file():
            import safetensors

            try:
                safetensors.deserialize(content)
            except safetensors.SafetensorError as error:
                return f"{path.name} is not whole: {error}"
        elif path.is_file() and path.suffix in ENDS and not content.rstrip(b"\n ").endswith(ENDS[path.suffix].strip()):
            return f"{path.name} is not whole: it ends in {content[-20:]!r}"
    return None
