"""LSTM ↔ torch.nn.LSTM and its like: gates i, f, g, o in torch and Keras, i, o, f, g in ONNX; ours f, g, i, o."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from underhood.architectures.lstm.cell import LSTM
from underhood.interop.recurrent import recurrent


def _read(w: np.ndarray, v: np.ndarray, b: np.ndarray, b_recurrent: np.ndarray) -> LSTM:
    return LSTM(w, v, b + b_recurrent)


def _write(cell: LSTM) -> tuple[np.ndarray, np.ndarray | None, np.ndarray, None]:
    return np.asarray(cell.u), None if cell.v is None else np.asarray(cell.v), np.asarray(cell.b), None


def _trim(cell: LSTM, n: int, inputs: int, said: Mapping[str, Any]) -> LSTM | None:
    u, v, b = (np.asarray(weight) for weight in (cell.u, cell.v, cell.b))
    if any(rest.any() for rest in (u[:, n:], u[:, :, inputs:], v[:, n:], v[:, :, n:], b[:, n:])):
        return None
    v = v[:, :n, :n]
    return LSTM(u[:, :n, :inputs], v if said.get("reads_h") or v.any() else None, b[:, :n])


recurrent(
    kind=LSTM.kind,
    model="lstm",
    torch="LSTM",
    gates="fgio",
    orders={"torch": "ifgo", "onnx": "iofg", "keras": "ifgo"},
    read=_read,
    write=_write,
    trim=_trim,
    describe=lambda cell: {"reads_h": cell.v is not None, "reset": None},
)
