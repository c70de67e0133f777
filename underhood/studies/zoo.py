"""Which recurrent layers can represent linear self-attention? Table 3 for today's layers, compiled and measured.

For each architecture, the fewest layers that represent attention, and a gated RNN of Eq. 2; whether they do exactly or
in a limit; the size of the state; the error measured and the bound that compile promises; the network's attention map
against the attention's own; and the error of the compiled weights inside the public torch class, in float32.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from underhood.attention.linear import LinearAttention
from underhood.attention.teachers import random_attention
from underhood.compiler.compile import compile
from underhood.compiler.result import Compiled
from underhood.compiler.targets import TARGETS
from underhood.core.errors import NotConstructible, UnderhoodError
from underhood.core.model import ARCHITECTURES, AbstractModel, as_dtype
from underhood.interop import bridges
from underhood.pages.appearance import INK
from underhood.pages.drawing import FAINT, new_figure, text_of
from underhood.studies.alike import error_row, map_rows
from underhood.studies.artifact import Artifact, artifact
from underhood.studies.constructions import INPUT_BOUND, MAPPED, SEED, D, gated_source
from underhood.studies.rows import Row, at_least, at_most

HORIZON = 200
MOST_LAYERS = 3
EXACT = 1e-12  # what rounding leaves of a construction that is exact
# The same in float32, inside a public class; a limit that float32 cuts short keeps about three digits.
IN_FLOAT32, LIMIT_IN_FLOAT32 = 1e-5, 1e-2


@dataclasses.dataclass(frozen=True)
class Entry:
    """One architecture."""

    name: str
    attention: Compiled
    gated: Compiled | None
    refused: str | None
    """Why not fewer layers."""
    state: int
    public: str | None
    public_error: float | None

    @property
    def label(self) -> str:
        return ARCHITECTURES[self.name].label

    @property
    def exact(self) -> bool:
        return self.attention.max_rel_error <= EXACT


@artifact(
    "zoo",
    "quick",
    title="Which recurrent layers can represent attention?",
    tells="Table 3 for the layers in use today. Each was compiled with as few layers as there is a way, and measured "
    "against attention; where a public torch class computes the same, the weights were put into it in float32.",
)
def zoo(budget: str, runs: Path) -> Artifact:
    entries = [entry_of(name) for name in ARCHITECTURES if name in TARGETS]
    entries.sort(key=lambda entry: (not entry.exact, entry.attention.layers, entry.attention.max_rel_error))
    rows = [row for entry in entries for row in _rows(entry)]
    settings = {"d": D, "horizon": HORIZON, "input_bound": INPUT_BOUND, "order": 1}
    return Artifact("zoo", rows, settings, draw(entries), seeds=(SEED,))


def entry_of(name: str) -> Entry:
    """Compile attention and a gated RNN with as few layers as there is a way."""
    source = random_attention(D, seed=SEED)
    attention, refused = fewest(source, name)
    gated, _ = fewest(gated_source(), name)
    if attention is None:
        raise UnderhoodError(f"no construction of attention in {name}")
    public, error = in_public_class(name, attention.model, source)
    return Entry(name, attention, gated, refused, numbers_in_state(attention.model), public, error)


def fewest(source: Any, target: str) -> tuple[Compiled | None, str | None]:
    """The compiled network with the fewest layers, and the reason why not fewer."""
    reason = None
    for layers in range(1, MOST_LAYERS + 1):
        try:
            return compile(source, to=target, layers=layers, horizon=HORIZON, input_bound=INPUT_BOUND), reason
        except NotConstructible as refusal:
            reason = reason or refusal.reason
        except UnderhoodError as error:  # holds some sources, not this one
            return None, reason or str(error)
    return None, reason


def numbers_in_state(model: AbstractModel) -> int:
    """How many numbers the network carries from one step to the next."""
    return sum(np.size(leaf) for leaf in jax.tree.leaves(model.initial_state()))


def in_public_class(target: str, model: AbstractModel, source: LinearAttention) -> tuple[str | None, float | None]:
    """The public torch class, and the error of the compiled weights inside it in float32, over the largest output."""
    cells = getattr(model, "cells", (model,))
    found = [bridges.public_form(cell) for cell in cells]
    if any(one is None for one in found):
        return None, None
    # Compiled for float32: scales that suit float64 would be lost in it.
    narrow = compile(source, to=target, dtype="float32", horizon=HORIZON, input_bound=INPUT_BOUND).model
    return found[0][0].public.rpartition(".")[2], public_error(narrow, source)  # type: ignore[index]


def public_error(model: AbstractModel, source: LinearAttention) -> float:
    """The error of these weights inside the public class in float32, over the largest output."""
    from underhood.interop.torch import as_callable, to_module

    function = as_callable(to_module(as_dtype(model, np.float32)))
    xs = np.random.default_rng(SEED).uniform(-INPUT_BOUND, INPUT_BOUND, (HORIZON, source.d)).astype(np.float32)
    expected = np.asarray(source(xs.astype(np.float64)))
    return float(np.max(np.abs(function(xs) - expected)) / np.max(np.abs(expected)))


def _rows(entry: Entry) -> list[Row]:
    compiled, gated = entry.attention, entry.gated
    rows = [
        Row(f"{entry.label}: layers for attention", None, compiled.layers),
        Row(f"{entry.label}: layers for a gated RNN", None, gated.layers if gated else None),
        Row(f"{entry.label}: exact or in a limit", None, "exact" if entry.exact else "limit"),
        Row(f"{entry.label}: numbers in the state, d = {D}", None, entry.state),
        error_row(f"{entry.label}: error", compiled),
        Row(f"{entry.label}: bound over error", None, compiled.error_bound / compiled.max_abs_error, at_least(1)),
    ]
    xs = np.random.default_rng(SEED).uniform(-INPUT_BOUND, INPUT_BOUND, (MAPPED, D))
    most = 1e3 * compiled.tolerance  # entries of the map may be small beside the outputs
    rows += map_rows(f"{entry.label}: attention map", compiled.model, random_attention(D, seed=SEED), xs, most=most)
    if entry.public is not None:
        limit = at_most(IN_FLOAT32 if entry.exact else LIMIT_IN_FLOAT32)
        rows.append(Row(f"{entry.label}: error in {entry.public}, float32", None, entry.public_error, limit))
    if entry.refused is not None:
        rows.append(Row(f"{entry.label}: one layer", None, f"impossible: {entry.refused}"))
    return rows


# Where the columns of the table are centred.
COLUMNS = (("layers for\nattention", 0.45), ("layers for a\ngated RNN", 0.66), ("numbers\nin the state", 0.9))


def draw(entries: list[Entry]) -> Figure:
    """One row per architecture: circles for layers, numbers of the state, and its error on a scale of powers of ten."""
    figure = new_figure(11.0, 0.34 * len(entries) + 1.5)
    left, right = figure.subplots(1, 2, width_ratios=[1.15, 1.6], gridspec_kw={"wspace": 0.02})
    left.set_axis_off()
    for axes in (left, right):
        axes.set_ylim(len(entries) - 0.4, -0.7)
    left.set_xlim(0, 1)
    for text, place in COLUMNS:
        left.text(place, -0.95, text, ha="center", va="bottom", fontsize=8, color="#555555")
    for index, entry in enumerate(entries):
        _draw_entry(left, right, index, entry)
    border = sum(entry.exact for entry in entries) - 0.5
    for axes in (left, right):
        axes.axhline(border, color="#bbbbbb", linewidth=0.8, linestyle=(0, (4, 3)))
    right.text(0.8, border - 0.12, "exact, up to rounding", ha="right", va="bottom", fontsize=8.5, color="#555555")
    right.text(0.8, border + 0.12, "in a limit", ha="right", va="top", fontsize=8.5, color="#555555")
    right.set_xscale("log")
    right.set_xlim(1e-17, 1)
    right.set_yticks([])
    right.grid(True, axis="x", color="#e6e6e6", linewidth=0.7)
    right.set_axisbelow(True)
    right.tick_params(labelsize=8)
    public = "   ○ in the public class, float32" if any(entry.public_error is not None for entry in entries) else ""
    right.set_xlabel(f"error / largest output:  ● measured   ┤ promised for every input{public}")
    right.xaxis.label.set_size(8.5)
    for side in ("top", "right", "left"):
        right.spines[side].set_visible(False)
    setting = f"d = {D}, {HORIZON} steps, inputs within ±{INPUT_BOUND:g}"
    title = f"Which recurrent layers can represent linear self-attention?  {setting}"
    figure.text(0.125, 0.985, title, fontsize=11, color=INK, va="top", weight="bold")
    return figure


def _draw_entry(left: Axes, right: Axes, index: int, entry: Entry) -> None:
    colour = ARCHITECTURES[entry.name].colour
    left.text(0.0, index, entry.label, va="center", fontsize=9.5, color=colour, weight="bold")
    gated = "●" * entry.gated.layers if entry.gated else "–"
    for text, (_, place) in zip(("●" * entry.attention.layers, gated, f"{entry.state}"), COLUMNS, strict=True):
        left.text(place, index, text, ha="center", va="center", fontsize=9, color=INK)
    error, largest = entry.attention.max_rel_error, entry.attention.max_abs_error / entry.attention.max_rel_error
    bound = entry.attention.error_bound / largest
    right.plot([error, bound], [index, index], color=colour, linewidth=1.4, alpha=0.6, solid_capstyle="butt")
    right.plot([bound], [index], marker="|", color=colour, markersize=9, markeredgewidth=1.6)
    right.plot([error], [index], marker="o", color=colour, markersize=6)
    if entry.public_error is not None:
        right.plot([entry.public_error], [index], marker="o", markersize=6, markerfacecolor="white", color=colour)
        place = min(entry.public_error, 1.0) * 2.2
        right.text(place, index, f"{entry.public} {text_of(entry.public_error)}", va="center", fontsize=7, color=FAINT)
