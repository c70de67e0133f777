"""Mamba-2, Gated DeltaNet and mLSTM: `Mamba2Mixer`, `Qwen3NextGatedDeltaNet` and xlstm's `mLSTMLayer`.

Our cells have the public names and shapes, but for the axis of size 1 that a grouped Conv1d has: a table of names is
all that reading and writing need.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from underhood.cells import MLSTM, GatedDeltaNet, Mamba2
from underhood.errors import UnderhoodError
from underhood.interop.bridges import Settings, bridge, expand_to, expect, needed, positive, take, whole
from underhood.interop.diagonal_bridges import public_module, require_square
from underhood.interop.state_dict import Tensors
from underhood.storage.files import from_tensors, to_tensors

# What config.json may say of such a model, in this version of transformers and in earlier ones.
_MAMBA2_FIELDS = """
num_heads head_dim vocab_size hidden_size state_size num_hidden_layers layer_norm_epsilon expand conv_kernel n_groups
use_bias use_conv_bias hidden_act initializer_range residual_in_fp32 time_step_rank time_step_min time_step_max
time_step_floor time_step_limit rescale_prenorm_residual rms_norm chunk_size norm_before_gate
"""
_QWEN3_NEXT_FIELDS = """
vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads hidden_act
max_position_embeddings initializer_range rms_norm_eps rope_parameters rope_theta rope_scaling partial_rotary_factor
attention_bias attention_dropout head_dim linear_conv_kernel_dim linear_key_head_dim linear_value_head_dim
linear_num_key_heads linear_num_value_heads decoder_sparse_step moe_intermediate_size shared_expert_intermediate_size
num_experts_per_tok num_experts norm_topk_prob output_router_logits router_aux_loss_coef mlp_only_layers layer_types
full_attention_interval
"""
CONTEXT = 2048  # steps: xlstm's layer takes no longer sequences than it is built for
HUGE = 1e30  # a step that no layer takes
LEAST_WIDTH = 2  # a convolution of width 1 comes out empty in xlstm

Shape = tuple[int | None, ...]
_MATRIX, _VECTOR, _KERNEL, _BLOCKS = (None, None), (None,), (None, 1, None), (None, None, None)

_MAMBA2: dict[str, Shape] = {
    "in_proj.weight": _MATRIX,
    "in_proj.bias": _VECTOR,
    "conv1d.weight": _KERNEL,
    "conv1d.bias": _VECTOR,
    "dt_bias": _VECTOR,
    "A_log": _VECTOR,
    "D": _VECTOR,
    "norm.weight": _VECTOR,
    "out_proj.weight": _MATRIX,
    "out_proj.bias": _VECTOR,
}
_DELTANET: dict[str, Shape] = {
    "in_proj_qkvz.weight": _MATRIX,
    "in_proj_ba.weight": _MATRIX,
    "conv1d.weight": _KERNEL,
    "dt_bias": _VECTOR,
    "A_log": _VECTOR,
    "norm.weight": _VECTOR,
    "out_proj.weight": _MATRIX,
}
_MLSTM: dict[str, Shape] = {
    "proj_up.weight": _MATRIX,
    "proj_up.bias": _VECTOR,
    "conv1d.conv.weight": _KERNEL,
    "conv1d.conv.bias": _VECTOR,
    **{f"{name}_proj.weight": _BLOCKS for name in "qkv"},
    **{f"{name}_proj.bias": _VECTOR for name in "qkv"},
    **{f"mlstm_cell.{name}.weight": _MATRIX for name in ("igate", "fgate")},
    **{f"mlstm_cell.{name}.bias": _VECTOR for name in ("igate", "fgate")},
    "mlstm_cell.outnorm.weight": _VECTOR,
    "learnable_skip": _VECTOR,
    "proj_down.weight": _MATRIX,
    "proj_down.bias": _VECTOR,
}
_MAMBA2_BIASES = ("in_proj.bias", "out_proj.bias")
_MLSTM_BIASES = ("proj_up.bias", "q_proj.bias", "k_proj.bias", "v_proj.bias", "proj_down.bias")


def _ours(name: str) -> str:
    """Our name of a public tensor."""
    return name.removeprefix("mlstm_cell.").replace("conv1d.conv.", "conv1d.")


def _cell(kind: str, tensors: Tensors, names: Mapping[str, Shape], optional: tuple[str, ...], **structure: Any) -> Any:
    given = take(tensors, names, optional)
    ours = {_ours(name): tensor[:, 0] if names[name] == _KERNEL else tensor for name, tensor in given.items()}
    return from_tensors({"kind": kind, **structure}, ours, "the module")


def _tensors(cell: Any, names: Mapping[str, Shape], biases: tuple[str, ...] = ()) -> Tensors:
    """The cell's tensors under the public names; all of `biases` or none of them, zeros where one is missing."""
    ours = to_tensors(cell)[1]
    found = {name: ours[_ours(name)] for name in names if _ours(name) in ours}
    if any(name in found for name in biases):
        rows = {name: found[name.replace("bias", "weight")].shape for name in biases}
        zeros = {name: np.zeros(int(np.prod(shape[:-1])), cell.dtype) for name, shape in rows.items()}
        found = zeros | found
    unknown = ours.keys() - {_ours(name) for name in names}
    if unknown:
        raise UnderhoodError(f"the public layer has no {sorted(unknown)[0]}", remedy="Leave it out of the cell.")
    return {name: tensor[:, None] if names[name] == _KERNEL else tensor for name, tensor in found.items()}


def _norm(settings: Settings, name: str, **more: Any) -> dict[str, Any]:
    return {"kind": "norm", "eps": positive(settings, name), **more}


