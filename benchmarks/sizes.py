"""From d = 4 to attention heads as they are used: time and memory by size; results/bench/sizes.json.

python -m benchmarks.sizes [decompile compile]

Every size is measured in a process of its own, whose peak memory is that of the size, without the time to import. On a
machine that others use, too, the clock says little: seconds are the lesser of the clock's and the processor's. The
exponents are slopes of log(seconds) and log(bytes) over log(d), for sizes from 16 on; of memory, what the process had
before is taken off.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.measure import RESULTS, store

OUT = RESULTS / "sizes.json"
LARGE = 16  # exponents are fitted from this d on

Prepared = Callable[[], dict[str, Any]]
"""What is timed: it returns what is worth recording of the answer."""


class Limit(NamedTuple):
    """What a size must meet."""

    seconds: float
    gigabytes: float


class Measure(NamedTuple):
    """One command at several sizes: (d, heads) to what is timed, with everything it needs made before."""

    prepare: Callable[[int, int], Prepared]
    sizes: tuple[tuple[int, int], ...]
    limits: dict[int, Limit]


def _decompile(d: int, heads: int) -> Prepared:
    """A disguised network of the fewest neurons, certificate included."""
    import underhood as uh
    from underhood.identify.decompile import decompile

    attention = uh.random_attention(d, heads=heads, seed=d)
    network = uh.disguise(uh.compile(attention, to="gated-rnn-minimal", horizon=10).model, seed=d)

    def run() -> dict[str, Any]:
        found = decompile(network)
        assert found.attention is not None and found.certificate is not None, found.reason
        xs = np.random.default_rng(0).standard_normal((20, d))
        ys = np.asarray(attention(xs))
        error = np.abs(np.asarray(found.attention(xs)) - ys).max() / np.abs(ys).max()
        sizes = {"hidden": network.hidden, "hidden_after": found.hidden_after, "heads": found.heads}
        return {"error": float(error), "right": found.verdict == "linear-attention", **sizes}

    return run


def _compile(d: int, heads: int) -> Prepared:
    """Heads of 64 keys at most, as sparse gatings, verified."""
    import underhood as uh

    attention = uh.random_attention(d, heads=heads, d_key=min(d, 64), seed=d)

    def run() -> dict[str, Any]:
        compiled = uh.compile(attention, to="gated-rnn", sparse=True)
        steps = compiled.evidence.measured_steps
        return {
            "error": compiled.max_rel_error,
            "right": compiled.verified,
            "hidden": compiled.hidden,
            "measured_steps": steps,
        }

    return run


MEASURES = {
    "decompile": Measure(
        _decompile,
        ((4, 1), (8, 1), (12, 1), (16, 1), (24, 1), (32, 1), (48, 1), (64, 1)),
        {24: Limit(5, 4), 64: Limit(60, 4)},
    ),
    "compile": Measure(_compile, ((4, 1), (16, 1), (64, 1), (128, 2), (256, 4), (512, 8)), {512: Limit(60, 4)}),
}


def measured(name: str, d: int, heads: int) -> dict[str, Any]:
    """One size, in a process of its own."""
    arguments = [sys.executable, "-m", "benchmarks.sizes", "--one", name, str(d), str(heads)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True, cwd=Path(__file__).parent.parent)
    row = json.loads(done.stdout.splitlines()[-1])
    limit = MEASURES[name].limits.get(d)
    met = None if limit is None else row["seconds"] <= limit.seconds and row["gigabytes"] <= limit.gigabytes
    wanted = None if limit is None else limit._asdict()
    return {"name": name, "d": d, "heads": heads, **row, "limit": wanted, "met": row["right"] if met is None else met}


def _one(name: str, d: int, heads: int) -> dict[str, Any]:
    run = MEASURES[name].prepare(d, heads)
    before = _peak()
    wall, processor = time.perf_counter(), time.process_time()
    answer = run()
    clock, processor = time.perf_counter() - wall, time.process_time() - processor
    times = {"seconds": min(clock, processor), "clock_seconds": clock, "processor_seconds": processor}
    return {**times, "gigabytes": _peak(), "gigabytes_before": before, **answer}


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6  # Linux counts in kilobytes


def exponents(rows: Iterable[dict[str, Any]]) -> dict[str, float]:
    """Growth with d of time and of memory."""
    large = [row for row in rows if row["d"] >= LARGE]
    logs = np.log([row["d"] for row in large])
    grown = [max(row["gigabytes"] - row["gigabytes_before"], 1e-3) for row in large]
    columns = {"seconds": [row["seconds"] for row in large], "gigabytes": grown}
    return {name: float(np.polyfit(logs, np.log(values), 1)[0]) for name, values in columns.items()}


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["--one"]:
        name, d, heads = arguments[1:]
        print(json.dumps(_one(name, int(d), int(heads))))
        return
    kept = json.loads(OUT.read_text()) if OUT.exists() else {"rows": [], "exponents": {}}
    for name in arguments or MEASURES:
        rows = []
        for d, heads in MEASURES[name].sizes:
            rows.append(measured(name, d, heads))
            print({key: rows[-1][key] for key in ("name", "d", "seconds", "gigabytes", "error", "met")}, flush=True)
        # One command's sizes at a time: an interrupted run keeps what it has, and what was measured before stays.
        kept["rows"] = [row for row in kept["rows"] if row["name"] != name] + rows
        kept["exponents"][name] = exponents(rows)
        print(name, kept["exponents"][name], flush=True)
        store("sizes", kept["rows"], {"exponents": kept["exponents"]})


if __name__ == "__main__":
    main(sys.argv[1:])
