"""y = Dᵀ((A s) ⊙ (B φ)), one branch of the output gating at a time: linear least squares, no Gauss–Newton matrix.

s = Σ_{s≤t} x̃x̃ᵀ is the past and φ = x̃_t x̃_tᵀ the present, p = (d+1)(d+2)/2 numbers each. With p memory and p forget
neurons a random input gating spans all of both and needs no training, and with m ≥ d_out · d pre-readout neurons a
random readout D leaves nothing to solve for either. What is left are A and B, m × p each: given one, the outputs are
linear in the other,

    min_B Σ_rows |y − Dᵀ((A s) ⊙ (B φ))|² + ρ |δB|²,     matrix ≈ ((D Dᵀ) ⊙ E[A s (A s)ᵀ]) ⊗ 1

because s and φ are whitened. The right-hand side is what conjugate gradients are preconditioned with; five to ten
products with the rows solve one half to a hundredth. Already B's first solution lies, but for sampling noise, in the
span of the teacher's queries, and from there on a sweep gains a constant factor. A sweep costs rows · p · m, where
the Gauss–Newton matrix alone takes (p · m)² numbers: 1.6 GB at d = 12.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from underhood.algebra.quadratic import product_forms
from underhood.training.second_order.gauss_newton import State
from underhood.training.second_order.moments import present_and_past, present_and_past_at_last, whitening_of
from underhood.training.second_order.problems import Weights, draw_weights

# The Gauss–Newton matrix (gauss_newton.py) stays for what this way cannot do: free λ, training at the width that was
# asked for, and data averaged over the symmetries of a task.
# The d from which this is the faster way (d = 6: one second, and half a minute with the matrix), and from which it is
# taken for narrow networks, too, which the matrix trains at their own width.
WIDE_FROM, ALWAYS_WIDE_FROM = 5, 7
FIRST_DECAY, COUPLING = 1e-6, 1e-3  # ρ, and the share of the loss that it falls with
TIGHT, MOST_PRODUCTS = 1e-2, 200  # what is left of the preconditioned residual of one half, and its iterations
NONE = 1e-14  # of the largest eigenvalue: pre-readout neurons that say the same


class Wide:
    """λ in {0, 1} and as many neurons as there are quadratic forms: the rows (sequence, time) as they are."""

    free = False

    def __init__(self, xs: np.ndarray, ys: np.ndarray, targets_at: str) -> None:
        self.d, d_out = xs.shape[-1], ys.shape[-1]
        rows = present_and_past_at_last(xs) if targets_at == "last" else present_and_past(xs)
        halves = np.split(rows.reshape(-1, rows.shape[-1]), 2, axis=1)
        # Past and present each by themselves: φ = basisᵀ φ_w.
        (self.of_past, past), (self.of_present, present) = (whitening_of(half) for half in halves)
        self.past, self.present = halves[0] @ past, halves[1] @ present
        targets = ys.reshape(-1, d_out)
        self.count = len(targets)
        self.power = float(np.mean(np.sum(targets**2, axis=1))) or 1.0
        self.targets = targets / np.sqrt(self.power * self.count)
        self.units = [float(np.sqrt(np.mean(np.sum(b**2, axis=0)))) or 1.0 for b in (self.of_past, self.of_present)]

    def scales(self, lambda_: np.ndarray) -> np.ndarray:
        return np.where(lambda_ > 0.5, *self.units)

    def half_mean(self, loss: float) -> float:
        return 0.5 * loss * self.power / self.targets.shape[1]

    def products(self, weights: Weights) -> np.ndarray:
        """F, row by row, as `Blocks.products`."""
        memory, forget = self._forms(weights)
        kept = weights.lambda_ > 0.5
        read_m, read_x = weights.out_m[:, kept] @ memory, weights.out_x[:, ~kept] @ forget
        return (self.past @ read_m.T) * (self.present @ read_x.T) / np.sqrt(self.count)

    def _forms(self, weights: Weights) -> tuple[np.ndarray, np.ndarray]:
        """Memory and forget neurons as functionals of the whitened past and present."""
        forms = product_forms(weights.in_m, weights.in_x) / self.scales(weights.lambda_)[:, None]
        kept = weights.lambda_ > 0.5
        return forms[kept] @ self.of_past.T, forms[~kept] @ self.of_present.T

    def start(self, random: np.random.Generator, pre_readout: int) -> State:
        """Random weights, as of `GatedRNN.random`, and a random readout."""
        p = (self.d + 1) * (self.d + 2) // 2
        weights = draw_weights(random, self.d, pre_readout, np.repeat([1.0, 0.0], p), split=True)
        d_out = self.targets.shape[1]
        readout = random.normal(size=(pre_readout, d_out)) / np.sqrt(d_out)
        loss = float(np.sum((self.targets - self.products(weights) @ readout) ** 2))
        return State(weights, readout, loss, 0.0, FIRST_DECAY, 0, True)

    def sweep(self, state: State) -> State:
        """B given A, then A given B."""
        weights, decay = state.weights, state.decay
        memory, forget = self._forms(weights)
        kept = weights.lambda_ > 0.5
        read_m, read_x = weights.out_m[:, kept] @ memory, weights.out_x[:, ~kept] @ forget
        read_x, _ = self._half(self.present, read_x, self.past @ read_m.T, state.readout, decay)
        read_m, loss = self._half(self.past, read_m, self.present @ read_x.T, state.readout, decay)
        out_m, out_x = np.zeros_like(weights.out_m), np.zeros_like(weights.out_x)
        out_m[:, kept], out_x[:, ~kept] = _solved(read_m, memory), _solved(read_x, forget)
        moved = weights._replace(out_m=out_m, out_x=out_x)
        decay = min(decay, COUPLING * loss)
        return State(moved, state.readout, loss, 0.0, decay, state.iteration + 1, loss < state.loss)

    def _half(
        self, rows: np.ndarray, reads: np.ndarray, others: np.ndarray, readout: np.ndarray, decay: float
    ) -> tuple[np.ndarray, float]:
        """argmin_W |z − ((rows Wᵀ) ⊙ others) D|² + ρ |W − reads|², and the squared error there."""
        others = others / np.sqrt(self.count)
        values, vectors = np.linalg.eigh((readout @ readout.T) * (others.T @ others))
        values = np.maximum(values, 0.0) + decay + NONE * values[-1]

        def forward(reads: np.ndarray) -> np.ndarray:
            return ((rows @ reads.T) * others) @ readout

        def pull(residual: np.ndarray) -> np.ndarray:
            return ((residual @ readout.T) * others).T @ rows

        def preconditioned(slope: np.ndarray) -> np.ndarray:
            return vectors @ ((vectors.T @ slope) / values[:, None])

        residual, moved = self.targets - forward(reads), np.zeros_like(reads)
        slope = pull(residual)
        direction = steepest = preconditioned(slope)
        first = here = float(np.sum(slope * steepest))
        for _ in range(MOST_PRODUCTS):
            if here <= TIGHT**2 * first or here == 0:
                break
            along = forward(direction)
            length = here / float(np.sum(along**2) + decay * np.sum(direction**2))
            moved, residual = moved + length * direction, residual - length * along
            slope = pull(residual) - decay * moved
            steepest = preconditioned(slope)
            here, before = float(np.sum(slope * steepest)), here
            direction = steepest + (here / before) * direction
        return reads + moved, float(np.sum(residual**2))


def _solved(reads: np.ndarray, forms: np.ndarray) -> np.ndarray:
    """Output gating W with W forms = reads."""
    found: Any = np.linalg.lstsq(forms.T, reads.T, rcond=None)
    return found[0].T
