"""Section 4.2, Table 2: trained on in-context regression, the network is one optimal step of gradient descent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from underhood.architectures.gated_rnn.cell import GatedRNN
from underhood.attention.teachers import gradient_descent_attention
from underhood.core.model import make_model
from underhood.core.progress import Progress
from underhood.decompiler.decompile import decompile
from underhood.pages.drawing import draw_table, new_figure, text_of
from underhood.studies.alike import map_rows
from underhood.studies.artifact import Artifact, artifact
from underhood.studies.rows import Row, at_most, near
from underhood.training.config import SECTION_4_2, SECTION_4_2_HIDDEN
from underhood.training.population import members_of
from underhood.training.runs import fit_population
from underhood.training.second_order.levenberg import fit_levenberg
from underhood.training.second_order.problems import outputs_of
from underhood.training.tasks.linear_regression import LinearRegression, regression_signs

EXAMPLES, D_X, D_Y = 12, 3, 3
ETA = 1 / (EXAMPLES + D_X - 0.2)
SEEDS = (0, 1, 2, 3)
TASKS = 300_000  # of the quick budget, each with all its mirror images
PAIRED = 200_000  # fresh tasks on which the network and the optimal step are compared
PAPER = {"terms": (6.81e-2, 6.82e-2, 6.82e-2), "eta": 6.76e-2, "deviation": 6e-4, "seeds": 8.52e-5, "residual": 1.35e-3}


def sample_tasks(seed: Any, tasks: int, variance: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Sequences (x_1, y_1) … (x_T, y_T), (x, 0) and what to predict; W* ~ N(0, variance/d_x)."""
    random = np.random.default_rng(seed)
    x = random.uniform(-(3**0.5), 3**0.5, size=(tasks, EXAMPLES + 1, D_X))
    w_star = random.normal(size=(tasks, D_Y, D_X)) * np.sqrt(variance / D_X)
    y = np.matmul(x, w_star.transpose(0, 2, 1))
    wanted = y[:, -1].copy()
    y[:, -1] = 0
    return np.concatenate([x, y], axis=-1), wanted


def excess(model: GatedRNN, seed: int, variance: float) -> tuple[float, float, float]:
    """Loss over that of the optimal step on the same tasks: share of it, its standard error, and the loss itself."""
    xs, ys = sample_tasks([seed, 3, round(variance)], PAIRED, variance)
    step = ETA * np.einsum("bty,btx,bx->by", xs[:, :-1, D_X:], xs[:, :-1, :D_X], xs[:, -1, :D_X])
    optimal = 0.5 * np.mean((step - ys) ** 2, axis=1)
    here = 0.5 * np.mean((outputs_of(model, xs, last=True) - ys) ** 2, axis=1)
    over = here - optimal
    return float(over.mean() / optimal.mean()), float(over.std() / np.sqrt(PAIRED) / optimal.mean()), float(here.mean())


def quick_networks() -> list[Any]:
    """Second-order, one seed: the noise of the sample is averaged out over its mirror images."""
    training, held_out = sample_tasks([0, 1], TASKS), sample_tasks([0, 2], 20_000)
    symmetry = regression_signs(D_X, D_Y)
    found = fit_levenberg(
        *training, held_out=held_out, targets_at="last", symmetry=symmetry, target_loss=0.0, max_seconds=120
    )
    return [found.model]


def paper_networks(runs: Path) -> list[Any]:
    """AdamW, 300,000 steps, 4 seeds, 80 hidden neurons; goes on where it was stopped."""
    task, folder = LinearRegression(EXAMPLES, D_X, D_Y), runs / "regression"
    members = members_of(SECTION_4_2, range(len(SEEDS)))
    models = [make_model("gated-rnn", task.d, d_out=D_Y, hidden=SECTION_4_2_HIDDEN, seed=one.seed) for one in members]
    folder.parent.mkdir(parents=True, exist_ok=True)
    watch = Progress("Section 4.2", SECTION_4_2.steps, "steps").losses
    found = fit_population(models, members, task, SECTION_4_2, out=folder, resume=folder.exists(), watch=watch)
    if any(run.interrupted for run in found):
        raise KeyboardInterrupt  # half a training is no result; the checkpoint stays
    return [run.model for run in found]


@artifact(
    "table2",
    "quick",
    "paper",
    title="Trained on regression, the network is one step of gradient descent",
    tells="Each sequence holds examples (x, y) of a new linear map, and a question x. The coefficients of x² y in "
    "the network's polynomial are the learning rate of one gradient step; η* is the optimal one.",
)
def table2(budget: str, runs: Path) -> Artifact:
    networks = quick_networks() if budget == "quick" else paper_networks(runs)
    readings = [decompile(network).in_context(D_X, D_Y, EXAMPLES) for network in networks]
    terms = np.array([reading.terms for reading in readings])
    within, residual = (1e-3, 5e-3) if budget == "quick" else (5e-4, PAPER["residual"])
    rows = [
        Row(f"coefficient of x_{i + 1}² y_1", PAPER["terms"][i], here, near(ETA, within))
        for i, here in enumerate(terms.mean(axis=0).tolist())
    ]
    spread = float(np.mean([reading.residual_norm for reading in readings]))
    deviation = float(np.abs(terms.mean(axis=0) - ETA).max())
    rows += [
        Row("η*, one optimal step", PAPER["eta"], ETA, near(PAPER["eta"], 5e-5)),  # as many digits as the paper prints
        Row("largest deviation of a coefficient from η*", PAPER["deviation"], deviation, at_most(PAPER["deviation"])),
        Row("residual norm", PAPER["residual"], spread, at_most(residual)),
    ]
    if len(networks) > 1:  # one seed has no spread
        across = float(terms.std(axis=0).max())
        rows.append(Row("standard deviation over seeds, largest", PAPER["seeds"], across, at_most(PAPER["seeds"])))
    for name, variance in (("training", 1.0), ("validation", 2.0)):
        shares, errors, losses = zip(*(excess(one, seed, variance) for seed, one in enumerate(networks)), strict=True)
        paper = 0.0945 if name == "training" else None
        rows.append(Row(f"{name} loss", paper, float(np.mean(losses))))
        share = float(np.mean(shares))
        rows.append(Row(f"{name}: excess over the optimal step, share of it", None, share, at_most(1e-2)))
        rows.append(Row(f"{name}: standard error of that", None, float(np.mean(errors))))
    (xs,), _ = sample_tasks([0, 4], 1)
    name, step = "attention map of the last output", gradient_descent_attention(D_X, D_Y, ETA)
    rows += map_rows(name, networks[0], step, xs, most=5e-2, last=True)
    settings = {"T": EXAMPLES, "d_x": D_X, "d_y": D_Y, "paired_tasks": PAIRED}
    settings |= {"tasks": TASKS, "optimizer": "levenberg"} if budget == "quick" else SECTION_4_2.as_dict()
    figure = new_figure(7.5, 0.3 * len(rows) + 0.9)
    lines = [[row.name, text_of(row.paper), text_of(row.here)] for row in rows]
    draw_table(figure.subplots(), ["Table 2", "paper", "here"], lines, [2.8, 1.0, 1.0])
    return Artifact("table2", rows, settings, figure, seeds=SEEDS[: len(networks)])
