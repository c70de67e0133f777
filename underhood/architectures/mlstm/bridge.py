"""mLSTM ↔ xlstm's `mLSTMLayer`."""

from __future__ import annotations

from typing import Any

import numpy as np

from underhood.architectures.mlstm.cell import MLSTM
from underhood.core.errors import UnderhoodError
from underhood.interop.bridges import (
    BLOCKS,
    KERNEL,
    MATRIX,
    VECTOR,
    Settings,
    Shape,
    bridge,
    named_tensors,
    norm_settings,
    public_module,
    read_cell,
    require_square,
)
from underhood.interop.tensors import Tensors

CONTEXT = 2048  # steps: xlstm's layer takes no longer sequences than it is built for
LEAST_WIDTH = 2  # a convolution of width 1 comes out empty in xlstm

_MLSTM: dict[str, Shape] = {
    "proj_up.weight": MATRIX,
    "proj_up.bias": VECTOR,
    "conv1d.conv.weight": KERNEL,
    "conv1d.conv.bias": VECTOR,
    **{f"{name}_proj.weight": BLOCKS for name in "qkv"},
    **{f"{name}_proj.bias": VECTOR for name in "qkv"},
    **{f"mlstm_cell.{name}.weight": MATRIX for name in ("igate", "fgate")},
    **{f"mlstm_cell.{name}.bias": VECTOR for name in ("igate", "fgate")},
    "mlstm_cell.outnorm.weight": VECTOR,
    "learnable_skip": VECTOR,
    "proj_down.weight": MATRIX,
    "proj_down.bias": VECTOR,
}
_MLSTM_BIASES = ("proj_up.bias", "q_proj.bias", "k_proj.bias", "v_proj.bias", "proj_down.bias")


def _read_mlstm(tensors: Tensors, settings: Settings) -> MLSTM:
    # xlstm keeps the norm's weights as what they are above 1.
    outnorm = "mlstm_cell.outnorm.weight"
    tensors = {name: 1 + tensor if name == outnorm else tensor for name, tensor in tensors.items()}
    norm = norm_settings({"norm_eps": 1e-5, **settings}, "norm_eps", centred=True)  # which xlstm has no setting for
    return read_cell(MLSTM.kind, tensors, _MLSTM, _MLSTM_BIASES, outnorm=norm)


def _write_mlstm(cell: MLSTM) -> tuple[dict[str, Any], Tensors]:
    require_square(cell)
    blocks = {getattr(cell, f"{name}_proj").weight.shape[0] for name in "qkv"}
    if len(blocks) > 1:
        raise UnderhoodError("expected as many blocks in q_proj as in k_proj and v_proj", sorted(blocks))
    tensors = named_tensors(cell, _MLSTM, _MLSTM_BIASES)
    kernel, bias = tensors["conv1d.conv.weight"], np.zeros(len(cell.learnable_skip), cell.dtype)
    tensors["conv1d.conv.weight"] = np.pad(kernel, ((0, 0), (0, 0), (max(0, LEAST_WIDTH - kernel.shape[2]), 0)))
    tensors = {"conv1d.conv.bias": bias, **tensors}
    tensors["mlstm_cell.outnorm.weight"] = tensors["mlstm_cell.outnorm.weight"] - 1
    settings = {
        "embedding_dim": cell.d,
        "inner": len(cell.learnable_skip),
        "num_heads": cell.heads,
        "qkv_proj_blocksize": len(cell.learnable_skip) // blocks.pop(),
        "conv1d_kernel_size": tensors["conv1d.conv.weight"].shape[2],
        "bias": "proj_up.bias" in tensors,
        "norm_eps": cell.outnorm.eps,
    }
    return settings, tensors


def _build_mlstm(settings: Settings) -> Any:
    public = public_module("xlstm")
    sizes = {name: value for name, value in settings.items() if name not in ("inner", "norm_eps")}
    # It takes the inner size as a factor, and rounds up to a multiple of a number.
    inner = {"proj_factor": settings["inner"] / settings["embedding_dim"] / 2}
    inner |= {"round_proj_up_to_multiple_of": settings["inner"]}
    layer = public.mLSTMLayer(public.mLSTMLayerConfig(**sizes, **inner, context_length=CONTEXT))
    layer.mlstm_cell.outnorm.eps = settings["norm_eps"]
    return layer


bridge(
    "xlstm.blocks.mlstm.layer.mLSTMLayer",
    kind=MLSTM.kind,
    read=_read_mlstm,
    write=_write_mlstm,
    build=_build_mlstm,
    describe=lambda module: {"norm_eps": module.mlstm_cell.outnorm.eps},
)
