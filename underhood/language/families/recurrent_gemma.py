"""recurrent_gemma: Griffin's recurrent blocks and attention within a window, two to one, each with a gated MLP."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from underhood.core.errors import UnderhoodError
from underhood.interop.bridges import positive, whole
from underhood.language.blocks import Block, Branch, Network
from underhood.language.families.llama import softmax_mixer
from underhood.language.family import assembled, family, gated_mlp, layers_of
from underhood.language.weights import Weights

_FIELDS = """
num_hidden_layers vocab_size hidden_size intermediate_size num_attention_heads lru_width head_dim
attention_window_size conv1d_width logits_soft_cap rms_norm_eps hidden_activation partial_rotary_factor rope_theta
rope_parameters block_types _block_types attention_dropout num_key_value_heads attention_bias w_init_variance_scale
final_w_init_variance_scale embeddings_scale_by_sqrt_dim
"""
_PATTERN = ("recurrent", "recurrent", "attention")


@family(
    "recurrent_gemma", _FIELDS, hidden_size=2560, num_hidden_layers=26, num_attention_heads=10,
    intermediate_size=7680, attention_window_size=2048, logits_soft_cap=30.0, rms_norm_eps=1e-6, vocab_size=256000,
    hidden_activation="gelu_pytorch_tanh", partial_rotary_factor=0.5, tie_word_embeddings=True,
    block_types=lambda settings: list(_PATTERN),
    lru_width=lambda settings: settings["hidden_size"],
    num_key_value_heads=lambda settings: settings["num_attention_heads"],
    head_dim=lambda settings: settings["hidden_size"] // settings["num_attention_heads"],
)  # fmt: skip
def read_recurrent_gemma(settings: dict[str, Any], weights: Weights) -> Network:
    body, d, eps = weights.under("model"), whole(settings, "hidden_size"), positive(settings, "rms_norm_eps")
    pattern = settings["block_types"]
    if not isinstance(pattern, list) or not pattern or not set(pattern) <= set(_PATTERN):
        raise UnderhoodError("expected block_types out of recurrent and attention", repr(pattern))

    def block(index: int) -> Block:
        layer = body.under(f"layers.{index}")
        first, second = (layer.norm(f"{name}_pre_norm", d, eps, plus_one=True) for name in ("temporal", "channel"))
        size = whole(settings, "intermediate_size") // 2
        mlp = gated_mlp(settings, layer.under("mlp_block"), size, activation="hidden_activation")
        mixer = _mixer(settings, layer.under("temporal_block"), pattern[index % len(pattern)])
        return Block((Branch(first, mixer), Branch(second, mlp)))

    blocks, norm = layers_of(settings, block), body.norm("final_norm", d, eps, plus_one=True)
    # √d as bfloat16 has it: so the public models multiply, whatever their dtype.
    scale, cap = float(ml_dtypes.bfloat16(np.sqrt(d))), positive(settings, "logits_soft_cap")
    return assembled(settings, weights, blocks, norm, body="model", embedding_scale=scale, logit_cap=cap)


def _mixer(settings: dict[str, Any], weights: Weights, kind: str) -> Any:
    if kind == "recurrent":
        return weights.cell("RecurrentGemmaRecurrentBlock", settings)
    return softmax_mixer(settings, weights, window=whole(settings, "attention_window_size"))
