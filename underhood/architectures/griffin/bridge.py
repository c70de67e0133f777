"""Griffin ↔ transformers' `RecurrentGemmaRecurrentBlock`."""

from __future__ import annotations

from typing import Any

import numpy as np

from underhood.architectures.griffin.cell import BlockGate, Griffin
from underhood.core.extras import require
from underhood.interop.bridges import Settings, bridge, expect, needed, public_module, require_square, take
from underhood.interop.tensors import Tensors
from underhood.layers.convolution import Convolution
from underhood.layers.linear import Linear


def _read_griffin(tensors: Tensors, settings: Settings) -> Griffin:
    expect(settings, hidden_activation=("gelu_pytorch_tanh", "gelu"))
    linear = {f"{name}.weight": (None, None) for name in ("linear_x", "linear_y", "linear_out")}
    linear |= {f"{name}.bias": (None,) for name in ("linear_x", "linear_y", "linear_out")}
    gates = {f"rg_lru.{name}_gate_weight": (None, None, None) for name in ("input", "recurrent")}
    gates |= {f"rg_lru.{name}_gate_bias": (None, None) for name in ("input", "recurrent")}
    convolution = {"conv_1d.weight": (None, 1, None), "conv_1d.bias": (None,)}
    given = take(tensors, {**linear, **gates, **convolution, "rg_lru.recurrent_param": (None,)})
    return Griffin(
        linear_x=Linear(given["linear_x.weight"], given["linear_x.bias"]),
        linear_y=Linear(given["linear_y.weight"], given["linear_y.bias"]),
        conv_1d=Convolution(given["conv_1d.weight"][:, 0], given["conv_1d.bias"]),
        input_gate=BlockGate(given["rg_lru.input_gate_weight"], given["rg_lru.input_gate_bias"]),
        recurrent_gate=BlockGate(given["rg_lru.recurrent_gate_weight"], given["rg_lru.recurrent_gate_bias"]),
        recurrent_param=given["rg_lru.recurrent_param"],
        linear_out=Linear(given["linear_out.weight"], given["linear_out.bias"]),
        activation=needed(settings, "hidden_activation"),
    )


def _write_griffin(cell: Griffin) -> tuple[dict[str, Any], Tensors]:
    require_square(cell)
    blocks = len(cell.input_gate.bias)
    settings = {
        "hidden_size": cell.d,
        "lru_width": cell.hidden,
        "num_attention_heads": blocks,
        "conv1d_width": cell.conv_1d.width,
        "hidden_activation": cell.activation,
    }
    bias = np.zeros(cell.hidden, cell.dtype) if cell.conv_1d.bias is None else cell.conv_1d.bias
    tensors: dict[str, Any] = {"conv_1d.weight": cell.conv_1d.weight[:, None], "conv_1d.bias": bias}
    for name in ("linear_x", "linear_y", "linear_out"):
        tensors |= {f"{name}.weight": getattr(cell, name).weight, f"{name}.bias": getattr(cell, name).bias}
    for name in ("input_gate", "recurrent_gate"):
        gate = getattr(cell, name)
        tensors |= {f"rg_lru.{name}_weight": gate.weight, f"rg_lru.{name}_bias": gate.bias}
    tensors["rg_lru.recurrent_param"] = cell.recurrent_param
    return settings, {name: np.asarray(tensor) for name, tensor in tensors.items()}


def _build_griffin(settings: Settings) -> Any:
    public = public_module("transformers.models.recurrent_gemma.modeling_recurrent_gemma")
    config = public.RecurrentGemmaConfig(**settings, num_hidden_layers=1, vocab_size=3, intermediate_size=1)
    return public.RecurrentGemmaRecurrentBlock(config, 0)


def _run_griffin(module: Any, xs: Any) -> Any:
    torch = require("torch", "torch", "running a torch module")
    positions = torch.arange(xs.shape[1], device=xs.device).expand(xs.shape[:2])
    return module(xs, positions, None, use_cache=False)[0]


def _describe_griffin(module: Any) -> dict[str, Any]:
    activations = public_module("transformers.activations")
    for name in ("gelu_pytorch_tanh", "gelu"):
        if type(module.act_fn) is type(activations.ACT2FN[name]):
            return {"hidden_activation": name}
    return {"hidden_activation": type(module.act_fn).__name__}


bridge(
    "transformers.models.recurrent_gemma.modeling_recurrent_gemma.RecurrentGemmaRecurrentBlock",
    kind=Griffin.kind,
    read=_read_griffin,
    write=_write_griffin,
    build=_build_griffin,
    describe=_describe_griffin,
    run=_run_griffin,
    model_type="recurrent_gemma",
    ignores="rms_norm_eps",
    prefix="model.layers.{layer}.temporal_block.",
    mark="rg_lru.recurrent_param",
    defaults={
        "hidden_size": 2560,
        "lru_width": lambda settings: settings["hidden_size"],
        "num_attention_heads": 10,
        "conv1d_width": 4,
        "hidden_activation": "gelu_pytorch_tanh",
    },
)
