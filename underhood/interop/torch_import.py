"""Our models out of named tensors: torch.nn.LSTM, torch.nn.GRU, and the names of docs/format.md."""

from __future__ import annotations

import functools
import os
import re
from typing import Any

import numpy as np

from underhood.architectures.gru.cell import GRU
from underhood.architectures.lstm.cell import LSTM
from underhood.architectures.stack.cell import Stack
from underhood.attention.linear import LinearAttention
from underhood.core.arrays import DType
from underhood.core.errors import UnderhoodError
from underhood.core.files import from_tensors, to_tensors
from underhood.core.model import ARCHITECTURES, make_model
from underhood.interop.attention_weights import attention_from
from underhood.interop.bridges import BRIDGES, Bridge, needed
from underhood.interop.state_dict import Tensors, listed, part_of, read_state_dict
from underhood.interop.torch_names import ours_from_torch
from underhood.layers.linear import Linear

GATES = {"lstm": 4, "gru": 3}
ATTENTION = "attention"


def kinds() -> tuple[str, ...]:
    """What can be imported: every architecture, and attention."""
    return (*ARCHITECTURES, ATTENTION)


def import_model(
    path: str | os.PathLike[str],
    kind: str | None = None,
    *,
    part: str = "",
    heads: int = 1,
    embedding: str = "embedding",
    readout: str = "readout",
) -> Any:
    """A model of underhood from a file of another program's, read by `read_state_dict`.

    Without a `kind`, it is the one that our own export wrote beside the tensors.
    """
    if kind is not None and kind not in kinds():
        raise UnderhoodError(f"unknown kind {kind!r} to import", remedy=f"Known: {', '.join(kinds())}.")
    tensors, description = read_state_dict(path, part)
    kind = kind or described_kind(description)
    if kind is None:
        remedy = f"Use `kind`, one of {', '.join(kinds())}."
        raise UnderhoodError(f"{path} does not say what its weights are", remedy=remedy)
    tensors = part_of(tensors, part) if part else tensors
    try:
        return from_state_dict(tensors, kind, description, heads=heads, embedding=embedding, readout=readout)
    except UnderhoodError as error:
        raise UnderhoodError(f"{path}: {error.rule}", error.got, error.remedy) from None
    except (TypeError, ValueError, AttributeError, IndexError, KeyError) as error:
        # Arrays without axes, or with an axis of size 0, where a matrix belongs.
        raise UnderhoodError(f"{path}: these tensors make no {kind}: {error}") from None


def from_state_dict(
    tensors: Tensors,
    kind: str,
    description: dict[str, Any] | None = None,
    *,
    heads: int = 1,
    embedding: str = "embedding",
    readout: str = "readout",
) -> Any:
    """`description` is what our own export wrote beside the tensors; files of others do without."""
    ours = (description or {}).get("ours", {})
    ours = ours if isinstance(ours, dict) else {}
    if kind == ATTENTION:
        return attention_from(tensors, heads)
    if heads != 1:
        raise UnderhoodError(
            f"{kind} has no heads to split rows into", remedy="Leave out heads, or use `kind='attention'`."
        )
    if kind in GATES and not any(name == "u" or name.startswith("cells.") for name in tensors):
        return _recurrent(dict(tensors), kind, ours, embedding, readout)
    if (public := _public(tensors, kind)) is not None:
        return public.read(tensors, (description or {}).get("settings", {}))
    return from_tensors(_structure(tensors, kind, ours), tensors, kind)


def _public(tensors: Tensors, kind: str) -> Bridge | None:
    """The public class of this kind, unless the tensors are ours.

    Some public names are ours, too, but torch's kernels have three axes where ours have two.
    """
    if any(name.startswith("cells.") for name in tensors):
        return None
    found = next((one for one in BRIDGES.values() if one.kind == f"{kind}-cell"), None)
    kernels = [tensor for name, tensor in tensors.items() if re.fullmatch(r"conv_?1d(\.conv)?\.weight", name)]
    if found is None or kernels:
        return found if any(kernel.ndim == 3 for kernel in kernels) else None
    return None if {f"cells.0.{name}" for name in tensors} <= names_of(kind) else found


def described_kind(description: dict[str, Any]) -> str | None:
    """The one kind that a description of our export can mean."""
    name, ours = str(description.get("cell", description.get("class"))), description.get("ours")
    if name.lower() in GATES:
        return name.lower()
    if name in BRIDGES:
        return BRIDGES[name].kind.removesuffix("-cell")
    cells = ours.get("cells", [ours]) if isinstance(ours, dict) else []
    said = [one for one in cells if isinstance(one, dict)] if isinstance(cells, list) else []
    base = str(said[0].get("kind")).removesuffix("-cell") if said else ""
    if base == LinearAttention.kind:
        return ATTENTION
    near = [kind for kind in ARCHITECTURES if f"{kind}-".startswith(f"{base}-")]  # gru-after has the cell of gru
    fits = [kind for kind in near if not any(_others(kind, one) for one in said)]
    return fits[0] if len(fits) == 1 else None


