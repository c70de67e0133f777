"""What a figure shows, as data: curves with a band over seeds, and matrices of weights.

An artifact's JSON keeps them, so that the page can draw what the figures draw without running anything again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from underhood.architectures.gated_rnn.cell import GatedRNN
from underhood.layers.linear import dense


@dataclasses.dataclass(frozen=True)
class Curve:
    """One line: a value for each x, and the band over the seeds around it (equal to y where there is one seed)."""

    name: str
    x: list[float]
    y: list[float]
    low: list[float]
    high: list[float]
    model: str | None = None
    """The architecture whose colour it has."""
    dash: int | None = None
    """What tells curves of one colour apart: layers beyond the first, or a second optimiser."""


@dataclasses.dataclass(frozen=True)
class Chart:
    """Curves over one axis; `marks` are sizes worth a vertical line, `levels` losses worth a horizontal one."""

    name: str
    x_label: str
    y_label: str
    curves: tuple[Curve, ...]
    marks: tuple[tuple[str, float], ...] = ()
    levels: tuple[tuple[str, float], ...] = ()
    log_x: bool = True
    log_y: bool = True
    joined: bool = True
    """Points of a curve are joined by a line; else they are a cloud."""


@dataclasses.dataclass(frozen=True)
class Panel:
    """A matrix drawn as coloured cells."""

    name: str
    values: list[list[float]]

    @classmethod
    def of(cls, name: str, matrix: Any) -> Panel:
        return cls(name, np.atleast_2d(np.asarray(matrix, float)).tolist())


WEIGHT_CAPTIONS = (
    (0, 1, "key-values\nand queries"),
    (2, 2, "sum\nor pass"),
    (3, 4, "key-values times queries"),
    (5, 5, "add up"),
)


def weight_panels(model: GatedRNN) -> tuple[Panel, ...]:
    """The matrices of Eq. 2 in the order in which data flows through them, as in Figures 1 and 2."""
    into, out = model.input_gating, model.output_gating
    return (
        Panel.of("Wₘ in", dense(into.w_m)),
        Panel.of("Wₓ in", dense(into.w_x)),
        Panel.of("λ", np.asarray(model.lambda_)[:, None]),
        Panel.of("Wₘ out", dense(out.w_m)),
        Panel.of("Wₓ out", dense(out.w_x)),
        Panel.of("D", dense(model.readout)),
    )


def curve_over_seeds(
    name: str, points: Sequence[tuple[float | int, Sequence[float]]], model: str | None = None, dash: int | None = None
) -> Curve:
    """The median over seeds at each x, from the least to the greatest of them."""
    points = sorted(points)
    values = [np.asarray(at, float) for _, at in points]
    return Curve(
        name,
        [float(x) for x, _ in points],
        [float(np.median(at)) for at in values],
        [float(at.min()) for at in values],
        [float(at.max()) for at in values],
        model,
        dash,
    )
