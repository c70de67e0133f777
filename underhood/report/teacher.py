"""Section 3.1, Table 1: a student learns from sequences alone, and is the teacher's attention.

The quick budget trains with the second-order solver. What the paper prints beside each number came from AdamW.
"""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np

from underhood.attention.linear import LinearAttention
from underhood.attention.teachers import random_attention
from underhood.errors import UnderhoodError
from underhood.fit.levenberg import LevenbergResult, fit_levenberg
from underhood.identify.decompile import decompile
from underhood.identify.found import LINEAR, Found
from underhood.report.artifact import Artifact, Row, artifact
from underhood.report.drawing import draw_table, new_figure, text_of

D, LENGTH, SEQUENCES, HELD_OUT = 4, 32, 400, 256


@functools.cache
def student(seed: int) -> tuple[LinearAttention, LevenbergResult, Found]:
    """A teacher, the network that learned it, and what the decompiler reads in that network."""
    teacher = random_attention(D, seed=seed)
    xs = np.random.default_rng([seed, 1]).normal(size=(SEQUENCES + HELD_OUT, LENGTH, D))
    ys = np.stack([teacher.naive(sequence) for sequence in xs])
    training, held_out = (xs[:SEQUENCES], ys[:SEQUENCES]), (xs[SEQUENCES:], ys[SEQUENCES:])
    result = fit_levenberg(*training, held_out=held_out, seed=seed, target_loss=1e-20)
    return teacher, result, decompile(result.model, against=teacher)


@artifact("table1", "quick", "paper")
def table1(budget: str, runs: Path, seed: int = 0) -> Artifact:
    if budget != "quick":
        raise UnderhoodError("table1 is made with the budget quick", budget, "Use --budget quick.")
    _, result, found = student(seed)
    scores = found.scores
    rows = [
        _at_most("loss, held out", 4.97e-8, result.held_out_loss, 1e-12),
        _at_most("KV score", 4.52e-8, scores.kv_score, 1e-10),
        _at_most("Q score", 2.06e-10, scores.q_score, 1e-10),
        _at_most("polynomial distance", 3.73e-4, scores.polynomial_distance, 1e-6),
        _at_most("hidden neurons left", 14, found.hidden_after, 14),
        _at_most("pre-readout neurons left", 13, found.pre_readout_after, 13),
        Row("verdict of the decompiler", None, found.verdict, found.verdict == LINEAR),
    ]
    if found.certificate is not None:
        name = f"certificate, inputs within ±{found.certificate.input_bound:g}, {found.certificate.horizon} steps"
        rows.append(Row(name, None, found.certificate.max_abs_error, True))
    settings = {
        "d": D,
        "length": LENGTH,
        "sequences": SEQUENCES,
        "held_out": HELD_OUT,
        "optimizer": "levenberg",
        "iterations": result.iterations,
        "restarts": result.restarts,
        "seconds": round(result.seconds, 2),
        "teacher": "W_V, W_K, W_Q with entries N(0, 1/d); inputs N(0, 1)",
    }
    figure = new_figure(7, 0.3 * len(rows) + 0.9)
    lines = [[row.name, text_of(row.paper), text_of(row.here)] for row in rows]
    draw_table(figure.subplots(), ["Table 1", "paper", "here"], lines, [2.4, 1.0, 1.0])
    return Artifact("table1", rows, settings, figure, seeds=(seed,))


def _at_most(name: str, paper: float, here: float | None, limit: float) -> Row:
    return Row(name, paper, here, here is not None and here <= limit)
