"""qwen3_5: as qwen3_next without experts, its projections apart, and beside it a model of pictures, left out."""

from __future__ import annotations

from typing import Any

from underhood.interop.bridges import positive, whole
from underhood.language.blocks import Block, Branch, Network
from underhood.language.families.qwen3_next import layer_types, normed_attention
from underhood.language.family import assembled, family, gated_mlp, layers_of
from underhood.language.weights import Weights

_FIELDS = """
linear_conv_kernel_dim linear_key_head_dim linear_value_head_dim linear_num_key_heads linear_num_value_heads
attention_bias rope_theta rope_parameters rope_scaling full_attention_interval vision_config image_token_id
video_token_id vision_start_token_id vision_end_token_id output_gate_type attn_output_gate mtp_num_hidden_layers
mtp_use_dedicated_embeddings mamba_ssm_dtype
"""
_SIZES: dict[str, Any] = {
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 32,
    "vocab_size": 248320,
}
_SIZES |= {"num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 256, "hidden_act": "silu"}
_SIZES |= {"rms_norm_eps": 1e-6, "partial_rotary_factor": 0.25, "tie_word_embeddings": False}
_PICTURES = ("mtp.", "model.visual.", "visual.")


@family("qwen3_5_text", _FIELDS, **_SIZES, layer_types=layer_types, ignored=_PICTURES)
@family("qwen3_5", _FIELDS, **_SIZES, layer_types=layer_types, ignored=_PICTURES, text="text_config")
def read_qwen3_5(settings: dict[str, Any], weights: Weights) -> Network:
    where = "model.language_model" if "model.language_model.embed_tokens.weight" in weights else "model"
    body, d, eps = weights.under(where), whole(settings, "hidden_size"), positive(settings, "rms_norm_eps")

    def block(index: int) -> Block:
        layer = body.under(f"layers.{index}")
        if settings["layer_types"][index] == "linear_attention":
            mixer = layer.under("linear_attn").cell("Qwen3_5GatedDeltaNet", settings)
        else:
            mixer = normed_attention(settings, layer.under("self_attn"))
        names = ("input_layernorm", "post_attention_layernorm")
        first, second = (layer.norm(name, d, eps, plus_one=True) for name in names)
        mlp = gated_mlp(settings, layer.under("mlp"), whole(settings, "intermediate_size"))
        return Block((Branch(first, mixer), Branch(second, mlp)))

    blocks = layers_of(settings, block)
    return assembled(settings, weights, blocks, body.norm("norm", d, eps, plus_one=True), body=where)
