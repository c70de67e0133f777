"""f([a, b_1 … b_m])_k − f([0, b_1 … b_m])_k = Σ_g decay_g^k Θ_g(a) b_k: attention on inputs that are chosen.

What one input a, put in front of others, adds to the outputs: a matrix Θ(a) = Σ_heads (W_V a)(aᵀM) for each decay,
M = W_KᵀW_Q, of a rank that is at most the number of heads. With one b all along, the sum over k is one of
exponentials, and so tells the decays.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from jaxtyping import Float

from underhood.algebra.quadratic import Array
from underhood.algebra.theta import Theta
from underhood.decompiler.from_outputs.functions import Batched

PAIRS = 8  # of inputs a and b from which decays are read
MOST_DECAYS = 8  # more distinct decays than this, each a head of its own, are no longer an answer
FAINT = 0.3  # the least decay^k at which an input is asked for
NEARLY = 1e-6  # real, or one
TOKENS = 1 << 14  # asked for at a time


class ChosenInputs(Theta):
    """A function on inputs within a bound, made to show Θ(a); queries b are rows of a scaled orthogonal matrix."""

    def __init__(self, call: Batched, d: int, *, length: int, input_bound: float, random: np.random.Generator) -> None:
        self.call, self.d, self.length, self.input_bound, self.random = call, d, length, input_bound, random

    @cached_property
    def queries(self) -> Float[Array, "d d"]:
        return self.orthogonal()

    def orthogonal(self, share: float = 1.0) -> Float[Array, "d d"]:
        """Inputs at right angles, of the size of N(0, 1) where the bound allows it."""
        rows = np.linalg.qr(self.random.standard_normal((self.d, self.d)))[0]
        return share * rows * min(np.sqrt(self.d), self.input_bound / np.abs(rows).max())

    def normal(self, count: int, share: float = 1.0) -> Float[Array, "n d"]:
        drawn = self.random.standard_normal((count, self.d))
        return share * np.clip(drawn, -self.input_bound, self.input_bound)

    def decays(self, noise: float) -> tuple[float, ...]:
        """The decays of a sum of exponentials, from the subspace of its samples; none if it is not such a sum.

        Samples D_k = Σ_g decay_g^k c_g, with those of the next steps beside them (c_g may all point the same way), span
        as many dimensions as there are decays, and moving on by one step is a linear map in them, whose eigenvalues
        the decays are. Decay 0 leaves no trace here.
        """
        samples, largest = self._after_one
        beside = max(1, min(MOST_DECAYS, len(samples) // 2))
        windows = [samples[first : len(samples) - beside + 1 + first] for first in range(beside)]
        left, singular, _ = np.linalg.svd(np.hstack(windows), full_matrices=False)
        count = int((singular > noise * max(largest, singular.max(initial=0.0))).sum())
        if not 0 < count <= min(MOST_DECAYS, len(left) - 1):
            return ()
        vectors = left[:, :count] * singular[:count]
        step = np.linalg.lstsq(vectors[:-1], vectors[1:], rcond=None)[0]
        found = np.linalg.eigvals(step)
        if (np.abs(found.imag) > NEARLY).any() or (found.real <= 0).any() or (found.real > 1 + NEARLY).any():
            return ()
        return tuple(sorted(np.where(found.real > 1 - NEARLY, 1.0, found.real).tolist(), reverse=True))

    @cached_property
    def _after_one(self) -> tuple[Float[Array, "k n"], float]:
        """D_k of several pairs a, b, side by side; and the size of the outputs they are differences of."""
        steady = np.repeat(self.normal(PAIRS)[:, None], self.length, axis=1)
        after = steady.copy()
        steady[:, 0], after[:, 0] = 0.0, self.normal(PAIRS)
        given = self.call(after)
        samples = (given - self.call(steady))[:, 1:].transpose(1, 0, 2).reshape(self.length - 1, -1)
        return samples, float(np.linalg.norm(given))

    def responses(self, inputs: Float[Array, "n d"], decays: tuple[float, ...]) -> Float[Array, "g n d_out d"]:
        """Θ_g(a) in the coordinates of `queries`, whose columns are Θ_g(a) b_j, for each of the inputs a."""
        order = self._windows(decays)
        windows, width = order.shape
        following = self.queries[order]
        silent = self._without(order)
        parts = []
        for some in np.array_split(inputs, max(1, -(-len(inputs) * windows * (width + 1) // TOKENS))):
            xs = np.empty((len(some), windows, width + 1, self.d))
            xs[:, :, 0], xs[:, :, 1:] = some[:, None], following
            added = self.call(xs.reshape(-1, width + 1, self.d)).reshape(len(some), windows, width + 1, -1)
            parts.append(_by_decay((added - silent)[:, :, 1:], order, decays))
        return np.concatenate(parts, axis=1)

    def _without(self, order: Array) -> Array:
        xs = np.zeros((len(order), order.shape[1] + 1, self.d))
        xs[:, 1:] = self.queries[order]
        return self.call(xs)

    def _windows(self, decays: tuple[float, ...]) -> Array:
        """Which queries follow each other in a sequence: each of them once, or at every lag if decays differ."""
        most = min(self.length - 1, self.d)
        first, *others = decays
        if others:
            width, stride = min(most, max(4, 2 * len(decays))), 1
        else:
            faint = most if first == 1 else int(np.log(FAINT) / np.log(first))
            width = stride = min(most, max(1, faint))
        return (np.arange(0, self.d, stride)[:, None] + np.arange(width)) % self.d


def _by_decay(added: Float[Array, "n w m d_out"], order: Array, decays: tuple[float, ...]) -> Array:
    """Σ_g decay_g^k Θ_g(a) b_k, solved for each Θ_g(a) b_j by least squares over the lags k at which b_j came."""
    flat = added.reshape(len(added), order.size, -1)
    lags = np.tile(np.arange(1, order.shape[1] + 1), len(order))
    size = int(order.max()) + 1
    found = np.empty((len(decays), len(added), flat.shape[2], size))
    for j in range(size):
        where = np.flatnonzero(order.ravel() == j)
        solve = np.linalg.pinv(np.asarray(decays)[None] ** lags[where, None])
        found[..., j] = np.einsum("gk,nko->gno", solve, flat[:, where])
    return found
