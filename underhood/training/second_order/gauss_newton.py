"""One Levenberg–Marquardt step with the readout projected out:  (JᵀJ + (ρ + μ) 1) δ = −(Jᵀr + ρ w).

The merit is |z − F(w) D|² + ρ (|D|² + |w|²). Given the other weights w, the best readout D solves a ridge
regression, so D is no unknown (variable projection, with Kaufman's Jacobian: J without what the products F span).
The weight decay ρ is tied to the loss and vanishes with it: it keeps the products from cancelling one another,
which is what stalls such fits, and it lets neurons die that are not needed. Damping μ follows the gain ratio.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy.linalg

from underhood.training.second_order.problems import Objective, Problem, Weights

FIRST_DAMPING, LEAST_DAMPING, MOST_DAMPING = 1e-2, 1e-18, 1e6
FIRST_DECAY = 1e-3
TRIES = 10
REACH = 0.1  # of a step, for the second difference along it
MOST_BEND = 0.75  # a larger acceleration than this share of the step says that the expansion does not hold


class State(NamedTuple):
    """All that the next iteration depends on, besides the data: plain arrays, small enough for a checkpoint."""

    weights: Weights
    readout: np.ndarray  # (m, d_o)
    loss: float  # |z − F D|², relative to |z|²
    damping: float
    decay: float
    iteration: int
    moved: bool


def start(problem: Problem, weights: Weights) -> State:
    """The first state: the best readout for random weights."""
    _, readout, loss = project(problem.products(weights), problem.targets, FIRST_DECAY)
    return State(weights, readout, loss, FIRST_DAMPING, FIRST_DECAY, 0, True)


def project(products: np.ndarray, targets: np.ndarray, decay: float) -> tuple[np.ndarray, np.ndarray, float]:
    """argmin_D |z − F D|² + ρ|D|²: an orthonormal basis of (F; √ρ 1), the readout, and the squared error."""
    m = products.shape[1]
    stacked = np.concatenate([products, np.sqrt(decay) * np.eye(m)])
    left, values, right = np.linalg.svd(stacked, full_matrices=False)
    kept = values > 1e-14 * values[0]
    left = left[:, kept]
    readout = (right[kept].T / values[kept]) @ (left[: len(products)].T @ targets)
    return left, readout, float(np.sum((targets - products @ readout) ** 2))


class Linearised(NamedTuple):
    """r(w + δ) ≈ r − J δ with the readout projected out; the decay of w is not included."""

    matrix: np.ndarray  # JᵀJ
    residual: np.ndarray  # (z − F D; −√ρ D)
    pull: Callable[[np.ndarray], np.ndarray]  # r -> Jᵀr


def linearise(problem: Problem, weights: Weights, decay: float) -> Linearised:
    """The Gauss–Newton matrix, block by block, each with a product of matrices."""
    products, output, through = problem.blocks(weights)
    rows, m, wide = output.shape
    basis, readout, _ = project(products, problem.targets, decay)
    residual = np.concatenate([problem.targets - products @ readout, -np.sqrt(decay) * readout])

    def without_products(jacobian: np.ndarray) -> np.ndarray:
        projected = basis @ (basis[:rows].T @ jacobian)
        np.negative(projected, out=projected)
        projected[:rows] += jacobian
        return projected

    flat = without_products(output.reshape(rows, m * wide))
    out_out = (flat.T @ flat).reshape(m, wide, m, wide)
    out_out *= (readout @ readout.T)[:, None, :, None]
    inner = np.stack([without_products(through(column)) for column in readout.T])  # (d_o, rows + m, k)
    stacked = inner.reshape(-1, inner.shape[2])
    unknowns = m * wide + inner.shape[2]
    matrix = np.empty((unknowns, unknowns))
    matrix[: m * wide, : m * wide] = out_out.reshape(m * wide, m * wide)
    matrix[m * wide :, m * wide :] = stacked.T @ stacked
    for j in range(m):
        mixed = np.tensordot(readout[j], inner, 1)
        block = flat[:, j * wide : (j + 1) * wide].T @ mixed
        matrix[j * wide : (j + 1) * wide, m * wide :] = block
        matrix[m * wide :, j * wide : (j + 1) * wide] = block.T

    def pull(residual: np.ndarray) -> np.ndarray:
        outer = np.einsum("mko,mo->mk", (flat.T @ residual).reshape(m, wide, -1), readout)
        return np.concatenate([outer.ravel(), stacked.T @ residual.T.ravel()])

    return Linearised(matrix, residual, pull)


def residual_at(problem: Problem, weights: Weights, decay: float) -> np.ndarray:
    """(z − F D; −√ρ D) at the best D."""
    products = problem.products(weights)
    _, readout, _ = project(products, problem.targets, decay)
    return np.concatenate([problem.targets - products @ readout, -np.sqrt(decay) * readout])


def merit(problem: Objective, weights: Weights, decay: float) -> tuple[float, float, np.ndarray]:
    """|z − F D|² + ρ (|D|² + |w|²) at the best D, the squared error alone, and D."""
    _, readout, loss = project(problem.products(weights), problem.targets, decay)
    return loss + decay * (float(np.sum(readout**2)) + size(weights)), loss, readout


def size(weights: Weights) -> float:
    """|w|² of what decays: λ does not, as in the paper."""
    return float(sum(np.sum(part**2) for part in (weights.in_m, weights.in_x, weights.out_m, weights.out_x)))


def iterate(state: State, problem: Problem, coupling: float) -> State:
    """One accepted step, or none if no damping within the tries lowers the merit."""
    weights, damping, decay = state.weights, state.damping, state.decay
    matrix, residual, pull = linearise(problem, weights, decay)
    vector = weights.vector(problem.free)
    decays = np.full(len(vector), decay)
    if problem.free:
        decays[len(weights.out_m) * len(weights.read) :].reshape(len(weights.lambda_), -1)[:, -1] = 0.0
    here = float(np.sum(residual**2)) + decay * size(weights)
    descent = pull(residual) - decays * vector
    diagonal = np.diag_indices(len(vector))
    matrix[diagonal] += decays
    held = _held_at_bounds(weights, descent) if problem.free else None
    for _ in range(TRIES):
        solve = _factor(matrix, damping, held)
        if solve is not None:
            step = solve(descent)
            expected = max(step @ (2 * descent - matrix @ step), 1e-300)
            bend = 0.5 * solve(pull(_curvature(problem, weights, decay, step, residual)))
            if np.linalg.norm(bend) <= MOST_BEND * np.linalg.norm(step):
                step = step + bend
            moved = weights.moved(step, problem.free)
            there, loss, readout = merit(problem, moved, decay)
            gain = (here - there) / expected
            if there < here:
                damping *= 0.1 if gain > 0.95 else 0.25 if gain > 0.75 else 2.0 if gain < 0.25 else 1.0
                decay = min(decay, coupling * loss / max(size(moved), 1e-300))
                damping = min(max(damping, LEAST_DAMPING), MOST_DAMPING)
                return State(moved, readout, loss, damping, decay, state.iteration + 1, True)
        damping = min(damping * 4, MOST_DAMPING)
    return state._replace(damping=damping, decay=0.1 * decay, iteration=state.iteration + 1, moved=False)


def _curvature(problem: Problem, weights: Weights, decay: float, step: np.ndarray, here: np.ndarray) -> np.ndarray:
    """∂²r/∂δ² along the step, by central differences: the geodesic acceleration bends the step along the valley."""
    ahead = residual_at(problem, weights.moved(REACH * step, problem.free), decay)
    behind = residual_at(problem, weights.moved(-REACH * step, problem.free), decay)
    return (ahead + behind - 2 * here) / REACH**2


def _factor(matrix: np.ndarray, damping: float, held: np.ndarray | None) -> Callable[[np.ndarray], np.ndarray] | None:
    """(JᵀJ + μ 1)⁻¹ without the held unknowns, or None if rounding leaves it indefinite."""
    damped = matrix.copy()
    damped[np.diag_indices(len(damped))] += damping
    if held is not None:
        damped[held] = damped[:, held] = 0.0
        damped[held, held] = 1.0
    try:
        factor = scipy.linalg.cho_factor(damped, lower=True, overwrite_a=True, check_finite=False)
    except np.linalg.LinAlgError:
        return None

    def solve(right: np.ndarray) -> np.ndarray:
        right = right if held is None else np.where(held, 0.0, right)
        return scipy.linalg.cho_solve(factor, right, check_finite=False)

    return solve


def _held_at_bounds(weights: Weights, descent: np.ndarray) -> np.ndarray:
    """λ at 0 or 1 that would leave [0, 1] stays there."""
    held = np.zeros(len(descent), bool)
    n = len(weights.lambda_)
    start = len(weights.out_m) * len(weights.read)
    inner, slope = held[start:].reshape(n, -1), descent[start:].reshape(n, -1)[:, -1]
    inner[:, -1] = ((weights.lambda_ <= 0) & (slope < 0)) | ((weights.lambda_ >= 1) & (slope > 0))
    return held
