"""`uh.explore`: a page in which a network runs, step by step, beside the attention that it implements.

The weights go into the page as JSON in float64, digit for digit, and `pages/networks.js` computes with them.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import equinox as eqx
import numpy as np

from underhood.attention.linear import LinearAttention, require_attention
from underhood.cells import GRU, LRU, LSTM, DenseGatedRNN, GatedRNN, Stack
from underhood.cells.linear import SparseMatrix, dense
from underhood.errors import UnderhoodError
from underhood.identify.neurons import NEAR
from underhood.interop.foreign import decompile
from underhood.report.drawing import text_of
from underhood.report.page import render
from underhood.storage.atomic import write_atomically
from underhood.storage.files import sizes_of

SHOWN = (GatedRNN, DenseGatedRNN, Stack, LSTM, GRU, LRU)
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
) -> Path:
    """Write the page to `out`. Beside the network stands `against`, or the attention that decompile finds in it.

    `xs` (t, d) is the sequence to begin with, random unless given.
    """
    return write_atomically(out, explorer_html(model, against=against, name=name, xs=xs, seed=seed).encode())


def explorer_html(model: Any, *, against: LinearAttention | None, name: str, xs: Any, seed: int) -> str:
    """The page as text."""
    if not isinstance(model, SHOWN):
        kind = getattr(model, "kind", type(model).__name__)
        raise UnderhoodError("explore takes a recurrent network", kind, "Compile the attention first.")
    if model.parameters > MOST_NUMBERS or _written_out(model) > MOST_NUMBERS:
        got = f"{max(model.parameters, _written_out(model))} of them"
        raise UnderhoodError(f"a page holds up to {MOST_NUMBERS} weights", got, "Explore a smaller network.")
    found = decompile(model, against=None if against is None else require_attention(against), seed=seed)
    shown = found.attention if against is None else against
    xs = np.random.default_rng(seed).normal(size=(STEPS, model.d)).round(2) if xs is None else _sequence(xs, model.d)
    lambda_ = _decays(model)
    data = {
        "d": model.d,
        "network": weights_of(model),
        "attention": None if shown is None else weights_of(shown),
        "xs": xs.tolist(),
    }
    return render(
        "explorer.html",
        ("page.js", "networks.js", "explorer.js"),
        title=f"{name}: underhood explorer",
        name=name,
        what=_described(model),
        verdict=found.verdict,
        yes=found.is_attention,
        reason=found.reason,
        certificate=_certified(found.certificate),
        narrow=model.dtype == np.float32,
        steps=len(xs),
        gated=isinstance(model, GatedRNN | DenseGatedRNN),
        diagonal=lambda_.size > 0,
        between=bool(np.any((lambda_ >= NEAR) & (lambda_ <= 1 - NEAR))),
        attended=_attended(shown, against, found.is_attention),
        data=data,
    )


def weights_of(module: Any) -> dict[str, Any]:
    """A model as plain data, sparse matrices written out; λ of a gated RNN beside its ν."""
    plain: dict[str, Any] = {"kind": module.kind}
    for field in dataclasses.fields(module):
        plain[field.name] = _plain(getattr(module, field.name))
    if isinstance(module, GatedRNN):
        plain["lambda_"] = _plain(module.lambda_)
    return plain


def _plain(value: Any) -> Any:
    if isinstance(value, SparseMatrix):
        return dense(value).tolist()
    if isinstance(value, eqx.Module):
        return weights_of(value)
    if isinstance(value, tuple):
        return [_plain(part) for part in value]
    return value if value is None or isinstance(value, str) else np.asarray(value, np.float64).tolist()


def _written_out(model: Any) -> int:
    """Numbers that the gatings have once sparse matrices are dense."""
    if not isinstance(model, GatedRNN | DenseGatedRNN):
        return 0
    return 2 * model.hidden * (model.d + 1) + 2 * model.pre_readout * model.hidden + model.d_out * model.pre_readout


def _decays(model: Any) -> np.ndarray:
    """|λ| of the neurons that have one."""
    cells = model.cells if isinstance(model, Stack) else (model,)
    return np.concatenate([np.abs(cell.lambda_) for cell in cells if isinstance(cell, GatedRNN | LRU)] or [np.zeros(0)])


def _sequence(xs: Any, d: int) -> np.ndarray:
    xs = np.asarray(xs, np.float64)
    if xs.ndim != 2 or xs.shape[1] != d or not len(xs) or not np.all(np.isfinite(xs)):
        raise UnderhoodError(f"a sequence has shape (t, {d}) and finite numbers", f"shape {xs.shape}")
    return xs


def _described(model: Any) -> str:
    sizes = sizes_of(model)
    names = {"d": "inputs", "d_out": "outputs", "hidden": "hidden neurons", "pre_readout": "pre-readout neurons"}
    counts = [f"{sizes[key]} {text}" for key, text in names.items() if key in sizes]
    kind = {"gated-rnn": "Gated RNN of Eq. 2", "gated-rnn-dense": "Gated RNN with dense recurrence"}.get(model.kind)
    if isinstance(model, Stack):
        kind = " and ".join(dict.fromkeys(cell.kind.removesuffix("-cell").upper() for cell in model.cells))
        kind = f"{kind}, {model.layers} layer{'s' * (model.layers > 1)}"
    return f"{kind or model.kind}: {', '.join(counts)}."


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
