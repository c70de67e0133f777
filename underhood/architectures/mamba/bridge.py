"""Mamba ↔ transformers' `MambaMixer` and mambapy's `MambaBlock`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from underhood.architectures.mamba.cell import Mamba
from underhood.core.errors import UnderhoodError
from underhood.interop.bridges import (
    Settings,
    bridge,
    expand_to,
    expect,
    positive,
    public_module,
    require_square,
    take,
    whole,
)
from underhood.interop.tensors import Tensors
from underhood.layers.convolution import Convolution
from underhood.layers.linear import densified


def _read_mamba(tensors: Tensors, settings: Settings) -> Mamba:
    expect(settings, hidden_act=("silu", "swish"), inner_layernorms=(False,), mup=(False,))
    names = {
        "in_proj.weight": (None, None),
        "conv1d.weight": (None, 1, None),
        "x_proj.weight": (None, None),
        "dt_proj.weight": (None, None),
        "dt_proj.bias": (None,),
        "A_log": (None, None),
        "D": (None,),
        "out_proj.weight": (None, None),
        "conv1d.bias": (None,),
        "in_proj.bias": (None,),
        "out_proj.bias": (None,),
    }
    given = take(tensors, names, optional=("conv1d.bias", "in_proj.bias", "out_proj.bias"))
    expand_to(len(given["A_log"]), given["in_proj.weight"].shape[1], settings)
    return Mamba(
        in_proj=given["in_proj.weight"],
        conv1d=Convolution(given["conv1d.weight"][:, 0], given.get("conv1d.bias")),
        x_proj=given["x_proj.weight"],
        dt_proj=given["dt_proj.weight"],
        dt_bias=given["dt_proj.bias"],
        a_log=given["A_log"],
        skip=given["D"],
        out_proj=given["out_proj.weight"],
        in_bias=given.get("in_proj.bias"),
        out_bias=given.get("out_proj.bias"),
    )


def _write_mamba(cell: Mamba) -> tuple[dict[str, Any], Tensors]:
    cell = densified(cell)
    require_square(cell)
    if (cell.in_bias is None) != (cell.out_bias is None):
        raise UnderhoodError("expected both in_bias and out_bias, or neither, for the public Mamba", "one of them")
    channels, state = cell.a_log.shape
    settings = {
        "hidden_size": cell.d,
        "intermediate_size": channels,
        "state_size": state,
        "conv_kernel": cell.conv1d.width,
        "time_step_rank": cell.dt_proj.shape[1],
        "use_bias": cell.in_bias is not None,
        "use_conv_bias": cell.conv1d.bias is not None,
    }
    tensors = {
        "in_proj.weight": cell.in_proj,
        "conv1d.weight": cell.conv1d.weight[:, None],
        "x_proj.weight": cell.x_proj,
        "dt_proj.weight": cell.dt_proj,
        "dt_proj.bias": cell.dt_bias,
        "A_log": cell.a_log,
        "D": cell.skip,
        "out_proj.weight": cell.out_proj,
        "conv1d.bias": cell.conv1d.bias,
        "in_proj.bias": cell.in_bias,
        "out_proj.bias": cell.out_bias,
    }
    return settings, {name: np.asarray(tensor) for name, tensor in tensors.items() if tensor is not None}


def _build_mamba_mixer(settings: Settings) -> Any:
    public = public_module("transformers.models.mamba.modeling_mamba")
    sizes = {name: value for name, value in settings.items() if name != "intermediate_size"}
    config = public.MambaConfig(**sizes, num_hidden_layers=1, vocab_size=1)
    config.intermediate_size = settings["intermediate_size"]  # a whole multiple of hidden_size otherwise
    return public.MambaMixer(config, 0)


def _build_mambapy(settings: Settings) -> Any:
    public = public_module("mambapy.mamba")
    config = public.MambaConfig(
        d_model=settings["hidden_size"],
        n_layers=1,
        dt_rank=settings["time_step_rank"],
        d_state=settings["state_size"],
        d_conv=settings["conv_kernel"],
        bias=settings["use_bias"],
        conv_bias=settings["use_conv_bias"],
    )
    config.d_inner = settings["intermediate_size"]
    return public.MambaBlock(config)


def _expanded(settings: Settings) -> int:
    return int(positive({"expand": 2, **settings}, "expand") * whole(settings, "hidden_size"))


_MAMBA = {"kind": Mamba.kind, "read": _read_mamba, "write": _write_mamba}

bridge(
    "transformers.models.mamba.modeling_mamba.MambaMixer",
    **_MAMBA,
    build=_build_mamba_mixer,
    describe=lambda module: {"hidden_act": module.activation},
    model_type="mamba",
    ignores="layer_norm_epsilon rms_norm time_step_floor time_step_max time_step_min time_step_scale",
    prefix="backbone.layers.{layer}.mixer.",
    mark="A_log",
    defaults={
        "hidden_size": 768,
        "intermediate_size": _expanded,
        "state_size": 16,
        "conv_kernel": 4,
        "time_step_rank": lambda settings: math.ceil(whole(settings, "hidden_size") / 16),
        "use_bias": False,
        "use_conv_bias": True,
    },
)
bridge(
    "mambapy.mamba.MambaBlock",
    **_MAMBA,
    build=_build_mambapy,
    describe=lambda module: {"inner_layernorms": module.config.inner_layernorms, "mup": module.config.mup},
)
