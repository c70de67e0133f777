"""config.json of a checkpoint: what a layer reads of it is checked, what may change the layer unread is named.

A field is passed over where a bridge does not read it and it is about something else (tokens, the other layers,
training, generation), or where its value switches nothing on. Everything else might be another layer than ours.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from underhood.core.atomic import read_bytes
from underhood.core.errors import UnderhoodError
from underhood.interop.bridges import BRIDGES, UNSUPPORTED, Bridge
from underhood.interop.tensors import printable

CONFIG = "config.json"
OFF = (None, False, "", 0, [], {})  # values that switch nothing on
SHOWN = 6  # fields that an error names
# What is about something other than one recurrent layer, by the words that name it.
ELSEWHERE = re.compile(
    r"""
    _.* | model_type | architectures | (torch_)?dtype | .*version | auto_map | attribute_map | name_or_path
    | .*_kernels | .*token.* | .*vocab.* | pad_.* | .*embed.* | tie_.* | logits?_.* | .*logits?_.* | lm_head_.*
    | unk_.* | .*label.* | .*init.* | rescale_.* | .*dropout.* | .*_prob | use_bfloat16 | residual_in_fp32 | fused_.*
    | .*gradient.* | .*loss.* | use_cache | output_.* | return_.* | torchscript | pruned_heads | problem_type
    | task_specific_params | .*decod.* | finetuning_task | is_.* | add_cross_attention | chunk_.* | .*chunk_size
    | cross_attention_.* | tokenizer_class | prefix | max_.* | min_length | do_sample | early_stopping | num_beam.*
    | num_beams | temperature | top_[kp] | typical_p | .*_penalty | no_repeat_.* | bad_words_ids
    | num_return_sequences | remove_invalid_values | sep_.* | .*attn.* | .*attention.* | .*rope.* | .*rotary.*
    | sliding_window.* | .*position.* | num_key_value_heads | head_dim | .*experts?.* | .*router.* | moe_.*
    | .*_moe.* | mlp_.* | ffn_.* | .*intermediate_size | .*mlp.* | shared_.* | layer_types | layers_block_type
    | .*layers | n_layer | num_hidden_layers | .*layer_(period|offset|ids|indices|interval) | first_k_dense_.*
    | .*_layers_.* | .*layer_idx.* | quantization_config | .*vision.* | .*image.* | .*video.* | mtp_.*
    | .*mamba_?kernels | use_mambapy | use_associative_scan | .*_lora_(rank|dim) | q_lora.* | kv_lora.* | qk_.*
    | v_head_dim | .*multiple(_of)? | text_config | vision_config | .*residual_multiplier | hybrid_.* | block_types
    | .*_ratio | hidden_activation_.* | num_attention_heads | .*adapter.* | .*swiglu.* | linear_attn_config
    | scale_.*
    """,
    re.VERBOSE,
)


# What mamba_ssm calls the settings of its layers → what transformers does.
_COMMON = {"d_state": "state_size", "d_conv": "conv_kernel", "expand": "expand", "bias": "use_bias"}
_COMMON |= {"conv_bias": "use_conv_bias"}
MAMBA_SSM = {
    "Mamba1": {"model_type": "mamba", **_COMMON, "dt_rank": "time_step_rank"},
    "Mamba2": {
        "model_type": "mamba2",
        **_COMMON,
        "headdim": "head_dim",
        "ngroups": "n_groups",
        "dt_limit": "time_step_limit",
        "rmsnorm": "rms_norm",
        "chunk_size": "chunk_size",
    },
}


class Watched(dict[str, Any]):
    """Settings that remember which of them were read."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__(settings)
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.read.add(name)
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        self.read.add(str(name))
        return super().__contains__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.read.add(name)
        return super().get(name, default)


def bridge_for(path: Path, config: Mapping[str, Any]) -> Bridge:
    """The bridge for the model type that config.json names."""
    name = config.get("model_type")
    known = {model_type: bridge for bridge in BRIDGES.values() for model_type in bridge.model_types}
    bridge = known.get(name) if isinstance(name, str) else None
    if bridge is None:
        shown = printable(name) if isinstance(name, str) else name
        reason = f": {UNSUPPORTED[name]}" if isinstance(name, str) and name in UNSUPPORTED else ""
        what = f"{path}: no bridge for the model type {shown!r}{reason}"
        raise UnderhoodError(what, remedy=f"Known: {', '.join(known)}.")
    return bridge


def read_config(path: Path) -> dict[str, Any]:
    """The configuration of the text model, in the words of transformers."""
    config = json_object(path)
    if "model_type" not in config and "d_model" in config and "n_layer" in config:
        return _of_mamba_ssm(path, config)
    inner = config.get("text_config")
    if isinstance(inner, dict) and isinstance(inner.get("model_type"), str):
        return inner
    return config


