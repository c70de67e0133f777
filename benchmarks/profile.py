"""What is left of a training step: time by compiled operation, on one core; results/bench/profile.json.

python -m benchmarks.profile [teacher|regression|lstm|gru]
"""

from __future__ import annotations

import collections
import gzip
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

FLAG = "--xla_cpu_enable_xprof_traceme=true"


def model_and_task(name: str) -> tuple[Any, Any]:
    import underhood as uh
    from underhood.training.tasks.linear_regression import LinearRegression
    from underhood.training.tasks.teacher_student import TeacherStudent

    if name == "regression":
        return uh.make_model("gated-rnn", 6, hidden=80, d_out=3), LinearRegression()
    kind, hidden = ("gated-rnn", 100) if name == "teacher" else (name, 64)
    return uh.make_model(kind, 4, hidden=hidden), TeacherStudent(uh.random_attention(4))


def operations(name: str, calls: int = 5) -> dict[str, float]:
    """Microseconds a step of each operation; loops are left out, since what they do is listed itself."""
    import jax

    from benchmarks.training import STEPS, engine

    run = engine(*model_and_task(name))
    run()
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            for _ in range(calls):
                run()
        (path,) = Path(folder).rglob("*.trace.json.gz")
        events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    spent: collections.Counter[str] = collections.Counter()
    for event in events:
        if event.get("ph") == "X" and not event["name"].startswith(("$", "while", "Thunk", "end:", "Pjit", "Common")):
            spent[event["name"]] += event["dur"]
    return {name: micro / (calls * STEPS) for name, micro in spent.most_common(20)}


def main() -> None:
    if FLAG not in os.environ.get("XLA_FLAGS", ""):
        one = dict.fromkeys(("NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        flags = f"{os.environ.get('XLA_FLAGS', '')} {FLAG}"
        raise SystemExit(
            subprocess.run(
                [sys.executable, "-m", "benchmarks.profile", *sys.argv[1:]],
                env={**os.environ, **one, "XLA_FLAGS": flags},
            ).returncode
        )
    from benchmarks.measure import row, show, store

    rows = []
    for name in sys.argv[1:] or ["teacher", "regression"]:
        found = operations(name)
        rows += [row(f"{name}: {operation}", micro, unit="µs") for operation, micro in found.items()]
    show("profile of a step, one core", rows)
    store("profile", rows)


if __name__ == "__main__":
    main()
