"""A gating of Eq. 2 as products of a gate σ and a value, copied at several scales (Appendix A.1).

Each product (w_m·x)(w_x·x) puts the branch with the smaller bound into the gate, where it is linearised, and
the other behind it, where it may grow: a query in the gate makes the error independent of the horizon. A product
of which one branch is constant is linear, and needs no gate that moves.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from jaxtyping import Float

from underhood.architectures.gated_rnn.cell import GatedRNN
from underhood.compiler.envelope import Envelope, positive
from underhood.compiler.linearise import Linearisation
from underhood.compiler.rounding import Arithmetic, Signal


@dataclasses.dataclass(frozen=True)
class Products:
    """p_n = (gate_n·x)(value_n·x), |gate_n·x| ≤ bound_n; or, where `linear`, p_n = constant_n · (value_n·x)."""

    gates: Float[np.ndarray, "n gate_inputs"]
    values: Float[np.ndarray, "n value_inputs"]
    gate_bounds: Float[np.ndarray, " n"]
    value_bounds: Float[np.ndarray, " n"]
    linear: np.ndarray  # of bool
    constants: Float[np.ndarray, " n"]

    @property
    def bounds(self) -> Float[np.ndarray, " n"]:
        return np.where(self.linear, np.abs(self.constants), self.gate_bounds) * self.value_bounds


@dataclasses.dataclass(frozen=True)
class Copies:
    """Rows of a gate σ(gates·x + …) and of a value, and how to combine them: products ≈ combine @ (σ ⊙ value)."""

    gates: Float[np.ndarray, "copies gate_inputs"]
    values: Float[np.ndarray, "copies value_inputs"]
    combine: Float[np.ndarray, "n copies"]
    owner: np.ndarray  # which product a copy belongs to


def split_products(
    w_m: np.ndarray, w_x: np.ndarray, bounds_m: np.ndarray, bounds_x: np.ndarray, constant_column: bool
) -> Products:
    """The smaller branch into the gate; rows that read only the constant become a factor."""
    swap = bounds_x < bounds_m
    gates, values = np.where(swap[:, None], w_x, w_m), np.where(swap[:, None], w_m, w_x)
    gate_bounds, value_bounds = np.minimum(bounds_m, bounds_x), np.maximum(bounds_m, bounds_x)
    linear, constants = np.zeros(len(w_m), bool), np.zeros(len(w_m))
    if constant_column:
        for branch, other, other_bounds in ((w_m, w_x, bounds_x), (w_x, w_m, bounds_m)):
            only_constant = ~linear & np.all(branch[:, :-1] == 0, axis=1)
            constants = np.where(only_constant, branch[:, -1], constants)
            values = np.where(only_constant[:, None], other, values)
            value_bounds = np.where(only_constant, other_bounds, value_bounds)
            linear |= only_constant
    return Products(gates, values, positive(gate_bounds), value_bounds, linear, constants)


def copy_products(products: Products, scheme: Linearisation, resting_gate: float = 0.5) -> Copies:
    """Each product `scheme.copies` times, linear ones once with the gate at rest."""
    owner = np.concatenate(
        [np.full(1 if linear else scheme.copies, index) for index, linear in enumerate(products.linear)]
        or [np.zeros(0)]
    ).astype(int)
    node = np.concatenate([[0.0] if linear else scheme.nodes for linear in products.linear] or [np.zeros(0)])
    weight = np.concatenate(
        [
            [constant / resting_gate] if linear else scheme.weights * bound
            for linear, constant, bound in zip(products.linear, products.constants, products.gate_bounds, strict=True)
        ]
        or [np.zeros(0)]
    )
    combine = np.zeros((len(products.gates), len(owner)))
    combine[owner, np.arange(len(owner))] = weight
    gates = products.gates[owner] * (node / products.gate_bounds[owner])[:, None]
    return Copies(gates, products.values[owner], combine, owner)


@dataclasses.dataclass(frozen=True)
class GatedProducts:
    """A gated RNN as two sets of products around its recurrence, with bounds on all signals."""

    inputs: Products
    lambda_: Float[np.ndarray, " n"]
    outputs: Products
    readout: Float[np.ndarray, "d_o m"]
    state_bounds: Float[np.ndarray, " n"]
    output_bounds: Float[np.ndarray, " d_o"]

    @property
    def d(self) -> int:
        return self.inputs.gates.shape[1] - 1


def gated_products(source: GatedRNN, envelope: Envelope) -> GatedProducts:
    """Bounds on every signal of `source` for inputs within the envelope, in float64."""
    weights = source.arrays
    branches = weights.w_m, weights.w_x
    lambda_, readout = weights.lambda_, weights.readout
    inputs = split_products(*branches, *map(envelope.affine, branches), constant_column=True)
    state_bounds = inputs.bounds * envelope.steps(lambda_)

    def reading(rows: np.ndarray) -> np.ndarray:
        """max |row·h|; neurons that forget at once and are linear in x are bounded through x itself."""
        through_x = inputs.linear & (lambda_ == 0)
        as_input = (rows[:, through_x] * inputs.constants[through_x]) @ inputs.values[through_x]
        return np.abs(rows[:, ~through_x]) @ state_bounds[~through_x] + envelope.affine(as_input)

    reads = weights.left, weights.right
    outputs = split_products(*reads, *map(reading, reads), constant_column=False)
    return GatedProducts(inputs, lambda_, outputs, readout, state_bounds, np.abs(readout) @ outputs.bounds)


def local(signal: Signal) -> Signal:
    """The signal as it is computed, with nothing wrong about it: copies that read it alike share its error."""
    return Signal(signal.reach, np.zeros_like(signal.error))


def gated_copies(arithmetic: Arithmetic, copies: Copies, gate_in: Signal, value_in: Signal, largest: float) -> Signal:
    """σ(gates·x) (values·x) of every copy of a GLU, and its own rounding: arguments of gates are small by design."""
    gates = arithmetic.linear(copies.gates, local(gate_in))
    opened = arithmetic.sigma(gates.known(np.full(len(gates.size), 2 * largest)))
    return arithmetic.times(opened, arithmetic.linear(copies.values, local(value_in)))


def combined(
    arithmetic: Arithmetic,
    products: Products,
    scheme: Linearisation,
    copies: Signal,
    matrix: Float[np.ndarray, "o copies"],
    gate_error: Float[np.ndarray, " n"],
    value_error: Float[np.ndarray, " n"],
    out: Float[np.ndarray, "o n"] | None = None,
    steps: Any = 1.0,
) -> Signal:
    """The products, or `out` of them, as `matrix` of the copies; where these are sums over time, of so many steps.

    Three errors: rounding of each copy, which the large weights of `matrix` amplify; what the limit leaves; and what
    was wrong with the branches already, which all copies share, so that it counts once.
    """
    sizes = np.where(products.linear, np.abs(products.constants), products.gate_bounds)
    gate_error = np.where(products.linear, 0.0, gate_error)
    shared = gate_error * products.value_bounds + value_error * (sizes + gate_error)
    beyond = float(np.max(gate_error / products.gate_bounds, initial=0.0))  # arguments are larger by so much
    limit = scheme.truncation * (1 + beyond) ** (2 * scheme.order + 1)
    left = np.where(products.linear, 0.0, limit) * (products.bounds + shared) + shared
    left, bounds = left * steps, products.bounds * steps
    if out is not None:
        left, bounds = np.abs(out) @ left, np.abs(out) @ bounds
    rounded = arithmetic.linear(matrix, copies)
    return Signal(bounds, rounded.error + left)
