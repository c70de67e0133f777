"""jamba: Mamba with norms inside, softmax attention without positions now and then, experts in every other layer."""

from __future__ import annotations

from typing import Any

from underhood.interop.bridges import positive, whole
from underhood.language.blocks import Block, Branch, Experts, Network, SoftmaxRouter
from underhood.language.families.llama import softmax_mixer
from underhood.language.families.qwen3_next import expert_matrices
from underhood.language.family import activation_of, assembled, family, gated_mlp, layers_of
from underhood.language.weights import Weights

_FIELDS = """
mamba_d_state mamba_d_conv mamba_expand mamba_dt_rank mamba_conv_bias mamba_proj_bias use_mamba_kernels
num_logits_to_keep layer_types
"""


@family(
    "jamba", _FIELDS, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
    num_key_value_heads=8, hidden_act="silu", rms_norm_eps=1e-6, vocab_size=65536, tie_word_embeddings=False,
    num_experts_per_tok=2, num_experts=16, expert_layer_period=2, expert_layer_offset=1, attn_layer_period=8,
    attn_layer_offset=4, head_dim=lambda settings: settings["hidden_size"] // settings["num_attention_heads"],
)  # fmt: skip
def read_jamba(settings: dict[str, Any], weights: Weights) -> Network:
    body, d, eps = weights.under("model"), whole(settings, "hidden_size"), positive(settings, "rms_norm_eps")

    def takes_turns(index: int, sort: str) -> bool:
        return index % whole(settings, f"{sort}_layer_period") == settings[f"{sort}_layer_offset"]

    def block(index: int) -> Block:
        layer = body.under(f"layers.{index}")
        if takes_turns(index, "attn"):
            mixer = softmax_mixer(settings, layer.under("self_attn"), rotary=False)
        else:
            mixer = layer.under("mamba").cell("JambaMambaMixer", settings)
        inner = layer.under("feed_forward")
        sparse = whole(settings, "num_experts") > 1 and takes_turns(index, "expert")
        size = whole(settings, "intermediate_size")
        mlp = _experts(settings, inner, size) if sparse else gated_mlp(settings, inner, size)
        first, second = (layer.norm(name, d, eps) for name in ("input_layernorm", "pre_ff_layernorm"))
        return Block((Branch(first, mixer), Branch(second, mlp)))

    norm = body.norm("final_layernorm", d, eps)
    return assembled(settings, weights, layers_of(settings, block), norm, body="model")


def _experts(settings: dict[str, Any], weights: Weights, size: int) -> Experts:
    d, count = whole(settings, "hidden_size"), whole(settings, "num_experts")
    most = whole(settings, "num_experts_per_tok")
    router = SoftmaxRouter(weights.sized("router.weight", count, d), most, normalised=False)
    return Experts(
        router, *expert_matrices(weights.under("experts"), count, size, d), activation=activation_of(settings)
    )
