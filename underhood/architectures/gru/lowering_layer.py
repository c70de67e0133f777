"""z_t = σ(b + ε w·x_t) ≈ δ e^{ε w·x_t}: a GRU layer of neurons whose update gate is nearly shut, or always open.

Nearly shut, a neuron sums products; open, it holds what its candidate reads of h_{t-1}. The two errors say what
linearising such gates costs, summed over time or taken as a difference of two sums.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from underhood.architectures.gru.cell import CANDIDATE, GRU, RESET, UPDATE
from underhood.compiler.decays import logit
from underhood.compiler.envelope import Envelope, Typical, positive, power_of_two
from underhood.compiler.linearise import Linearisation, best_scale, exponential
from underhood.compiler.rounding import ELEMENTARY, WEIGHT, Arithmetic, Signal

OPEN = 1000.0  # σ is exactly 1: the reset gate always, the update gate where a neuron keeps nothing
LEAK = {np.dtype(np.float64): 2.0**-60, np.dtype(np.float32): 2.0**-36}  # δ


def bias_of(leak: float) -> float:
    """b with σ(b) = δ."""
    return float(logit(leak))


@dataclasses.dataclass
class Layer:
    """A GRU under construction; neurons are added in blocks, and read what was added before them."""

    inputs: int
    blocks: list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]] = dataclasses.field(
        default_factory=list
    )

    @property
    def size(self) -> int:
        return sum(len(block[3]) for block in self.blocks)

    def add(
        self,
        *,
        value: np.ndarray,
        recurrent: np.ndarray | None = None,
        gate: np.ndarray | None = None,
        gate_recurrent: np.ndarray | None = None,
        gate_bias: float = OPEN,
    ) -> slice:
        """h̃ = tanh(value·x + recurrent·h), z = σ(gate·x + gate_recurrent·h + bias); shorter rows are padded."""
        count, start = len(value), self.size
        none = np.zeros((count, 0))
        self.blocks.append(
            (
                value,
                none if recurrent is None else recurrent,
                np.zeros((count, self.inputs)) if gate is None else gate,
                np.full(count, gate_bias),
                none if gate_recurrent is None else gate_recurrent,
            )
        )
        return slice(start, start + count)

    def build(self) -> GRU:
        n = self.size
        u, v, b = np.zeros((3, n, self.inputs)), np.zeros((3, n, n)), np.zeros((3, n))
        b[RESET], row = OPEN, 0
        for value, recurrent, gate, bias, gate_recurrent in self.blocks:
            rows = slice(row, row + len(bias))
            u[CANDIDATE, rows], u[UPDATE, rows], b[UPDATE, rows] = value, gate, bias
            v[CANDIDATE, rows, : recurrent.shape[1]] = recurrent
            v[UPDATE, rows, : gate_recurrent.shape[1]] = gate_recurrent
            row = rows.stop
        return GRU(u, v, b)


def summed_error(scheme: Linearisation, rounding: Typical) -> float:
    """Of memories: the copies are summed over time, and then their difference is taken."""
    return scheme.truncation + (rounding.summing + rounding.step) * scheme.noise


def difference_error(scheme: Linearisation, rounding: Typical) -> float:
    """Of products of the moment: the last step of a sum that is T/2 times as large as its largest step."""
    return scheme.truncation + (rounding.step + rounding.unit * rounding.steps / 2) * scheme.noise


def balance(
    order: int, leak: float, rounding: Typical, error: Callable[[Linearisation, Typical], float]
) -> Linearisation:
    return best_scale(lambda scale: exponential(order, scale, leak), lambda scheme: error(scheme, rounding))


def difference(
    layer: Layer, made: slice, weights: np.ndarray, sum_bounds: np.ndarray, envelope: Envelope
) -> np.ndarray:
    """The readout Σ weights (h_t − h_{t-1}) of the neurons `made`: one neuron an output holds the sum a step ago."""
    small = power_of_two(envelope.tiny / positive(sum_bounds))
    recurrent = np.zeros((len(weights), layer.size))
    recurrent[:, made] = weights * small[:, None]
    late = layer.add(value=np.zeros((len(weights), layer.inputs)), recurrent=recurrent)
    readout = np.zeros((len(weights), layer.size))
    readout[:, made] = weights
    readout[np.arange(len(weights)), np.arange(late.start, late.stop)] = -1 / small
    return readout


def summed(arithmetic: Arithmetic, gate: Signal, candidate: Signal, bias: float, leak: float) -> tuple[Signal, Signal]:
    """What a neuron whose gate is nearly shut adds in a step, z tanh(·), and what it has added up by the horizon."""
    made = arithmetic.times(arithmetic.sigma(gate, bias), arithmetic.tanh(candidate))
    total, steps = arithmetic.total(made, 1.0), float(arithmetic.envelope.horizon)
    if leak > arithmetic.unit / 4:  # else 1 − z is 1, and nothing is rounded
        total = Signal(total.size, total.error + 4 * arithmetic.unit * steps * total.reach)
    return made, total


def last_step(arithmetic: Arithmetic, weights: np.ndarray, made: Signal, total: Signal) -> np.ndarray:
    """Errors of Σ weights (h_t − h_{t-1}) as `difference` has it: of the step, and of two sums over all neurons.

    Both read the same h_{t-1}, so what went wrong before is in neither.
    """
    weights = np.abs(weights)
    rounded = 4 * arithmetic.unit + arithmetic.envelope.tiny**2
    step = weights @ (made.error + rounded * total.reach)
    count = np.count_nonzero(weights, axis=1) + 1
    return step + 2 * arithmetic.gamma(count + WEIGHT + 2 * ELEMENTARY) * (weights @ total.reach)
