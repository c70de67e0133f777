"""bamba and falcon_h1: Mamba-2 and softmax attention, in turn or side by side, then a gated MLP."""

from __future__ import annotations

from typing import Any

import numpy as np

from underhood.core.errors import UnderhoodError
from underhood.interop.bridges import positive, whole
from underhood.language.blocks import Block, Branch, GatedMLP, Network
from underhood.language.families.llama import softmax_mixer
from underhood.language.family import activation_of, assembled, family, layers_of
from underhood.language.softmax import SideBySide
from underhood.language.weights import Weights

_FIELDS = """
mamba_n_heads mamba_d_head mamba_n_groups mamba_d_state mamba_d_conv mamba_expand mamba_chunk_size mamba_conv_bias
mamba_proj_bias attention_bias mlp_bias rope_theta rope_parameters rope_scaling attn_layer_indices z_loss_coefficient
attn_rotary_emb layer_types time_step_limit
"""
_FALCON_FIELDS = f"{_FIELDS} mamba_d_ssm mamba_norm_before_gate mamba_rms_norm projectors_bias mamba_use_mlp head_dim"
_ATTENTION = {
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": lambda settings: settings["hidden_size"] // settings["num_attention_heads"],
}
_SIZES = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "vocab_size": 128000}
_SIZES |= {"hidden_act": "silu", "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "time_step_limit": (0.0, np.inf)}


@family("bamba", _FIELDS, **_SIZES, **_ATTENTION)
def read_bamba(settings: dict[str, Any], weights: Weights) -> Network:
    body, d, eps = weights.under("model"), whole(settings, "hidden_size"), positive(settings, "rms_norm_eps")
    # Half of the channels turn, whatever config.json says.
    rope = {**(settings.get("rope_parameters") or {}), "partial_rotary_factor": 0.5}
    settings = {**settings, "rope_parameters": rope}
    softmax = settings.get("attn_layer_indices") or []

    def block(index: int) -> Block:
        layer = body.under(f"layers.{index}")
        if index in softmax:
            mixer = softmax_mixer(settings, layer.under("self_attn"))
        else:
            mixer = layer.under("mamba").cell("BambaMixer", settings)
        first, second = (layer.norm(name, d, eps) for name in ("input_layernorm", "pre_ff_layernorm"))
        return Block((Branch(first, mixer), Branch(second, _mlp(settings, layer.under("feed_forward")))))

    norm = body.norm("final_layernorm", d, eps)
    return assembled(settings, weights, layers_of(settings, block), norm, body="model")


@family(
    "falcon_h1", _FALCON_FIELDS, **_SIZES, **_ATTENTION, lm_head_multiplier=1.0, embedding_multiplier=1.0,
    mlp_multipliers=(1.0, 1.0), key_multiplier=1.0, attention_out_multiplier=1.0, attention_in_multiplier=1.0,
    ssm_multipliers=(1.0, 1.0, 1.0, 1.0, 1.0), ssm_in_multiplier=1.0, ssm_out_multiplier=1.0,
)  # fmt: skip
def read_falcon_h1(settings: dict[str, Any], weights: Weights) -> Network:
    body, d, eps = weights.under("model"), whole(settings, "hidden_size"), positive(settings, "rms_norm_eps")
    names = ("ssm_out_multiplier", "attention_in_multiplier", "attention_out_multiplier", "key_multiplier")
    state_out, entering, leaving, keys = (float(settings[name]) for name in names)

    def block(index: int) -> Block:
        layer = body.under(f"layers.{index}")
        state_space = layer.under("mamba").cell("FalconH1Mixer", settings)
        attention = softmax_mixer(settings, layer.under("self_attn"), key_scale=keys)
        both = SideBySide((state_space, attention), (1.0, entering), (state_out, leaving))
        first, second = (layer.norm(name, d, eps) for name in ("input_layernorm", "pre_ff_layernorm"))
        return Block((Branch(first, both), Branch(second, _mlp(settings, layer.under("feed_forward")))))

    blocks, norm = layers_of(settings, block), body.norm("final_layernorm", d, eps)
    return assembled(
        settings,
        weights,
        blocks,
        norm,
        body="model",
        embedding_scale=float(settings["embedding_multiplier"]),
        logit_scale=float(settings["lm_head_multiplier"]),
    )


def _mlp(settings: dict[str, Any], weights: Weights) -> GatedMLP:
    d, size = whole(settings, "hidden_size"), whole(settings, "intermediate_size")
    multipliers = settings.get("mlp_multipliers", (1.0, 1.0))
    if not isinstance(multipliers, list | tuple) or len(multipliers) != 2:
        raise UnderhoodError("expected two mlp_multipliers", repr(multipliers))
    gate, up = (weights.affine(f"{name}_proj", size, d) for name in ("gate", "up"))
    down = weights.affine("down_proj", d, size)
    return GatedMLP(gate, up, down, activation_of(settings), float(multipliers[0]), float(multipliers[1]))
