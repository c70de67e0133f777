"""What the paper says about Figures 3, 4 and 5, asked of the runs: each finding holds here, or does not.

python -m underhood.studies.findings results/laptop/sweep
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from underhood.algebra.statistics import Correlation, rank_correlation
from underhood.studies.rows import Row, Target, above, at_least, at_most, below
from underhood.training.tasks.linear_regression import LinearRegression

TASKS = TEACHER, REGRESSION = "teacher-student", "linear-regression"
D = 6
# Hidden neurons of the constructions at d = 6: Figure 1, and with symmetric key-values, which is the least as well.
WIDTHS = {"full": D * D + D, "compact": D * (D + 1) // 2 + D}
LRUS, GATED_LRUS = ("lru", "lru-in-out", "lru-in-skip"), ("lru-in-out", "lru-in-skip")
PAPER_STEPS, PLATEAU = 781_000, 1e-6  # of Figure 3 A
MUCH = 10  # "≪": a tenth or less
FEWEST = 5  # networks that a correlation is asked of
NEAR = 1.5  # "best or near it": within this factor of the best

NEAREST = 1e-9  # distance from attention that a figure shows

Records = list[dict[str, Any]]
Measure = Callable[[dict[str, Any]], float]
Names = tuple[str, ...]  # of a record's entries
Models = tuple[str, ...]  # names of architectures
Ask = Callable[[Records], Any]  # a number of some runs


def findings_3(records: Records) -> list[Row]:
    """Section 3.2 and 4.2: mild overparametrisation for a random teacher, compression for the regression task."""
    compact, first_order = WIDTHS["compact"], _widths(records, TEACHER, "adamw")
    a, b = (functools.partial(transition, quantity=quantity) for quantity in ("held_out_loss", "excess"))
    what = "AdamW's transition, hidden neurons"
    rows = [
        _row(f"A: {what}", f"about 2 × {compact}", a, first_order, at_most(2.5 * compact)),
        _row(f"B: {what}", f"far below {compact}", b, _widths(records, REGRESSION, "adamw"), below(compact)),
    ]
    if first_order[0]["steps"] >= PAPER_STEPS:  # fewer do not reach the plateau
        wide = _widest(first_order)
        name = f"A: AdamW's loss at {wide[0]['hidden']} neurons"
        rows.append(_row(name, None, lambda some: _median(some, "held_out_loss"), wide, at_most(PLATEAU)))
    for name, task, quantity, small in (("A", TEACHER, "held_out_loss", 1e-12), ("B", REGRESSION, "excess", 1e-4)):
        found = _widths(records, task, "levenberg")
        reached = [r["hidden"] for r in found if r[quantity] <= small]
        rows.append(Row(f"{name}: least width that the second-order solver solves", None, min(reached, default=None)))
    return rows


def findings_4(records: Records) -> list[Row]:
    """Section 3.3 and 4.3: at the largest width of each task, the best of some architectures over that of others."""
    teacher, regression = (_widest([r for r in _compared(records) if r["task"] == task]) for task in TASKS)
    optimum, everything = gradient_step_loss(validation=True), tuple({r["model"] for r in regression})
    gating, gru, lru = "LRU with input gating", ("gru",), ("lru",)

    def ratio(upper: Models, lower: Models) -> Ask:
        return lambda some: best_loss(some, upper) / best_loss(some, lower)

    def over_step(some: Records) -> float:
        return best_loss(some, gru) / optimum

    asked: list[tuple[str, str, Ask, Records, Target]] = [
        (f"{gating} over gated RNN, loss ratio", "≫ 1", ratio(GATED_LRUS, ("gated-rnn",)), teacher, at_least(MUCH)),
        (f"{gating} over dense gated RNN", "≫ 1", ratio(GATED_LRUS, ("gated-rnn-dense",)), teacher, at_least(MUCH)),
        (f"LSTM and GRU over {gating}", "> 1", ratio(("lstm", "gru"), GATED_LRUS), teacher, above(1)),
        (f"LRU over {gating}", "> 1", ratio(lru, GATED_LRUS), teacher, above(1)),
        (f"LRU over {gating}", "> 1", ratio(lru, GATED_LRUS), regression, above(1)),
        ("GRU over the best architecture", "1", ratio(gru, everything), regression, at_most(NEAR)),
        ("GRU over the gradient step, validation loss", "< 1", over_step, regression, below(1)),
    ]
    return [
        _row(f"{'teacher' if at is teacher else 'regression'}: {name}", paper, ask, at, target)
        for name, paper, ask, at, target in asked
    ]


def gradient_step_loss(*, validation: bool) -> float:
    """What one optimal step of gradient descent leaves: the line in Figures 4 and 5."""
    loss = LinearRegression().optimal_loss(validation=validation)
    assert loss is not None
    return loss


def findings_5(records: Records) -> list[Row]:
    """Appendix B.1, and the closing question of Section 4.3: is closeness to attention what makes them learn?"""
    at = [r for r in _compared(records) if r["task"] == REGRESSION]
    widths = {r["hidden"] for r in at}  # those of the laptop's longer runs are none of them
    of_teacher = [r for r in _compared(records) if r["task"] == TEACHER and r["hidden"] in widths]
    of_lrus = [r for r in at if r["model"] in LRUS]
    rows = [
        _row(
            f"teacher, {told}: LRU over LRU with input gating",
            "> 1",
            lambda some: best_loss(some, ("lru",)) / best_loss(some, GATED_LRUS),
            _widest(alike),
            above(1),
        )
        for layers, told in ((1, "one layer"), (2, "two layers"))
        if (alike := [r for r in of_teacher if r["layers"] == layers])  # none yet, in a sweep that is under way
    ]
    # "High" is a correlation whose interval is above 0.
    high: dict[str, Any] = {"paper": "high", "target": above(0)}
    rows += _both_losses(on_both_tasks([*of_teacher, *at]), high)
    rows += [
        _correlated("LRUs", of_lrus, **high),
        _correlated("all architectures", at),
        _correlated("within architectures", at, within=("model", "layers")),
    ]
    # Attention takes the gradient step and no more: who learns better must leave it.
    for whose, runs in (("", at), ("LRUs ", of_lrus)):
        for side, short in (("not yet at the gradient step", True), ("beyond the gradient step", False)):
            some = [r for r in runs if (r["validation_excess"] > 0) == short]
            if len(set(map(network_of, some))) >= FEWEST:
                rows.append(_correlated(f"{whose}{side}", some))
    return rows


def on_both_tasks(records: Records) -> Records:
    """The runs on the regression task with what the same network and seed comes to on the teacher's, where there is
    one, under that task's name."""
    losses = {(*network_of(r), r["seed"]): r["validation_loss"] for r in records if r["task"] == TEACHER}
    regression = [r for r in records if r["task"] == REGRESSION]
    return [{**r, TEACHER: losses[key]} for r in regression if (key := (*network_of(r), r["seed"])) in losses]


