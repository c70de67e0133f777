"""granitemoehybrid: Mamba-2 and softmax attention in turn, a shared MLP with or without experts beside it, scaled."""

from __future__ import annotations

from typing import Any

import numpy as np

from underhood.core.errors import UnderhoodError
from underhood.interop.bridges import positive, whole
from underhood.language.blocks import Affine, Block, Branch, Experts, GatedMLP, Network, TopRouter
from underhood.language.families.llama import softmax_mixer
from underhood.language.family import activation_of, assembled, family, layers_of
from underhood.language.weights import Weights

_FIELDS = """
mamba_n_heads mamba_d_head mamba_n_groups mamba_d_state mamba_d_conv mamba_expand mamba_chunk_size mamba_conv_bias
mamba_proj_bias attention_bias rope_theta rope_parameters rope_scaling time_step_limit layers_block_type
normalization_function init_method shared_intermediate_size
"""


@family(
    "granitemoehybrid", _FIELDS, hidden_size=4096, intermediate_size=11008, num_hidden_layers=32, vocab_size=32000,
    num_attention_heads=32, hidden_act="silu", rms_norm_eps=1e-6, tie_word_embeddings=False, embedding_multiplier=1.0,
    logits_scaling=1.0, residual_multiplier=1.0, attention_multiplier=1.0, num_local_experts=8, num_experts_per_tok=2,
    shared_intermediate_size=1024, position_embedding_type=lambda settings: "nope", time_step_limit=(0.0, np.inf),
    layer_types=lambda settings: settings.get("layers_block_type") or settings["num_hidden_layers"] * ["mamba"],
    num_key_value_heads=lambda settings: settings["num_attention_heads"],
    head_dim=lambda settings: settings["hidden_size"] // settings["num_attention_heads"],
)  # fmt: skip
def read_granite(settings: dict[str, Any], weights: Weights) -> Network:
    body, d, eps = weights.under("model"), whole(settings, "hidden_size"), positive(settings, "rms_norm_eps")
    kinds, scale = settings["layer_types"], positive(settings, "residual_multiplier")
    if len(kinds) != whole(settings, "num_hidden_layers"):
        raise UnderhoodError("expected layer_types with one entry for each layer", repr(kinds))
    rotary = settings["position_embedding_type"] == "rope"

    def block(index: int) -> Block:
        layer = body.under(f"layers.{index}")
        if kinds[index] in ("mamba", "linear_attention"):
            mixer = layer.under("mamba").cell("GraniteMoeHybridMambaLayer", settings)
        else:
            size = positive(settings, "attention_multiplier")
            mixer = softmax_mixer(settings, layer.under("self_attn"), rotary=rotary, scale=size)
        first, second = (layer.norm(name, d, eps) for name in ("input_layernorm", "post_attention_layernorm"))
        return Block((Branch(first, mixer, scale=scale), Branch(second, _mlp(settings, layer), scale=scale)))

    blocks, norm = layers_of(settings, block), body.norm("norm", d, eps)
    return assembled(
        settings,
        weights,
        blocks,
        norm,
        body="model",
        embedding_scale=positive(settings, "embedding_multiplier"),
        logit_scale=1 / positive(settings, "logits_scaling"),
    )


def _mlp(settings: dict[str, Any], layer: Weights) -> Any:
    d, size = whole(settings, "hidden_size"), whole(settings, "shared_intermediate_size")
    inner = layer.under("shared_mlp")
    both, activation = inner.sized("input_linear.weight", 2 * size, d), activation_of(settings)
    shared = GatedMLP(Affine(both[:size]), Affine(both[size:]), inner.affine("output_linear", d, size), activation)
    count = settings["num_local_experts"]
    if not count:
        return shared
    experts, size = layer.under("block_sparse_moe"), whole(settings, "intermediate_size")
    if "experts.gate_up_proj" in experts:
        up = experts.sized("experts.gate_up_proj", count, 2 * size, d)
        down = experts.sized("experts.down_proj", count, d, size)
    else:
        up = experts.sized("input_linear.weight", count, 2 * size, d)
        down = experts.sized("output_linear.weight", count, d, size)
    name = "router.layer.weight" if "router.layer.weight" in experts else "router.weight"
    router = TopRouter(experts.sized(name, count, d), whole(settings, "num_experts_per_tok"))
    return Experts(router, up, down, shared, activation=activation)
