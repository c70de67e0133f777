"""What Levenberg–Marquardt asks of a gated RNN: its products F, and how they move with every weight.

    y_i = Σ_j D_ij F_j,    F_j = (w_m^j · h)(w_x^j · h),    h = λ-filtered (W_m x̃)(W_x x̃)

    ∂F_j/∂w_m^j = (w_x^j · h) h, for all outputs the same up to D_ij: the Gauss–Newton matrix of the output gating
    is a Gram matrix without the outputs, times (D^T D)_jk block by block. It costs 1/d_out of the dense one.

Two problems with one interface. `FixedLambda` works on the reduced rows of moments.py, `FreeLambda` on the rows
(sequence, time) themselves, with the recurrence's sensitivities ∂h/∂λ and ∂h/∂W from the same scan.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from underhood.algebra.quadratic import append_one, product_forms, product_slopes
from underhood.architectures.gated_rnn.cell import GatedRNN, Gating
from underhood.training.second_order.moments import Moments


class Weights(NamedTuple):
    """The weights that the solver moves, in scaled units; the readout follows from them by linear least squares."""

    in_m: np.ndarray  # (n, d+1)
    in_x: np.ndarray  # (n, d+1)
    lambda_: np.ndarray  # (n,)
    out_m: np.ndarray  # (m, n)
    out_x: np.ndarray  # (m, n)
    reads: np.ndarray  # (2, n), bool: which hidden neurons the branches m and x of the output gating may read

    @property
    def read(self) -> np.ndarray:
        """Positions within (out_m, out_x) of one pre-readout neuron that are free to move."""
        return np.flatnonzero(self.reads)

    def vector(self, free: bool) -> np.ndarray:
        """Output gating neuron by neuron, then input gating (and λ) neuron by neuron."""
        inputs = [self.in_m, self.in_x, *([self.lambda_[:, None]] if free else [])]
        outputs = np.concatenate([self.out_m, self.out_x], 1)[:, self.read]
        return np.concatenate([outputs.ravel(), np.concatenate(inputs, 1).ravel()])

    def moved(self, step: np.ndarray, free: bool) -> Weights:
        """A step in that order; λ is kept within [0, 1]."""
        m, n = self.out_m.shape
        inputs = self.in_m.shape[1]
        split = m * len(self.read)
        out, into = np.zeros((m, 2 * n)), step[split:].reshape(n, -1)
        out[:, self.read] = step[:split].reshape(m, -1)
        lambda_ = np.clip(self.lambda_ + into[:, -1], 0.0, 1.0) if free else self.lambda_
        return Weights(
            self.in_m + into[:, :inputs],
            self.in_x + into[:, inputs : 2 * inputs],
            lambda_,
            self.out_m + out[:, :n],
            self.out_x + out[:, n:],
            self.reads,
        )

    def kept(self, hidden: np.ndarray, pre_readout: np.ndarray) -> Weights:
        """Only these neurons."""
        out = (self.out_m[np.ix_(pre_readout, hidden)], self.out_x[np.ix_(pre_readout, hidden)])
        return Weights(self.in_m[hidden], self.in_x[hidden], self.lambda_[hidden], *out, self.reads[:, hidden])


class Blocks(NamedTuple):
    """F, ∂F/∂(output gating) and the pieces from which ∂/∂(input gating) is made."""

    products: np.ndarray  # (r, m)
    output: np.ndarray  # (r, m, free positions)
    through: Any  # readout column (m,) -> (r, n·k): ∂(Σ_j D_j F_j)/∂(input gating)


def draw_weights(
    random: np.random.Generator, d: int, pre_readout: int, lambda_: np.ndarray, *, split: bool = False
) -> Weights:
    """Normal weights of variance 1/inputs, as GatedRNN.random draws them.

    A `split` start lets branch m of the output gating read the neurons with the longer memories and branch x the
    others: half the unknowns, and no product of two memories or of two presents to be unlearned.
    """
    hidden = len(lambda_)

    def normal(rows: int, columns: int) -> np.ndarray:
        return random.normal(size=(rows, columns)) / np.sqrt(columns)

    into = (normal(hidden, d + 1), normal(hidden, d + 1))
    out = (normal(pre_readout, hidden), normal(pre_readout, hidden))
    reads = np.stack([lambda_ > 0.5, lambda_ <= 0.5]) if split else np.ones((2, hidden), bool)
    return Weights(*into, lambda_, out[0] * reads[0], out[1] * reads[1], reads)


@runtime_checkable
class Objective(Protocol):
    """Least squares over networks: the products of weights, row by row, and what D has to make of them."""

    power: float
    targets: np.ndarray

    def scales(self, lambda_: np.ndarray) -> np.ndarray: ...
    def products(self, weights: Weights) -> np.ndarray: ...


class FixedLambda:
    """λ in {0, 1}: rows of moments.py."""

    free = False

    def __init__(self, moments: Moments) -> None:
        self.moments, self.targets, self.d = moments, moments.targets, moments.d
        self.units, self.power = moments.scales, moments.power
        self.flat = moments.tensor.reshape(-1, moments.tensor.shape[2])

    def scales(self, lambda_: np.ndarray) -> np.ndarray:
        return np.where(lambda_ > 0.5, *self.units)

    def half_mean(self, loss: float) -> float:
        return self.moments.half_mean(loss)

    def _lift(self, forms: np.ndarray, lambda_: np.ndarray) -> np.ndarray:
        """Functionals of x̃x̃ᵀ as functionals of whitened φ: of its past where λ = 1, of its present where λ = 0."""
        p = self.moments.basis.shape[1] // 2
        past, present = self.moments.basis[:, :p].T, self.moments.basis[:, p:].T
        lifted = np.where((lambda_ > 0.5).reshape(-1, *[1] * (forms.ndim - 1)), forms @ past, forms @ present)
        return lifted / self.scales(lambda_).reshape(-1, *[1] * (forms.ndim - 1))

    def products(self, weights: Weights) -> np.ndarray:
        forms = self._lift(product_forms(weights.in_m, weights.in_x), weights.lambda_)
        by_x = self._contract(weights.out_x @ forms)
        return np.einsum("rqm,mq->rm", by_x, weights.out_m @ forms)

    def _contract(self, reads: np.ndarray) -> np.ndarray:
        rows, q, _ = self.moments.tensor.shape
        return (self.flat @ reads.T).reshape(rows, q, -1)

    def blocks(self, weights: Weights) -> Blocks:
        forms = self._lift(product_forms(weights.in_m, weights.in_x), weights.lambda_)
        read_m, read_x = weights.out_m @ forms, weights.out_x @ forms
        by_x, by_m = self._contract(read_x), self._contract(read_m)  # ∂F/∂read_m, ∂F/∂read_x: (r, q, m)
        rows, q, m = by_x.shape
        n, (of_m, of_x) = len(forms), weights.reads
        output = np.empty((rows, m, len(weights.read)))
        output[:, :, : of_m.sum()] = np.matmul(by_x.transpose(0, 2, 1), forms[of_m].T)
        output[:, :, of_m.sum() :] = np.matmul(by_m.transpose(0, 2, 1), forms[of_x].T)
        slopes = np.concatenate([product_slopes(weights.in_x), product_slopes(weights.in_m)], axis=1)
        slopes = self._lift(slopes, weights.lambda_).transpose(0, 2, 1)  # (n, q, 2(d+1))

        def through(readout: np.ndarray) -> np.ndarray:
            by_form = by_x.reshape(-1, m) @ (readout[:, None] * weights.out_m)
            by_form += by_m.reshape(-1, m) @ (readout[:, None] * weights.out_x)
            by_form = by_form.reshape(rows, q, n).transpose(2, 0, 1)
            return np.matmul(by_form, slopes).transpose(1, 0, 2).reshape(rows, -1)

        return Blocks(np.einsum("rqm,mq->rm", by_x, read_m), output, through)


class FreeLambda:
    """λ in [0, 1], moved with the weights: rows are (sequence, time), the Jacobian runs through the recurrence."""

    free = True

    def __init__(self, xs: np.ndarray, ys: np.ndarray, targets_at: str) -> None:
        self.last = targets_at == "last"
        self.d, self.time = xs.shape[-1], xs.shape[1]
        self.inputs = append_one(xs).transpose(1, 0, 2)  # (t, b, d+1)
        targets = ys if self.last else ys.transpose(1, 0, 2).reshape(-1, ys.shape[-1])
        self.power = float(np.mean(np.sum(targets**2, axis=1))) or 1.0
        self.count = len(targets)
        self.targets = targets / np.sqrt(self.power * self.count)

    def scales(self, lambda_: np.ndarray) -> np.ndarray:
        """Constant: h of a perfect memory is about the square root of t long, and λ moves while this must not."""
        return np.full(len(lambda_), np.sqrt(self.time))

    def half_mean(self, loss: float) -> float:
        return 0.5 * loss * self.power / self.targets.shape[1]

    def _filter(self, drive: np.ndarray, lambda_: np.ndarray) -> np.ndarray:
        """z_t = λ z_{t-1} + drive_t along the first axis; the second is the batch, the third the neuron."""
        decay = lambda_.reshape(-1, *[1] * (drive.ndim - 3))
        states = np.empty_like(drive)
        state = np.zeros_like(drive[0])
        for t, now in enumerate(drive):
            state = decay * state + now
            states[t] = state
        return states

    def _rows(self, states: np.ndarray) -> np.ndarray:
        return states[-1] if self.last else states.reshape(-1, *states.shape[2:])

    def _hidden(self, weights: Weights) -> np.ndarray:
        drive = (self.inputs @ weights.in_m.T) * (self.inputs @ weights.in_x.T)
        return self._filter(drive, weights.lambda_) / self.scales(weights.lambda_)

    def products(self, weights: Weights) -> np.ndarray:
        hidden = self._rows(self._hidden(weights))
        return (hidden @ weights.out_m.T) * (hidden @ weights.out_x.T) / np.sqrt(self.count)

    def blocks(self, weights: Weights) -> Blocks:
        scales, lambda_ = self.scales(weights.lambda_), weights.lambda_
        states = self._hidden(weights)
        before = np.concatenate([np.zeros_like(states[:1]), states[:-1]])
        hidden = self._rows(states)
        read_m, read_x = hidden @ weights.out_m.T, hidden @ weights.out_x.T
        norm = 1 / np.sqrt(self.count)
        of_m, of_x = (hidden[:, None, read] for read in weights.reads)
        output = norm * np.concatenate([read_x[:, :, None] * of_m, read_m[:, :, None] * of_x], axis=2)
        drive_m = (self.inputs @ weights.in_x.T)[..., None] * self.inputs[:, :, None, :]
        drive_x = (self.inputs @ weights.in_m.T)[..., None] * self.inputs[:, :, None, :]
        drives = np.concatenate([drive_m, drive_x], axis=-1) / scales[:, None]
        slopes = self._rows(self._filter(np.concatenate([drives, before[..., None]], axis=-1), lambda_))  # (r, n, k)

        def through(readout: np.ndarray) -> np.ndarray:
            by_state = read_x @ (readout[:, None] * weights.out_m) + read_m @ (readout[:, None] * weights.out_x)
            return (norm * by_state[:, :, None] * slopes).reshape(len(slopes), -1)

        return Blocks(norm * read_m * read_x, output, through)


Problem = FixedLambda | FreeLambda


def to_model(problem: Objective, weights: Weights, readout: np.ndarray) -> GatedRNN:
    """The network in plain units: hidden scales go into the output gating, the targets' scale into the readout."""
    scales, power = problem.scales(weights.lambda_), problem.power
    return GatedRNN.from_lambda(
        Gating(weights.in_m, weights.in_x),
        weights.lambda_,
        Gating(weights.out_m / scales, weights.out_x / scales),
        np.ascontiguousarray(readout.T * np.sqrt(power)),
    )


def outputs_of(model: GatedRNN, xs: np.ndarray, *, last: bool) -> np.ndarray:
    """Eq. 2 for a batch, in NumPy: (b, t, d) -> (b, t, d_o), or (b, d_o) of the last step."""
    outputs = model.arrays(xs)
    return outputs[:, -1] if last else outputs