def candidates(tensors: Tensors) -> list[str]:
    """Kinds whose weights have these names, the likeliest first."""
    if any(name.endswith("weight_ih_l0") for name in tensors):
        return list(GATES)
    names = {re.sub(r"^cells\.\d+\.", "cells.0.", name) for name in tensors}
    if {"w_value", "w_key", "w_query"} <= names:
        return [ATTENTION]
    cell = {f"cells.0.{name}" for name in names}
    return [kind for kind in ARCHITECTURES if names == names_of(kind) or cell < names_of(kind)]


@functools.cache
def names_of(kind: str) -> frozenset[str]:
    """The tensors of the smallest model of this kind."""
    return frozenset(_smallest(kind)[1])


@functools.cache
def _smallest(kind: str) -> tuple[dict[str, Any], Tensors]:
    return to_tensors(make_model(kind, 1, hidden=8))


def _cell_of(kind: str) -> dict[str, Any]:
    smallest = _smallest(kind)[0]
    return smallest["cells"][0] if smallest["kind"] == "stack" else smallest


def _others(kind: str, said: dict[str, Any]) -> list[str]:
    """What is said of a cell that only another architecture's has: its class, or the form of its equation.

    A form that no architecture is named after, such as a minGRU's linear candidate, any of them may have.
    """
    cell = _cell_of(kind)
    differs = [name for name, value in cell.items() if isinstance(value, str) and said.get(name, value) != value]
    same = [one for one in map(_cell_of, ARCHITECTURES) if one["kind"] == cell["kind"]]
    return [name for name in differs if name == "kind" or said[name] in [one[name] for one in same]]


def _structure(tensors: Tensors, kind: str, ours: dict[str, Any]) -> dict[str, Any]:
    """The structure of a model under our own names: what the export said, or that of the smallest such model."""
    smallest, cell = _smallest(kind)[0], _cell_of(kind)
    in_stack = any(name.startswith("cells.") for name in tensors)
    said = ours.get("cells") if in_stack else [ours]
    told = [one for one in said if isinstance(one, dict)] if isinstance(said, list) else []
    for one in told:
        if other := _others(kind, one):
            got = ", ".join(f"{name} {one[name]!r}" for name in other)
            raise UnderhoodError(f"expected the weights of {kind}", got, "Choose another `kind`.")
    count = len({match[1] for name in tensors if (match := re.match(r"cells\.(\d+)\.", name))}) if in_stack else 1
    told = told if len(told) == count else [{}] * count
    untold = [name for name, value in cell.items() if type(value) is int]  # heads, groups: shapes do not tell them
    cells = [{**cell, **one, **{name: needed(one, name) for name in untold}} for one in told]
    return {**smallest, "cells": cells} if in_stack else cells[0]


def _recurrent(tensors: Tensors, kind: str, ours: dict[str, Any], embedding: str, readout: str) -> Any:
    """A bare layer becomes a cell; several, or with an embedding or a readout, a stack."""
    prefixes = [name.removesuffix("weight_ih_l0") for name in tensors if name.endswith("weight_ih_l0")]
    if len(prefixes) != 1:
        rule = "expected the tensor weight_ih_l0 once, after any prefix"
        raise UnderhoodError(rule, listed(tensors), "Name its part with `part`.")
    prefix, cells = prefixes[0], []
    for word, what in {"_reverse": "one direction", "weight_hr_": "no projection"}.items():
        if any(name.startswith(prefix) and word in name for name in tensors):
            raise UnderhoodError(f"expected a layer with {what}", listed(tensors))
    while f"{prefix}weight_ih_l{len(cells)}" in tensors:
        cells.append(_cell(tensors, prefix, len(cells), kind))
    first = _linear(tensors, embedding)
    last = _linear(tensors, readout)
    if tensors:
        remedy = f"Known: {embedding}, {readout} and one {kind}; say others with `embedding`, `readout` or `part`."
        raise UnderhoodError(f"unknown tensors: {listed(tensors)}", remedy=remedy)
    if len(cells) == 1 and first is None and last is None:
        return _trimmed(tuple(cells), None, ours)[0][0]
    first = Linear(*_identity(cells[0].d, cells[0].dtype)) if first is None else first
    last = Linear(*_identity(cells[-1].hidden, cells[-1].dtype)) if last is None else last
    trimmed, last = _trimmed(tuple(cells), last, ours)
    return Stack(first, trimmed, last)


