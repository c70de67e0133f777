"""What the paper says about Figures 3, 4 and 5, asked of the runs: each finding holds here, or does not.

python -m underhood.report.findings results/laptop/sweep
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import rankdata

from underhood.data import LinearRegression
from underhood.report.artifact import Row

TEACHER, REGRESSION, D = "teacher-student", "linear-regression", 6
# Hidden neurons of the constructions at d = 6: Figure 1, and with symmetric key-values, which is the least as well.
WIDTHS = {"full": D * D + D, "compact": D * (D + 1) // 2 + D}
LRUS, GATED_LRUS = ("lru", "lru-in-out", "lru-in-skip"), ("lru-in-out", "lru-in-skip")
PAPER_STEPS, PLATEAU = 781_000, 1e-6  # of Figure 3 A
MUCH = 10  # "≪": a tenth or less
RESAMPLED = 2000  # times, for an interval
NEAR = 1.5  # "best or near it": within this factor of the best

Records = list[dict[str, Any]]


def findings_3(records: Records) -> list[Row]:
    """Section 3.2 and 4.2: mild overparametrisation for a random teacher, compression for the regression task."""
    first_order = _widths(records, TEACHER, "adamw")
    a = transition(first_order, "held_out_loss")
    b = transition(_widths(records, REGRESSION, "adamw"), "excess")
    compact = WIDTHS["compact"]
    rows = [
        Row(
            "A: AdamW's transition, hidden neurons; at most 2.5 × compact",
            f"about 2 × {compact}",
            a,
            a <= 2.5 * compact,
        ),
        Row("B: AdamW's transition, hidden neurons; below compact", f"far below {compact}", b, b < compact),
    ]
    if first_order[0]["steps"] >= PAPER_STEPS:  # fewer do not reach the plateau
        widest = max(r["hidden"] for r in first_order)
        plateau = float(np.median([r["held_out_loss"] for r in first_order if r["hidden"] == widest]))
        rows.append(Row(f"A: AdamW's loss at {widest} neurons; at most {PLATEAU:g}", None, plateau, plateau <= PLATEAU))
    for name, task, quantity, small in (("A", TEACHER, "held_out_loss", 1e-12), ("B", REGRESSION, "excess", 1e-4)):
        found = _widths(records, task, "levenberg")
        reached = [r["hidden"] for r in found if r[quantity] <= small]
        rows.append(
            Row(f"{name}: least width that the second-order solver solves", None, min(reached, default=None), True)
        )
    return rows


def findings_4(records: Records) -> list[Row]:
    """Section 3.3 and 4.3."""
    at = _compared(records)
    widest = {task: max(r["hidden"] for r in at if r["task"] == task) for task in (TEACHER, REGRESSION)}

    def loss(task: str, *models: str) -> float:
        """The best of these architectures at the largest width, median over seeds."""
        return min(_median(at, task, model, layers, widest[task]) for model in models for layers in (1, 2))

    diagonal, dense = loss(TEACHER, "gated-rnn"), loss(TEACHER, "gated-rnn-dense")
    gated, nonlinear = loss(TEACHER, *GATED_LRUS), loss(TEACHER, "lstm", "gru")
    optimum = gradient_step_loss(validation=True)
    gru = loss(REGRESSION, "gru")
    everything = {r["model"] for r in at}
    best = loss(REGRESSION, *everything)
    rows = [
        Row(
            "teacher: LRU with input gating over gated RNN, loss ratio; ≫ 1",
            "≫ 1",
            gated / diagonal,
            gated >= MUCH * diagonal,
        ),
        Row("teacher: LRU with input gating over dense gated RNN; ≫ 1", "≫ 1", gated / dense, gated >= MUCH * dense),
        Row("teacher: LSTM and GRU over LRU with input gating; > 1", "> 1", nonlinear / gated, nonlinear > gated),
    ]
    for name, task in (("teacher", TEACHER), ("regression", REGRESSION)):
        gain = loss(task, "lru") / loss(task, *GATED_LRUS)
        rows.append(Row(f"{name}: LRU over LRU with input gating; > 1", "> 1", gain, gain > 1))
    rows += [
        Row(f"regression: GRU over the best architecture; at most {NEAR}", "1", gru / best, gru <= NEAR * best),
        Row("regression: GRU over the gradient step, validation loss; < 1", "< 1", gru / optimum, gru < optimum),
    ]
    return rows


def gradient_step_loss(*, validation: bool) -> float:
    """What one optimal step of gradient descent leaves: the line in Figures 4 and 5."""
    loss = LinearRegression().optimal_loss(validation=validation)
    assert loss is not None
    return loss


def findings_5(records: Records) -> list[Row]:
    """Appendix B.1, and the closing question of Section 4.3: is closeness to attention what makes them learn?"""
    at = [r for r in _compared(records) if r["task"] == REGRESSION]
    one = _median(_compared(records), TEACHER, "lru", 1, max(r["hidden"] for r in at))
    with_gating = min(
        _median(_compared(records), TEACHER, model, 1, max(r["hidden"] for r in at)) for model in GATED_LRUS
    )
    lrus, everything, within = (
        correlation([r for r in at if r["model"] in LRUS]),
        correlation(at),
        correlation(at, True),
    )
    what = "rank correlation of distance from attention and loss, 95 % interval"
    return [
        Row("teacher, one layer: LRU over LRU with input gating; > 1", "> 1", one / with_gating, one > with_gating),
        Row(f"LRUs: {what}; above 0", "high", lrus.text, lrus.low > 0),
        Row(f"all architectures: {what} (the paper leaves it open)", None, everything.text, True),
        Row(f"within architectures: {what}", None, within.text, True),
    ]


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


def _median(records: Records, task: str, model: str, layers: int, hidden: int) -> float:
    wanted = (task, model, layers, hidden)
    losses = [r["validation_loss"] for r in records if (r["task"], r["model"], r["layers"], r["hidden"]) == wanted]
    return float(np.median(losses)) if losses else float("inf")


@dataclasses.dataclass(frozen=True)
class Correlation:
    """Spearman's ρ, the interval that 95 % of resampled runs give, and the number of runs."""

    value: float
    low: float
    high: float
    runs: int

    @property
    def text(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f}; {self.runs} runs)"


