"""mamba2: a norm and a Mamba-2 mixer a layer, no MLP; Mamba-Codestral is one."""

from __future__ import annotations

from typing import Any

import numpy as np

from underhood.interop.bridges import positive, whole
from underhood.language.blocks import Block, Branch, Network
from underhood.language.family import assembled, family, layers_of
from underhood.language.weights import Weights

_FIELDS = """
num_heads head_dim vocab_size hidden_size state_size num_hidden_layers layer_norm_epsilon expand conv_kernel n_groups
use_bias use_conv_bias hidden_act initializer_range residual_in_fp32 time_step_rank time_step_min time_step_max
time_step_floor time_step_limit rescale_prenorm_residual rms_norm chunk_size norm_before_gate
intermediate_size time_step_init_scheme time_step_scale
"""


@family(
    "mamba2", _FIELDS, hidden_size=4096, num_hidden_layers=64, vocab_size=32768, num_heads=128,
    head_dim=64, layer_norm_epsilon=1e-5, tie_word_embeddings=False, time_step_limit=(0.0, np.inf),
)  # fmt: skip
def read_mamba2(settings: dict[str, Any], weights: Weights) -> Network:
    body, d, eps = weights.under("backbone"), whole(settings, "hidden_size"), positive(settings, "layer_norm_epsilon")
    # Mamba-Codestral's config.json says norm_before_gate: true, and both its authors' code and transformers gate first.
    settings = {name: value for name, value in settings.items() if name != "norm_before_gate"}

    def block(index: int) -> Block:
        layer = body.under(f"layers.{index}")
        mixer = layer.under("mixer").cell("Mamba2Mixer", settings)
        return Block((Branch(layer.norm("norm", d, eps), mixer),))

    blocks, norm = layers_of(settings, block), body.norm("norm_f", d, eps)
    return assembled(settings, weights, blocks, norm, body="backbone", embedding="embeddings")
