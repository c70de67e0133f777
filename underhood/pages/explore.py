"""`uh.explore`: a page in which a network runs, step by step, beside the attention that it implements.

The operations of one step go into the page as JSON, with the weights in float64, digit for digit; `pages/program.js`
runs them. So every architecture has a page.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import jax
import numpy as np

from underhood.architectures.gated_rnn.cell import DenseGatedRNN, GatedRNN
from underhood.attention.linear import LinearAttention, require_attention
from underhood.core.arrays import require_real
from underhood.core.errors import UnderhoodError, printable
from underhood.core.files import sizes_of
from underhood.core.model import AbstractModel
from underhood.core.outputs import PAGE, require_outputs, write_output
from underhood.decompiler.decompile import decompile
from underhood.decompiler.from_weights.neurons import NEAR
from underhood.explain.maps import AttentionMap, compare_maps
from underhood.interop.program import trace
from underhood.layers.linear import dense, densified
from underhood.pages.attend import all_maps, meaning, page_data, require_page, whole_maps
from underhood.pages.drawing import text_of
from underhood.pages.page import render

MOST_NUMBERS = 300_000  # some 6 MB as text: a page beyond it is slow to open, and shows nobody anything
STEPS = 12


def explore(
    model: Any,
    out: str | os.PathLike[str],
    *,
    against: LinearAttention | None = None,
    name: str = "network",
    xs: Any = None,
    seed: int = 0,
    force: bool = False,
) -> Path:
    """A page to watch a network run: its states, the attention it computes, and what both do to an input that you draw.

    **Arguments:**

    - `model`: a recurrent network of this package.
    - `out`: the file, HTML.
    - `against`: an attention to stand beside the network, the one that decompile finds in it unless given.
    - `name`: of the network, in the title.
    - `xs`: the sequence `(t, d)` to begin with, random unless given.
    - `seed`: of what is drawn at random.
    - `force`: write over a file of another kind.

    **Returns:**

    The path of the file.
    """
    require_outputs((out, PAGE), force=force)
    content = explorer_html(model, against=against, name=printable(name), xs=xs, seed=seed).encode()
    return write_output(out, content, PAGE, force=force)


def explorer_html(model: Any, *, against: LinearAttention | None, name: str, xs: Any, seed: int) -> str:
    """The page as text."""
    if not isinstance(model, AbstractModel) or isinstance(model, LinearAttention):
        kind = getattr(model, "kind", type(model).__name__)
        raise UnderhoodError("expected a recurrent network", kind, "Compile the attention first.")
    plain = densified(model) if model.parameters <= MOST_NUMBERS else model
    if plain.parameters > MOST_NUMBERS:
        got = f"{plain.parameters:,} of them"
        raise UnderhoodError(f"expected at most {MOST_NUMBERS:,} weights for a page", got, "Explore a smaller network.")
    program = trace(plain).folded().as_json()
    found = decompile(model, against=None if against is None else require_attention(against), seed=seed)
    shown = found.attention if against is None else against
    xs = np.random.default_rng(seed).normal(size=(STEPS, model.d)).round(2) if xs is None else _sequence(xs, model.d)
    require_page(len(xs))
    maps = all_maps(model, xs)
    lambdas = [_decays(cell) for cell in getattr(model, "cells", (model,))]
    lambda_ = np.concatenate([one for one in lambdas if one is not None] or [np.zeros(0)])
    data = {
        "d": model.d,
        "program": program,
        "lambdas": [None if one is None else one.tolist() for one in lambdas],
        "readout": dense(plain.readout).tolist() if isinstance(plain, GatedRNN | DenseGatedRNN) else None,
        "attention": None if shown is None else weights_of(shown),
        "attended": "attention" if against is not None or found.is_attention else "nearest attention",
        "xs": xs.tolist(),
        "map": page_data(maps),
    }
    compared = ""
    if shown is not None:
        theirs = all_maps(shown, xs)
        data["map"]["maps"] += whole_maps(theirs, "attention: ")
        compared = _compared(maps["norm"], theirs["norm"])
    return render(
        "explorer.html",
        ("page.js", "dom.js", "map.js", "program.js", "attention.js", "explorer.js"),
        title=f"{name}: underhood explorer",
        name=name,
        what=_described(model),
        verdict=found.verdict,
        yes=found.is_attention,
        reason=found.reason,
        certificate=_certified(found.certificate),
        narrow=model.dtype == np.float32,
        steps=len(xs),
        gated="output" in program["shown"],
        diagonal=lambda_.size > 0,
        between=bool(np.any((lambda_ >= NEAR) & (lambda_ <= 1 - NEAR))),
        attended=_attended(shown, against, found.is_attention),
        meaning=meaning(maps["norm"]),
        compared=compared,
        data=data,
    )


def weights_of(attention: LinearAttention) -> dict[str, Any]:
    """An attention as plain data."""
    weights = {name: getattr(attention, name) for name in ("w_value", "w_key", "w_query", "decay")}
    return {name: None if w is None else np.asarray(w, np.float64).tolist() for name, w in weights.items()}


def _compared(ours: AttentionMap, theirs: AttentionMap) -> str:
    same = compare_maps(ours, theirs)
    return (
        f"Against the map of the attention: correlation {same.correlation:.6g}, "
        f"largest difference {text_of(same.largest_difference)} of the largest entry."
    )


def _decays(cell: Any) -> np.ndarray | None:
    """|λ| of the neurons that have one."""
    return np.abs(cell.lambda_) if hasattr(cell, "lambda_") else None


def _sequence(xs: Any, d: int) -> np.ndarray:
    require_real("inputs", xs)
    xs = np.asarray(xs, np.float64)
    if xs.ndim != 2 or xs.shape[1] != d or not len(xs) or not np.all(np.isfinite(xs)):
        raise UnderhoodError(f"expected a sequence of finite numbers, shape (t, {d})", f"shape {xs.shape}")
    return xs


def _described(model: AbstractModel) -> str:
    sizes = sizes_of(model)
    names = {"d": "inputs", "d_out": "outputs", "hidden": "hidden neurons", "pre_readout": "pre-readout neurons"}
    counts = [f"{sizes[key]} {text}" for key, text in names.items() if key in sizes]
    state = sum(np.size(leaf) for leaf in jax.tree.leaves(model.initial_state()))
    remembers = "" if state == sizes.get("hidden") else f" It carries {state} numbers from step to step."
    return f"{model.title}: {', '.join(counts)}.{remembers}"


def _certified(certificate: Any) -> str | None:
    if certificate is None:
        return None
    scope = f"for every input within ±{certificate.input_bound:g}, up to {certificate.horizon} steps"
    return f"{text_of(float(certificate.max_abs_error))}, {scope}"


def _attended(shown: Any, against: Any, is_attention: bool) -> str:
    """What stands above the attention; nothing where there is none."""
    if shown is None:
        return ""
    if against is not None:
        return "The attention given to compare with"
    return "The attention that it implements" if is_attention else "The nearest attention; the network is not one"
