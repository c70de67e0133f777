"""Σ_j D_ij (l_j·h)(r_j·h) = hᵀ (Σ_j D_ij l_j r_jᵀ) h: rows whose kernels add up to fewer (B.2).

A pre-readout neuron of attention is a term D ⊗ α ⊗ β: α reads the memory, β the queries, D writes the output.
Terms that share two of the three factors are one term. Terms that share one factor form a matrix in the other
two, and are as many as its rank. In a network that is not attention, rows that share D have one symmetric
kernel; (u + w)(u − w) = u² − w², so it takes as many rows as the larger of its numbers of positive and
negative eigenvalues.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Inexact

from underhood.algebra.quadratic import Array
from underhood.algebra.subspaces import SAME_DIRECTION


@dataclass(frozen=True)
class Terms:
    """Σ_j readout_j ⊗ memory_j ⊗ query_j."""

    readout: Float[Array, "k d_out"]
    memory: Inexact[Array, "k p"]
    query: Inexact[Array, "k q"]

    def __len__(self) -> int:
        return len(self.readout)

    @property
    def tensor(self) -> Float[Array, "d_out p q"]:
        return np.real(np.einsum("ko,kp,kq->opq", self.readout, self.memory, self.query, optimize=True))

    def outputs(self, sums: Float[Array, "... p"], queries: Float[Array, "... q"]) -> Float[Array, "... d_out"]:
        """The sum at given memories and queries."""
        return np.real(((sums @ self.memory.T) * (queries @ self.query.T)) @ self.readout)

    @property
    def factors(self) -> list[Array]:
        return [self.readout, self.memory, self.query]

    @property
    def sizes(self) -> Float[Array, " k"]:
        return np.prod([np.linalg.norm(factor, axis=1) for factor in self.factors], axis=0)

    def take(self, where: Array) -> Terms:
        return Terms(*(factor[where] for factor in self.factors))


def concatenate(several: list[Terms]) -> Terms:
    return Terms(*(np.concatenate(parts) for parts in zip(*(terms.factors for terms in several), strict=True)))


def merge_terms(terms: Terms, tolerance: float) -> Terms:
    """The same sum in fewer terms, by the rules above, until none applies; `tolerance` is absolute."""
    terms = terms.take(terms.sizes > tolerance)
    while True:
        before = len(terms)
        for shared in ((1, 2), (0, 2), (0, 1)):
            terms = _merge_pairs(terms, shared, tolerance)
        for shared in (0, 2, 1):
            terms = _merge_by_rank(terms, shared, tolerance)
        if len(terms) == before:
            return terms


def refit_readout(terms: Terms, target: Float[Array, "d_out p q"]) -> tuple[Terms, float]:
    """The best readout for given products, in closed form, and the relative distance that is left."""
    products = np.einsum("kp,kq->kpq", terms.memory, terms.query).reshape(len(terms), -1)
    readout, *_ = np.linalg.lstsq(products.T, target.reshape(len(target), -1).T, rcond=1e-13)
    fitted = Terms(readout, terms.memory, terms.query)
    norm = np.linalg.norm(target)
    return fitted, float(np.linalg.norm(fitted.tensor - target) / norm) if norm else 0.0


def slice_terms(target: Float[Array, "d_out p q"], tolerance: float) -> Terms:
    """Terms that always exist: one matrix an output, or one a query, as many terms as its rank."""
    best: Terms | None = None
    for axis in (0, 2):
        unfolded = np.moveaxis(target, axis, 0).reshape(target.shape[axis], -1)
        vectors, singular, rest = np.linalg.svd(unfolded, full_matrices=False)
        found = []
        for k in np.flatnonzero(singular > tolerance):
            others = [size for index, size in enumerate(target.shape) if index != axis]
            left, weights, right = np.linalg.svd((singular[k] * rest[k]).reshape(others), full_matrices=False)
            count = int((weights > tolerance).sum())
            shared = np.repeat(vectors[:, k][None], count, axis=0)
            pair = [left[:, :count].T * weights[:count, None], right[:count]]
            pair.insert(axis, shared)
            found.append(Terms(*pair))
        if found and (best is None or sum(map(len, found)) < len(best)):
            best = concatenate(found)
    return best if best is not None else Terms(*(np.zeros((0, size)) for size in target.shape))


def parallel_groups(vectors: Float[Array, "k p"], angle: float = SAME_DIRECTION) -> list[Array]:
    """Indices of vectors that point the same way, up to sign, length and `angle`."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = vectors / np.where(norms > 0, norms, 1.0)
    probe = np.random.default_rng(0).standard_normal(unit.shape[1])
    shadow = unit @ probe
    unit = unit * np.where(shadow < 0, -1.0, 1.0)[:, None]
    order = np.argsort(np.abs(shadow), kind="stable")
    groups: list[list[int]] = []
    for index in order:
        # Neighbours in the shadow come last in the list: look back no further than the shadow allows.
        for group in reversed(groups):
            if abs(abs(shadow[group[0]]) - abs(shadow[index])) > 10 * angle * np.linalg.norm(probe):
                group = None
                break
            if np.linalg.norm(unit[group[0]] - unit[index]) < angle:
                group.append(int(index))
                break
        else:
            group = None
        if group is None:
            groups.append([int(index)])
    return [np.array(group) for group in groups]


