"""`uh.read(path)`: a model out of any file or folder of another program's that `underhood import` takes."""

from __future__ import annotations

import dataclasses
import os
import re
from typing import Any

import numpy as np

from underhood.architectures.stack.cell import Stack
from underhood.core.arrays import DType
from underhood.core.errors import UnderhoodError
from underhood.core.files import from_tensors
from underhood.interop.attention_weights import attention_from
from underhood.interop.bridges import BRIDGES, Bridge
from underhood.interop.own_names import ATTENTION, described_kind, kinds, names_of, structure_of
from underhood.interop.readers import read_state_dict
from underhood.interop.recurrent import RECURRENT, Found, layers_in
from underhood.interop.tensors import Tensors, listed, part_of
from underhood.interop.torch_names import trimmed
from underhood.layers.linear import Linear


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
    if kind in RECURRENT and not any(name == "u" or name.startswith("cells.") for name in tensors):
        return _recurrent(tensors, kind, ours, embedding, readout)
    if (public := _public(tensors, kind)) is not None:
        return public.read(tensors, (description or {}).get("settings", {}))
    return from_tensors(structure_of(tensors, kind, ours), tensors, kind)


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


def _recurrent(tensors: Tensors, kind: str, ours: dict[str, Any], embedding: str, readout: str) -> Any:
    """A bare layer becomes a cell; several, or with an embedding or a readout, a stack."""
    layers, taken = layers_in(tensors)
    places = dict.fromkeys(layer.where for layer in layers)
    if len(places) != 1:
        rule = "expected the tensor weight_ih_l0 once, after any prefix"
        raise UnderhoodError(rule, listed(tensors), "Name its part with `part`.")
    left = {name: tensor for name, tensor in tensors.items() if name not in taken}
    first, last = _linear(left, embedding), _linear(left, readout)
    cells = cells_of([dataclasses.replace(layer, model=kind) for layer in layers], left)
    if left:
        remedy = f"Known: {embedding}, {readout} and one {kind}; say others with `embedding`, `readout` or `part`."
        raise UnderhoodError(f"unknown tensors: {listed(left)}", remedy=remedy)
    return as_stack([*filter(None, [first]), *cells, *filter(None, [last])], ours)


def cells_of(layers: list[Found], beside: Tensors) -> list[Any]:
    """One torch module's layers as cells, from the first on."""
    projected = [name for name in beside if re.search(r"weight_hr_l\d+$", name)]
    for word, wrong in {"one direction": any(layer.backward for layer in layers), "no projection": projected}.items():
        if wrong:
            names = {name: layer.w for layer in layers for name in layer.names.values()}
            raise UnderhoodError(f"expected a layer with {word}", listed({**names, **beside}))
    levels = sorted(layers, key=lambda layer: layer.level)
    for index, layer in enumerate(levels):
        if layer.level != index:
            raise UnderhoodError(f"unknown tensors: {listed(dict.fromkeys(layer.names.values(), layer.w))}")
    return [layer.cell() for layer in levels]


def recurrent_cells(title: str, tensors: Tensors, options: dict[str, Any]) -> list[Any]:
    """The state dict of a torch.nn.LSTM, GRU or RNN as cells."""
    layers, taken = layers_in(tensors)
    try:
        left = {name: tensor for name, tensor in tensors.items() if name not in taken}
        return cells_of([dataclasses.replace(layer, options=options) for layer in layers], left)
    except UnderhoodError as error:
        raise UnderhoodError(f"{title}: {error.rule}", error.got, error.remedy) from None


def as_stack(signal: list[Any], ours: dict[str, Any]) -> Any:
    """Linear maps, cells, linear maps as one model: the cell itself where it is alone."""
    inner = [index for index, one in enumerate(signal) if not isinstance(one, Linear)]
    cells = tuple(signal[inner[0] : inner[-1] + 1])
    if any(isinstance(one, Linear) for one in cells):
        raise UnderhoodError("expected recurrent layers next to one another", "a linear layer between them")
    first, last = _product(signal[: inner[0]]), _product(signal[inner[-1] + 1 :])
    if len(cells) == 1 and first is None and last is None:
        return trimmed(cells, None, ours)[0][0]
    first = Linear(*_identity(cells[0].d, cells[0].dtype)) if first is None else first
    last = Linear(*_identity(cells[-1].d_out, cells[-1].dtype)) if last is None else last
    cells, last = trimmed(cells, last, ours)
    return Stack(first, cells, last)


def _product(linears: list[Linear]) -> Linear | None:
    """Linear maps in a row as one."""
    if len(linears) < 2:
        return linears[0] if linears else None
    weight, bias = (np.asarray(array, np.float64) for array in (linears[0].weight, linears[0].bias))
    for after in linears[1:]:
        matrix = np.asarray(after.weight, np.float64)
        weight, bias = matrix @ weight, matrix @ bias + np.asarray(after.bias, np.float64)
    dtype = np.asarray(linears[0].weight).dtype
    return Linear(weight.astype(dtype), bias.astype(dtype))


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
