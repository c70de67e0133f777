"""Files: damaged inputs of every kind that underhood reads, each through the command that reads it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import select
import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from torture import checkpoints, healthy, mutate
from torture.attempt import ANSWERED, PATIENCE, REFUSED, attempt, guarded
from torture.children import Child, command, in_processes
from torture.tally import Tally

BATCH = 250  # inputs of one process: what a crash of the process can take with it is one of them
INPUTS = {"small": 80, "long": 20_500}


@dataclasses.dataclass(frozen=True)
class Case:
    """One input on disk: what to run on it, and the file that would be written."""

    call: Callable[[], int]
    out: Path | None
    what: str
    prints: bool = True
    sound: str = ANSWERED  # what becomes of an undamaged one


Prepare = Callable[[Random, Path, bool], Case]  # (random numbers, empty folder, damaged or sound) → case


def model_case(files: dict[str, bytes], random: Random, folder: Path, harm: bool) -> Case:
    """A model's file, through disguise, export, compile, decompile and in-context."""
    name = random.choice(list(files)) if harm else "gated-rnn"
    content = mutate.damaged_safetensors(files[name], random) if harm else files[name]
    source, out = folder / "in.safetensors", folder / "out.safetensors"
    source.write_bytes(content)
    ways: list[tuple[int, list[Any]]] = [
        (5, ["disguise", source, "--out", out]),
        (3, ["export", source, "--to", "torch", "--out", out]),
        (3, ["compile", source, "--to", "gated-rnn", "--horizon", 3, "--out", out]),
        (1, ["decompile", source, "--horizon", 3, "--out", out]),
        (1, ["in-context", source, "--d-x", 1, "--d-y", 1, "--observations", 2]),
    ]
    chosen = random.choices([way for _, way in ways], [weight for weight, _ in ways])[0]
    return Case(command(*chosen, "--json"), out, f"{name} → {chosen[0]}")


def foreign_case(files: list[tuple[str, list[str], bytes]], random: Random, folder: Path, harm: bool) -> Case:
    """Weights of other programs, through import."""
    name, flags, content = random.choice(files)
    if harm and content.startswith(b"PK"):
        inside = mutate.damaged_npy if name.endswith("npz") else _damaged_member
        content = mutate.damaged_zip(content, random, inside)
    elif harm:
        damage = mutate.damaged_safetensors if name.endswith("safetensors") else mutate.damaged_bytes
        content = damage(content, random)
    source, out = folder / "weights", folder / "out.safetensors"
    source.write_bytes(content)
    return Case(command("import", source, *flags, "--out", out, "--json"), out, name)


def _damaged_member(name: str, content: bytes, random: Random) -> bytes:
    return mutate.damaged_bytes(content, random)


def attend_case(files: dict[str, bytes], random: Random, folder: Path, harm: bool) -> Case:
    """A network, a sequence and the names of its steps, one of them damaged, through attend."""
    damage: dict[str, Callable[[bytes, Random], bytes]] = {
        "network": mutate.damaged_safetensors,
        "xs.npy": lambda content, random: mutate.damaged_npy("xs", content, random),
        "xs.csv": mutate.damaged_bytes,
        "tokens.txt": mutate.damaged_bytes,
    }
    damaged = random.choice(list(damage)) if harm else ""
    for name, content in files.items():
        (folder / name).write_bytes(damage[name](content, random) if name == damaged else content)
    sequence = folder / ("xs.csv" if damaged == "xs.csv" else "xs.npy")
    tokens, out = folder / "tokens.txt", folder / "out.npz"
    arguments = ["attend", folder / "network", "--input", sequence, "--tokens", tokens, "--out", out, "--json"]
    return Case(command(*arguments), out, damaged)


def checkpoint_case(folders: dict[str, checkpoints.Files], random: Random, folder: Path, harm: bool) -> Case:
    """A checkpoint folder, through import."""
    name = random.choice(list(folders))
    files, layer, what = checkpoints.damaged(folders[name], random) if harm else (folders[name], 0, "sound")
    source, out = checkpoints.written(files, folder / "model"), folder / "out.safetensors"
    return Case(command("import", source, "--layer", layer, "--out", out, "--json"), out, f"{name}, {what}")