def _merge_pairs(terms: Terms, shared: tuple[int, int], tolerance: float) -> Terms:
    """Terms with two parallel factors: add up the third."""
    factors = terms.factors
    (third,) = {0, 1, 2} - set(shared)
    units = [factors[k] / np.linalg.norm(factors[k], axis=1, keepdims=True) for k in shared]
    labels = np.zeros((2, len(terms)), int)
    for label, unit in zip(labels, units, strict=True):
        for number, group in enumerate(parallel_groups(unit)):
            label[group] = number
    _, pair = np.unique(labels, axis=1, return_inverse=True)
    merged: list[list[Array]] = [[], [], []]
    for group in (np.flatnonzero(pair == number) for number in range(pair.max(initial=-1) + 1)):
        first = group[0]
        signs = np.prod([unit[group] @ unit[first] for unit in units], axis=0)
        sizes = np.prod([np.linalg.norm(factors[k][group], axis=1) for k in shared], axis=0)
        whole = np.einsum("k,ka->a", signs * sizes, factors[third][group])
        if np.linalg.norm(whole) <= tolerance:
            continue
        for k, unit in zip(shared, units, strict=True):
            merged[k].append(unit[first])
        merged[third].append(whole)
    return _stacked(merged, terms)


def _merge_by_rank(terms: Terms, shared: int, tolerance: float) -> Terms:
    """Terms with one parallel factor: the rank of the matrix in the other two."""
    factors = terms.factors
    others = [k for k in range(3) if k != shared]
    merged: list[list[Array]] = [[], [], []]
    for group in parallel_groups(factors[shared]):
        first = factors[shared][group[0]]
        scales = factors[shared][group] @ first / (first @ first)
        left = factors[others[0]][group] * scales[:, None]
        right = factors[others[1]][group]
        u, weights, v = np.linalg.svd(left.T @ right, full_matrices=False)
        rank = int((weights * np.linalg.norm(first) > tolerance).sum())
        if rank < len(group):
            left, right = u[:, :rank].T * weights[:rank, None], v[:rank]
        for one, other in zip(left, right, strict=True):
            merged[shared].append(first)
            merged[others[0]].append(one)
            merged[others[1]].append(other)
    return _stacked(merged, terms)


def _stacked(merged: list[list[Array]], like: Terms) -> Terms:
    shapes = [(0, factor.shape[1]) for factor in like.factors]
    return Terms(*(np.array(part) if part else np.zeros(shape) for part, shape in zip(merged, shapes, strict=True)))


class Twin(NamedTuple):
    """Row `row` reads `scales[0]` times the one side of row `first`, and `scales[1]` times its other side."""

    row: int
    first: int
    scales: tuple[float, float]
    swapped: bool


