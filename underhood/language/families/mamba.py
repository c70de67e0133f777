"""mamba and falcon_mamba: a norm and a Mamba mixer a layer, no MLP; Falcon's has norms within the mixer."""

from __future__ import annotations

from typing import Any

from underhood.interop.bridges import positive, whole
from underhood.language.blocks import Block, Branch, Network
from underhood.language.family import assembled, family, layers_of
from underhood.language.weights import Weights

_FIELDS = """
vocab_size hidden_size state_size num_hidden_layers layer_norm_epsilon expand conv_kernel use_bias use_conv_bias
hidden_act initializer_range residual_in_fp32 time_step_rank time_step_scale time_step_min time_step_max
time_step_init_scheme time_step_floor rescale_prenorm_residual use_mambapy intermediate_size use_associative_scan
d_model d_inner n_layer ssm_cfg rms_norm fused_add_norm pad_vocab_size_multiple
"""


@family(
    "mamba", _FIELDS, hidden_size=768, num_hidden_layers=32, vocab_size=50280,
    layer_norm_epsilon=1e-5, tie_word_embeddings=True,
)  # fmt: skip
@family(
    "falcon_mamba", f"{_FIELDS} mixer_rms_eps layer_types", hidden_size=4096, num_hidden_layers=64, vocab_size=50280,
    layer_norm_epsilon=1e-5, tie_word_embeddings=True,
)  # fmt: skip
def read_mamba(settings: dict[str, Any], weights: Weights) -> Network:
    body, d, eps = weights.under("backbone"), whole(settings, "hidden_size"), positive(settings, "layer_norm_epsilon")

    public = "FalconMambaMixer" if settings["model_type"] == "falcon_mamba" else "MambaMixer"

    def block(index: int) -> Block:
        layer = body.under(f"layers.{index}")
        mixer = layer.under("mixer").cell(public, settings)
        return Block((Branch(layer.norm("norm", d, eps), mixer),))

    blocks = layers_of(settings, block)
    norm = body.norm("norm_f", d, eps)
    return assembled(settings, weights, blocks, norm, body="backbone", embedding="embeddings")
