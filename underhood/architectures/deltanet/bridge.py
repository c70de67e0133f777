"""Gated DeltaNet ↔ the layers of transformers that compute it: Qwen3-Next, Qwen3.5, Qwen4, OLMo Hybrid.

Qwen3-Next has the rows of each head of keys together; the others have a matrix for each of q, k, v, z, b and a.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from underhood.architectures.deltanet.cell import GatedDeltaNet
from underhood.core.errors import UnderhoodError
from underhood.interop.bridges import (
    KERNEL,
    MATRIX,
    VECTOR,
    Settings,
    Shape,
    bridge,
    expect,
    named_tensors,
    needed,
    norm_settings,
    positive,
    public_layer,
    public_module,
    read_cell,
    require_square,
    take,
    whole,
)
from underhood.interop.tensors import Tensors
from underhood.layers.convolution import Convolution
from underhood.layers.norm import Norm
from underhood.layers.projection import Projection

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
    if cell.most_written != 1 or cell.gate != "silu":
        got = f"most_written={cell.most_written}, gate={cell.gate!r}"
        raise UnderhoodError("expected most_written 1 and the gate silu for the public layer", got)
    return _settings_of(cell), named_tensors(cell, _DELTANET)


def _settings_of(cell: GatedDeltaNet) -> dict[str, Any]:
    require_square(cell)
    return {
        "hidden_size": cell.d,
        "linear_num_key_heads": cell.key_heads,
        "linear_num_value_heads": cell.heads,
        "linear_key_head_dim": cell.d_key,
        "linear_value_head_dim": cell.d_value,
        "linear_conv_kernel_dim": cell.conv1d.width,
        "rms_norm_eps": cell.norm.eps,
    }


def _build_deltanet(settings: Settings) -> Any:
    public = public_module("transformers.models.qwen3_next.modeling_qwen3_next")
    config = public.Qwen3NextConfig(**settings, num_hidden_layers=1, layer_types=["linear_attention"], vocab_size=1)
    return public.Qwen3NextGatedDeltaNet(config, 0)


_DEFAULTS = {
    "hidden_size": 2048,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "rms_norm_eps": 1e-6,
}

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
    defaults=_DEFAULTS,
)


def _separate(names: dict[str, str], norm: str, out: str) -> dict[str, Shape]:
    matrices = {f"{name}.weight": MATRIX for name in (*names.values(), out)}
    return {
        **matrices,
        "conv1d.weight": KERNEL,
        "dt_bias": VECTOR,
        "A_log": VECTOR,
        f"{norm}.weight": VECTOR,
    }


def _joined(
    given: Tensors, settings: Settings, names: dict[str, str], norm: str, out: str, eps: float, **options: Any
) -> GatedDeltaNet:
    """The cell out of a matrix for each of q, k, v, z, b and a, or for q, k and v together (`qkv`)."""
    given = take(given, _separate(names, norm, out))
    heads, values = len(given["A_log"]), len(given["A_log"]) * len(given[f"{norm}.weight"])
    key_heads = whole(settings, "linear_num_key_heads")
    if heads % key_heads:
        raise UnderhoodError(f"expected linear_num_key_heads that divide {heads} heads", key_heads)
    matrix = {name: given[f"{public}.weight"] for name, public in names.items()}
    if "qkv" in matrix:
        keys = (len(matrix["qkv"]) - values) // 2
        matrix["q"], matrix["k"], matrix["v"] = np.split(matrix.pop("qkv"), (keys, 2 * keys))
    for name, rows in {"k": len(matrix["q"]), "v": values, "z": values, "b": heads, "a": heads}.items():
        if len(matrix[name]) != rows or len(matrix["q"]) % key_heads:
            raise UnderhoodError(f"expected {rows} rows of {name} for {heads} heads", len(matrix[name]))

    def by_key_head(*parts: str) -> np.ndarray:
        blocks = [matrix[part].reshape(key_heads, -1, matrix[part].shape[1]) for part in parts]
        return np.concatenate(blocks, axis=1).reshape(-1, blocks[0].shape[2])

    return GatedDeltaNet(
        in_proj_qkvz=Projection(by_key_head("q", "k", "v", "z")),
        in_proj_ba=Projection(by_key_head("b", "a")),
        conv1d=Convolution(given["conv1d.weight"][:, 0]),
        dt_bias=given["dt_bias"],
        A_log=given["A_log"],
        norm=Norm(given[f"{norm}.weight"], eps=eps),
        out_proj=Projection(given[f"{out}.weight"]),
        key_heads=key_heads,
        **options,
    )


def _parted(cell: GatedDeltaNet, names: dict[str, str], norm: str, out: str) -> Tensors:
    """The inverse."""
    keys, values = cell.d_key, cell.heads // cell.key_heads * cell.d_value
    each = cell.heads // cell.key_heads

    def rows(projection: Projection, sizes: dict[str, int]) -> dict[str, np.ndarray]:
        blocks = np.asarray(projection.weight).reshape(cell.key_heads, -1, cell.d)
        parts = np.split(blocks, np.cumsum(list(sizes.values()))[:-1], axis=1)
        return {name: part.reshape(-1, cell.d) for name, part in zip(sizes, parts, strict=True)}

    matrix = rows(cell.in_proj_qkvz, {"q": keys, "k": keys, "v": values, "z": values})
    matrix |= rows(cell.in_proj_ba, {"b": each, "a": each})
    if "qkv" in names:
        matrix["qkv"] = np.concatenate([matrix[name] for name in "qkv"])
    if cell.norm.bias is not None or cell.conv1d.bias is not None or cell.out_proj.bias is not None:
        raise UnderhoodError("expected a Gated DeltaNet without biases for the public layer", "one with biases")
    return {
        **{f"{public}.weight": matrix[name] for name, public in names.items()},
        f"{out}.weight": np.asarray(cell.out_proj.weight),
        f"{norm}.weight": np.asarray(cell.norm.weight),
        "conv1d.weight": np.asarray(cell.conv1d.weight)[:, None],
        "dt_bias": np.asarray(cell.dt_bias),
        "A_log": np.asarray(cell.A_log),
    }


_QWEN3_5 = {"qkv": "in_proj_qkv", "z": "in_proj_z", "b": "in_proj_b", "a": "in_proj_a"}
_OLMO = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "z": "g_proj", "b": "b_proj", "a": "a_proj"}
_OLMO_EPS = 1e-5  # of its norm, which has no setting


def _qwen(
    module: str, layer: str, config: str, model_type: str, prefix: str, *, gates: bool = False, **more: Any
) -> None:
    """Qwen3.5 and later; `gates`: whether the function of the gate is a setting, `output_gate_type`."""

    def read(tensors: Tensors, settings: Settings) -> GatedDeltaNet:
        expect(settings, hidden_act=("silu", "swish"))
        gate = settings.get("output_gate_type") if gates else None
        expect({"output_gate_type": gate}, output_gate_type=(None, "silu", "swish", "sigmoid"))
        options = {"gate": "sigmoid"} if gate == "sigmoid" else {}
        eps = positive(settings, "rms_norm_eps")
        return _joined(tensors, settings, _QWEN3_5, "norm", "out_proj", eps, **options)

    def write(cell: GatedDeltaNet) -> tuple[dict[str, Any], Tensors]:
        if cell.most_written != 1 or not (gates or cell.gate == "silu"):
            got = f"most_written={cell.most_written}, gate={cell.gate!r}"
            raise UnderhoodError(f"expected most_written 1 and the gate silu for {layer}", got)
        said = {"output_gate_type": cell.gate} if gates and cell.gate != "silu" else {}
        return {**_settings_of(cell), **said}, _parted(cell, _QWEN3_5, "norm", "out_proj")

    def describe(found: Any) -> dict[str, Any]:
        said = {"output_gate_type": found.norm.activation} if gates else {}
        names = {"linear_num_key_heads": found.num_k_heads, "rms_norm_eps": found.norm.variance_epsilon}
        return {"hidden_act": found.activation, **names, **said}

    bridge(
        f"transformers.models.{module}.{layer}",
        kind=GatedDeltaNet.kind,
        read=read,
        write=write,
        build=lambda settings: public_layer(
            module, config, layer, settings, num_hidden_layers=1, vocab_size=1, layer_types=["linear_attention"]
        ),
        describe=describe,
        model_type=model_type,
        prefix=prefix,
        mark="A_log",
        defaults={**_DEFAULTS, **more},
    )


_PLACES = "model.layers.{layer}.linear_attn. model.language_model.layers.{layer}.linear_attn."
_qwen(
    *("qwen3_5.modeling_qwen3_5", "Qwen3_5GatedDeltaNet", "Qwen3_5TextConfig", "qwen3_5_text qwen3_5", _PLACES),
    hidden_size=4096,
)
_qwen(
    *("qwen3_5_moe.modeling_qwen3_5_moe", "Qwen3_5MoeGatedDeltaNet", "Qwen3_5MoeTextConfig"),
    *("qwen3_5_moe_text qwen3_5_moe", _PLACES),
)
_qwen(
    *("qwen4_exp.modeling_qwen4_exp", "Qwen4ExpTextGatedDeltaNet", "Qwen4ExpTextConfig"),
    *("qwen4_exp_text qwen4_exp", _PLACES),
    gates=True,
)


def _read_olmo(tensors: Tensors, settings: Settings) -> GatedDeltaNet:
    expect(settings, hidden_act=("silu", "swish"))
    reflects = needed(settings, "linear_allow_neg_eigval")
    if not isinstance(reflects, bool):
        raise UnderhoodError("expected the setting linear_allow_neg_eigval to be true or false", repr(reflects))
    options = {"most_written": 2.0} if reflects else {}
    return _joined(tensors, settings, _OLMO, "o_norm", "o_proj", _OLMO_EPS, **options)


def _write_olmo(cell: GatedDeltaNet) -> tuple[dict[str, Any], Tensors]:
    if cell.most_written not in (1, 2) or cell.gate != "silu" or cell.norm.eps != _OLMO_EPS:
        got = f"most_written={cell.most_written}, gate={cell.gate!r}, eps={cell.norm.eps}"
        raise UnderhoodError(f"expected most_written 1 or 2, the gate silu and eps {_OLMO_EPS} for OLMo Hybrid", got)
    settings = {name: value for name, value in _settings_of(cell).items() if name != "rms_norm_eps"}
    settings["linear_allow_neg_eigval"] = cell.most_written == 2
    return settings, _parted(cell, _OLMO, "o_norm", "o_proj")


bridge(
    "transformers.models.olmo_hybrid.modeling_olmo_hybrid.OlmoHybridGatedDeltaNet",
    kind=GatedDeltaNet.kind,
    read=_read_olmo,
    write=_write_olmo,
    build=lambda settings: public_layer(
        "olmo_hybrid.modeling_olmo_hybrid",
        "OlmoHybridConfig",
        "OlmoHybridGatedDeltaNet",
        settings,
        num_hidden_layers=2,
        vocab_size=1,
        layer_types=["linear_attention", "full_attention"],
    ),
    describe=lambda module: {
        "hidden_act": module.activation,
        "linear_num_key_heads": module.num_k_heads,
        "linear_allow_neg_eigval": module.allow_neg_eigval,
    },
    model_type="olmo_hybrid",
    prefix="model.layers.{layer}.linear_attn.",
    mark="A_log",
    ignores="rms_norm_eps linear_a_log_min linear_a_log_max linear_dt_min linear_dt_max linear_dt_init_floor",
    defaults={
        "hidden_size": 3840,
        "linear_num_key_heads": 30,
        "linear_num_value_heads": 30,
        "linear_key_head_dim": 96,
        "linear_value_head_dim": 192,
        "linear_conv_kernel_dim": 4,
        "linear_allow_neg_eigval": True,
    },
)