def find_twins(left: Float[Array, "m n"], right: Float[Array, "m n"]) -> list[Twin]:
    """Rows that read what an earlier row reads, up to scale and with branches swapped or not."""
    rows = len(left)
    label = np.zeros(2 * rows, int)
    for number, group in enumerate(parallel_groups(np.concatenate([left, right]))):
        label[group] = number
    found, twins = {}, []
    for row in range(rows):
        first = found.setdefault(frozenset((label[row], label[rows + row])), row)
        if first != row:
            swapped = bool(label[row] != label[first])
            sides = (right[first], left[first]) if swapped else (left[first], right[first])
            scales = (_scale(left[row], sides[0]), _scale(right[row], sides[1]))
            twins.append(Twin(row, first, scales, swapped))
    return twins


def _scale(vector: Float[Array, " n"], unit: Float[Array, " n"]) -> float:
    length = float(unit @ unit)
    return float(vector @ unit) / length if length > 0 else 0.0


def join_twins(readout: Float[Array, "d_out m"], twins: list[Twin]) -> tuple[Float[Array, "d_out k"], Array]:
    """The readout with the columns of twins added to that of the first, and the rows that are left."""
    readout = readout.copy()
    for twin in twins:
        readout[:, twin.first] += twin.scales[0] * twin.scales[1] * readout[:, twin.row]
    kept = np.setdiff1d(np.arange(readout.shape[1]), [twin.row for twin in twins])
    return readout[:, kept], kept


@dataclass(frozen=True)
class MergedKernel:
    """Rows that write to the output alike, their combined kernel's eigenvalues, and the rows it takes."""

    rows: tuple[int, ...]
    eigenvalues: Float[Array, " k"]
    needed: int


def _symmetric_kernel(left: Float[Array, "k n"], right: Float[Array, "k n"]) -> tuple[Array, Array]:
    """Eigenvalues and eigenvectors of the symmetric part of leftᵀ right, within the span of their rows."""
    basis, _ = np.linalg.qr(np.concatenate([left, right]).T)
    kernel = (left @ basis).T @ (right @ basis)
    values, vectors = np.linalg.eigh(0.5 * (kernel + kernel.T))
    return values, basis @ vectors


def merge_rows(
    left: Float[Array, "m n"],
    right: Float[Array, "m n"],
    readout: Float[Array, "d_out m"],
    tolerance: float,
    angle: float = SAME_DIRECTION,
) -> tuple[Array, Array, Array, list[MergedKernel]]:
    """Twins joined, and rows with parallel readout columns replaced by as many as their combined kernel needs (B.2)."""
    readout, rows = join_twins(readout, find_twins(left, right))
    left, right = left[rows], right[rows]
    sizes = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1) * np.linalg.norm(readout, axis=0)
    alive = np.flatnonzero(sizes > tolerance * max(sizes.max(initial=0.0), 1e-300))
    lefts, rights, columns, kernels = [], [], [], []
    for group in parallel_groups(readout[:, alive].T, angle):
        rows = alive[group]
        column = readout[:, rows[0]]
        scales = column @ readout[:, rows] / (column @ column)
        if len(rows) > 1:
            values, vectors = _symmetric_kernel(left[rows] * scales[:, None], right[rows])
            floor = tolerance * max(np.abs(values).max(initial=0.0), sizes[rows].max() / np.linalg.norm(column))
            positive, negative = values > floor, values < -floor
            needed = int(max(positive.sum(), negative.sum()))
            kernels.append(MergedKernel(tuple(map(int, rows)), values[np.argsort(-np.abs(values))], needed))
            if needed < len(rows):
                up = np.zeros((needed, left.shape[1]))
                down = np.zeros((needed, left.shape[1]))
                up[: positive.sum()] = (vectors[:, positive] * np.sqrt(values[positive])).T
                down[: negative.sum()] = (vectors[:, negative] * np.sqrt(-values[negative])).T
                lefts += list(up + down)
                rights += list(up - down)
                columns += [column] * needed
                continue
        lefts += list(left[rows])
        rights += list(right[rows])
        columns += list(readout[:, rows].T)
    if not lefts:
        return left[:1] * 0, right[:1] * 0, readout[:, :1] * 0, kernels
    return np.array(lefts), np.array(rights), np.array(columns).T, kernels
