"""Hostile: folders with links, names that a terminal would obey, and workers that lie.

Nothing outside a folder changes, no byte that a terminal obeys is printed, and no record stands under another's name.
"""

from __future__ import annotations

import json
import os
import tempfile
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from torture import healthy, mutate
from torture.children import Child, command, in_processes
from torture.tally import Tally

COUNTS = {"small": 12, "long": 300}  # of each kind
OBEYED = ("\x1b", "\x07", "\x9b", "\u202e", "\x08", "\x7f")  # by a terminal
SECRET = b'{"seconds": 7}\n'
RUN = ("run.json", "timing.json", "metrics.jsonl", ".lock", "model-seed-0.safetensors", "checkpoints")
SWEEP = ("spec.json", "results.jsonl", ".lock", "models", "jobs")


def run(scale: str, workers: int, seed: int) -> list[Tally]:
    count = COUNTS[scale]
    # Networks are made, and answers judged, in processes of their own: one that has started jax cannot fork children.
    (files,) = in_processes([healthy.model_files], 1)
    found = in_processes([partial(links, count, seed), partial(escapes, files, count, seed)], workers)
    return [*found, *in_processes([partial(lies, count, seed)], 1)]


def links(count: int, seed: int) -> Tally:
    """Run and sweep folders, begun and not, in which any names are links to files and folders elsewhere."""
    tally, random = Tally("hostile", "folders with links to files and folders elsewhere"), Random(f"{seed} links")
    for number in range(count):
        with tempfile.TemporaryDirectory() as temporary:
            home, folder = Path(temporary, "home"), Path(temporary, "folder")
            for path in (home / "inner", folder):
                path.mkdir(parents=True)
            for name in ("a", "b", "inner/c", "inner/.d.part"):
                (home / name).write_bytes(random.choice([SECRET, b"private", b"{}\n"]))
            before = contents(home)
            names = random.sample(RUN + SWEEP, random.randint(1, 3))
            for name in names:
                link(random, home, folder / name)
            ended = Child(partial(_work, folder, number % 2 == 0, random.random() < 0.5)).wait()
            problem = None
            if contents(home) != before:
                problem = f"{', '.join(names)}: files outside have changed"
            elif ended.code not in (0, 2) or "Traceback" in ended.err:
                problem = f"{', '.join(names)}: {ended}"
            tally.count(problem)
    tally.detail = "symbolic and hard, to files and to folders; train and sweep, begun and resumed"
    return tally


def link(random: Random, home: Path, path: Path) -> None:
    if random.random() < 0.5:
        path.symlink_to(random.choice([home / "a", home / "inner", home / "none"]))
    elif random.random() < 0.5:
        os.link(home / random.choice("ab"), path)
    else:
        path.mkdir()
        (path / random.choice(["x.safetensors", "step-000000005-0123456789abcdef.safetensors"])).symlink_to(home / "a")


def _work(folder: Path, trains: bool, resume: bool) -> int:
    """A command that ends within seconds, on a folder of somebody else's."""
    if trains:
        small = ["--task", "linear-regression", "--examples", "3", "--hidden", "2", "--steps", "4", "--batch-size", "2"]
        return command("train", *small, "--out", folder, *["--resume"] * resume)()
    spec = {"runs": [{"task": "teacher-student", "hidden": 2, "steps": 4, "d": 2, "length": 4}], "keep_models": True}
    from underhood.sweeps import sweep
    from underhood.sweeps.job import run_job

    def here(jobs: Any, jobs_folder: Any, workers: int, done: Any) -> None:
        for job in jobs:  # in this process: a pool of workers is tried elsewhere
            done(job, run_job(job, str(jobs_folder.make().path / job["id"])))

    sweep.run_here = here
    return _refused(lambda: sweep.run_sweep(spec, folder, resume=resume, workers=1))


def _refused(call: Any) -> int:
    from torture.attempt import guarded

    return guarded(call)()


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def escapes(files: dict[str, bytes], count: int, seed: int) -> Tally:
    """Names of tensors, headers, results and files with bytes that a terminal obeys."""
    tally, random = Tally("hostile", "names that a terminal would obey"), Random(f"{seed} escapes")
    for _ in range(count):
        with tempfile.TemporaryDirectory() as temporary:
            word = "".join(random.sample(OBEYED, 3)) + "x"
            name = random.choice(list(files))
            path = Path(temporary, random.choice(["a", word.replace("\x08", "")]))
            path.write_bytes(_named(files[name], word, random))
            flags = random.choice([[], ["--json"]])
            asked = random.choice([["decompile", path], ["explore", path, "--out", f"{temporary}/p.html"]])
            ended = Child(command(*asked, *flags)).wait()
            obeyed = [each for each in OBEYED if each in ended.err + ended.out]
            problem = f"{asked[0]} printed {obeyed}" if obeyed else None
            if ended.code not in (0, 1, 2):
                problem = str(ended)
            tally.count(problem)
    return tally


def _named(content: bytes, word: str, random: Random) -> bytes:
    header, body = mutate.split_safetensors(content)
    place = random.choice(["tensor", "format", "kind", "structure"])
    if place == "tensor":
        first = next(name for name in header if name != "__metadata__")
        header[word] = header.pop(first)
    else:
        header["__metadata__"][place] = word
    return mutate.joined_safetensors(header, body)


def lies(count: int, seed: int) -> Tally:
    """What comes back from a worker, damaged anywhere: its own runs, each once, sound or failed."""
    from underhood.sweeps.job import jobs_of, own_results
    from underhood.sweeps.spec import parse
    from underhood.training.specification import RunSpec

    tally, random = Tally("hostile", "workers that lie"), Random(f"{seed} lies")
    runs = parse({"runs": [{"task": "teacher-student", "hidden": 3, "seeds": 2}], "keep_models": True}).expanded()
    (job,) = jobs_of(runs, checkpoint_every=5, keep_models=True)
    for _ in range(count):
        answer: Any = [
            [
                {
                    "id": run.id,
                    **run.as_dict(),
                    "status": "done",
                    "held_out_loss": 1.0,
                    "seconds": 1.0,
                    "parameters": 3,
                },
                None,
            ]
            for run in runs
        ]
        answer = mutate.damaged_json(json.loads(json.dumps(answer)), random)
        if random.random() < 0.3 and isinstance(answer, list) and answer:
            answer.append([{**runs[0].as_dict(), "id": "../../x", "status": "done"}, b"x"])
        try:
            records = [record for record, _ in own_results(job, answer)]
        except Exception as error:
            tally.count(f"{type(error).__name__}: {error} for {json.dumps(answer, default=repr)[:200]}")
            continue
        sound = [record["id"] for record in records] == [run.id for run in runs] and all(
            RunSpec(**{name: record[name] for name in RunSpec.model_fields if name in record}).id == record["id"]
            for record in records
        )
        tally.count(None if sound else f"records of other runs: {records}"[:300])
    return tally
