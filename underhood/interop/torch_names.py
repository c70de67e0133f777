"""torch's names and gate orders ↔ ours, in NumPy: [i, f, g, o] ↔ [f, c̃, g, o] and [r, z, n] ↔ [r, h̃, 1 − z].

    model                              state dict
    a stack of LSTM (or GRU) cells     embedding.weight, embedding.bias, lstm.weight_ih_l0, …, readout.weight, …
    a cell by itself                   weight_ih_l0, weight_hh_l0, bias_ih_l0, bias_hh_l0
    a cell with a public torch class   that class's own names (bridges.py), where its package is installed
    everything else                    the names of our own files (docs/format.md), for `Program` in torch_modules.py

torch.nn.LSTM has one hidden size for all layers: smaller ones are filled up with neurons whose weights are zero,
which stay at zero. The header says how many are real, so that a round trip gives back every bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from underhood.architectures.gru.cell import GRU, RESET, UPDATE
from underhood.architectures.lstm.cell import LSTM
from underhood.architectures.stack.cell import Stack
from underhood.core.arrays import DType
from underhood.core.files import to_tensors
from underhood.core.model import AbstractModel
from underhood.interop.bridges import public_form
from underhood.interop.program import trace
from underhood.layers.linear import densified

LSTM_ORDER = (2, 0, 1, 3)  # torch's i, f, g, o in the order of ours: f, c̃, g, o
GRU_ORDER = (0, 2, 1)  # torch's r, z, n in the order of ours: r, h̃, z
OPEN = 40.0  # σ is exactly 1 from here on, in float64

Description = dict[str, Any]
Tensors = dict[str, np.ndarray]


def to_state_dict(model: Any) -> tuple[Description, Tensors]:
    """What to build in torch (torch_modules.py), and the state dict that it loads with strict=True."""
    if isinstance(model, LSTM | GRU) and _is_torchs((model,)):
        tensors, ours = _recurrent((model,))
        sizes = {"input_size": model.d, "hidden_size": model.hidden, "num_layers": 1}
        return {"class": _class((model,)), **sizes, "ours": ours}, tensors
    if isinstance(model, Stack) and _is_torchs(model.cells):
        tensors, ours = _recurrent(model.cells)
        name = _class(model.cells)
        sizes = {
            "d": model.d,
            "width": model.cells[0].d,
            "hidden": max(ours["hidden"]),
            "layers": model.layers,
            "d_out": model.d_out,
        }
        named = {f"{name.lower()}.{key}": tensor for key, tensor in tensors.items()}
        readout = np.asarray(model.readout.weight)
        return {"class": "Recurrent", "cell": name, **sizes, "ours": ours}, {
            "embedding.weight": np.asarray(model.embedding.weight),
            "embedding.bias": np.asarray(model.embedding.bias),
            **named,
            "readout.weight": _padded(readout, (len(readout), sizes["hidden"])),
            "readout.bias": np.asarray(model.readout.bias),
        }
    if (public := public_form(model)) is not None:
        bridge, settings, tensors = public
        return {"class": bridge.public, "settings": settings, "ours": to_tensors(model)[0]}, tensors
    return to_program(model)


def to_program(model: AbstractModel) -> tuple[Description, Tensors]:
    """For `Program` in torch_modules.py: any model, under our own names."""
    plain = densified(model)
    structure, tensors = to_tensors(plain)
    program = trace(plain).without_shown().as_json()
    shapes = {name: list(tensor.shape) for name, tensor in tensors.items()}
    return {"class": "Program", "program": program, "shapes": shapes, "ours": structure}, tensors


def _is_torchs(cells: tuple[Any, ...]) -> bool:
    """Can torch.nn.LSTM or torch.nn.GRU hold these cells?"""
    if all(isinstance(cell, LSTM) for cell in cells):
        return True
    return all(isinstance(cell, GRU) and (cell.reset == "after" or _reset_does_not_matter(cell)) for cell in cells)


def _reset_does_not_matter(cell: GRU) -> bool:
    """r = 1 whatever the input, and update gates that torch can hold.

    torch computes 1 − z where the paper has z: of a gate that is nearly shut, as in a compiled GRU, nothing would
    be left. Half the digits of a gate is the least that is let through.
    """
    u, v, b = (np.asarray(weight) for weight in (cell.u, cell.v, cell.b))
    is_open = not u[RESET].any() and not v[RESET].any() and bool(np.all(b[RESET] >= OPEN))
    return is_open and bool(np.all(b[UPDATE] >= np.log(np.finfo(b.dtype).eps) / 2))


def _class(cells: tuple[Any, ...]) -> str:
    return "LSTM" if isinstance(cells[0], LSTM) else "GRU"


def _recurrent(cells: tuple[Any, ...]) -> tuple[Tensors, Description]:
    """Tensors of one torch.nn.LSTM or GRU with all layers, and what they do not tell of ours."""
    hidden = max(cell.hidden for cell in cells)
    tensors: Tensors = {}
    for index, cell in enumerate(cells):
        inputs = cell.d if index == 0 else hidden
        dtype = np.dtype(cell.dtype)
        gates = len(np.asarray(cell.b))
        order, sign = _order_and_sign(gates, dtype)
        v = np.zeros((gates, cell.hidden, cell.hidden), dtype) if cell.v is None else np.asarray(cell.v)
        arrays = {
            "weight_ih": _padded(np.asarray(cell.u), (gates, hidden, inputs)),
            "weight_hh": _padded(v, (gates, hidden, hidden)),
            "bias_ih": _padded(np.asarray(cell.b), (gates, hidden)),
            "bias_hh": np.zeros((gates, hidden), dtype),
        }
        if isinstance(cell, GRU) and cell.b_hn is not None:
            arrays["bias_hh"][1, : cell.hidden] = np.asarray(cell.b_hn)
        for name, array in arrays.items():
            signed = array * sign.reshape(-1, *[1] * (array.ndim - 1))
            tensors[f"{name}_l{index}"] = signed[list(order)].reshape(-1, *array.shape[2:])
    ours = {
        "hidden": [cell.hidden for cell in cells],
        "reads_h": [cell.v is not None for cell in cells],
        "reset": [getattr(cell, "reset", None) for cell in cells],
    }
    return tensors, ours


def _order_and_sign(gates: int, dtype: DType) -> tuple[tuple[int, ...], np.ndarray]:
    """In torch, h = (1 − z) n + z h: its z is one minus ours, and σ(−a) = 1 − σ(a)."""
    if gates == 4:
        return LSTM_ORDER, np.ones(4, dtype)
    return GRU_ORDER, np.array([1, 1, -1], dtype)


def ours_from_torch(array: np.ndarray, gates: int) -> np.ndarray:
    """(gates · n, …) in torch's order → (gates, n, …) in ours."""
    order, sign = _order_and_sign(gates, array.dtype)
    back = np.argsort(order)
    stacked = array.reshape(gates, -1, *array.shape[1:])[back]
    return stacked * sign.reshape(-1, *[1] * (stacked.ndim - 1))


def _padded(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    full = np.zeros(shape, array.dtype)
    full[tuple(slice(size) for size in array.shape)] = array
    return full
