"""`uh.attend`: which earlier steps each output of a model comes from, as a page, a picture or an archive."""

from __future__ import annotations

import base64
import io
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np
from jaxtyping import Float

from underhood.attention.linear import LinearAttention
from underhood.core.errors import UnderhoodError, printable
from underhood.core.model import AbstractModel
from underhood.core.outputs import MAP, NPZ, PAGE, PNG, Kind, require_outputs, write_output
from underhood.explain.attention_map import attention_map, sequence_of
from underhood.explain.maps import AttentionMap, CancellationWarning, Reduce
from underhood.explain.maps import Kind as MapKind
from underhood.pages.numbers import text_of

SUFFIXES: dict[str, Kind] = {".html": PAGE, ".png": PNG, ".npz": NPZ}
MOST_NUMBERS = 2_000_000  # some 11 MB as text: a page beyond it is slow to open
REDUCTIONS: tuple[Reduce, ...] = ("norm", "sum", "none")
WHOLE: dict[Reduce, str] = {"norm": "norm (size)", "sum": "sum (with sign)"}
ROUNDING, MISLEADING = 1e-6, 0.5  # unexplained: less is rounding, more is most of what the model does


def attend(
    model: Any,
    xs: Any,
    out: str | os.PathLike[str],
    *,
    layer: SupportsIndex | None = None,
    reduce: Reduce = "norm",
    kind: MapKind | None = None,
    baseline: Any = "zero",
    state: Any = None,
    tokens: Sequence[str] | None = None,
    name: str = "network",
    force: bool = False,
) -> AttentionMap:
    """Write the attention map of `model` on `xs` to a page, a picture or an archive: .html, .png or .npz.

    **Arguments:**

    - `model`, `xs`: A model of this package, and a sequence (t, d).
    - `out`: The file to write; its suffix says which kind.
    - `layer`, `reduce`, `kind`, `baseline`, `state`: As for `uh.attention_map`. A page has the other reductions, too.
    - `tokens`: A name for each step.
    - `name`: What the page or picture calls the network.
    - `force`: Write over a file of another kind.

    **Returns:**

    The `AttentionMap`, reduced as asked.
    """
    suffix = suffix_of(out)
    require_outputs((out, SUFFIXES[suffix]), force=force)
    if isinstance(model, AbstractModel):  # attention_map refuses all else
        xs = sequence_of(model, xs)
        tokens = None if tokens is None else require_tokens(tokens, len(xs))
        if suffix == ".html":
            require_page(len(xs))
    asked = {"layer": layer, "kind": kind, "baseline": baseline, "state": state}
    found = attention_map(model, xs, reduce=reduce, **asked)
    if suffix == ".html":
        maps = all_maps(model, xs, **asked)
        content = page(maps, tokens, name=printable(name), what=described(model, layer), chosen=reduce).encode()
    elif suffix == ".npz":
        content = archive(found, tokens)
    else:
        from underhood.pages.map_figure import draw_map  # an archive needs no matplotlib

        content = draw_map(found, tokens, name)
    write_output(out, content, SUFFIXES[suffix], force=force)
    return found


def all_maps(model: Any, xs: Any, layer: SupportsIndex | None = None, **asked: Any) -> dict[Reduce, AttentionMap]:
    """Each reduction, of which a page shows any."""
    with warnings.catch_warnings():  # one is enough
        warnings.simplefilter("ignore", CancellationWarning)
        return {reduce: attention_map(model, xs, layer=layer, reduce=reduce, **asked) for reduce in REDUCTIONS}


def suffix_of(out: str | os.PathLike[str]) -> str:
    """What an output's name asks for."""
    suffix = Path(out).suffix.lower()
    if suffix not in SUFFIXES:
        raise UnderhoodError("expected an output that ends in .html, .png or .npz", Path(out).name)
    return suffix


def require_tokens(tokens: Sequence[str], length: int) -> list[str]:
    """A name for each step."""
    if not isinstance(tokens, list | tuple) or not all(isinstance(one, str) for one in tokens):
        raise UnderhoodError("expected the tokens as a list of words", type(tokens).__name__)
    if len(tokens) != length:
        raise UnderhoodError(f"expected {length} tokens, one for each step", len(tokens))
    return list(tokens)


def require_page(length: int) -> None:
    """Two maps, at least, fit in a page."""
    longest = int((MOST_NUMBERS + 0.25) ** 0.5 - 0.5)  # two triangles have t (t + 1) numbers
    if length > longest:
        remedy = "Write .png or .npz, or give a part of the sequence."
        raise UnderhoodError(f"expected at most {longest:,} steps for a page", f"{length:,}", remedy)


