"""Table 3, Table 4 and Figure 1: every entry compiled and measured here, never typed in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from underhood.architectures.gated_rnn.cell import GatedRNN, Gating
from underhood.architectures.gru.lowering import attention_to_gru, to_gru
from underhood.architectures.lstm.cell import CANDIDATE, FORGET, INPUT, OUTPUT
from underhood.attention.linear import LinearAttention
from underhood.attention.teachers import random_attention
from underhood.compiler.compile import compile
from underhood.compiler.envelope import Envelope
from underhood.compiler.forms import rank_revealed, to_gated_rnn
from underhood.compiler.result import Compiled
from underhood.compiler.targets import ATTENTION, GATED, TARGETS
from underhood.compiler.verify import measure
from underhood.core.errors import NotConstructible
from underhood.layers.linear import dense
from underhood.pages.appearance import stacked
from underhood.pages.charts import WEIGHT_CAPTIONS, Chart, Curve, weight_panels
from underhood.pages.drawing import Line, draw_pipeline, draw_table, new_figure, text_of
from underhood.pages.plots import draw_chart, name_curves
from underhood.studies.alike import error_row, map_rows
from underhood.studies.artifact import Artifact, artifact
from underhood.studies.rows import Row, at_most, equals

SEED = 0
D = 4
SYMMETRIC = D * (D + 1) // 2  # memory neurons where W_V and W_K may be chosen so that key-values are symmetric
HORIZON = 1000
INPUT_BOUND = 4.0
MAPPED = 8  # steps whose attention maps are compared
LEAKS = tuple(10.0**-power for power in range(1, 13))
FALLS_TO = 1e-6  # share of the error at the largest leak that the smallest one may leave


def gated_source(d: int = D, hidden: int = 8, pre_readout: int = 6, seed: int = SEED) -> GatedRNN:
    """A random network of Eq. 2 with perfect memory, perfect forget and decaying neurons: the first column."""
    random = np.random.default_rng(seed)
    lambda_ = np.resize([1.0, 0.0, 0.9, 0.5], hidden)
    w_in, w_out = random.normal(size=(2, hidden, d + 1)), random.normal(size=(2, pre_readout, hidden))
    readout = random.normal(size=(d, pre_readout)) / np.sqrt(pre_readout)
    return GatedRNN.from_lambda(Gating(*w_in / np.sqrt(d + 1)), lambda_, Gating(*w_out / np.sqrt(hidden)), readout)


def fewest_layers(source: Any, target: str) -> tuple[int | None, Compiled | None]:
    """Try one layer, then two: the first that compiles and is verified."""
    for layers in (1, 2):
        try:
            compiled = compile(source, to=target, layers=layers, horizon=HORIZON, input_bound=INPUT_BOUND)
        except NotConstructible:
            continue
        if compiled.verified:
            return layers, compiled
    return None, None


@artifact(
    "table3",
    "quick",
    title="Layers that each architecture needs",
    tells="Every entry was compiled and measured. The paper has a dash for the GRU: one layer computes linear "
    "attention, two compute any gated RNN of Eq. 2, and the error falls with what the update gate lets "
    "through.",
)
def table3(budget: str, runs: Path) -> Artifact:
    sources = {GATED: gated_source(), ATTENTION: random_attention(D, seed=SEED)}
    mapped = np.random.default_rng(SEED).uniform(-INPUT_BOUND, INPUT_BOUND, (MAPPED, D))
    rows, lines = [], []
    for target, label in stacked().items():
        line = [label]
        for column, source in sources.items():
            layers, compiled = fewest_layers(source, target)
            paper = TARGETS[target].in_paper[column]
            # The paper has a dash for the GRU, and one layer or two for the others.
            asked = at_most(2) if paper is None else equals(paper)
            rows.append(Row(f"{label}, layers for {column}", "–" if paper is None else paper, layers, asked))
            if compiled is not None:
                rows.append(error_row(f"{label}, error for {column}", compiled))
            if compiled is not None and column == ATTENTION:
                # In a limit: entries of the map are off by the error of the outputs, and may be small.
                most = 1e3 * compiled.tolerance
                rows += map_rows(f"{label}, attention map", compiled.model, source, mapped, most=most)
            error = text_of(compiled.max_rel_error) if compiled else "–"
            line += [text_of(paper), str(layers or "–"), error]
        lines.append(line)
    curves = leak_curves(sources)
    for curve in curves:
        name = f"GRU, {curve.name}: error at δ = 10⁻¹² over that at 10⁻¹"
        rows.append(Row(name, None, curve.y[-1] / curve.y[0], at_most(FALLS_TO)))
    settings = {"d": D, "horizon": HORIZON, "input_bound": INPUT_BOUND, "order": 1, "leaks": list(LEAKS)}
    names = ("The GRU, where the paper has a dash", "δ, what the update gate lets through")
    chart = Chart(*names, "largest error / largest output", tuple(curves))
    return Artifact("table3", rows, settings, _table3_figure(lines, chart), seeds=(SEED,), charts=(chart,))


def leak_curves(sources: dict[str, Any]) -> list[Curve]:
    """The GRU's error against δ = σ(b), what its nearly shut gate lets through; the colour is that of the source."""
    envelope = Envelope(INPUT_BOUND, 100, np.dtype(np.float64))
    attention, gated = sources[ATTENTION], sources[GATED]
    form = rank_revealed(attention)
    ways = {
        ("attention", attention.kind, 1): lambda leak: (attention, attention_to_gru(form, envelope, 2, leak=leak)),
        ("attention", attention.kind, 2): lambda leak: (attention, to_gru(to_gated_rnn(form), envelope, 2, leak=leak)),
        ("gated RNN", gated.kind, 2): lambda leak: (gated, to_gru(gated, envelope, 2, leak=leak)),
    }
    curves = []
    for (name, model, layers), way in ways.items():
        errors = []
        for leak in LEAKS:
            source, lowered = way(leak)
            errors.append(measure(source, lowered.model, envelope).max_rel_error)
        name = f"{name}, {layers} layer{'s' * (layers > 1)}"
        curves.append(Curve(name, list(LEAKS), errors, errors, errors, model, layers - 1))
    return curves