def correlation(records: Records, within: bool = False) -> Correlation:
    """Of distance from attention and loss. What counts is the order: ranks, or `within` each architecture and number of
    layers, ranks less their mean there, so that a difference between architectures adds nothing.

    Seeds of one network are alike: networks are drawn again for the interval, each with all of its seeds.
    """
    networks: dict[tuple[Any, ...], Records] = {}
    for record in records:
        networks.setdefault(tuple(record[name] for name in ("model", "layers", "hidden")), []).append(record)
    groups, random = list(networks.values()), np.random.default_rng(0)
    drawn = []
    for _ in range(RESAMPLED):
        again = [record for index in random.integers(len(groups), size=len(groups)) for record in groups[index]]
        drawn.append(_rank_correlation(again, within))
    low, high = np.nanquantile(drawn, [0.025, 0.975])
    return Correlation(_rank_correlation(records, within), float(low), float(high), len(records))


def _rank_correlation(records: Records, within: bool) -> float:
    kinds = np.unique([f"{r['model']} {r['layers']}" for r in records], return_inverse=True)[1]
    both = np.array(
        [rankdata([1 - r["attention_r2"] for r in records]), rankdata([r["validation_loss"] for r in records])]
    )
    if within:
        sizes = np.bincount(kinds)
        both -= np.array([np.bincount(kinds, ranks) / sizes for ranks in both])[:, kinds]
    else:
        both -= both.mean(axis=1, keepdims=True)
    lengths = np.linalg.norm(both, axis=1)
    return float(both[0] @ both[1] / np.prod(lengths)) if lengths.all() else float("nan")


FINDINGS: dict[str, Callable[[Records], list[Row]]] = {
    "figure3": findings_3,
    "figure4": findings_4,
    "figure5": findings_5,
}


def main(folder: str = "results/laptop/sweep") -> int:
    """Print each finding as held or not; 1 if one does not hold."""
    from underhood.sweep.store import results

    swept = [record for name in ("widths", "architectures") for record in results(Path(folder) / name)]
    records = [record for record in swept if record["status"] == "done"]
    rows = [(figure, row) for figure, ask in FINDINGS.items() for row in ask(records)]
    for figure, row in rows:
        here = f"{row.here:.3g}" if isinstance(row.here, float) else row.here
        sys.stdout.write(f"{'held    ' if row.met else 'not held'}  {figure}  {row.name}: {here}\n")
    return int(not all(row.met for _, row in rows))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
