"""underhood-gru: a norm and a GRU between two projections a layer: the network of the paper's time, in today's blocks.

transformers has no such model; the folder has the same layout, and its tensors the names that cells of ours have.
"""

from __future__ import annotations

from typing import Any

from underhood.core.files import from_tensors
from underhood.interop.bridges import positive, whole
from underhood.language.blocks import Block, Branch, Network
from underhood.language.family import assembled, family, layers_of
from underhood.language.weights import Weights

MIXER = {
    "kind": "stack",
    "embedding": {"kind": "linear"},
    "cells": [{"kind": "gru-cell"}],
    "readout": {"kind": "linear"},
}


@family("underhood-gru", "hidden_size num_hidden_layers gru_size rms_norm_eps", tie_word_embeddings=True)
def read_gru(settings: dict[str, Any], weights: Weights) -> Network:
    body, d, eps = weights.under("model"), whole(settings, "hidden_size"), positive(settings, "rms_norm_eps")

    def block(index: int) -> Block:
        layer = body.under(f"layers.{index}")
        mixer = from_tensors(MIXER, layer.under("mixer").tensors(), f"layer {index}")
        return Block((Branch(layer.norm("norm", d, eps), mixer),))

    blocks = layers_of(settings, block)
    return assembled(settings, weights, blocks, body.norm("norm", d, eps), body="model")