def _table3_figure(lines: list[list[str]], chart: Chart) -> Figure:
    figure = new_figure(12.0, 3.2)
    left, right = figure.subplots(1, 2, width_ratios=[1.7, 1], gridspec_kw={"wspace": 0.17})
    header = ["", "paper", "here", "error", "paper", "here", "error"]
    draw_table(left, header, lines, [1.6, 0.8, 0.7, 1.3, 0.8, 0.7, 1.3])
    left.text(0.42, -0.75, "simplified gated RNN", ha="center", fontsize=9.5)
    left.text(0.81, -0.75, "linear self-attention", ha="center", fontsize=9.5)
    left.set_title("Table 3: layers needed, and the error measured with them", fontsize=10, loc="left", pad=24)
    draw_chart(right, chart, raised=False)
    right.set_title(chart.name, fontsize=10, loc="left", pad=24)
    right.invert_xaxis()
    name_curves(right, chart)
    return figure


@artifact(
    "table4",
    "quick",
    title="The weights that make an LSTM attention",
    tells="U, V and b of each gate, read from the compiled LSTM, next to the paper's entries.",
)
def table4(budget: str, runs: Path) -> Artifact:
    attention, gated = random_attention(D, seed=SEED), gated_source()
    one, two = (compile(source, to="lstm", horizon=HORIZON, input_bound=INPUT_BOUND) for source in (attention, gated))
    rows = _attention_rows(attention, one) + _gated_rows(gated, two)
    for name, compiled in (("linear self-attention", one), ("gated RNN", two)):
        rows.append(error_row(f"{name}: error of these weights", compiled))
    lines = [[row.name, text_of(row.paper), text_of(row.here)] for row in rows]
    figure = new_figure(7.5, 0.27 * len(lines) + 0.8)
    axes = figure.subplots()
    draw_table(axes, ["Table 4", "paper", "here"], lines, [2.2, 1.0, 1.0])
    return Artifact("table4", rows, {"d": D, "horizon": HORIZON, "order": 1}, figure, seeds=(SEED,))


def _attention_rows(attention: LinearAttention, compiled: Compiled) -> list[Row]:
    (cell,) = compiled.model.cells
    weights = {"W_V": attention.w_value[0], "W_K": attention.w_key[0], "W_Q": attention.w_query[0]}
    names = {"f": FORGET, "c": CANDIDATE, "g": INPUT, "o": OUTPUT}
    paper = {"f": ("0", "+∞"), "c": ("W_K", "0"), "g": ("W_V", "0"), "o": ("W_Q", "0")}
    return [
        row
        for gate, index in names.items()
        for row in (
            _row(f"attention, {gate}: U", paper[gate][0], _proportional_to(cell.u[index], weights)),
            _row(f"attention, {gate}: V", "0", "0" if cell.v is None else "not 0"),
            _row(f"attention, {gate}: b", paper[gate][1], _bias(cell.b[index])),
        )
    ]


