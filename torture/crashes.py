"""Crashes: SIGKILL, SIGTERM and Ctrl-C at random moments of every command that writes.

After each kill every file that stands there is whole: it is what it was before, or what an undisturbed run writes.
After the last, the command runs to its end, and the folder holds the same bits as that of a run nobody disturbed.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Protocol

from torture import healthy
from torture.children import Child, Ended, command, done, in_processes, snapshot
from torture.tally import Tally

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
KILLS = {"small": 2, "long": 15}  # of each scenario
INTERRUPTED = 130
CLOCKS = ("timing.json",)  # files with seconds in them
CLOCK = re.compile(rb"<time>[^<]*</time>")  # seconds in a page


class Process(Protocol):
    pid: int

    def wait(self) -> Ended: ...


@dataclasses.dataclass(frozen=True)
class Scenario:
    """`start(folder)` runs a command that leaves its results in `folder`, as often as one likes."""

    name: str
    start: Callable[[Path], Process]
    content: Callable[[Path], dict[str, bytes]]  # what must be the same at the end
    whole: Callable[[Path], str | None]  # what is wrong with the folder after a kill
    prepare: Callable[[Path], Any] = lambda folder: folder.mkdir()
    codes: tuple[int, ...] = (0,)  # of a run that ends by itself
    longest: float = 1e9  # seconds from the start within which to kill


def torment(scenario: Scenario, kills: int, seed: Any) -> Tally:
    """Kill, look, go on; then compare the end."""
    tally, random = Tally("crashes", scenario.name), Random(f"{seed} {scenario.name}")
    with tempfile.TemporaryDirectory() as temporary:
        reference, folder = Path(temporary, "reference"), Path(temporary, "folder")
        scenario.prepare(reference)
        ended = scenario.start(reference).wait()
        if ended.code not in scenario.codes:
            raise RuntimeError(f"{scenario.name}: {ended}")
        wanted, usual, finished = scenario.content(reference), ended.seconds, 0
        counts = dict.fromkeys(SIGNALS, 0)
        scenario.prepare(folder)
        while tally.tried < kills:
            process = scenario.start(folder)
            number = random.choice(SIGNALS)
            time.sleep(random.uniform(0, min(usual, scenario.longest)))
            if _is_over(process):
                finished += 1
                usual = min(usual, process.wait().seconds)  # the first run may have been the slowest
                folder = _anew(scenario, Path(temporary, f"folder-{finished}"))
                continue
            os.kill(process.pid, number)
            counts[number] += 1
            tally.count(_after(scenario, process.wait(), folder, number))
        tally.count(_at_the_end(scenario, folder, wanted))
    told = ", ".join(f"{count} {number.name}" for number, count in counts.items())
    tally.detail = f"{told}; the end compared byte by byte"
    tally.numbers = {"kills": sum(counts.values())}
    return tally


def _is_over(process: Process) -> bool:
    """Has it ended? Without taking its exit code away."""
    found = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    return found is not None


def _anew(scenario: Scenario, folder: Path) -> Path:
    scenario.prepare(folder)
    return folder


def _after(scenario: Scenario, ended: Ended, folder: Path, number: signal.Signals) -> str | None:
    if ended.code not in (-number, INTERRUPTED if number == signal.SIGINT else -number, *scenario.codes):
        return f"{number.name}: {ended}"
    if "Traceback" in ended.err:
        return f"{number.name}: traceback: {ended.err[-300:]}"
    wrong = scenario.whole(folder)
    return f"after {number.name}: {wrong}" if wrong else None


def _at_the_end(scenario: Scenario, folder: Path, wanted: dict[str, bytes]) -> str | None:
    ended = scenario.start(folder).wait()
    if ended.code not in scenario.codes:
        return f"it cannot be gone on with: {ended}"
    found = scenario.content(folder)
    different = [name for name in sorted({*wanted, *found}) if wanted.get(name) != found.get(name)]
    return f"other bits than undisturbed: {', '.join(different)[:200]}" if different else None


def readable(folder: Path) -> str | None:
    """Every file by its kind: what cannot be read is half of a file."""
    from underhood.core.errors import UnderhoodError
    from underhood.core.files import read_tensors
    from underhood.core.folders import Folder
    from underhood.training.checkpoints import read_checkpoint

    for path in sorted(folder.rglob("*")):
        if not path.is_file() or path.name.startswith("."):
            continue
        try:
            if path.parent.name == "checkpoints":
                read_checkpoint(Folder(path.parent), path.name)
            elif path.suffix == ".safetensors":
                read_tensors(path)
            elif path.suffix == ".json":
                json.loads(path.read_bytes())
            elif path.suffix == ".jsonl":
                # The last line may be torn: the next run takes it away. The others may not.
                for line in path.read_bytes().splitlines(keepends=True)[:-1]:
                    json.loads(line)
            elif path.suffix in (".png", ".pdf"):
                end = b"IEND\xaeB`\x82" if path.suffix == ".png" else b"%%EOF\n"
                if not path.read_bytes().endswith(end):
                    return f"{path.name} is half a figure"
            elif path.suffix == ".onnx" and path.stat().st_size == 0:
                return f"{path.name} is empty"
        except (UnderhoodError, ValueError) as error:
            return f"{path.name}: {error}"
    return None


def without_clocks(folder: Path) -> dict[str, bytes]:
    """The files of a folder, results of sweeps and of second-order runs without their seconds."""
    found, files = {}, snapshot(folder, without=CLOCKS)
    newest = max((name for name in files if Path(name).parent.name == "checkpoints"), default="")
    for name, content in files.items():
        path = Path(name)
        if path.parent.name == "checkpoints" and name != newest:
            continue  # Ctrl-C leaves one of its own, of a step that an undisturbed run does not stop at
        if path.name == "results.jsonl":
            lines = sorted(_plain(json.loads(line)) for line in content.splitlines())
            content = "\n".join(lines).encode()
        elif path.name.startswith("result-seed-") or path.parent.name == "quick":
            content = _plain(json.loads(content)).encode() if path.suffix == ".json" else CLOCK.sub(b"", content)
        found[name] = content
    return found


def _plain(record: dict[str, Any]) -> str:
    record = {key: value for key, value in record.items() if key not in ("seconds", "provenance", "file")}
    return json.dumps(record, sort_keys=True)


def _command(*arguments: Any) -> Callable[[Path], Process]:
    """`underhood …` with OUT in its arguments for the folder."""

    def start(folder: Path) -> Process:
        return Child(command(*(str(argument).replace("OUT", str(folder)) for argument in arguments)))

    return start


def _replacing(content: bytes, folder: Path) -> None:
    """A folder that holds an earlier result under the name that is to be written."""
    folder.mkdir()
    (folder / "out.safetensors").write_bytes(content)


def scenarios(attention: Path, network: Path) -> list[Scenario]:
    train = [*healthy.TRAIN, "--steps", "3000", "--checkpoint-every", "50", "--resume", "--out", "OUT"]
    spec = {**healthy.SPEC, "keep_models": True, "runs": [{**healthy.SPEC["runs"][0], "steps": 600, "seeds": 2}]}
    sweep = attention.with_name("spec.json")
    sweep.write_text(json.dumps(spec))
    earlier = healthy.earlier_files()
    model, export = (partial(_replacing, earlier[name]) for name in ("a.safetensors", "t.safetensors"))
    same: dict[str, Any] = {"content": without_clocks, "whole": readable}
    compiled = ["compile", attention, "--to", "lstm", "--horizon", "300", "--out", "OUT/out.safetensors"]
    exported = ["export", network, "--to", "torch", "--out", "OUT/out.safetensors"]
    graph = ["export", network, "--to", "onnx", "--out", "OUT/out.onnx"]
    figures = ["reproduce", "figure1", "table4", "--out", "OUT"]
    second = [*healthy.LEVENBERG, "--steps", "60", "--d", "2", "--resume", "--out", "OUT"]
    return [
        Scenario("train, AdamW", _command(*train), **same),
        Scenario("compile over an earlier file", _command(*compiled), prepare=model, **same),
        Scenario("export to torch over an earlier file", _command(*exported), prepare=export, **same),
        # The small scale stops here. From here on the slowest first, so that no worker waits for it alone.
        Scenario("export to ONNX", _command(*graph), **same),
        Scenario("train, Levenberg–Marquardt", _command(*second), **same),
        Scenario("sweep, two workers", _command("sweep", sweep, "--workers", 2, "--resume", "--out", "OUT"), **same),
        Scenario("reproduce figure1 table4", _command(*figures), codes=(0, 1), **same),
    ]


def run(scale: str, workers: int = 2, seed: int = 0) -> list[Tally]:
    with tempfile.TemporaryDirectory() as temporary:
        attention, network = Path(temporary, "attention.safetensors"), Path(temporary, "network.safetensors")
        done("sample", "--d", 2, "--out", attention)
        done("compile", attention, "--to", "lstm", "--horizon", 20, "--out", network)
        count = len(scenarios(attention, network)) if scale == "long" else 3
        return in_processes(
            [partial(_one, index, attention, network, KILLS[scale], seed) for index in range(count)], workers
        )


def _one(index: int, attention: Path, network: Path, kills: int, seed: int) -> Tally:
    return torment(scenarios(attention, network)[index], kills, seed)
