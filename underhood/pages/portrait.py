"""`uh.draw`: the weights of a network as a picture, in the colours of Figures 1 and 2."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
from matplotlib.figure import Figure

from underhood.architectures.gated_rnn.cell import GatedRNN
from underhood.architectures.stack.cell import Stack
from underhood.core.errors import UnderhoodError
from underhood.core.model import Part
from underhood.core.outputs import PDF, PNG, SVG, require_outputs, write_output
from underhood.layers.linear import SparseMatrix, dense
from underhood.pages.charts import WEIGHT_CAPTIONS, Panel, weight_panels
from underhood.pages.drawing import Line, draw_pipeline, rendered
from underhood.pages.svg import LARGEST_PANEL

SUFFIXES = ("png", "pdf", "svg")


def draw(model: object, out: str | os.PathLike[str], *, title: str = "", force: bool = False) -> Path:
    """A picture of every weight: blue positive, red negative, grey zero.

    Each matrix is scaled by its largest weight. A gated RNN is drawn in the order in which data flows through it; of
    other networks, the arrays of each part in a line.

    **Arguments:**

    - `model`: a model of this package.
    - `out`: the file, a PNG, PDF or SVG by its name.
    - `title`: above the picture.
    - `force`: write over a file of another kind.

    **Returns:**

    The path of the file.
    """
    suffix = Path(out).suffix.removeprefix(".").lower()
    if suffix not in SUFFIXES:
        raise UnderhoodError("expected a file name that ends in .png, .pdf or .svg", str(out))
    kind = {"png": PNG, "pdf": PDF, "svg": SVG}[suffix]
    require_outputs((out, kind), force=force)
    return write_output(out, rendered(portrait(model, title), suffix), kind, force=force)


def portrait(model: object, title: str = "") -> Figure:
    """The picture as a matplotlib figure."""
    if not isinstance(model, Part):
        raise UnderhoodError("expected a model of this package", type(model).__name__, "Import it with: uh.from_torch")
    lines = lines_of(model)
    cells = sum(np.size(panel.values) for line in lines for panel in line.panels)
    if cells > LARGEST_PANEL:
        raise UnderhoodError(f"expected at most {LARGEST_PANEL:,} weights to draw", f"{cells:,}")
    return draw_pipeline(lines, title)


def lines_of(model: Part) -> list[Line]:
    if isinstance(model, GatedRNN):
        return [Line("", weight_panels(model), WEIGHT_CAPTIONS)]
    parts = {"": model}
    if isinstance(model, Stack):
        cells = {f"layer {index + 1}": cell for index, cell in enumerate(model.cells)}
        parts = {"embedding": model.embedding, **cells, "readout": model.readout}
    lines = [Line(name, tuple(_panels(part))) for name, part in parts.items()]
    return [line for line in lines if line.panels]


def _panels(part: Part, prefix: str = "") -> Iterator[Panel]:
    """Every array of the part; a vector is a column, and of three axes the first is laid out side by side."""
    for field in dataclasses.fields(part):
        value, name = getattr(part, field.name), prefix + field.name
        if isinstance(value, SparseMatrix):
            yield Panel.of(name, dense(value))
        elif isinstance(value, Part):
            yield from _panels(value, f"{name}.")
        elif isinstance(value, jax.Array):
            yield from _matrices(name, np.asarray(value, np.float64), getattr(part, "gates", ()))
        elif value is not None and not isinstance(value, str | int | float):
            raise UnderhoodError(f"{part.kind} has a field that is not drawn: {name}")


def _matrices(name: str, values: np.ndarray, gates: tuple[str, ...] = ()) -> Iterator[Panel]:
    """Of a cell with gates, a panel for each, by its name; its biases are a row each."""
    if values.ndim == 1:
        yield Panel.of(name, values[:, None])
    elif gates and len(values) == len(gates):
        for gate, rows in zip(gates, values, strict=True):
            yield Panel.of(f"{name}, {gate}", rows[:, None] if rows.ndim == 1 else rows)
    elif values.ndim == 2:
        yield Panel.of(name, values)
    else:
        for index, rows in enumerate(values):
            yield from _matrices(f"{name}[{index}]", rows)
