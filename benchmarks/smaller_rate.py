"""Is it the learning rate that fails? Networks of Figure 5 that did not find the teacher, at a smaller rate.

python -m benchmarks.smaller_rate [--rate 0.003]          # results/bench/smaller_rate.json

The overnight budget picks each rate with 32 neurons and 10,000 steps. At that rate, two layers of LRU In-Out with 64
neurons find the teacher in one seed of three. Here are the same runs, all else alike, which takes an hour, so
`make bench` leaves it out. A run that was killed goes on.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

from benchmarks.measure import RESULTS, row, show, store

NETWORK = {"model": "lru-in-out", "layers": 2, "hidden": 64}
SWEPT = RESULTS.parent / "overnight" / "sweep" / "architectures"
RUNS = RESULTS.parents[1] / "out" / "smaller_rate"  # ignored by git
KEPT = ("learning_rate", "seed", "held_out_loss", "validation_loss", "steps", "seconds")


def picked() -> list[dict[str, Any]]:
    """The runs of the figure, at the rate that the search picked."""
    from underhood.studies.findings import TEACHER
    from underhood.sweeps.store import results

    asked = {**NETWORK, "task": TEACHER}
    return [one for one in results(SWEPT) if asked.items() <= one.items()]


def again(before: list[dict[str, Any]], rate: float) -> list[dict[str, Any]]:
    """The same runs at this rate."""
    from underhood.sweeps.spec import parse
    from underhood.sweeps.sweep import SweepProgress, run_sweep
    from underhood.training.specification import RunSpec

    settings = {name: value for name, value in before[0].items() if name in RunSpec.model_fields and name != "seed"}
    alike = {name: value for name, value in settings.items() if value is not None}
    run = {**alike, "learning_rate": rate, "seeds": [one["seed"] for one in before]}
    sweep = parse({"name": f"at the rate {rate:g}", "runs": [run]})
    return run_sweep(sweep, RUNS / f"{rate:g}", resume=True, watch=SweepProgress())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rate", type=float, default=3e-3)
    flags, before = parser.parse_args(), picked()
    runs = [{name: one[name] for name in KEPT} for one in before + again(before, flags.rate)]
    runs.sort(key=lambda one: (-one["learning_rate"], one["seed"]))
    rows = [row(f"rate {one['learning_rate']:g}, seed {one['seed']}: loss", one["held_out_loss"]) for one in runs]
    show("LRU In-Out, two layers of 64 neurons, on a teacher's outputs", rows)
    store("smaller_rate", rows, {**NETWORK, "runs": runs})


if __name__ == "__main__":
    os.environ.update(dict.fromkeys(("NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"))
    main()