def _cell(tensors: Tensors, prefix: str, index: int, kind: str) -> Any:
    gates = GATES[kind]
    names = {what: f"{prefix}{what}_l{index}" for what in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")}
    weight_ih = tensors.pop(names["weight_ih"])
    weight_hh = tensors.pop(names["weight_hh"], None)
    if weight_hh is None:
        raise UnderhoodError(f"{names['weight_ih']} is there without {names['weight_hh']}")
    hidden = weight_hh.shape[-1]
    rows = gates * hidden
    if weight_hh.shape != (rows, hidden) or weight_ih.ndim != 2 or len(weight_ih) != rows:
        rule = f"expected weights of shape ({gates}·n, inputs) and ({gates}·n, n), as torch.nn.{kind.upper()} has"
        other = next((name for name, count in GATES.items() if weight_hh.shape == (count * hidden, hidden)), None)
        remedy = f"This looks like `kind={other!r}`." if other not in (None, kind) else ""
        raise UnderhoodError(rule, f"{weight_ih.shape} and {weight_hh.shape}", remedy)
    biases = []
    for what in ("bias_ih", "bias_hh"):
        bias = tensors.pop(names[what], None)
        bias = np.zeros(rows, weight_ih.dtype) if bias is None else bias
        if bias.shape != (rows,):
            raise UnderhoodError(f"expected {names[what]} of shape ({rows},)", bias.shape)
        biases.append(ours_from_torch(bias, gates))
    u, v = ours_from_torch(weight_ih, gates), ours_from_torch(weight_hh, gates)
    if kind == "lstm":
        return LSTM(u, v, biases[0] + biases[1])
    b_hn = biases[1][1].copy()
    biases[1][1] = 0  # the candidate's recurrent bias stands inside the reset
    return GRU(u, v, biases[0] + biases[1], b_hn, "after")


def _linear(tensors: Tensors, name: str) -> Linear | None:
    weight, bias = tensors.pop(f"{name}.weight", None), tensors.pop(f"{name}.bias", None)
    if weight is None:
        if bias is not None:
            raise UnderhoodError(f"{name}.bias is there without {name}.weight")
        return None
    if weight.ndim != 2:
        raise UnderhoodError(f"expected {name}.weight of shape (outputs, inputs)", weight.shape)
    return Linear(weight, np.zeros(len(weight), weight.dtype) if bias is None else bias)


def _identity(size: int, dtype: DType) -> tuple[np.ndarray, np.ndarray]:
    return np.eye(size, dtype=dtype), np.zeros(size, dtype)


def _trimmed(cells: tuple[Any, ...], last: Linear | None, ours: dict[str, Any]) -> tuple[tuple[Any, ...], Any]:
    """Undo what our export added: neurons that fill up a layer, recurrent weights and biases that are zero.

    Only where they are still zero: a network trained further in torch keeps all it has.
    """
    sizes, reads, resets = (ours.get(name, []) for name in ("hidden", "reads_h", "reset"))
    told = all(isinstance(entry, list) and len(entry) == len(cells) for entry in (sizes, reads, resets))
    if not told or not all(type(size) is int and 1 <= size <= cells[0].hidden for size in sizes):
        return cells, last
    result, inputs = [], cells[0].d
    for index, cell in enumerate(cells):
        n = sizes[index]
        u, v, b = (np.asarray(weight) for weight in (cell.u, cell.v, cell.b))
        rest = (u[:, n:], u[:, :, inputs:], v[:, n:], v[:, :, n:], b[:, n:])
        b_hn = None if cell.kind == "lstm-cell" else np.asarray(cell.b_hn)
        if any(part.any() for part in rest) or (b_hn is not None and b_hn[n:].any()):
            return cells, last
        u, v, b = u[:, :n, :inputs], v[:, :n, :n], b[:, :n]
        if b_hn is None:
            result.append(LSTM(u, v if reads[index] or v.any() else None, b))
        elif resets[index] == "before" and _still_open(u, v, b, b_hn):
            result.append(GRU(u, v, b))
        else:
            result.append(GRU(u, v, b, b_hn[:n], "after"))
        inputs = n
    if last is not None:
        weight = np.asarray(last.weight)
        if weight[:, inputs:].any():
            return cells, last
        last = Linear(weight[:, :inputs], last.bias)
    return tuple(result), last


def _still_open(u: np.ndarray, v: np.ndarray, b: np.ndarray, b_hn: np.ndarray) -> bool:
    """With r = 1 whatever comes, and no bias inside it, both conventions are one."""
    return not (u[0].any() or v[0].any() or b_hn.any() or (b[0] < 40).any())
