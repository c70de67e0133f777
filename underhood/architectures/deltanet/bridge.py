"""Gated DeltaNet ↔ transformers' `Qwen3NextGatedDeltaNet`."""

from __future__ import annotations

from typing import Any

from underhood.architectures.deltanet.cell import GatedDeltaNet
from underhood.interop.bridges import (
    KERNEL,
    MATRIX,
    VECTOR,
    Settings,
    Shape,
    bridge,
    expect,
    named_tensors,
    norm_settings,
    public_module,
    read_cell,
    require_square,
    whole,
)
from underhood.interop.tensors import Tensors

_DELTANET: dict[str, Shape] = {
    "in_proj_qkvz.weight": MATRIX,
    "in_proj_ba.weight": MATRIX,
    "conv1d.weight": KERNEL,
    "dt_bias": VECTOR,
    "A_log": VECTOR,
    "norm.weight": VECTOR,
    "out_proj.weight": MATRIX,
}


def _read_deltanet(tensors: Tensors, settings: Settings) -> GatedDeltaNet:
    expect(settings, hidden_act=("silu", "swish"))
    heads, norm = whole(settings, "linear_num_key_heads"), norm_settings(settings, "rms_norm_eps")
    return read_cell(GatedDeltaNet.kind, tensors, _DELTANET, (), norm=norm, key_heads=heads)


def _write_deltanet(cell: GatedDeltaNet) -> tuple[dict[str, Any], Tensors]:
    require_square(cell)
    settings = {
        "hidden_size": cell.d,
        "linear_num_key_heads": cell.key_heads,
        "linear_num_value_heads": cell.heads,
        "linear_key_head_dim": cell.d_key,
        "linear_value_head_dim": cell.d_value,
        "linear_conv_kernel_dim": cell.conv1d.width,
        "rms_norm_eps": cell.norm.eps,
    }
    return settings, named_tensors(cell, _DELTANET)


def _build_deltanet(settings: Settings) -> Any:
    public = public_module("transformers.models.qwen3_next.modeling_qwen3_next")
    config = public.Qwen3NextConfig(**settings, num_hidden_layers=1, layer_types=["linear_attention"], vocab_size=1)
    return public.Qwen3NextGatedDeltaNet(config, 0)


bridge(
    "transformers.models.qwen3_next.modeling_qwen3_next.Qwen3NextGatedDeltaNet",
    kind=GatedDeltaNet.kind,
    read=_read_deltanet,
    write=_write_deltanet,
    build=_build_deltanet,
    describe=lambda module: {
        "hidden_act": module.activation,
        "linear_num_key_heads": module.num_k_heads,
        "rms_norm_eps": module.norm.variance_epsilon,
    },
    model_type="qwen3_next",
    prefix="model.layers.{layer}.linear_attn.",
    mark="A_log",
    defaults={
        "hidden_size": 2048,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "rms_norm_eps": 1e-6,
    },
)