def _read_mamba2(tensors: Tensors, settings: Settings) -> Mamba2:
    expect(settings, hidden_act=("silu", "swish"), rms_norm=(True,), norm_before_gate=(False,))
    groups, (least, most) = whole(settings, "n_groups"), _limits(needed(settings, "time_step_limit"))
    cell = _cell(
        Mamba2.kind,
        tensors,
        _MAMBA2,
        (*_MAMBA2_BIASES, "conv1d.bias"),
        norm=_norm(settings, "layer_norm_epsilon"),
        groups=groups,
        least_step=least,
        most_step=most if np.isfinite(most) else None,
    )
    expand_to(cell.out_proj.columns, cell.d, settings)
    return cell


def _limits(value: Any) -> tuple[float, float]:
    """JSON has no infinity: transformers writes {"__float__": "Infinity"}."""
    pair = value if isinstance(value, list | tuple) and len(value) == 2 else ()
    ends = [np.inf if one == {"__float__": "Infinity"} else one for one in pair]
    numbers = all(isinstance(one, int | float) and not isinstance(one, bool) for one in ends)
    if not ends or not numbers or not -HUGE < ends[0] <= min(ends[1], HUGE):  # a NaN compares as false
        raise UnderhoodError("expected two numbers time_step_limit, the smaller one first", repr(value))
    return float(ends[0]), float(ends[1]) if ends[1] < HUGE else np.inf


def _write_mamba2(cell: Mamba2) -> tuple[dict[str, Any], Tensors]:
    require_square(cell)
    tensors = _tensors(cell, _MAMBA2, _MAMBA2_BIASES)
    settings = {
        "hidden_size": cell.d,
        "num_heads": cell.heads,
        "head_dim": cell.out_proj.columns // cell.heads,
        "state_size": cell.state_size,
        "n_groups": cell.groups,
        "conv_kernel": cell.conv1d.width,
        "layer_norm_epsilon": cell.norm.eps,
        "use_bias": "in_proj.bias" in tensors,
        "use_conv_bias": "conv1d.bias" in tensors,
        "time_step_limit": (cell.least_step, np.inf if cell.most_step is None else cell.most_step),
    }
    return settings, tensors


def _build_mamba2(settings: Settings) -> Any:
    public = public_module("transformers.models.mamba2.modeling_mamba2")
    inner, hidden = settings["num_heads"] * settings["head_dim"], settings["hidden_size"]
    fits = inner % hidden == 0
    sizes = {**settings, "hidden_size": hidden if fits else inner, "expand": inner // hidden if fits else 1}
    layer = public.Mamba2Mixer(public.Mamba2Config(**sizes, num_hidden_layers=1, vocab_size=1), 0)
    if not fits:  # the configuration wants a whole multiple of hidden_size; the layer takes any projections
        linear, bias = type(layer.in_proj), settings["use_bias"]
        layer.in_proj = linear(hidden, layer.in_proj.out_features, bias)
        layer.out_proj, layer.hidden_size = linear(inner, hidden, bias), hidden
    return layer


bridge(
    "transformers.models.mamba2.modeling_mamba2.Mamba2Mixer",
    kind=Mamba2.kind,
    read=_read_mamba2,
    write=_write_mamba2,
    build=_build_mamba2,
    describe=lambda module: {
        "hidden_act": module.activation,
        "n_groups": module.n_groups,
        "layer_norm_epsilon": module.norm.variance_epsilon,
        "time_step_limit": module.time_step_limit,
    },
    model_type="mamba2",
    prefix="backbone.layers.{layer}.mixer.",
    mark="A_log",
    defaults={
        "hidden_size": 4096,
        "num_heads": 128,
        "head_dim": 64,
        "state_size": 128,
        "n_groups": 8,
        "conv_kernel": 4,
        "layer_norm_epsilon": 1e-5,
        "use_bias": False,
        "use_conv_bias": True,
        "time_step_limit": (0.0, np.inf),
    },
    fields=frozenset(_MAMBA2_FIELDS.split()),
)


def _read_deltanet(tensors: Tensors, settings: Settings) -> GatedDeltaNet:
    expect(settings, hidden_act=("silu", "swish"))
    heads, norm = whole(settings, "linear_num_key_heads"), _norm(settings, "rms_norm_eps")
    return _cell(GatedDeltaNet.kind, tensors, _DELTANET, (), norm=norm, key_heads=heads)


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
    return settings, _tensors(cell, _DELTANET)


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
    fields=frozenset(_QWEN3_NEXT_FIELDS.split()),
)


def _read_mlstm(tensors: Tensors, settings: Settings) -> MLSTM:
    # xlstm keeps the norm's weights as what they are above 1.
    outnorm = "mlstm_cell.outnorm.weight"
    tensors = {name: 1 + tensor if name == outnorm else tensor for name, tensor in tensors.items()}
    norm = _norm({"norm_eps": 1e-5, **settings}, "norm_eps", centred=True)  # which xlstm has no setting for
    return _cell(MLSTM.kind, tensors, _MLSTM, _MLSTM_BIASES, outnorm=norm)


def _write_mlstm(cell: MLSTM) -> tuple[dict[str, Any], Tensors]:
    require_square(cell)
    blocks = {getattr(cell, f"{name}_proj").weight.shape[0] for name in "qkv"}
    if len(blocks) > 1:
        raise UnderhoodError("expected as many blocks in q_proj as in k_proj and v_proj", sorted(blocks))
    tensors = _tensors(cell, _MLSTM, _MLSTM_BIASES)
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
