"""Levenberg–Marquardt against the figures it must show: `python -m benchmarks.levenberg [--quick]`.

Writes results/bench/levenberg.json: teacher-student d=4 (20 seeds) and d=6 (10 seeds), the regression task's
excess over the optimal gradient step on 10⁶ fresh tasks, and one iteration of optimistix's solver beside ours.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from pathlib import Path
from typing import Any

import numpy as np

from underhood.attention.teachers import random_attention
from underhood.training.second_order.levenberg import LevenbergResult, fit_levenberg
from underhood.training.second_order.problems import outputs_of
from underhood.training.tasks.linear_regression import regression_signs

RESULTS = Path(__file__).resolve().parent.parent / "results" / "bench" / "levenberg.json"
TIME = 32
TASKS, D_X, EXAMPLES = 1_000_000, 3, 12
ETA = 1 / (EXAMPLES + D_X - 0.2)


def teacher_student(d: int, seed: int, batch: int, test: int = 256) -> tuple[Any, Any]:
    attention = random_attention(d, seed=seed)
    w_value, w_key, w_query = (np.asarray(w)[0] for w in (attention.w_value, attention.w_key, attention.w_query))
    xs = np.random.default_rng([seed, 1]).normal(size=(batch + test, TIME, d))
    scores = np.einsum("btk,bsk->bts", xs @ w_query.T, xs @ w_key.T) * np.tril(np.ones((TIME, TIME)))
    ys = np.einsum("bts,bsv->btv", scores, xs @ w_value.T)
    return (xs[:batch], ys[:batch]), (xs[batch:], ys[batch:])


def regression(seed: int, tasks: int, variance: float) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng([seed, 2])
    x = random.uniform(-(3**0.5), 3**0.5, size=(tasks, EXAMPLES + 1, D_X))
    w_star = random.normal(size=(tasks, D_X, D_X)) * np.sqrt(variance / D_X)
    y = np.matmul(x, w_star.transpose(0, 2, 1))
    wanted = y[:, -1].copy()
    y[:, -1] = 0
    return np.concatenate([x, y], axis=-1), wanted


def excess(found: LevenbergResult, seed: int, variance: float) -> dict[str, float]:
    """Paired: the network and the optimal step on the same fresh tasks."""
    over, best = [], []
    for part in range(10):
        xs, ys = regression(seed + part, TASKS // 10, variance)
        step = ETA * np.einsum("bty,btx,bx->by", xs[:, :-1, D_X:], xs[:, :-1, :D_X], xs[:, -1, :D_X])
        best.append(0.5 * np.mean((step - ys) ** 2))
        over.append(0.5 * np.mean((outputs_of(found.model, xs, last=True) - ys) ** 2) - best[-1])
    return {"optimal_loss": float(np.mean(best)), "excess_share": float(np.mean(over) / np.mean(best))}


def students(d: int, seeds: int, target: float, batch: int, prune: bool) -> dict[str, Any]:
    rows = []
    for seed in range(seeds):
        data, held_out = teacher_student(d, 1000 + seed, batch)
        reached = None

        # `seconds` has restarts and the reduction of the data in it, but not of the network.
        begun = time.process_time()
        plain = fit_levenberg(*data, held_out=held_out, seed=seed, target_loss=target, prune=False, max_seconds=900)
        row = {"seed": seed, "held_out_loss": plain.held_out_loss, "met": plain.met, "iterations": plain.iterations}
        row |= {"restarts": plain.restarts, "seconds": plain.seconds, "cpu_seconds": time.process_time() - begun}
        row |= {"hidden": plain.hidden, "pre_readout": plain.pre_readout}
        if prune:
            reached = fit_levenberg(*data, held_out=held_out, seed=seed, target_loss=target, max_seconds=900)
            row |= {"reduced_hidden": reached.hidden, "reduced_pre_readout": reached.pre_readout}
            row |= {"reduced_loss": reached.held_out_loss, "seconds_with_reduction": reached.seconds}
        rows.append(row)
        print(json.dumps(row), flush=True)
    met = [row for row in rows if row["met"]]
    smallest = min(
        ((row.get("reduced_hidden", row["hidden"]), row.get("reduced_pre_readout", row["pre_readout"])) for row in met),
        default=None,
    )
    return {
        "d": d,
        "target": target,
        "met": len(met),
        "of": seeds,
        "median_seconds": float(np.median([row["seconds"] for row in rows])),
        "median_cpu_seconds": float(np.median([row["cpu_seconds"] for row in rows])),
        "smallest_hidden_and_pre_readout": smallest,
        "rows": rows,
    }


def beside_optimistix(steps: int = 8) -> dict[str, Any]:
    """The same start on the same data, in rows (sequence, time), with optimistix.LevenbergMarquardt (lineax's QR)."""
    import jax
    import jax.numpy as jnp
    import optimistix

    from underhood.architectures.gated_rnn.cell import NU_FORGET, NU_MEMORY, GatedRNN

    (xs, ys), _ = teacher_student(4, 1000, 40)
    with jax.enable_x64(True):
        model = GatedRNN.random(d=4, hidden=24, pre_readout=20, key=jax.random.key(0), dtype=jnp.float64)
        nu = jnp.where(jnp.arange(24) < 15, NU_MEMORY, NU_FORGET).astype(jnp.float64)
        weights = (model.input_gating, model.output_gating, model.readout)
        xs, ys = jnp.asarray(xs), jnp.asarray(ys)

        def residual(weights: Any, _: Any) -> Any:
            network = GatedRNN(weights[0], nu, weights[1], weights[2])
            return jax.vmap(network)(xs) - ys

        solver = optimistix.LevenbergMarquardt(rtol=1e-14, atol=1e-14)

        def run(most: int) -> tuple[float, float]:
            begun = time.perf_counter()
            found = optimistix.least_squares(residual, solver, weights, max_steps=most, throw=False)
            loss = 0.5 * float(jnp.mean(residual(found.value, None) ** 2))
            return loss, time.perf_counter() - begun

        _, short = run(2)
        loss, long = run(2 + steps)
    data, held_out = teacher_student(4, 1000, 40)
    ours = fit_levenberg(*data, held_out=held_out, prune=False)
    return {
        "rows": int(ys.size),
        "optimistix_seconds_an_iteration": (long - short) / steps,
        "optimistix_loss_then": loss,
        "ours_seconds_an_iteration": ours.seconds / ours.iterations,
        "ours_loss_at_the_end": ours.held_out_loss,
        "ours_iterations": ours.iterations,
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--quick", action="store_true", help="few seeds")
    arguments.add_argument("--only", nargs="*", choices=["d4", "d6", "regression", "optimistix"])
    chosen = arguments.parse_args()
    parts = chosen.only or ["d4", "d6", "regression", "optimistix"]
    stored = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for part in parts:
        if part == "d4":
            stored["d4"] = students(4, 3 if chosen.quick else 20, 1e-20, 400, True)
        if part == "d6":
            stored["d6"] = students(6, 1 if chosen.quick else 10, 1e-16, 200, False)
        if part == "regression":
            data, held_out = regression(7, 300_000, 1.0), regression(8, 20_000, 1.0)
            found = fit_levenberg(
                *data, held_out=held_out, targets_at="last", symmetry=regression_signs(D_X, D_X), target_loss=0.0,
                max_seconds=600,
            )  # fmt: skip
            row: dict[str, Any] = {"seconds": found.seconds, "hidden": found.hidden, "pre_readout": found.pre_readout}
            row |= {"training": excess(found, 100, 1.0), "validation": excess(found, 200, 2.0)}
            stored["regression"] = row
        if part == "optimistix":
            stored["optimistix"] = beside_optimistix()
        stored["machine"] = {"cores": os.cpu_count(), "python": platform.python_version(), "numpy": np.__version__}
        stored["machine"] |= {
            "load_average": os.getloadavg()[0],
            "blas_threads": os.environ.get("OPENBLAS_NUM_THREADS"),
        }
        RESULTS.parent.mkdir(parents=True, exist_ok=True)
        RESULTS.write_text(json.dumps(stored, indent=1) + "\n")
        print(part, {key: value for key, value in stored[part].items() if key != "rows"}, flush=True)


if __name__ == "__main__":
    main()
