"""llama: softmax attention with rotary positions and grouped keys, then a gated MLP."""

from __future__ import annotations

from typing import Any

from underhood.interop.bridges import positive, whole
from underhood.language.blocks import Block, Branch, Network
from underhood.language.family import assembled, family, gated_mlp, layers_of, rotary_of
from underhood.language.softmax import SoftmaxMixer
from underhood.language.weights import Weights


@family(
    "llama", "attention_bias mlp_bias rope_theta rope_scaling rope_parameters",
    hidden_size=4096, intermediate_size=11008, num_hidden_layers=32, num_attention_heads=32, vocab_size=32000,
    num_key_value_heads=lambda settings: settings["num_attention_heads"],
    head_dim=lambda settings: settings["hidden_size"] // settings["num_attention_heads"],
    hidden_act="silu", rms_norm_eps=1e-6, tie_word_embeddings=False, ignored=("model.rotary_emb",),
)  # fmt: skip
def read_llama(settings: dict[str, Any], weights: Weights) -> Network:
    body, d, eps = weights.under("model"), whole(settings, "hidden_size"), positive(settings, "rms_norm_eps")

    def block(index: int) -> Block:
        layer = body.under(f"layers.{index}")
        attention = softmax_mixer(settings, layer.under("self_attn"))
        mlp = gated_mlp(settings, layer.under("mlp"), whole(settings, "intermediate_size"))
        first, second = (layer.norm(f"{name}_layernorm", d, eps) for name in ("input", "post_attention"))
        return Block((Branch(first, attention), Branch(second, mlp)))

    blocks = layers_of(settings, block)
    return assembled(settings, weights, blocks, body.norm("norm", d, eps), body="model")


def softmax_mixer(
    settings: dict[str, Any], weights: Weights, *, rotary: bool = True, scale: float | None = None, **more: Any
) -> SoftmaxMixer:
    """q_proj, k_proj, v_proj and o_proj, as most families call them."""
    d, size = whole(settings, "hidden_size"), whole(settings, "head_dim")
    heads, key_heads = whole(settings, "num_attention_heads"), whole(settings, "num_key_value_heads")
    rows = heads * size * (2 if more.get("gated") else 1)
    return SoftmaxMixer(
        weights.affine("q_proj", rows, d),
        weights.affine("k_proj", key_heads * size, d),
        weights.affine("v_proj", key_heads * size, d),
        weights.affine("o_proj", d, heads * size),
        heads=heads,
        key_heads=key_heads,
        scale=size**-0.5 if scale is None else scale,
        rotary=rotary_of(settings, size) if rotary else None,
        **more,
    )
