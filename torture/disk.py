"""Disk: full, read-only, gone in the middle, shared by two. A clear error, and earlier results untouched.

Each way of harm is put to every command that writes. What it must do: end by itself, with exit code 2 and one line,
or succeed where the harm came too late; leave every earlier file as it was; and go on, once the harm is over, to the
same bits as a run that met none.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import resource
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torture import healthy, namespace
from torture.children import Child, Ended, command, done, in_processes, said, snapshot
from torture.crashes import readable, without_clocks
from torture.tally import Tally
from underhood.interop.torch import modules_source

LIMITS = {"small": (300,), "long": (0, 100, 900, 2_500)}  # bytes that a file may have
Way = tuple[str, list[Any], bool]  # name, arguments with OUT for the folder, can it be resumed?


def ways(inputs: Path, scale: str) -> list[Way]:
    """Every command that writes, with its input in `inputs`."""
    attention, network, weights, spec = (inputs / name for name in ("attention", "network", "weights", "spec.json"))
    found: list[Way] = [
        ("sample", ["sample", "--d", 3, "--out", "OUT/a.safetensors"], False),
        ("compile", ["compile", attention, "--to", "gated-rnn", "--horizon", 5, "--out", "OUT/a.safetensors"], False),
        ("train", [*healthy.TRAIN, "--out", "OUT/run", "--resume"], True),
    ]
    if scale == "long":
        found += [
            ("disguise", ["disguise", network, "--out", "OUT/a.safetensors"], False),
            ("decompile", ["decompile", network, "--horizon", 5, "--out", "OUT/a.safetensors"], False),
            ("export to torch", ["export", network, "--to", "torch", "--out", "OUT/t.safetensors"], False),
            ("import", ["import", weights, "--kind", "attention", "--out", "OUT/a.safetensors"], False),
            ("train, second order", [*healthy.LEVENBERG, "--out", "OUT/run", "--resume"], True),
            ("export to ONNX", ["export", network, "--to", "onnx", "--out", "OUT/a.onnx"], False),
            ("reproduce", ["reproduce", "table4", "--out", "OUT"], False),
            ("sweep", ["sweep", spec, "--out", "OUT/sweep", "--workers", 1, "--resume"], True),
        ]
    return found


def make_inputs(inputs: Path) -> None:
    done("sample", "--d", 2, "--out", inputs / "attention")
    done("compile", inputs / "attention", "--to", "gated-rnn", "--horizon", 5, "--out", inputs / "network")
    shutil.copy(inputs / "attention", inputs / "weights")
    entry = {**healthy.SPEC["runs"][0], "hidden": 3}
    (inputs / "spec.json").write_text(json.dumps({**healthy.SPEC, "keep_models": True, "runs": [entry]}))


def started(arguments: Sequence[Any], folder: Path, harm: Callable[[], Any] = lambda: None) -> Child:
    """The command in a child, with `harm` done to it first, within the child."""
    call = command(*(str(argument).replace("OUT", str(folder)) for argument in arguments))

    def harmed() -> int:
        harm()
        return call()

    return Child(harmed)


def judged(ended: Ended, *, may_succeed: bool = True) -> str | None:
    """A refusal in one line, or success; a train that says where it goes on from may say so before."""
    if ended.is_refusal or (may_succeed and ended.code in (0, 1)):
        return None
    return str(ended)


def earlier(folder: Path) -> dict[str, bytes]:
    """Earlier results in the folder, under the names that are to be written and under others."""
    folder.mkdir(exist_ok=True)
    files = healthy.earlier_files()
    head = modules_source().splitlines()[0].encode() + b"\n"
    for name, content in {**files, "other.safetensors": files["a.safetensors"], "underhood_torch.py": head}.items():
        (folder / name).write_bytes(content)
    return snapshot(folder)


def changed(before: dict[str, bytes], folder: Path, ended: Ended) -> str | None:
    """A failed command leaves all that was there; one that succeeded may have replaced it by something whole."""
    after = snapshot(folder)
    lost = [name for name, content in before.items() if ended.code == 2 and after.get(name) != content]
    if lost and lost != ["underhood_torch.py"]:  # written before the weights, and whole: it is the same for all
        return f"earlier results changed: {', '.join(lost)}"
    return None


def limited(inputs: Path, way: Way, limit: int) -> str | None:
    """No file may grow beyond `limit` bytes, as on a disk that is full; then without the limit, to the end."""
    name, arguments, resumable = way
    with tempfile.TemporaryDirectory() as temporary:
        folder, free = Path(temporary, "folder"), Path(temporary, "free")
        before = earlier(folder)
        earlier(free)
        started(arguments, free).wait()
        harm = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (limit, limit))
        ended = _with_pipes(arguments, folder, harm)
        problem = judged(ended) or changed(before, folder, ended)
        if problem:
            return f"{name}, files up to {limit} bytes: {problem}"
        again = started(arguments, folder).wait()
        if again.code not in (0, 1):
            return f"{name}, after files up to {limit} bytes: {again}"
        if without_clocks(folder) != without_clocks(free):
            return f"{name}, after files up to {limit} bytes: other bits than without"
        return readable(folder) if resumable else None


def _with_pipes(arguments: Sequence[Any], folder: Path, harm: Callable[[], Any]) -> Ended:
    """stdout and stderr are files here, and the limit would hold for them, too: they go through pipes."""
    pipes = [os.pipe() for _ in range(2)]

    def piped() -> None:
        for number, (_, writing) in zip((1, 2), pipes, strict=True):
            os.dup2(writing, number)
        harm()

    child = started(arguments, folder, piped)
    for _, writing in pipes:
        os.close(writing)
    ended, texts = child.wait(), []
    for reading, _ in pipes:  # what a pipe holds is more than a command prints here
        with os.fdopen(reading, "rb") as file:
            texts.append(file.read().decode(errors="replace"))
    return dataclasses.replace(ended, out=texts[0], err=texts[1])


@contextlib.contextmanager
def small_disk() -> Iterator[tuple[Path, dict[str, bytes]]]:
    """A disk of a megabyte that this process alone sees, and the earlier results on it."""
    namespace.enter()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        namespace.mount(folder, 1 << 20)
        yield folder, earlier(folder)


def full(inputs: Path, way: Way, size: int) -> str | None:
    """A disk of `size` bytes, filled up but for a little."""
    name, arguments, _ = way

    def inside() -> int:
        with small_disk() as (folder, before):
            with contextlib.suppress(OSError), (folder / "filler").open("wb", buffering=0) as filler:
                while True:
                    filler.write(bytes(4096))
            os.truncate(folder / "filler", max(0, (folder / "filler").stat().st_size - size))
            ended = started(arguments, folder).wait()
            problem = judged(ended) or changed(before, folder, ended) or readable(folder)
            (folder / "filler").unlink()
            again = started(arguments, folder).wait()
            problem = problem or (None if again.code in (0, 1) else f"with room again: {again}")
            _say(problem)
        return 0

    return said(f"{name}, {size} bytes left", Child(inside).wait())


def read_only(inputs: Path, way: Way) -> str | None:
    """A disk that nobody can write to."""
    name, arguments, _ = way

    def inside() -> int:
        with small_disk() as (folder, before):
            namespace.make_read_only(folder)
            ended = started(arguments, folder).wait()
            _say(judged(ended, may_succeed=False) or changed(before, folder, ended))
        return 0

    return said(f"{name}, read-only", Child(inside).wait())


def _say(problem: str | None) -> None:
    print(json.dumps(problem))


def vanishing(inputs: Path, way: Way, after: float) -> str | None:
    """The folder is taken away while the command runs."""
    name, arguments, _ = way
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary, "folder")
        folder.mkdir()
        child = started(arguments, folder)
        deadline = time.monotonic() + 60
        while not any(folder.iterdir()) and time.monotonic() < deadline and after > 0:
            time.sleep(0.02)
            if os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                break
        time.sleep(after)
        shutil.rmtree(folder, ignore_errors=True)
        problem = judged(child.wait())
        return problem and f"{name}, folder gone after {after:g} s: {problem}"


def shared(inputs: Path, way: Way) -> str | None:
    """Two processes on one output: one of them may be refused; the result is that of one alone."""
    name, arguments, _ = way
    with tempfile.TemporaryDirectory() as temporary:
        folder, alone = Path(temporary, "folder"), Path(temporary, "alone")
        for one in (folder, alone):
            one.mkdir()
        started(arguments, alone).wait()
        both = [started(arguments, folder) for _ in range(2)]
        ends = [child.wait() for child in both]
        problems = [problem for problem in map(judged, ends) if problem]
        if all(ended.code == 2 for ended in ends):
            problems.append(f"both were refused: {ends[0]}")
        if problems:
            return f"{name}, twice at once: {problems[0]}"
        if without_clocks(folder) != without_clocks(alone):
            return f"{name}, twice at once: other bits than alone"
        return None


def run(scale: str, workers: int = 2, seed: int = 0) -> list[Tally]:
    reason = namespace.reason()
    with tempfile.TemporaryDirectory() as temporary:
        inputs = Path(temporary)
        make_inputs(inputs)
        found, long = ways(inputs, scale), scale == "long"
        harms: dict[str, list[Any]] = {
            "no file beyond a size (RLIMIT_FSIZE)": [(limited, way, n) for way in found for n in LIMITS[scale]],
            "full disk (tmpfs)": [(full, way, size) for way in found for size in ((0, 4096) if long else (0,))],
            "read-only disk (tmpfs)": [(read_only, way) for way in found],
            "folder that vanishes": [
                (vanishing, way, s) for way in found for s in ((0.0, 0.1, 1.0) if long else (0.1,))
            ],
            "two processes on one output": [(shared, way) for way in found],
        }
        if not long:  # each harm with another command
            harms = {name: [cases[index % len(found)]] for index, (name, cases) in enumerate(harms.items())}
        if reason:
            harms = {name: cases for name, cases in harms.items() if cases[0][0] not in (full, read_only)}
        calls = [partial(call, inputs, *rest) for cases in harms.values() for call, *rest in cases]
        problems = iter(in_processes(calls, workers))
        tallies = []
        for name, cases in harms.items():
            tallies.append(Tally("disk", name, detail=f"{len(found) if long else 1} commands"))
            for _ in cases:
                tallies[-1].count(next(problems))
        if reason:
            tallies += [Tally("disk", name, skipped=reason) for name in ("full disk", "read-only disk")]
        return tallies