def _both_losses(pairs: Records, high: dict[str, Any]) -> list[Row]:
    """Do architectures that mimic a teacher well learn well in context, too? Figure 5 of the paper shows these losses
    and no other distance from attention, so its words about the LRUs can be about nothing else."""
    of_lrus = [pair for pair in pairs if pair["model"] in LRUS]
    if len(set(map(network_of, of_lrus))) < FEWEST:
        return []
    ask = functools.partial(_correlated, what="the losses on both tasks", of=lambda pair: pair[TEACHER])
    return [
        ask("LRUs", of_lrus, **high),
        ask("LRUs, at equal width", of_lrus, within=("hidden",)),
        ask("all architectures", pairs),
    ]


def distance(record: dict[str, Any]) -> float:
    """1 − R² of the nearest attention, at most 1: a network that says next to nothing has no R² to speak of."""
    return min(max(1 - record["attention_r2"], NEAREST), 1.0)


def network_of(record: dict[str, Any]) -> tuple[Any, ...]:
    """The architecture and size; its runs differ in their seeds."""
    return tuple(record[name] for name in ("model", "layers", "hidden"))


def correlation(records: Records, of: Measure = distance, within: Names = ()) -> Correlation:
    """Of `of` and validation loss; networks are resampled, each with all of its seeds."""
    kinds = [" ".join(str(r[name]) for name in within) for r in records]
    losses = [r["validation_loss"] for r in records]
    return rank_correlation([of(r) for r in records], losses, [network_of(r) for r in records], kinds)


