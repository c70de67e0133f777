"""Mamba, Griffin and minGRU: `MambaMixer`, mambapy, `RecurrentGemmaRecurrentBlock`, minGRU-pytorch."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from underhood.cells import BlockGate, Convolution, Griffin, Linear, Mamba, MinGRU
from underhood.cells.linear import densified
from underhood.errors import UnderhoodError
from underhood.extras import require
from underhood.interop.bridges import Settings, bridge, expand_to, expect, needed, positive, take, whole
from underhood.interop.state_dict import Tensors

# What config.json may say of such a model, in this version of transformers and in earlier ones.
_MAMBA_FIELDS = """
vocab_size hidden_size state_size num_hidden_layers layer_norm_epsilon expand conv_kernel use_bias use_conv_bias
hidden_act initializer_range residual_in_fp32 time_step_rank time_step_scale time_step_min time_step_max
time_step_init_scheme time_step_floor rescale_prenorm_residual use_mambapy intermediate_size use_associative_scan
d_model d_inner n_layer ssm_cfg rms_norm fused_add_norm pad_vocab_size_multiple
"""
_GRIFFIN_FIELDS = """
num_hidden_layers vocab_size hidden_size intermediate_size num_attention_heads lru_width head_dim
attention_window_size conv1d_width logits_soft_cap rms_norm_eps hidden_activation partial_rotary_factor rope_theta
rope_parameters block_types _block_types attention_dropout num_key_value_heads attention_bias w_init_variance_scale
final_w_init_variance_scale embeddings_scale_by_sqrt_dim
"""

ORACLES = "oracles"  # the extra that has these packages


def public_module(module: str) -> Any:
    return require(module, ORACLES, f"a module of {module.split('.')[0]}")


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
    fields=frozenset(_MAMBA_FIELDS.split()),
)
bridge(
    "mambapy.mamba.MambaBlock",
    **_MAMBA,
    build=_build_mambapy,
    describe=lambda module: {"inner_layernorms": module.config.inner_layernorms, "mup": module.config.mup},
)


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
    prefix="model.layers.{layer}.temporal_block.",
    mark="rg_lru.recurrent_param",
    defaults={
        "hidden_size": 2560,
        "lru_width": lambda settings: settings["hidden_size"],
        "num_attention_heads": 10,
        "conv1d_width": 4,
        "hidden_activation": "gelu_pytorch_tanh",
    },
    fields=frozenset(_GRIFFIN_FIELDS.split()),
)


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


def require_square(cell: Any) -> None:
    if cell.d != cell.d_out:
        got = f"{cell.d} inputs, {cell.d_out} outputs"
        raise UnderhoodError("expected as many outputs as inputs for the public layer", got)