def _of_mamba_ssm(path: Path, config: dict[str, Any]) -> dict[str, Any]:
    """The configuration that mamba_ssm writes, in the words of transformers."""
    layer = config.get("ssm_cfg") or {}
    if not isinstance(layer, dict):
        raise UnderhoodError(f"{path}: expected ssm_cfg to be a JSON object", type(layer).__name__)
    left = dict(layer)
    kind = left.pop("layer", "Mamba1")
    names = MAMBA_SSM.get(kind) if isinstance(kind, str) else None
    if names is None:
        raise UnderhoodError(f"{path}: expected the layer Mamba1 or Mamba2 in ssm_cfg", repr(kind))
    hidden, expand = config["d_model"], layer.get("expand", 2)
    full = {"model_type": names["model_type"], "hidden_size": hidden, "num_hidden_layers": config["n_layer"]}
    if kind == "Mamba2":
        size = layer.get("headdim", 64)
        counts = all(isinstance(one, int) and not isinstance(one, bool) and one > 0 for one in (hidden, expand, size))
        full |= {"state_size": 128, "n_groups": 1, "head_dim": size}
        full |= {"num_heads": expand * hidden // size} if counts else {}
    full |= {names[name]: left.pop(name) for name in list(left) if name in names}
    known = {"d_model", "n_layer", "ssm_cfg", "vocab_size", "rms_norm", "residual_in_fp32", "fused_add_norm"}
    known |= {"pad_vocab_size_multiple", "tie_embeddings", "attn_layer_idx", "attn_cfg", "d_intermediate"}
    others = {name: value for name, value in config.items() if name not in known}
    return {**full, **{f"ssm_cfg.{name}": value for name, value in left.items()}, **others}


def config_beside(path: Any) -> tuple[Path, dict[str, Any]] | None:
    """The config.json in a file's folder, where it is one of a model."""
    beside = Path(path).absolute().parent / CONFIG
    try:
        if not beside.is_file():
            return None
    except OSError:
        return None
    config = read_config(beside)
    return (beside, config) if isinstance(config.get("model_type"), str) else None


def with_defaults(bridge: Bridge, config: Mapping[str, Any]) -> dict[str, Any]:
    """config.json as the public class reads it: with its defaults, and its sizes that follow from others."""
    full = {**bridge.defaults, **config}
    for name, default in bridge.defaults.items():
        if callable(default) and config.get(name) in (None, "auto"):
            full[name] = default(full)
    return full


def read_layer(bridge: Bridge, tensors: dict[str, Any], config: Mapping[str, Any], path: Path, layer: int = 0) -> Any:
    """The cell, where everything that config.json says of the layer is as the tensors have it."""
    settings = Watched(with_defaults(bridge, config))
    cell = bridge.read(tensors, settings)
    told, written = bridge.write(cell)
    unread = {
        name: value
        for name, value in config.items()
        if name not in settings.read | told.keys() | bridge.ignores
        and not _is_off(value)
        and not ELSEWHERE.fullmatch(name)
    }
    if unread:
        fields = ", ".join(f"{printable(name)!r} {json.dumps(unread[name])[:60]}" for name in sorted(unread)[:SHOWN])
        more = f" and {len(unread) - SHOWN} more" if len(unread) > SHOWN else ""
        plural = "s" * (len(unread) > 1)
        what = f"{path}: unknown field{plural} {fields}{more} for the model type {config.get('model_type')}"
        raise UnderhoodError(what, remedy="Take out those that don't change what the layer computes.")
    # What the tensors say, against config.json: sizes and flags, for other settings are config.json's own.
    for name, value in told.items():
        if (
            isinstance(value, int)
            and name in settings
            and (type(settings[name]), settings[name]) != (type(value), value)
        ):
            rule = f"{path}: expected {name} {value}, as layer {layer} has it with the other settings"
            remedy = "Take the config.json that was saved with these tensors."
            raise UnderhoodError(rule, repr(settings[name]), remedy)
    missing = sorted(written.keys() - tensors.keys())
    if missing:
        raise UnderhoodError(f"no tensor {missing[0]}")
    return cell


def _is_off(value: Any) -> bool:
    return any(type(value) is type(off) and value == off for off in OFF)


def json_object(path: Path) -> dict[str, Any]:
    content = read_bytes(path)
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
        raise UnderhoodError(f"{path}: not JSON: {error}") from None
    if not isinstance(value, dict):
        raise UnderhoodError(f"{path}: expected a JSON object", type(value).__name__)
    return value
