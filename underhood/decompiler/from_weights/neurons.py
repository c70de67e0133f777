"""λ = 1: a perfect memory neuron. λ = 0: a perfect forget neuron. Contribution: what its removal changes.

Section 3.1 removes the neurons whose weights are all zero. Weights alone mislead: a neuron with large weights
may be read by nobody, and a small one may hold a large state. So a contribution is measured on the output,
with the states as large as they really get on sequences N(0, 1).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from underhood.algebra.quadratic import Array
from underhood.architectures.gated_rnn.cell import GatedRNN, Gating
from underhood.decompiler.from_weights.reading import Reading
from underhood.layers.linear import dense

MOST_OUTPUTS = 16
NEAR = 1e-3  # a λ this close to 0 or 1 is called perfect; what the difference does is in the certificate


@dataclass(frozen=True)
class Neurons:
    """The hidden neurons of one network."""

    lambda_: Float[Array, " n"]
    state: Float[Array, " n"]  # root mean square of h_i
    contribution: Float[Array, " n"]  # root mean square change of the output without neuron i, relative
    row_contribution: Float[Array, " m"]  # the same for the pre-readout neurons

    @property
    def perfect_memory(self) -> Bool[Array, " n"]:
        return self.lambda_ > 1 - NEAR

    @property
    def perfect_forget(self) -> Bool[Array, " n"]:
        return np.abs(self.lambda_) < NEAR

    def needed(self, tolerance: float) -> Bool[Array, " n"]:
        return self.contribution > tolerance

    def order(self, tolerance: float = 1e-9) -> Array:
        """The permutation of Figure 2.A: memory, forget, the others, then the useless; the weightiest first."""
        block = np.where(self.perfect_memory, 0, np.where(self.perfect_forget, 1, 2))
        block = np.where(self.needed(tolerance), block, 3)
        return np.lexsort((-self.contribution, block))


def study_neurons(reading: Reading, xs: Float[Array, "b t d"]) -> Neurons:
    """Sizes and contributions on the given sequences."""
    states = reading.states(xs)
    ys = reading(xs)
    scale = float(np.sqrt(np.mean(ys**2))) or 1.0
    rows = (states @ reading.left.T) * (states @ reading.right.T)
    row_size = np.sqrt(np.mean(np.abs(rows) ** 2, axis=(0, 1)))
    return Neurons(
        np.real(reading.lambda_),
        np.sqrt(np.mean(np.abs(states) ** 2, axis=(0, 1))),
        contributions(reading, xs) / scale,
        row_size * np.sqrt(np.mean(reading.readout**2, axis=0)) / scale,
    )


def contributions(reading: Reading, xs: Float[Array, "b t d"]) -> Float[Array, " n"]:
    """Root mean square of y − y without neuron i, for every i at once.

    With h_i taken out, (l·h)(r·h) changes by h_i (l_i r·h + r_i l·h) − h_i² l_i r_i: two matrix products an output.
    Many outputs count through as many random sums of them as are enough for the size of a contribution.
    """
    states = reading.states(xs).reshape(xs.shape[0] * xs.shape[1], reading.hidden)
    left, right = states @ reading.left.T, states @ reading.right.T
    total, readout = np.zeros(reading.hidden), reading.readout
    if reading.d_out > MOST_OUTPUTS:
        mixing = np.random.default_rng(0).standard_normal((MOST_OUTPUTS, reading.d_out))
        readout = mixing @ readout / np.sqrt(MOST_OUTPUTS)
    for row in readout:
        linear = (right * row) @ reading.left + (left * row) @ reading.right
        square = np.einsum("m,mn,mn->n", row, reading.left, reading.right)
        total += np.mean(np.abs(states * linear - states**2 * square) ** 2, axis=0)
    return np.sqrt(total / reading.d_out)


def prune(reading: Reading, neurons: Neurons, tolerance: float, xs: Array) -> tuple[Array, Array, float]:
    """Hidden and pre-readout neurons to keep, and the relative change of the function without the others."""
    hidden = np.flatnonzero(neurons.needed(tolerance))
    rows = np.flatnonzero(neurons.row_contribution > tolerance)
    smaller = reading.keep(hidden, rows)
    ys = reading(xs)
    scale = float(np.sqrt(np.mean(ys**2))) or 1.0
    return hidden, rows, float(np.sqrt(np.mean((ys - smaller(xs)) ** 2))) / scale


def survivors(network: GatedRNN, neurons: Neurons, share: float) -> GatedRNN:
    """The neurons that carry more than `share` of the output, with the weights they have.

    Nothing is solved anew. They are permuted into the blocks of Figure 2.A, and a row whose second factor reads the
    memory has its factors swapped, which leaves their product as it is.
    """
    order = [i for i in neurons.order(share) if neurons.contribution[i] > share]
    rows = np.flatnonzero(neurons.row_contribution > share)
    gating, out = network.input_gating, network.output_gating
    first, second = (np.asarray(dense(w), np.float64)[np.ix_(rows, order)] for w in (out.w_m, out.w_x))
    memory = neurons.perfect_memory[order]
    swapped = np.abs(first[:, memory]).sum(axis=1) < np.abs(second[:, memory]).sum(axis=1)
    first, second = np.where(swapped[:, None], second, first), np.where(swapped[:, None], first, second)
    by_memory = np.lexsort((np.abs(second).argmax(axis=1), np.abs(first).argmax(axis=1)))
    inputs = (np.asarray(dense(w), np.float64)[order] for w in (gating.w_m, gating.w_x))
    readout = np.asarray(dense(network.readout), np.float64)[:, rows[by_memory]]
    nu = np.asarray(network.nu, np.float64)[order]
    return GatedRNN(Gating(*inputs), nu, Gating(first[by_memory], second[by_memory]), readout)