def archive(found: AttentionMap, tokens: Sequence[str] | None) -> bytes:
    """All maps, what they leave unexplained at each step, and their names, as NumPy reads them."""
    buffer, overall = io.BytesIO(), found.completeness
    values = found.weights, np.array(found.names), np.array(found.kind), np.array(float(overall)), overall.steps
    arrays: dict[str, Any] = dict(zip(MAP, values, strict=True))
    if tokens is not None:
        arrays["tokens"] = np.array(tokens)
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


def described(model: AbstractModel, layer: SupportsIndex | None) -> str:
    """The model, and which part of it."""
    title = "Linear attention" if isinstance(model, LinearAttention) else getattr(model, "title", type(model).__name__)
    return title if layer is None else f"{title}, layer {layer}"


def page(
    maps: dict[Reduce, AttentionMap], tokens: Sequence[str] | None, *, name: str, what: str, chosen: Reduce
) -> str:
    """The page as text."""
    from underhood.pages.page import render

    found = maps[chosen]
    return render(
        "attend.html",
        ("page.js", "dom.js", "map.js", "attend.js"),
        title=f"{name}: underhood attention map",
        name=name,
        what=what,
        kind=found.kind,
        length=found.weights.shape[1],
        share=share_of(found.completeness),
        meaning=meaning(found),
        data=page_data(maps, tokens, chosen),
    )


def page_data(
    maps: dict[Reduce, AttentionMap], tokens: Sequence[str] | None = None, chosen: Reduce = "norm"
) -> dict[str, Any]:
    """What map.js draws: the two maps of the whole, and as many of the heads or channels as a page has room for."""
    whole = whole_maps(maps)
    parts, length = maps["none"], maps["none"].weights.shape[1]
    room = max(MOST_NUMBERS // (length * (length + 1) // 2) - len(whole), 0)
    sizes = np.abs(parts.weights).sum(axis=(1, 2))
    kept = sorted(np.argsort(-sizes, kind="stable")[:room].tolist())
    return {
        "tokens": None if tokens is None else list(tokens),
        "gaps": parts.completeness.steps.tolist(),
        "maps": whole + [_packed(parts.names[one], parts.weights[one], True) for one in kept],
        "parts": len(parts.names),
        "chosen": {"norm": 0, "sum": 1, "none": min(2, 1 + len(kept))}[chosen],
    }


def whole_maps(maps: dict[Reduce, AttentionMap], prefix: str = "") -> list[dict[str, Any]]:
    """Sizes and sums over the coordinates, for map.js."""
    return [_packed(prefix + text, maps[one].weights[0], one == "sum") for one, text in WHOLE.items()]


def _packed(name: str, weights: Float[np.ndarray, "t s"], signed: bool) -> dict[str, Any]:
    """The lower triangle, row by row, as float32 shares of its largest number, in base64."""
    triangle = weights[np.tril_indices(len(weights))]
    scale = float(np.max(np.abs(triangle))) or 1.0
    text = base64.b64encode((triangle / scale).astype("<f4").tobytes()).decode()
    return {"name": name, "signed": signed, "scale": scale, "values": text}


def share_of(completeness: float) -> str:
    """Two digits: 3.1·10⁻¹⁶, 1.2 %, 204 %."""
    if not 1e-3 <= completeness < 100:
        return text_of(float(completeness))
    return f"{100 * completeness:.0f} %" if completeness >= 0.1 else f"{100 * completeness:.2g} %"


def meaning(found: AttentionMap) -> str:
    """What the map's kind and its completeness mean, in two sentences."""
    rests = {
        "exact": "The map is exact: the layer is a sum over its values, and these are the terms. Gates, queries and "
        "norms are held at the values that they take on this sequence.",
        "frozen": "The map is frozen: activations, gates and norms are held at the values that they take on this "
        "sequence, and the rest is a sum over the steps.",
        "jacobian": "The map is a Jacobian: the slope of each output towards each input, times that input.",
        "deletion": "The map is one of deletions: what changes in an output when the input of a step is replaced.",
        "shapley": "The map has Shapley values: what replacing a step changes, averaged over random orders.",
        "integrated": "The map has integrated gradients: slopes on the way from the baseline to the sequence.",
    }[found.kind]
    gap = share_of(found.completeness)
    rests += f" They are {float(found.cancellation):.3g} times as large as the outputs, together."
    if found.warning is not None:
        rests += f" Warning: {found.warning}."
    if found.kind == "deletion" and found.completeness > ROUNDING:
        return f"{rests} Deletions need not add up, as steps stand in for one another: they miss the outputs by {gap}."
    if found.completeness <= ROUNDING:
        return f"{rests} Its contributions add up to the outputs; what they leave out, {gap} of them, is rounding."
    if found.completeness <= MISLEADING:
        return f"{rests} Its contributions add up to the outputs but for {gap} of them."
    return f"{rests} Its contributions do not add up to the outputs; they miss them by {gap}. Read slopes, not shares."
