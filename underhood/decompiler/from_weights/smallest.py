"""The smallest network found for the function of another, with the change in function that it costs.

Three ways, of which the smallest result counts: prune what contributes next to nothing and express the rest
through as few as carry it (reduce_general); or, for attention, write down anew what was recovered
(reduce_attention). Merging may cost a little where weights are noisy (B.2); the readout can then be fitted again
to the network's own outputs, in closed form.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from underhood.algebra.heads import Heads
from underhood.algebra.quadratic import Array
from underhood.architectures.gated_rnn.cell import GatedRNN
from underhood.decompiler.from_weights.merge import MergedKernel, Terms
from underhood.decompiler.from_weights.neurons import Neurons, prune
from underhood.decompiler.from_weights.reading import Reading, read
from underhood.decompiler.from_weights.reduction import reduce_attention, reduce_general
from underhood.decompiler.from_weights.structure import Structure
from underhood.layers.linear import dense


@dataclass(frozen=True)
class Smallest:
    """A network of the same function; None where none smaller was found."""

    network: GatedRNN | None
    """In the block order of Figure 2.A."""
    change: float | None
    """Root mean square difference from the network's outputs, relative, on fresh sequences."""
    kernels: tuple[MergedKernel, ...] = ()
    """Of rows that write to the output alike (B.2)."""


def find_smallest(
    model: Any,
    reading: Reading,
    structure: Structure,
    heads: list[Heads],
    terms: list[Terms],
    neurons: Neurons,
    *,
    fine_tune: bool,
) -> Smallest:
    """Never more neurons than there were."""
    random = np.random.default_rng(1)
    xs, fresh = random.standard_normal((2, 16, 32, reading.d))
    candidates: list[GatedRNN] = []
    kernels: list[MergedKernel] = []
    products = None
    if isinstance(model, GatedRNN):
        gating = model.input_gating
        products = np.asarray(dense(gating.w_m), np.float64), np.asarray(dense(gating.w_x), np.float64)
        pruned, kept = _pruned(reading, neurons, structure.tolerance, xs)
        general, kernels = reduce_general(pruned, (products[0][kept], products[1][kept]))
        candidates.append(general)
    if structure.is_attention and structure.signal > 0:
        candidates.append(reduce_attention(structure, heads, terms, products))
    candidates = [one for one in candidates if one.hidden <= reading.hidden and one.pre_readout <= reading.pre_readout]
    if not candidates:
        return Smallest(None, None, tuple(kernels))
    best = min(candidates, key=lambda one: (one.hidden + one.pre_readout, one.hidden))
    if fine_tune:
        best = refit_readout_to(best, reading, xs)
    return Smallest(best, difference(read(best), reading, fresh), tuple(kernels))


def difference(network: Reading, reference: Reading, xs: Float[Array, "b t d"]) -> float:
    """Root mean square difference of the outputs, over that of the reference's outputs."""
    ys = reference(xs)
    scale = float(np.sqrt(np.mean(ys**2))) or 1.0
    return float(np.sqrt(np.mean((network(xs) - ys) ** 2))) / scale


def _pruned(reading: Reading, neurons: Neurons, tolerance: float, xs: Array) -> tuple[Reading, Array]:
    """Without the neurons that contribute less than a tenth of the tolerance, if all together stay below it."""
    hidden, rows, change = prune(reading, neurons, tolerance / 10, xs)
    if change > tolerance or not len(hidden) or not len(rows):
        return reading, np.arange(reading.hidden)
    return reading.keep(hidden, rows), hidden


def refit_readout_to(network: GatedRNN, reference: Reading, xs: Float[Array, "b t d"]) -> GatedRNN:
    """The readout for which a network comes closest to a reference on given sequences: least squares."""
    reading = read(network)
    states = reading.states(xs)
    products = ((states @ reading.left.T) * (states @ reading.right.T)).reshape(-1, reading.pre_readout)
    targets = reference(xs).reshape(-1, reference.d_out)
    scale = np.linalg.norm(products, axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    readout = (np.linalg.lstsq(products / scale, targets, rcond=None)[0] / scale[:, None]).T
    return GatedRNN(network.input_gating, network.nu, network.output_gating, readout)
