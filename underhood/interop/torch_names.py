"""Our models as torch state dicts: what to build in torch, and the tensors that it loads with strict=True.

    model                              state dict
    a stack of one kind of recurrent   embedding.weight, embedding.bias, lstm.weight_ih_l0, …, readout.weight, …
      cells (recurrent.py)
    such a cell by itself              weight_ih_l0, weight_hh_l0, bias_ih_l0, bias_hh_l0
    a cell with a public torch class   that class's own names (bridges.py), where its package is installed
    everything else                    the names of our own files (docs/format.md), for `Program` in torch_modules.py

torch.nn.LSTM has one hidden size for all layers: smaller ones are filled up with neurons whose weights are zero,
which stay at zero. The header says how many are real, so that a round trip gives back every bit.
"""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

from underhood.architectures.stack.cell import Stack
from underhood.core.errors import UnderhoodError
from underhood.core.files import to_tensors
from underhood.core.model import AbstractModel
from underhood.interop.bridges import public_form
from underhood.interop.program import trace
from underhood.interop.recurrent import Recurrent, by_kind
from underhood.interop.tensors import Tensors
from underhood.layers.linear import Linear, densified

Description = dict[str, Any]


def to_state_dict(model: Any) -> tuple[Description, Tensors]:
    """What to build in torch (torch_modules.py), and the state dict that it loads with strict=True."""
    cells = model.cells if isinstance(model, Stack) else (model,)
    with contextlib.suppress(UnderhoodError):  # torch's own class may lack what a cell of ours has
        if all(cell.kind == cells[0].kind for cell in cells) and (layer := by_kind(cells[0].kind)) is not None:
            return _recurrent(model, cells, layer)
    if (public := public_form(model)) is not None:
        bridge, settings, tensors = public
        return {"class": bridge.public, "settings": settings, "ours": to_tensors(model)[0]}, tensors
    return to_program(model)


def to_program(model: AbstractModel) -> tuple[Description, Tensors]:
    """For `Program` in torch_modules.py: any model, under our own names."""
    plain = densified(model)
    structure, tensors = to_tensors(plain)
    program = trace(plain).without_displayed().as_json()
    shapes = {name: list(tensor.shape) for name, tensor in tensors.items()}
    return {"class": "Program", "program": program, "shapes": shapes, "ours": structure}, tensors


def _recurrent(model: Any, cells: tuple[Any, ...], layer: Recurrent) -> tuple[Description, Tensors]:
    """torch's own class: by itself, or between an embedding and a readout."""
    tensors, hidden = _layers(cells, layer)
    described = [layer.describe(cell) for cell in cells]
    ours = {"hidden": [cell.hidden for cell in cells]} | {
        name: [one[name] for one in described] for name in described[0]
    }
    if not isinstance(model, Stack):
        sizes = {"input_size": model.d, "hidden_size": model.hidden, "num_layers": 1}
        return {"class": layer.torch, **sizes, "ours": ours}, tensors
    sizes = {"d": model.d, "width": cells[0].d, "hidden": hidden, "layers": model.layers, "d_out": model.d_out}
    weight, readout = np.asarray(densified(model).embedding.weight), np.asarray(densified(model).readout.weight)
    return {"class": "Recurrent", "cell": layer.torch, **sizes, "ours": ours}, {
        "embedding.weight": weight,
        "embedding.bias": np.asarray(model.embedding.bias),
        **{f"{layer.torch.lower()}.{name}": tensor for name, tensor in tensors.items()},
        "readout.weight": _padded(readout, (len(readout), hidden)),
        "readout.bias": np.asarray(model.readout.bias),
    }


def _layers(cells: tuple[Any, ...], layer: Recurrent) -> tuple[Tensors, int]:
    """Tensors of one torch.nn.LSTM (or its like) with all cells as layers, and its hidden size."""
    hidden, gates = max(cell.hidden for cell in cells), len(layer.gates)
    tensors: Tensors = {}
    for index, cell in enumerate(cells):
        w, v, b, b_recurrent = layer.write(cell)
        v = np.zeros((gates, cell.hidden, cell.hidden), w.dtype) if v is None else v
        b_recurrent = np.zeros_like(b) if b_recurrent is None else b_recurrent
        arrays = {
            "weight_ih": _padded(w, (gates, hidden, cell.d if index == 0 else hidden)),
            "weight_hh": _padded(v, (gates, hidden, hidden)),
            "bias_ih": _padded(b, (gates, hidden)),
            "bias_hh": _padded(b_recurrent, (gates, hidden)),
        }
        tensors |= {f"{name}_l{index}": layer.theirs(array) for name, array in arrays.items()}
    return tensors, hidden


def _padded(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    full = np.zeros(shape, array.dtype)
    full[tuple(slice(size) for size in array.shape)] = array
    return full


def trimmed(cells: tuple[Any, ...], last: Linear | None, ours: Description) -> tuple[tuple[Any, ...], Linear | None]:
    """Undo what `to_state_dict` added: neurons that fill up a layer, recurrent weights and biases that are zero.

    Only where they are still zero: a network trained further in torch keeps all it has.
    """
    told = {name: value for name, value in ours.items() if isinstance(value, list) and len(value) == len(cells)}
    sizes = told.get("hidden", [])
    if not sizes or not all(type(size) is int and 1 <= size <= cells[0].hidden for size in sizes):
        return cells, last
    result, inputs = [], cells[0].d
    for index, (cell, n) in enumerate(zip(cells, sizes, strict=True)):
        layer = by_kind(cell.kind)
        cut = layer and layer.trim(cell, n, inputs, {name: value[index] for name, value in told.items()})
        if cut is None:
            return cells, last
        result.append(cut)
        inputs = n
    if last is not None:
        weight = np.asarray(last.weight)
        if weight[:, inputs:].any():
            return cells, last
        last = Linear(weight[:, :inputs], last.bias)
    return tuple(result), last
