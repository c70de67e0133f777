"""From d = 4 to attention heads as they are used: time and memory by size; results/bench/sizes.json and sizes.png.

python -m benchmarks.sizes [--again] [levenberg probe decompile compile …]

Every size is measured in a process of its own, whose peak memory is that of the size, without the time to import, and
is written down when it ends: a run that was interrupted goes on with what is missing, and `--again` starts anew. On a
machine that others use, too, the clock says little: seconds are the lesser of the clock's and the processor's.
Growth is fitted as seconds = a · d^b and gigabytes = a · d^b, beyond what the process had before, for larger sizes.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import RESULTS, store
from benchmarks.size_cases import MEASURES

OUT = RESULTS / "sizes.json"
LEAST = 1e-3  # gigabytes: what is less is noise


def measured(name: str, d: int, second: int) -> dict[str, Any]:
    """One size, in a process of its own."""
    measure = MEASURES[name]
    arguments = [sys.executable, "-m", "benchmarks.sizes", "--one", name, str(d), str(second)]
    done = subprocess.run(arguments, capture_output=True, text=True, cwd=Path(__file__).parent.parent)
    if done.returncode:
        raise SystemExit(f"{name} at {d} failed:\n{done.stderr}")
    row = json.loads(done.stdout.splitlines()[-1])
    limit = measure.limits.get(d)
    met = row["right"] and (limit is None or (row["seconds"] <= limit.seconds and row["gigabytes"] <= limit.gigabytes))
    wanted = None if limit is None else limit._asdict()
    return {"name": name, "d": d, measure.second: second, **row, "limit": wanted, "met": met}


def _one(name: str, d: int, second: int) -> dict[str, Any]:
    run = MEASURES[name].prepare(d, second)
    before = _peak()
    wall, processor = time.perf_counter(), time.process_time()
    answer = run()
    clock, processor = time.perf_counter() - wall, time.process_time() - processor
    times = {"seconds": min(clock, processor), "clock_seconds": clock, "processor_seconds": processor}
    return {**times, "gigabytes": _peak(), "gigabytes_before": before, **answer}


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6  # Linux counts in kilobytes


def size_of(row: dict[str, Any]) -> float:
    """d, or that of one head with as many products as these heads have (underhood/core/costs.py)."""
    return max(row["d"], np.sqrt(row.get("heads", 1) * row["d"] * min(row["d"], 64)))


def growth(rows: Sequence[dict[str, Any]], least: int) -> dict[str, Any]:
    """{from, to, seconds, gigabytes: {factor, exponent}}, by least squares in logarithms; nothing for one size."""
    large = [row for row in rows if row["d"] >= least]
    if len({row["d"] for row in large}) < 2:
        return {}
    logs = np.log([size_of(row) for row in large])
    grown = [max(row["gigabytes"] - row["gigabytes_before"], LEAST) for row in large]
    fits: dict[str, Any] = {"from": min(row["d"] for row in large), "to": max(row["d"] for row in large)}
    for quantity, values in (("seconds", [row["seconds"] for row in large]), ("gigabytes", grown)):
        slope, level = np.polyfit(logs, np.log(values), 1)
        if slope < 0:  # nothing shows beside what every process takes
            slope, level = 0.0, np.mean(np.log(values))
        fits[quantity] = {"factor": float(np.exp(level)), "exponent": float(slope)}
    return fits


def summary(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One entry for each name and d: medians over seeds, the largest error, and how many met what they must."""
    found = []
    for name in MEASURES:
        for d in sorted({row["d"] for row in rows if row["name"] == name}):
            same = [row for row in rows if (row["name"], row["d"]) == (name, d)]
            errors = [row["error"] for row in same if row["error"] is not None]
            found.append(
                {
                    "name": f"{name} {d}",
                    **{key: float(np.median([row[key] for row in same])) for key in ("seconds", "gigabytes")},
                    "most_seconds": max(row["seconds"] for row in same),
                    "error": max(errors, default=None),
                    "met": sum(row["met"] for row in same),
                    "of": len(same),
                }
            )
    return found


def draw(rows: Sequence[dict[str, Any]], fits: dict[str, Any], path: Path) -> None:
    """Seconds and gigabytes over d, both logarithmic, with the fitted growth and what was asked for as crosses."""
    from underhood.pages.drawing import new_figure, style_curves

    figure = new_figure(12, 4.2)
    names = [name for name in MEASURES if fits.get(name) and MEASURES[name].limits]
    for place, key in enumerate(("seconds", "gigabytes"), 1):
        axes = figure.add_subplot(1, 2, place)
        for index, name in enumerate(names):
            same = [row for row in rows if row["name"] == name]
            colour, fit = f"C{index}", fits[name][key]
            axes.loglog([row["d"] for row in same], [row[key] for row in same], "o", color=colour, ms=4)
            large = sorted((row for row in same if row["d"] >= MEASURES[name].large), key=lambda row: row["d"])
            line = [
                fit["factor"] * size_of(row) ** fit["exponent"] + (row["gigabytes_before"] if place == 2 else 0)
                for row in large
            ]
            label = f"{name}: d^{fits[name]['seconds']['exponent']:.1f}, d^{fits[name]['gigabytes']['exponent']:.1f}"
            axes.loglog([row["d"] for row in large], line, color=colour, label=label)
            for d, asked in {(row["d"], row["limit"][key]) for row in same if row["limit"]}:
                axes.loglog(d, asked, "x", color=colour, ms=7)
        style_curves(axes, "d", key, f"{key} by size; crosses: asked for")
        ticks = {
            "x": (4, 8, 16, 32, 64, 128, 256, 512),
            "y": ((0.1, 1, 10, 100, 1000), (0.3, 0.5, 1, 2, 4, 6))[place - 1],
        }
        axes.set_xticks(ticks["x"], map(str, ticks["x"]))
        axes.set_yticks(ticks["y"], [f"{one:g}" for one in ticks["y"]])
        axes.minorticks_off()
    if names:  # beside the panels: inside, it would hide what it explains
        figure.subplots_adjust(left=0.06, right=0.74, wspace=0.22)
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(
            handles,
            labels,
            title="growth of seconds, gigabytes",
            fontsize=8,
            loc="center left",
            bbox_to_anchor=(0.75, 0.5),
        )
    figure.savefig(path, dpi=150)


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["--one"]:
        name, d, second = arguments[1:]
        print(json.dumps(_one(name, int(d), int(second))))
        return
    names = [name for name in arguments if name != "--again"] or list(MEASURES)
    rows = json.loads(OUT.read_text())["rows"] if OUT.exists() else []
    if "--again" in arguments:
        rows = [row for row in rows if row["name"] not in names]
    for name in names:
        measure = MEASURES[name]
        for d, second in measure.sizes:
            if any((row["name"], row["d"], row.get(measure.second)) == (name, d, second) for row in rows):
                continue
            rows.append(measured(name, d, second))
            print({key: rows[-1][key] for key in ("name", "d", "seconds", "gigabytes", "error", "met")}, flush=True)
            keep(rows)
    keep(rows)


def keep(rows: list[dict[str, Any]]) -> None:
    """Everything that follows from the rows, written anew after each."""
    fits = {name: growth([row for row in rows if row["name"] == name], MEASURES[name].large) for name in MEASURES}
    ratios = {str(row["d"]): row["ratio"] for row in rows if "ratio" in row}  # of steps, against recurrent attention's
    store("sizes", rows, {"growth": fits, "ratios": ratios, "summary": summary(rows)})
    draw(rows, fits, OUT.with_suffix(".png"))


if __name__ == "__main__":
    main(sys.argv[1:])
