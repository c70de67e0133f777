"""minGRU ↔ minGRU-pytorch."""

from __future__ import annotations

from typing import Any

import numpy as np

from underhood.architectures.mingru.cell import MinGRU
from underhood.core.errors import UnderhoodError
from underhood.interop.bridges import Settings, bridge, public_module, require_square, take
from underhood.interop.tensors import Tensors


def _read_mingru(tensors: Tensors, settings: Settings) -> MinGRU:
    given = take(
        tensors, {"to_hidden_and_gate.weight": (None, None), "to_out.weight": (None, None)}, ("to_out.weight",)
    )
    return MinGRU(given["to_hidden_and_gate.weight"], given.get("to_out.weight"))


def _write_mingru(cell: MinGRU) -> tuple[dict[str, Any], Tensors]:
    if cell.candidate != "positive":
        raise UnderhoodError("the public minGRU expects the candidate positive", repr(cell.candidate))
    if cell.to_out is not None:
        require_square(cell)
    settings = {"dim": cell.d, "dim_inner": cell.hidden, "proj_out": cell.to_out is not None}
    tensors = {"to_hidden_and_gate.weight": cell.to_hidden_and_gate, "to_out.weight": cell.to_out}
    return settings, {name: np.asarray(tensor) for name, tensor in tensors.items() if tensor is not None}


def _build_mingru(settings: Settings) -> Any:
    # It takes the inner size as a factor of dim, and rounds down.
    factor = (settings["dim_inner"] + 0.5) / settings["dim"]
    return public_module("minGRU_pytorch.minGRU").minGRU(settings["dim"], factor, proj_out=settings["proj_out"])


bridge("minGRU_pytorch.minGRU.minGRU", kind=MinGRU.kind, read=_read_mingru, write=_write_mingru, build=_build_mingru)