def exact_distance() -> float:
    """1 − R² of the nearest attention at y = W x itself: the gradient step's loss over that of predicting nothing.

    Whoever predicts exactly is as far from attention as that, and no further.
    """
    task = LinearRegression()
    return task.optimal_loss() / task.gradient_descent_loss(0.0)


def _row(name: str, paper: str | None, ask: Ask, records: Records, target: Target) -> Row:
    """What `ask` says of these runs, and of those of each seed alone."""
    here, seeds = ask(records), sorted({r["seed"] for r in records})
    by_seed = tuple(ask([r for r in records if r["seed"] == seed]) for seed in seeds)
    return Row(name, paper, here, target, by_seed)


def _correlated(
    name: str,
    records: Records,
    what: str = "distance from attention and loss",
    of: Measure = distance,
    *,
    within: Names = (),
    paper: str | None = None,
    target: Target | None = None,
) -> Row:
    """How `what` go together in these runs, and in those of each seed alone; the interval's low end is judged."""
    found, name = correlation(records, of, within), f"{name}: rank correlation of {what}, 95 % interval"
    value, low, high = (f"{number:z.2f}" for number in (found.value, found.low, found.high))  # z: no "-0.00"
    here = f"{value} ({low} to {high}; {found.points} runs)"
    return Row(name, paper, here, target, _of_each_seed(records, of, within), judged=found.low)


def _of_each_seed(records: Records, of: Measure, within: Names) -> tuple[float, ...]:
    """The correlation in the runs of each seed alone; a seed with a single run has none."""
    alone = [[r for r in records if r["seed"] == seed] for seed in sorted({r["seed"] for r in records})]
    values = [correlation(runs, of, within).value for runs in alone]
    return tuple(value for value in values if not np.isnan(value))


def _widest(records: Records) -> Records:
    widest = max(r["hidden"] for r in records)
    return [r for r in records if r["hidden"] == widest]


def _median(records: Records, quantity: str) -> float:
    return float(np.median([r[quantity] for r in records]))


def best_loss(records: Records, models: Models) -> float:
    """The least validation loss of these architectures, with one layer or two; of each, the median over seeds."""
    kinds: dict[tuple[str, int], Records] = {}
    for record in records:
        if record["model"] in models:
            kinds.setdefault((record["model"], record["layers"]), []).append(record)
    return min((_median(alike, "validation_loss") for alike in kinds.values()), default=float("inf"))


def transition(records: Records, quantity: str) -> int:
    """The least width whose loss is below the middle, on a log scale, of the losses of the narrowest and the best."""
    widths = sorted({r["hidden"] for r in records})
    losses = [float(np.median([max(r[quantity], 1e-9) for r in records if r["hidden"] == width])) for width in widths]
    middle = (max(losses) * min(losses)) ** 0.5
    return next(width for width, loss in zip(widths, losses, strict=True) if loss <= middle)


def _widths(records: Records, task: str, optimizer: str) -> Records:
    """The runs of Figure 3."""
    return [r for r in records if (r["task"], r["optimizer"]) == (task, optimizer) and not r["probe"]]


def _compared(records: Records) -> Records:
    """The runs of Figures 4 and 5."""
    return [r for r in records if r["probe"]]


FINDINGS: dict[str, Callable[[Records], list[Row]]] = {
    "figure3": findings_3,
    "figure4": findings_4,
    "figure5": findings_5,
}


def main(folder: str = "results/laptop/sweep") -> int:
    """Print each finding as held or not; 1 if one does not hold."""
    from underhood.sweeps.store import results

    swept = [record for name in ("widths", "architectures") for record in results(Path(folder) / name)]
    records = [record for record in swept if record["status"] == "done"]
    rows = [(figure, row) for figure, ask in FINDINGS.items() for row in ask(records)]
    for figure, row in rows:
        here = f"{row.here:.3g}" if isinstance(row.here, float) else row.here
        held = {None: "        ", True: "held    ", False: "not held"}[row.met]
        sys.stdout.write(f"{held}  {figure}  {row.name}: {here}\n")
    return int(any(row.met is False for _, row in rows))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
