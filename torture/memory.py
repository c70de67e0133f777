"""Memory: sizes that no machine has. They are refused in one line before anything is allocated.

Each attempt has five seconds of computing and a gigabyte, on a machine that says it has two free. The sizes are such
that the smallest of the arrays they ask for needs more.
"""

from __future__ import annotations

import json
import os
import resource
import tempfile
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from torture.attempt import MEMORY, REFUSED, attempt
from torture.children import Child, command, done, in_processes, said
from torture.tally import Tally

ATTEMPTS = {"small": 8, "long": 400}
FREE = 2e9  # bytes that the machine says it has
ROOM = 8 << 30  # of address space beyond what is in use: a loss here must not be one for the machine
SECONDS = 5.0

Sizes = dict[str, tuple[list[Any], int]]  # flag → (the other arguments, the smallest size that cannot be had)


def sizes(inputs: Path) -> Sizes:
    """Flags that set a size, each with a size beyond two gigabytes."""
    sample = ["sample", "--out", "OUT"]
    train = ["train", "--out", "OUT", "--steps", 2, "--json"]
    second = [*train, "--optimizer", "levenberg"]
    regression = [*train, "--task", "linear-regression"]
    probe = ["probe", "mean_of_inputs:f", "--d", 2]
    return {
        "sample --d": (sample, 20_000),
        "sample --heads": ([*sample, "--d", 10], 10**7),
        "sample --d-key": ([*sample, "--d", 100], 10**7),
        "sample --d-value": ([*sample, "--d", 100], 10**7),
        "compile --horizon": (["compile", inputs / "attention", "--to", "gated-rnn", "--out", "OUT"], 10**19),
        "attend --length": (["attend", inputs / "attention", "--out", "OUT.npz"], 20_000),
        "train --hidden": (train, 30_000),
        "train --d": (train, 30_000),
        "train --length": (train, 10**9),
        "train --batch-size": (train, 10**9),
        "train --seeds": (train, 10**9),
        "train --examples": (regression, 10**9),
        "train --d-x": (regression, 10**6),
        "levenberg --d": (second, 10_000),
        "levenberg --length": (second, 10**9),
        "probe --d": (["probe", "mean_of_inputs:f"], 10**5),
        "probe --length": (probe, 10**9),
    }


def tried(inputs: Path, seed: int, index: int) -> str | None:
    """One attempt, in a process of its own: what it takes with it is nobody else's."""
    random, found = Random(f"{seed} {index}"), sizes(inputs)
    name = list(found)[index % len(found)]
    arguments, least = found[name]
    size = least * 10 ** random.randrange(4) + random.randrange(1000)

    def inside() -> int:
        import underhood.core.memory

        underhood.core.memory.available_memory = lambda: FREE
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, used + ROOM))
        os.chdir(inputs)  # where probe finds its module
        with tempfile.TemporaryDirectory() as temporary:
            out = Path(temporary, "out")
            given = [str(one).replace("OUT", str(out)) for one in (*arguments, name.split()[1], size)]
            lines = 2 if name.startswith("probe") else 1  # probe says first that it runs code
            problem, what = attempt(command(*given), out=out, seconds=SECONDS, memory=MEMORY, prints=False, lines=lines)
        print(json.dumps(problem or (None if what == REFUSED else "it was taken")))
        return 0

    return said(f"{name} {size}", Child(inside).wait())


def run(scale: str, workers: int = 2, seed: int = 0) -> list[Tally]:
    count, tally = ATTEMPTS[scale], Tally("memory", "sizes that no machine has")
    with tempfile.TemporaryDirectory() as temporary:
        inputs = Path(temporary)
        done("sample", "--d", 2, "--out", inputs / "attention")
        (inputs / "mean_of_inputs.py").write_text("def f(xs):\n    return xs.mean(0, keepdims=True) + 0 * xs\n")
        for problem in in_processes([partial(tried, inputs, seed, index) for index in range(count)], workers):
            tally.count(problem)
        tally.detail = f"{len(sizes(inputs))} flags; refused in one line within {SECONDS:g} s and {MEMORY >> 30} GB"
    return [tally]