def spec_case(text: str, random: Random, folder: Path, harm: bool) -> Case:
    """A specification, through sweep: with no workers, so that a sound one ends where the work would begin."""
    source = folder / "spec.json"
    source.write_bytes(mutate.damaged_json_text(text, random) if harm else text.encode())
    return Case(
        command("sweep", source, "--out", folder / "out", "--workers", 0), folder / "out", "spec", sound=REFUSED
    )


def store_case(spec: dict[str, Any], text: str, random: Random, folder: Path, harm: bool) -> Case:
    """The results of a sweep, as a resumed one reads them and as a question is asked of them."""
    from underhood.sweeps.store import Store, query, results

    lines = text.splitlines(keepends=True)
    content = text.encode()
    if harm:
        index = random.randrange(len(lines))
        damaged = mutate.damaged_json_text(lines[index], random) + random.choice((b"\n", b"\n", b"", b"\r", b"\n\n"))
        content = b"".join(damaged if number == index else line.encode() for number, line in enumerate(lines))
        content = mutate.damaged_bytes(content, random) if random.random() < 0.2 else content
    (folder / "results.jsonl").write_bytes(content)
    (folder / "spec.json").write_text("{}")

    def read() -> None:
        with Store(folder).opened(spec, resume=True) as store:
            sum(record["status"] == "done" for record in store.done.values())
        query(folder, "select status, count(*) from runs group by status")
        results(folder)

    return Case(guarded(read), None, "results.jsonl", prints=False)


def run_case(files: dict[str, bytes], whole: bool, random: Random, folder: Path, harm: bool) -> Case:
    """A run folder, as --resume finds it; checkpoints are damaged with a name that fits their bytes, too."""
    run = folder / "run"
    damaged = random.choice([name for name in files if name != "timing.json"]) if harm else ""
    for name, content in files.items():
        if name == damaged:
            content, name = _damaged_run_file(name, content, random)
        path = run / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    if whole:
        return Case(command(*healthy.TRAIN, "--resume", "--out", run), None, f"{damaged} → train")
    from underhood.training.folder import RunFolder

    settings = json.loads(files["run.json"])

    def read() -> None:
        found = RunFolder(run)
        with found.locked():
            found.open(settings, resume=True)

    return Case(guarded(read), None, damaged, prints=False)


def _damaged_run_file(name: str, content: bytes, random: Random) -> tuple[bytes, str]:
    if name.endswith(".jsonl"):
        lines = content.decode().splitlines()
        index = random.randrange(len(lines))
        changed = mutate.damaged_json_text(lines[index], random)
        parts = [changed if number == index else line.encode() for number, line in enumerate(lines)]
        return b"\n".join(parts) + random.choice((b"\n", b"")), name
    if name.endswith(".json"):
        return mutate.damaged_json_text(content.decode(), random), name
    content = mutate.damaged_safetensors(content, random)
    if name.startswith("checkpoints/") and random.random() < 0.7:
        digest = hashlib.sha256(content).hexdigest()[:16]
        name = name.rsplit("-", 1)[0] + f"-{digest}.safetensors"
    return content, name


def levenberg_case(files: dict[str, bytes], random: Random, folder: Path, harm: bool) -> Case:
    """The folder of a second-order run; its results are damaged, not taken away, which would run it again."""
    names = [name for name in files if name.startswith("result-") or name == "run.json"]
    damaged = random.choice(names) if harm else ""
    for name, content in files.items():
        content = mutate.damaged_json_text(content.decode(), random) if name == damaged else content
        path = folder / "run" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return Case(command(*healthy.LEVENBERG, "--resume", "--out", folder / "run"), None, damaged)


