"""Training speed: share of the best matmul rate, and steps/s against the plain way and against eager torch.

    python -m benchmarks.training --cores 1      # or 2: prints one JSON object; `python -m benchmarks` runs both

The number of cores is set ahead of the imports, as XLA's and OpenBLAS's thread pools are sized once.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from typing import Any

STEPS = 50  # of one call of each candidate


def engine(model: Any, task: Any) -> Callable[[], Any]:
    """A function that takes `STEPS` steps the way `underhood train` does, data included."""
    import numpy as np

    from underhood.fit import adamw
    from underhood.fit.config import SECTION_3_1
    from underhood.fit.population import Member, Trainer

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
    from underhood.data import LinearRegression, TeacherStudent

    teacher = TeacherStudent(uh.random_attention(4))
    regression = LinearRegression()
    student = uh.make_model("gated-rnn", 4, hidden=100)
    solver = uh.make_model("gated-rnn", 6, hidden=80, d_out=3)
    cells = {name: uh.make_model(name, 4, hidden=64) for name in ("lstm", "gru")}

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
    from benchmarks.measure import best_seconds

    chosen = {name: what for name, what in candidates().items() if only in name or name.startswith("matmul")}
    return best_seconds(chosen, rounds=rounds)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cores", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--only", default="")
    flags = parser.parse_args()
    for variable in ("NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[variable] = str(flags.cores)
    json.dump(measure(flags.rounds, flags.only), sys.stdout)


if __name__ == "__main__":
    main()
