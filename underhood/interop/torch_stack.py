"""A stack whose layers are public torch modules: embedding → layers → readout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from underhood.architectures.stack.cell import Stack
from underhood.layers.linear import Linear, densified


class TorchStack(torch.nn.Module):
    """One sequence (t, d) or a batch (b, t, d) to outputs, through modules that take batches."""

    def __init__(self, model: Stack, layers: list[tuple[torch.nn.Module, Callable[..., Any]]]) -> None:
        super().__init__()
        model = densified(model)
        self.embedding = _linear(model.embedding)
        self.layers = torch.nn.ModuleList([layer for layer, _ in layers])
        self.readout = _linear(model.readout)
        self._runs = [run for _, run in layers]

    def forward(self, xs: torch.Tensor) -> torch.Tensor:
        signal = self.embedding(xs if xs.ndim == 3 else xs[None])
        for layer, run in zip(self.layers, self._runs, strict=True):
            signal = run(layer, signal)
        ys = self.readout(signal)
        return ys if xs.ndim == 3 else ys[0]


def _linear(linear: Linear) -> torch.nn.Linear:
    weight, bias = torch.from_numpy(np.array(linear.weight)), torch.from_numpy(np.array(linear.bias))
    layer = torch.nn.Linear(weight.shape[1], weight.shape[0], dtype=weight.dtype)
    layer.load_state_dict({"weight": weight, "bias": bias})
    return layer
