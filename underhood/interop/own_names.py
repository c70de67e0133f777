"""Models under the names of our own files: which architecture tensors of these names belong to, and its structure."""

from __future__ import annotations

import functools
import re
from typing import Any

from underhood.attention.linear import LinearAttention
from underhood.core.errors import UnderhoodError
from underhood.core.files import to_tensors
from underhood.core.model import ARCHITECTURES, make_model
from underhood.interop.bridges import BRIDGES, needed
from underhood.interop.recurrent import RECURRENT
from underhood.interop.tensors import Tensors

ATTENTION = "attention"


def kinds() -> tuple[str, ...]:
    """What can be imported: every architecture, and attention."""
    return (*ARCHITECTURES, ATTENTION)


def described_kind(description: dict[str, Any]) -> str | None:
    """The one kind that a description of our export can mean."""
    name, ours = str(description.get("cell", description.get("class"))), description.get("ours")
    if name.lower() in RECURRENT:
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


def structure_of(tensors: Tensors, kind: str, ours: dict[str, Any]) -> dict[str, Any]:
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
