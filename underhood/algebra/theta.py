"""Θ(a) = Σ_heads (W_V a)(aᵀ M), M = W_KᵀW_Q, asked at chosen a: heads without T, which has d_out·d³ entries.

**At one point.** At a generic a_0, Θ(a_0) = U Σ Wᵀ has as many singular values as there are heads, and V(a_0) = U,
M(a_0) = Σ Wᵀ is one of the splits, which are all the same function. Then Θ(a_0 + a) − Θ(a_0) − Θ(a) = V(a) M(a_0) +
V(a_0) M(a) is linear in what is sought. It gives V(a) outside the columns of U, M(a) outside the rows of Wᵀ, and the
sum X + Y of what they have inside, V(a) = p + U X, M(a) = m + Y Σ Wᵀ. Θ(a) itself has p Y and X m, and settles the two:
one Sylvester equation of the size of the heads. Nothing grows faster than the answer, d·(d + d_out) numbers per head.

**In its own bases.** Θ(a) at one a shows at most d_out heads, and heads of rank one leave it open which of two
directions is the value's and which the key's. The whole tensor knows; it is asked for entry by entry where it is small
in bases of its own.

Who asks: the decompiler of weights, which sums what the rows read, and that of outputs, which calls the network.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.linalg import solve_sylvester

from underhood.algebra.heads import Heads, fewest_heads
from underhood.algebra.quadratic import Array, pair_indices

MOST_HEADS = 64  # of one decay
# Relative sizes of singular values that may separate heads from noise: rounding of float64, of compiled networks that
# approximate their products, of float32, of float16.
NOISE = (1e-9, 1e-7, 1e-5, 1e-3)
GENERIC = 8  # inputs, or more where one Θ has few rows, whose Θ span what all of them span
MOST_ENTRIES = 1 << 20
MOST_SEARCHED = 1 << 12  # entries in which the fewest heads are searched for: seconds


class Theta(ABC):
    """Θ_g(a) of each decay at inputs a, in the coordinates of `queries`: rows of a scaled orthogonal matrix."""

    d: int
    input_bound: float
    queries: Any

    @abstractmethod
    def normal(self, count: int, share: float = 1.0) -> Float[Array, "n d"]:
        """Inputs in generic directions."""

    @abstractmethod
    def orthogonal(self, share: float = 1.0) -> Float[Array, "d d"]:
        """Inputs at right angles, of one length."""

    @abstractmethod
    def responses(self, inputs: Float[Array, "n d"], decays: tuple[float, ...]) -> Float[Array, "g n d_out d"]:
        """Θ_g(a) at each input."""


@dataclass(frozen=True)
class Projected:
    """Θ_0, and Θ(a_j), Θ(a_0 + a_j) as seen from the column space U and the row space W of Θ_0."""

    left: Float[Array, "d_out h"]
    singular: Float[Array, " h"]
    right: Float[Array, "d h"]
    inputs: Float[Array, "d d"]  # a_j, orthogonal
    columns: Float[Array, "d d_out h"]  # Θ(a_j) W
    rows: Float[Array, "d h d"]  # Uᵀ Θ(a_j)
    crossed_columns: Float[Array, "d d_out h"]  # the same of Θ(a_0 + a_j) − Θ(a_0) − Θ(a_j)
    crossed_rows: Float[Array, "d h d"]

    def heads(self, count: int, queries: Float[Array, "d d"]) -> Heads:
        """The split with `count` heads, rotated back from the coordinates of the queries."""
        left, right, singular = self.left[:, :count], self.right[:, :count], self.singular[:count]
        values = np.empty((len(self.inputs), *left.shape))
        key_query = np.empty((len(self.inputs), count, len(right)))
        for j in range(len(self.inputs)):
            columns, crossed_columns = (one[j, :, :count] / singular for one in (self.columns, self.crossed_columns))
            rows, crossed_rows = self.rows[j, :count], self.crossed_rows[j, :count]
            outside = crossed_columns - left @ (left.T @ crossed_columns)
            beyond = crossed_rows - (crossed_rows @ right) @ right.T
            both = left.T @ crossed_columns
            inside = _inside(
                outside, columns - left @ (left.T @ columns), beyond, rows - (rows @ right) @ right.T, both
            )
            values[j] = outside + left @ inside
            key_query[j] = beyond + ((both - inside) * singular) @ right.T
        scale, query_scale = np.sum(self.inputs[0] ** 2), np.sum(queries[0] ** 2)
        found_values = np.einsum("joh,ja->hoa", values, self.inputs, optimize=True) / scale
        found = np.einsum("jhq,ja->haq", key_query, self.inputs, optimize=True) / scale
        return Heads(found_values, found @ (queries / query_scale), 0.0)


def _inside(p: Array, p_y: Array, m: Array, x_m: Array, both: Array) -> Array:
    """X of p Y = p_y, X m = x_m, X + Y = both, by least squares."""
    first, second = p.T @ p, m @ m.T
    # Each of the two equations counts in its own units; what neither of them tells stays small.
    first_scale, second_scale = (max(float(np.trace(one)), np.finfo(float).tiny) for one in (first, second))
    eye = 1e-15 * np.eye(len(first))
    known = p.T @ (p @ both - p_y) / first_scale + x_m @ m.T / second_scale
    return solve_sylvester(first / first_scale + eye, second / second_scale + eye, known)


def factored(theta: Theta, decays: tuple[float, ...], watch: Callable[[str, float], None]) -> Iterator[list[Heads]]:
    """Heads of each decay, for each level of noise under which few enough remain."""
    start = theta.normal(1, 0.5)
    generic = theta.responses(start, decays)[:, 0]
    levels = dict.fromkeys(tuple(_rank(one, noise) for one in generic) for noise in NOISE)
    levels = {counts: None for counts in levels if min(counts) > 0 and max(counts) <= min(MOST_HEADS, theta.d)}
    if not levels:
        return
    most = tuple(int(count) for count in np.max(list(levels), axis=0))
    projected = [*_projected(theta, start, generic, decays, most, watch)]
    for counts in levels:
        yield [one.heads(count, theta.queries) for one, count in zip(projected, counts, strict=True)]


def split_at(theta: Theta, start: Float[Array, "1 d"], count: int) -> Heads:
    """The split of Θ of a single decay into `count` heads at a point."""
    generic = theta.responses(start, (1.0,))[:, 0]
    (projected,) = _projected(theta, start, generic, (1.0,), (count,), lambda what, share: None)
    return projected.heads(count, theta.queries)


def _rank(theta: Array, noise: float) -> int:
    """As many as there are heads; none where an input adds nothing to later outputs."""
    singular = np.linalg.svd(theta, compute_uv=False)
    return int((singular > noise * singular[0]).sum())


def _projected(
    theta: Theta,
    start: Array,
    generic: Array,
    decays: tuple[float, ...],
    counts: tuple[int, ...],
    watch: Callable[[str, float], None],
) -> Iterator[Projected]:
    inputs, bases = theta.orthogonal(0.5), []
    for at_start, count in zip(generic, counts, strict=True):
        left, singular, right = np.linalg.svd(at_start, full_matrices=False)
        bases.append((left[:, :count], singular[:count], right[:count].T))
    parts: list[list[tuple[Array, Array, Array, Array]]] = [[] for _ in decays]
    size = max(1, 64 // len(decays))
    for begin in range(0, theta.d, size):
        some = inputs[begin : begin + size]
        alone, beside = theta.responses(some, decays), theta.responses(start + some, decays)
        for g, (left, _, right) in enumerate(bases):
            crossed = beside[g] - alone[g] - generic[g]
            parts[g].append((alone[g] @ right, left.T @ alone[g], crossed @ right, left.T @ crossed))
        watch("asking with chosen inputs", (begin + len(some)) / theta.d)
    for basis, part in zip(bases, parts, strict=True):
        columns, rows, crossed_columns, crossed_rows = (np.concatenate(one) for one in zip(*part, strict=True))
        left, singular, right = basis
        yield Projected(left, singular, right, inputs, columns, rows, crossed_columns, crossed_rows)


@dataclass(frozen=True)
class Compressed:
    """One decay's T in its own bases; `rotation` takes queries back to the inputs' coordinates."""

    core: Float[Array, "o r r q"]
    output: Float[Array, "d_out o"]
    basis: Float[Array, "d r"]
    rotation: Float[Array, "q d"]

    def heads(self, tolerance: float, *, seed: int = 0, search: bool = True) -> Heads:
        """The fewest heads that a search finds, or else heads that always exist: singular vectors of T."""
        heads = fewest_heads(self.core, tolerance, seed=seed, search=search and self.core.size <= MOST_SEARCHED)
        values = np.einsum("hjk,oj,ak->hoa", heads.values, self.output, self.basis, optimize=True)
        key_query = np.einsum("hkl,ak,lc->hac", heads.key_query, self.basis, self.rotation, optimize=True)
        return Heads(values, key_query, heads.residual)


def compress(theta: Theta, decays: tuple[float, ...], noise: float) -> list[Compressed]:
    """T of each decay; nothing where one of them is too large to be asked for."""
    d_out = theta.responses(theta.normal(1, 0.5), decays).shape[2]
    probes, inputs = theta.normal(max(GENERIC, -(-2 * theta.d // d_out)), 0.5), theta.orthogonal(0.5)
    generic = theta.responses(probes, decays)
    outputs = [_basis(one.transpose(1, 0, 2).reshape(one.shape[1], -1), noise) for one in generic]
    queries = [_basis(one.transpose(2, 0, 1).reshape(one.shape[2], -1), noise) for one in generic]
    if any(
        o.shape[1] * q.shape[1] * len(probes) * theta.d > MOST_ENTRIES for o, q in zip(outputs, queries, strict=True)
    ):
        return []
    bases = _input_bases(theta, decays, probes, inputs, outputs, queries, noise)
    parts = list(zip(outputs, bases, queries, strict=True))
    if any(output.shape[1] * basis.shape[1] ** 2 * query.shape[1] > MOST_ENTRIES for output, basis, query in parts):
        return []
    turn = theta.queries / np.sum(theta.queries[0] ** 2)
    return [
        Compressed(_core(theta, decays, g, output, basis, query), output, basis, query.T @ turn)
        for g, (output, basis, query) in enumerate(parts)
    ]


def _basis(unfolded: Float[Array, "n m"], noise: float) -> Float[Array, "n r"]:
    vectors, singular, _ = np.linalg.svd(unfolded, full_matrices=False)
    return vectors[:, : max(1, int((singular > noise * singular[0]).sum()))]


def _input_bases(
    theta: Theta,
    decays: tuple[float, ...],
    probes: Array,
    inputs: Array,
    outputs: list[Array],
    queries: list[Array],
    noise: float,
) -> list[Float[Array, "d r"]]:
    """The directions a on which Θ(r, a) depends, r generic."""

    def shown(rows: Array) -> list[Array]:
        responses = theta.responses(rows, decays)
        return [output.T @ one @ query for output, one, query in zip(outputs, responses, queries, strict=True)]

    alone, columns = shown(inputs), [[] for _ in decays]
    for probe in probes:
        beside, itself = shown(probe + inputs), shown(probe[None])
        for g in range(len(decays)):
            columns[g].append((beside[g] - alone[g] - itself[g]).reshape(len(inputs), -1))
    directions = inputs.T / np.linalg.norm(inputs[0])
    return [directions @ _basis(np.concatenate(one, axis=1), noise) for one in columns]


def _core(
    theta: Theta, decays: tuple[float, ...], g: int, output: Array, basis: Array, query: Array
) -> Float[Array, "o r r q"]:
    """T on pairs of basis vectors, by polarisation: 2 Θ(a, b) = Θ(a + b) − Θ(a) − Θ(b)."""
    scale = 0.5 * theta.input_bound / np.abs(basis).max()
    rows = scale * basis.T
    first, second = pair_indices(len(rows))
    sums = theta.responses(rows[first] + rows[second], decays)[g]
    at = np.einsum("nok,oi,kq->niq", sums, output, query, optimize=True) / scale**2
    same = first == second
    diagonal = at[same] / 4
    mixed = (at - diagonal[first] - diagonal[second]) / 2
    pairs = np.where(same[:, None, None], diagonal[first], mixed)
    core = np.empty((output.shape[1], len(rows), len(rows), query.shape[1]))
    core[:, first, second] = core[:, second, first] = pairs.transpose(1, 0, 2)
    return core
