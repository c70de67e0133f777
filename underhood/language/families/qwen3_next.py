"""qwen3_next: Gated DeltaNet in most layers and gated softmax attention in the others, then a mixture of experts."""

from __future__ import annotations

from typing import Any

from underhood.core.errors import UnderhoodError
from underhood.interop.bridges import positive, whole
from underhood.language.blocks import Affine, Block, Branch, Experts, Network, SoftmaxRouter
from underhood.language.families.llama import softmax_mixer
from underhood.language.family import activation_of, assembled, family, gated_mlp, layers_of
from underhood.language.weights import Weights

_FIELDS = """
vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads hidden_act
max_position_embeddings initializer_range rms_norm_eps rope_parameters rope_theta rope_scaling partial_rotary_factor
attention_bias attention_dropout head_dim linear_conv_kernel_dim linear_key_head_dim linear_value_head_dim
linear_num_key_heads linear_num_value_heads decoder_sparse_step moe_intermediate_size shared_expert_intermediate_size
num_experts_per_tok num_experts norm_topk_prob output_router_logits router_aux_loss_coef mlp_only_layers layer_types
full_attention_interval
"""


def layer_types(settings: dict[str, Any]) -> list[str]:
    """Softmax attention in every fourth layer, or as often as config.json says."""
    every = settings.get("full_attention_interval") or 4
    layers = range(whole(settings, "num_hidden_layers"))
    return ["linear_attention" if (index + 1) % every else "full_attention" for index in layers]


@family(
    "qwen3_next", _FIELDS, hidden_size=2048, intermediate_size=5632, num_hidden_layers=48,
    num_attention_heads=16, num_key_value_heads=2, head_dim=256, hidden_act="silu", rms_norm_eps=1e-6,
    vocab_size=151936, partial_rotary_factor=0.25, tie_word_embeddings=False, layer_types=layer_types,
    decoder_sparse_step=1, moe_intermediate_size=512, shared_expert_intermediate_size=512, num_experts_per_tok=10,
    num_experts=512, norm_topk_prob=True, mlp_only_layers=lambda settings: [], ignored=("mtp.",),
)  # fmt: skip
def read_qwen3_next(settings: dict[str, Any], weights: Weights) -> Network:
    body, d, eps = weights.under("model"), whole(settings, "hidden_size"), positive(settings, "rms_norm_eps")

    def block(index: int) -> Block:
        layer = body.under(f"layers.{index}")
        names = ("input_layernorm", "post_attention_layernorm")
        first, second = (layer.norm(name, d, eps, plus_one=True) for name in names)
        return Block((Branch(first, _mixer(settings, layer, index)), Branch(second, _mlp(settings, layer, index))))

    blocks = layers_of(settings, block)
    return assembled(settings, weights, blocks, body.norm("norm", d, eps, plus_one=True), body="model")


def _mixer(settings: dict[str, Any], layer: Weights, index: int) -> Any:
    kinds = settings["layer_types"]
    if not isinstance(kinds, list) or len(kinds) != whole(settings, "num_hidden_layers"):
        raise UnderhoodError("expected layer_types with one entry for each layer", repr(kinds))
    if kinds[index] == "linear_attention":
        return layer.under("linear_attn").cell("Qwen3NextGatedDeltaNet", settings)
    return normed_attention(settings, layer.under("self_attn"))


def normed_attention(settings: dict[str, Any], weights: Weights) -> Any:
    """Softmax attention with norms of queries and keys and a gate on its outputs."""
    size, eps = whole(settings, "head_dim"), positive(settings, "rms_norm_eps")
    q_norm, k_norm = (weights.norm(name, size, eps, plus_one=True) for name in ("q_norm", "k_norm"))
    return softmax_mixer(settings, weights, gated=True, q_norm=q_norm, k_norm=k_norm)


def _mlp(settings: dict[str, Any], layer: Weights, index: int) -> Any:
    weights, experts = layer.under("mlp"), settings["num_experts"]
    sparse = experts and index not in settings["mlp_only_layers"]
    if not sparse or (index + 1) % whole(settings, "decoder_sparse_step"):
        return gated_mlp(settings, weights, whole(settings, "intermediate_size"))
    return shared_experts(settings, weights)


def shared_experts(settings: dict[str, Any], weights: Weights) -> Experts:
    """A few of many experts, and a gated one that is always there."""
    d, count, size = (whole(settings, name) for name in ("hidden_size", "num_experts", "moe_intermediate_size"))
    shared = whole(settings, "shared_expert_intermediate_size")
    router = SoftmaxRouter(
        weights.sized("gate.weight", count, d), whole(settings, "num_experts_per_tok"), settings["norm_topk_prob"]
    )
    up, down = expert_matrices(weights.under("experts"), count, size, d)
    return Experts(
        router,
        up,
        down,
        gated_mlp(settings, weights.under("shared_expert"), shared),
        Affine(weights.sized("shared_expert_gate.weight", 1, d)),
        activation_of(settings),
    )


def expert_matrices(weights: Weights, count: int, size: int, d: int) -> tuple[Any, Any]:
    """Of all experts: stacked as transformers keeps them in memory, or one by one as it writes them."""
    from underhood.language.weights import stacked

    if "gate_up_proj" in weights:
        return weights.sized("gate_up_proj", count, 2 * size, d), weights.sized("down_proj", count, d, size)
    import jax.numpy as jnp

    experts = [weights.under(str(index)) for index in range(count)]
    up = [jnp.concatenate([one.sized(f"{name}_proj.weight", size, d) for name in ("gate", "up")]) for one in experts]
    return stacked(up), stacked(one.sized("down_proj.weight", d, size) for one in experts)