def _gated_rows(source: GatedRNN, compiled: Compiled) -> list[Row]:
    first, second = compiled.model.cells
    inputs = {"W_m^in": dense(source.input_gating.w_m), "W_x^in": dense(source.input_gating.w_x)}
    # The first layer's biases are the constant's column of W^in: the paper's x has the 1 appended.
    with_bias = [np.hstack([np.asarray(first.u[gate]), np.asarray(first.b[gate])[:, None]]) for gate in range(4)]
    forgets = "σ⁻¹(λ)" if _forgets_as(source, first.b[FORGET]) else _bias(first.b[FORGET])
    return [
        _row("gated RNN, layer 1, f: b", "σ⁻¹(λ)", forgets),
        _row("gated RNN, layer 1, c: U", "W_m^in or W_x^in", _either(with_bias[CANDIDATE], inputs)),
        _row("gated RNN, layer 1, g: U", "W_m^in or W_x^in", _either(with_bias[INPUT], inputs)),
        _row("gated RNN, layer 1, o: b", "+∞", _bias(first.b[OUTPUT])),
        _row("gated RNN, layer 2, f: b", "−∞", _bias(second.b[FORGET])),
        _row("gated RNN, layer 2, o: b", "+∞", _bias(second.b[OUTPUT])),
        _row("gated RNN, V of both layers", "0", "0" if first.v is None and second.v is None else "not 0"),
    ]


def _row(name: str, paper: str, here: str) -> Row:
    return Row(name, paper, here, equals(paper))


def _either(rows: np.ndarray, candidates: dict[str, np.ndarray]) -> str:
    """Each neuron reads one branch or the other: which is which does not matter to a product."""
    stacked = {"W_m^in or W_x^in": np.concatenate(list(candidates.values()))}
    return _proportional_to(rows, stacked)


def _proportional_to(rows: Any, candidates: dict[str, Any]) -> str:
    """Which matrix every row of `rows` is a multiple of some row of; zero rows are copies at rest."""
    rows = np.asarray(rows, np.float64)
    rows = rows[np.any(rows != 0, axis=1)]
    if len(rows) == 0:
        return "0"
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    for name, matrix in candidates.items():
        unit = np.asarray(matrix, np.float64)
        unit = unit / np.linalg.norm(unit, axis=1, keepdims=True)
        if np.all(np.max(np.abs(rows @ unit.T), axis=1) > 1 - 1e-12):
            return name
    return "other"


def _bias(values: Any) -> str:
    values = np.asarray(values)
    gates = 1 / (1 + np.exp(-np.clip(values, -700, 700)))
    if np.all(values == 0):
        return "0"
    if np.all(gates == 1):
        return "+∞"
    return "−∞" if np.all(gates < 1e-300) else "other"


def _forgets_as(source: GatedRNN, biases: Any) -> bool:
    gates = 1 / (1 + np.exp(-np.clip(np.asarray(biases), -700, 700)))
    wanted = np.unique(np.round(np.asarray(source.lambda_, np.float64), 12))
    return np.array_equal(np.unique(np.round(gates, 12)), wanted)


@artifact(
    "figure1",
    "quick",
    title="Attention as a gated RNN",
    tells="Memory neurons (λ = 1) sum products of values and keys, forget neurons (λ = 0) hold the current query, "
    "the output gating multiplies the two, and D adds up. Blue is positive, red negative, grey zero.",
)
def figure1(budget: str, runs: Path) -> Artifact:
    attention = random_attention(D, seed=SEED)
    full, small, least = (
        compile(attention, to=target) for target in ("gated-rnn", "gated-rnn-compact", "gated-rnn-minimal")
    )
    memories = int(np.sum(np.asarray(full.model.lambda_) == 1))
    rows = [
        Row("perfect memory neurons", D * D, memories, equals(D * D)),
        Row("query neurons", D, full.hidden - memories, equals(D)),
        Row("hidden neurons, compact", SYMMETRIC + D, small.hidden, equals(SYMMETRIC + D)),
        Row("hidden neurons, minimal", None, least.hidden, at_most(SYMMETRIC + D)),
        Row("pre-readout neurons, minimal", None, least.model.pre_readout, at_most(D * D)),
        Row("error, Figure 1", 0, full.max_rel_error, at_most(1e-12)),
        Row("error, compact", 0, small.max_rel_error, at_most(1e-12)),
        Row("error, minimal", 0, least.max_rel_error, at_most(1e-12)),
    ]
    settings = {"d": D, "horizon": HORIZON, "input_bound": INPUT_BOUND}
    title = f"Figure 1: linear self-attention (d = {D}) as a gated RNN. Blue positive, red negative, grey zero."
    panels = weight_panels(full.model)
    figure = draw_pipeline([Line("", panels, WEIGHT_CAPTIONS)], title)
    return Artifact("figure1", rows, settings, figure, seeds=(SEED,), panels=panels)
