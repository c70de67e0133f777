"""Pages of a language model in a text: what each layer attends to, and why this word; one file each, offline."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

from underhood.core.errors import UnderhoodError
from underhood.explain.maps import AttentionMap
from underhood.language.heads import COLUMNS, Heads
from underhood.language.why import Why
from underhood.pages.attend import share_of
from underhood.pages.drawing import text_of
from underhood.pages.page import render

MOST_NUMBERS = 6_000_000  # of all maps: some 8 MB as text
ROUNDING = 1e-3  # unexplained: more is said
CANCELS = 5.0  # contributions that are together this many times the number they explain


def attend_page(
    tokens: list[str], maps: dict[int, AttentionMap], *, name: str, what: str, heads: Heads | None = None
) -> str:
    """The page of `underhood attend FOLDER`: the text, and for each token what each layer takes from where."""
    length = len(tokens)
    if len(maps) * length * (length + 1) // 2 > MOST_NUMBERS:
        most = int((2 * MOST_NUMBERS / len(maps)) ** 0.5) - 1
        raise UnderhoodError(f"expected at most {most:,} tokens for {len(maps)} layers on a page", f"{length:,}")
    layers = [_layer(index, found) for index, found in maps.items()]
    worst = max(float(found.completeness) for found in maps.values())
    return render(
        "reading.html",
        ("page.js", "dom.js", "reading.js"),
        title=f"{name}: underhood attention in a text",
        mark="attention in a text",
        name=name,
        lead=f"{what}. Which earlier tokens does each layer take from? Point at a token, or move along the text.",
        cards=[("layers", len(layers)), ("tokens", length), ("unexplained", share_of(worst))],
        warning=_maps_warning(maps),
        heads=None if heads is None else _rows(heads),
        columns=COLUMNS,
        steps=length,
        data={"mode": "attend", "tokens": tokens, "layers": layers, "at": length - 1},
    )


def why_page(why: Why, *, name: str, what: str) -> str:
    """The page of `underhood why FOLDER`: the text in the colours of what each token adds, and the layers below it."""
    beside = "" if why.against is None else f" against {why.against!r}"
    table = why.contributions
    scale = float(np.abs(table[:-1]).max()) or 1.0
    layers = [
        {"name": label if not label.isdigit() else f"layer {label}", "values": np.round(row, 6).tolist()}
        for label, row in zip(why.layers, table, strict=True)
    ]
    return render(
        "reading.html",
        ("page.js", "dom.js", "reading.js"),
        title=f"{name}: underhood why {why.target!r}",
        mark="why this word",
        name=name,
        lead=f"{what}. Why {why.target!r}{beside}? Blue tokens raised it, red ones lowered it.",
        cards=[
            ("logit" if why.against is None else "difference", f"{why.logit:.2f}"),
            ("tokens", len(why.tokens)),
            ("unexplained", share_of(why.completeness)),
            ("cancellation", f"{why.cancellation:.1f} ×"),
        ],
        warning=_why_warning(why),
        heads=None,
        columns=COLUMNS,
        steps=len(why.tokens),
        data={"mode": "why", "tokens": why.tokens, "layers": layers, "at": int(why.largest(1)[0][0]), "scale": scale},
    )


def _layer(index: int, found: AttentionMap) -> dict[str, Any]:
    """The map of a layer as roots of shares, a byte each, row by row."""
    sizes = np.abs(found.weights).sum(axis=0)
    shares = sizes / np.maximum(sizes.sum(axis=1, keepdims=True), np.finfo(np.float64).tiny)
    packed = np.round(255 * np.sqrt(shares[np.tril_indices(len(shares))])).astype(np.uint8)
    kind = f"{found.kind}, {share_of(found.completeness)} unexplained"
    return {"name": f"layer {index}", "kind": kind, "values": base64.b64encode(packed.tobytes()).decode()}


def _rows(heads: Heads) -> list[dict[str, Any]]:
    return [
        {"place": f"{row.layer}.{row.head}", **{name: f"{getattr(row, name):.2f}" for name in COLUMNS}}
        for row in heads.rows
    ]


def _maps_warning(maps: dict[int, AttentionMap]) -> str:
    """What the reader must know before believing a map."""
    adds_up = {index: found for index, found in maps.items() if found.kind != "deletion"}
    open_ = [index for index, found in adds_up.items() if found.completeness > ROUNDING]
    held = sorted({found.kind for found in maps.values()})
    said = "Maps hold gates, norms and softmax weights at their values: what a token does through those is not in them."
    if "deletion" in held:
        said += " A deletion map shows what changes without a token, and need not add up."
    if "jacobian" in held:
        said += " A Jacobian shows slopes."
    if open_:
        names = ", ".join(map(str, open_[:8])) + ("…" if len(open_) > 8 else "")
        said += f" Not faithful: the contributions do not add up to the outputs in layers {names}."
    return said


def _why_warning(why: Why) -> str:
    d = why.deletion
    moved = f"Without its five largest tokens the number moves by {text_of(d.largest)}"
    controls = f"{text_of(d.recent)} without the last five, {text_of(d.random)} without five random ones"
    said = f"{moved}; by {controls}."
    if not d.agrees:
        said += " Not faithful: the tokens named are not those that matter most."
    if why.cancellation > CANCELS:
        said += f" Large contributions cancel: together they are {why.cancellation:.0f} times the number."
    return said