def readers() -> dict[str, tuple[float, Prepare]]:
    """name → (share of the inputs, how one is prepared)."""
    # In children: here, a network or a task would start jax's threads, and what is forked later would hang.
    sound = [healthy.model_files, _foreign, checkpoints.sound, partial(healthy.results_of, healthy.SPEC)]
    models, foreign, folders, results = in_processes(sound, 2)
    with tempfile.TemporaryDirectory() as temporary:
        run = healthy.run_folder(Path(temporary, "run"))
        second = healthy.run_folder(Path(temporary, "second"), healthy.LEVENBERG)
    text = json.dumps(healthy.SPEC)
    return {
        "model files (safetensors)": (0.29, partial(model_case, models)),
        "weights of torch and numpy (.pt, .npz, safetensors)": (0.2, partial(foreign_case, foreign)),
        "sequences and tokens (.npy, .csv, text)": (0.04, partial(attend_case, healthy.sequence_files(models))),
        "checkpoint folders of transformers": (0.07, partial(checkpoint_case, folders)),
        "sweep specifications (JSON)": (0.15, partial(spec_case, text)),
        "sweep results (JSON lines)": (0.1, partial(store_case, healthy.SPEC, results)),
        "run folders (log, settings, checkpoints)": (0.1, partial(run_case, run, False)),
        "run folders of levenberg, resumed": (0.045, partial(levenberg_case, second)),
        "run folders of adamw, resumed": (0.005, partial(run_case, run, True)),
    }


def _foreign() -> list[tuple[str, list[str], bytes]]:
    return list(healthy.foreign_files())


def run(scale: str, workers: int = 2, seed: int = 0) -> list[Tally]:
    """The damaged inputs of all readers, shared out in batches."""
    tallies = {}
    calls, names = [], []
    for name, (share, prepare) in readers().items():
        count = max(4, round(INPUTS[scale] * share))
        tallies[name] = Tally("files", name)
        for begin in range(0, count, BATCH):
            calls.append(partial(batch, prepare, f"{seed} {name}", begin, min(begin + BATCH, count)))
            names.append(name)
    answered = dict.fromkeys(tallies, 0)
    for name, (tried, lost, well) in zip(names, in_processes(calls, workers), strict=True):
        tallies[name].tried += tried
        tallies[name].lost += lost
        answered[name] += well
    for name, tally in tallies.items():
        tally.detail = f"{tally.survived - answered[name]:,} refused in one line, {answered[name]:,} still valid"
    return list(tallies.values())


def batch(prepare: Prepare, seed: str, begin: int, end: int) -> tuple[int, list[str], int]:
    """Inputs `begin` to `end` of a reader in a process of its own; one that takes the process down is lost."""
    lost: list[str] = []
    answered, at = 0, begin
    while at < end:
        for line in _reported(partial(_inputs, prepare, seed, at, end)):
            index, problem, what = line
            at = index + 1
            answered += what == ANSWERED
            if problem is not None:
                lost.append(f"input {index}: {problem}")
    return end - begin, lost, answered


def _reported(work: Callable[[int], int]) -> Iterator[tuple[int, str | None, str]]:
    """(index, what was lost, how it ended) as a child tells them; a child that dies or hangs loses what it was at."""
    reading, writing = os.pipe()
    child = Child(partial(work, writing))
    os.close(writing)
    buffer, under_way = b"", None
    while True:
        ready, _, _ = select.select([reading], [], [], 10 * PATIENCE)
        piece = os.read(reading, 65536) if ready else b""
        *lines, buffer = (buffer + piece).split(b"\n")
        for line in lines:
            told = json.loads(line)
            if isinstance(told, int):
                under_way = told
            else:
                under_way = None
                yield tuple(told)
        if not piece:
            break
    os.close(reading)
    if not ready:
        os.kill(child.pid, 9)
    ended = child.wait()
    if under_way is not None:
        yield under_way, f"the process ended: {ended}" if ready else "hang: nothing heard", ""
    elif ended.code != 0:
        raise RuntimeError(f"the tormentor failed: {ended}")


def _inputs(prepare: Prepare, seed: str, begin: int, end: int, writing: int) -> int:
    with tempfile.TemporaryDirectory() as temporary:
        for index in range(begin - 1, end):
            folder = Path(temporary, "input")
            folder.mkdir()
            warm = index < begin  # a sound input first: it must be taken, and what compiles once has compiled
            random = Random(f"{seed} {index}")
            case = prepare(random, folder, not warm)
            if not warm:
                os.write(writing, f"{index}\n".encode())
            problem, what = attempt(case.call, out=case.out, seconds=600 if warm else 5.0, prints=case.prints)
            if not warm:
                told = problem and f"{case.what}: {problem}"
                os.write(writing, (json.dumps([index, told, what]) + "\n").encode())
            elif problem is not None or what != case.sound:
                raise RuntimeError(f"a sound input was not taken: {case.what}: {problem or what}")
            shutil.rmtree(folder, ignore_errors=True)
    return 0
