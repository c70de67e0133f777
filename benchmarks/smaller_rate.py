"""Is it the learning rate that fails? Networks of Figure 5 that did not find the teacher, at smaller rates.

python -m benchmarks.smaller_rate [--rates 0.003]          # results/bench/smaller_rate.json

The overnight budget picks each rate with 32 neurons and 10,000 steps. At that rate, two layers of LRU In-Out with 64
neurons find the teacher in one seed of three. Here are the same runs, all else alike: an hour a rate, so
`make bench` leaves it out. A run that was killed goes on.
"""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

from benchmarks.measure import RESULTS, row, show, store

NETWORK = {"model": "lru-in-out", "layers": 2, "hidden": 64}
RECORDS = RESULTS.parent / "overnight" / "sweep" / "architectures" / "results.jsonl"
RUNS = RESULTS.parents[1] / "out" / "smaller_rate"  # ignored by git
KEPT = ("learning_rate", "seed", "held_out_loss", "validation_loss", "steps", "seconds")


def picked() -> list[dict[str, Any]]:
    """The runs of the figure, at the rate that the search picked."""
    from underhood.report.findings import TEACHER

    asked = {**NETWORK, "task": TEACHER}
    records = [json.loads(line) for line in RECORDS.read_text().splitlines()]
    return [one for one in records if asked.items() <= one.items()]


def again(before: list[dict[str, Any]], rates: list[float]) -> list[dict[str, Any]]:
    """The same runs at each of `rates`; `probe` reads the validation loss, too."""
    from underhood.sweep.spec import RunSpec, parse
    from underhood.sweep.sweep import Teller, run_sweep

    settings = {name: value for name, value in before[0].items() if name in RunSpec.model_fields and name != "seed"}
    alike = {name: value for name, value in settings.items() if value is not None}
    runs = [{**alike, "learning_rate": rates, "seeds": [one["seed"] for one in before]}]
    return run_sweep(parse({"name": "smaller rates", "runs": runs}), RUNS, workers=1, resume=True, watch=Teller())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rates", type=float, nargs="+", default=[3e-3])
    before = picked()
    runs = [{name: one[name] for name in KEPT} for one in before + again(before, parser.parse_args().rates)]
    runs.sort(key=lambda one: (-one["learning_rate"], one["seed"]))
    rows = [row(f"rate {one['learning_rate']:g}, seed {one['seed']}: loss", one["held_out_loss"]) for one in runs]
    show("LRU In-Out, two layers of 64 neurons, on a teacher's outputs", rows)
    store("smaller_rate", rows, {**NETWORK, "runs": runs})


if __name__ == "__main__":
    os.environ.update(dict.fromkeys(("NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"))
    main()
