"""Training speed: share of the best matmul rate, and steps/s against the plain way and against eager torch.

    python -m benchmarks.training                # the table, on one core and on all; results/bench/training.json

Each number of cores is a process of its own (--measure --cores 1), since XLA's and OpenBLAS's thread pools are sized
once, when they are imported.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

STEPS = 50  # of one call of each candidate


def engine(model: Any, task: Any) -> Callable[[], Any]:
    """A function that takes `STEPS` steps the way `underhood train` does, data included."""
    import numpy as np

    from underhood.training import adamw
    from underhood.training.config import SECTION_3_1
    from underhood.training.population import Member, Trainer

    trainer = Trainer(model, task, SECTION_3_1)
    member, state = Member(0, 1e-3, 0.1), {"at": adamw.start(trainer.ravelled.vector)}

    def run() -> Any:
        state["at"], losses = trainer.advance(state["at"], member, STEPS)
        return np.asarray(losses)

    return run


def matmul_seconds() -> dict[str, tuple[Callable[[], Any], int]]:
    """(2048×100)·(100×200) in numpy and in jax, the two that share the title of best rate."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    random = np.random.default_rng(0)
    a, b = random.normal(size=(2048, 100)).astype("f"), random.normal(size=(100, 200)).astype("f")
    out = np.empty((2048, 200), "f")
    product = jax.jit(jnp.matmul)
    ja, jb = jnp.asarray(a), jnp.asarray(b)
    return {
        "matmul numpy": (lambda: np.matmul(a, b, out=out), 1),
        "matmul jax": (lambda: product(ja, jb).block_until_ready(), 1),
    }


def candidates() -> dict[str, tuple[Callable[[], Any], int]]:
    import underhood as uh
    from benchmarks import eager_torch, plain
    from underhood.training.tasks.linear_regression import LinearRegression
    from underhood.training.tasks.teacher_student import TeacherStudent

    teacher = TeacherStudent(uh.random_attention(4))
    regression = LinearRegression()
    student = uh.make_model("gated-rnn", 4, hidden=100)
    solver = uh.make_model("gated-rnn", 6, hidden=80, d_out=3)
    cells = {name: uh.make_model(name, 4, hidden=64) for name in ("lru", "lstm", "gru")}

    def host() -> Any:
        return plain.teacher_batches(teacher.teacher, 64, 32)

    found = {
        "teacher engine": (engine(student, teacher), STEPS),
        "teacher plain": (plain.trainer(student, plain.gated_rnn, host(), False, STEPS), STEPS),
        "teacher torch": (eager_torch.trainer(student, host(), STEPS), STEPS),
        "regression engine": (engine(solver, regression), STEPS),
        "regression plain": (
            plain.trainer(solver, plain.gated_rnn, plain.regression_batches(regression, 64), True, STEPS),
            STEPS,
        ),
    }
    for name, cell in cells.items():
        apply = getattr(plain, name)
        found[f"{name} engine"] = engine(cell, teacher), STEPS
        found[f"{name} plain"] = plain.trainer(cell, apply, host(), False, STEPS), STEPS
    return {**matmul_seconds(), **found}


def measure(rounds: int, only: str) -> dict[str, float]:
    """Seconds a step of each candidate."""
    from benchmarks.measure import best_seconds
    from underhood.core.threads import offer_two_devices

    offer_two_devices()  # as `underhood train` does
    chosen = {name: what for name, what in candidates().items() if only in name or name.startswith("matmul")}
    return best_seconds(chosen, rounds=rounds)


def work(seconds: float) -> dict[str, float]:
    """Steps a second of one worker on the teacher-student task."""
    import time

    import underhood as uh
    from underhood.training.tasks.teacher_student import TeacherStudent

    run = engine(uh.make_model("gated-rnn", 4, hidden=100), TeacherStudent(uh.random_attention(4)))
    run()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()  # both workers start together
    begun, steps = time.perf_counter(), 0
    while time.perf_counter() - begun < seconds:
        run()
        steps += STEPS
    return {"steps_per_second": steps / (time.perf_counter() - begun)}


def worker_rate(workers: int, seconds: float) -> float:
    """Steps a second of `workers` processes with one thread each, together."""
    command = [sys.executable, "-m", "benchmarks.training", "--work", str(seconds), "--cores", "1"]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(command, env=limited(1), **pipes) for _ in range(workers)]
    for process in processes:
        process.stdout.readline()
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    return sum(json.loads(process.communicate()[0])["steps_per_second"] for process in processes)


def limited(cores: int) -> dict[str, str]:
    names = ("NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    return {**os.environ, **dict.fromkeys(names, str(cores))}


def rows_of(times: dict[str, float], cores: int) -> list[dict[str, Any]]:
    """The ratios that were asked for, at one number of cores."""
    from benchmarks.measure import row

    where = f"{cores} core" + "s" * (cores > 1)
    best = min(times["matmul numpy"], times["matmul jax"])
    rate = 2 * 2048 * 100 * 200 / best
    weights, tokens = 21_500, 64 * 32
    share = 6 * weights * tokens / times["teacher engine"] / rate

    def ratio(task: str, against: str, aim: float | None, at_least: float) -> dict[str, Any]:
        ours, theirs = times[f"{task} engine"], times[f"{task} {against}"]
        detail = f"{1e3 * ours:.3f} against {1e3 * theirs:.3f} ms a step"
        name = f"{task}: steps/s against {against}, {where}"
        return row(name, theirs / ours, unit="×", aim=aim, at_least=at_least, detail=detail)

    return [
        row(
            f"teacher: share of the best matmul rate, {where}",
            share,
            aim=0.5,
            at_least=0.35,
            detail=f"{1e3 * times['teacher engine']:.3f} ms a step; best matmul {rate / 1e9:.0f} GFLOP/s",
        ),
        ratio("teacher", "plain", 4, 2.5),
        ratio("teacher", "torch", None, 1.0),
        ratio("regression", "plain", 8, 4),
        ratio("lru", "plain", None, 2),
        ratio("lstm", "plain", None, 2),
        ratio("gru", "plain", None, 2),
    ]


def table(rounds: int, seconds: float) -> None:
    from benchmarks.measure import row, show, store

    rows, raw = [], {}
    for cores in sorted({1, os.cpu_count() or 1}):
        command = [sys.executable, "-m", "benchmarks.training", "--measure", "--cores", str(cores)]
        done = subprocess.run(
            [*command, "--rounds", str(rounds)], env=limited(cores), check=True, stdout=subprocess.PIPE
        )
        raw[f"seconds a step, {cores} cores"] = times = json.loads(done.stdout)
        rows += rows_of(times, cores)
    one, two = (max(worker_rate(workers, seconds) for _ in range(3)) for workers in (1, 2))
    detail = f"{two:.0f} against {one:.0f} steps/s"
    rows.append(row("two workers of one thread against one", two / one, unit="×", at_least=1.8, detail=detail))
    show("training", rows)
    store("training", rows, raw)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cores", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--only", default="")
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--work", type=float)
    flags = parser.parse_args()
    os.environ.update(limited(flags.cores))
    if flags.measure:
        json.dump(measure(flags.rounds, flags.only), sys.stdout)
    elif flags.work:
        json.dump(work(flags.work), sys.stdout)
    else:
        table(flags.rounds, 5.0)


if __name__ == "__main__":
    main()
