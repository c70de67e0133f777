"""GRU ↔ torch.nn.GRU and its like: gates r, z, n in torch, z, r, n in ONNX and Keras; ours r, n, 1 − z.

torch resets after the recurrent product; ONNX and Keras say which they do (linear_before_reset, reset_after).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from underhood.architectures.gru.cell import CANDIDATE, GRU, RESET, UPDATE
from underhood.core.errors import UnderhoodError
from underhood.interop.recurrent import recurrent

OPEN = 40.0  # σ is exactly 1 from here on, in float64


def _read(w: np.ndarray, v: np.ndarray, b: np.ndarray, b_recurrent: np.ndarray, *, reset_after: bool = True) -> GRU:
    if not reset_after:
        return GRU(w, v, b + b_recurrent)
    b_hn, b_recurrent = b_recurrent[CANDIDATE].copy(), b_recurrent.copy()
    b_recurrent[CANDIDATE] = 0  # the candidate's recurrent bias stands inside the reset
    return GRU(w, v, b + b_recurrent, b_hn, "after")


def _write(cell: GRU) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    u, v, b = (np.asarray(weight) for weight in (cell.u, cell.v, cell.b))
    if cell.reset == "before" and not _reset_does_not_matter(u, v, b):
        raise UnderhoodError("torch.nn.GRU resets after the recurrent product, this cell before it")
    b_recurrent = np.zeros_like(b)
    if cell.b_hn is not None:
        b_recurrent[CANDIDATE] = np.asarray(cell.b_hn)
    return u, v, b, b_recurrent


def _reset_does_not_matter(u: np.ndarray, v: np.ndarray, b: np.ndarray) -> bool:
    """r = 1 whatever the input, and update gates that torch can hold.

    torch computes 1 − z where the paper has z: of a gate that is nearly shut, as in a compiled GRU, nothing would
    be left. Half the digits of a gate is the least that is let through.
    """
    return _is_open(u, v, b) and bool(np.all(b[UPDATE] >= np.log(np.finfo(b.dtype).eps) / 2))


def _is_open(u: np.ndarray, v: np.ndarray, b: np.ndarray) -> bool:
    return not u[RESET].any() and not v[RESET].any() and bool(np.all(b[RESET] >= OPEN))


def _trim(cell: GRU, n: int, inputs: int, said: Mapping[str, Any]) -> GRU | None:
    u, v, b, b_hn = (np.asarray(weight) for weight in (cell.u, cell.v, cell.b, cell.b_hn))
    if any(rest.any() for rest in (u[:, n:], u[:, :, inputs:], v[:, n:], v[:, :, n:], b[:, n:], b_hn[n:])):
        return None
    u, v, b, b_hn = u[:, :n, :inputs], v[:, :n, :n], b[:, :n], b_hn[:n]
    if said.get("reset") == "before" and _is_open(u, v, b) and not b_hn.any():  # both conventions are one
        return GRU(u, v, b)
    return GRU(u, v, b, b_hn, "after")


recurrent(
    kind=GRU.kind,
    model="gru",
    torch="GRU",
    gates="rnz",
    orders={"torch": "rzn", "onnx": "zrn", "keras": "zrn"},
    negated="z",
    read=_read,
    write=_write,
    trim=_trim,
    describe=lambda cell: {"reads_h": True, "reset": cell.reset},
)
