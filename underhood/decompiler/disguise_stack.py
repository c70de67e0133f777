"""readout(cell(embedding(x))): the signals between the layers change, and each cell follows in its own way."""

from __future__ import annotations

import numpy as np

from underhood.architectures.stack.cell import Stack
from underhood.layers.gauge import Signal
from underhood.layers.linear import Linear


def disguise_stack(model: Stack, random: np.random.Generator) -> Stack:
    """A stack with other weights and the same function."""
    signal = Signal.random(random, model.cells[0].d)
    embedding = Linear(signal.of(model.embedding.weight), signal.of(model.embedding.bias))
    cells = []
    for cell in model.cells:
        cell, signal = cell.disguise_weights(signal, random)
        cells.append(cell)
    return Stack(embedding, tuple(cells), Linear(signal.read(model.readout.weight), np.asarray(model.readout.bias)))
