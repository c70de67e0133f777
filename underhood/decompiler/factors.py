"""Θ(a) = V(a) M(a), linear times linear in a: W_V and M = W_KᵀW_Q of all heads from 2d + 1 matrices Θ(a).

At a generic a_0, Θ(a_0) = U Σ Wᵀ has as many singular values as there are heads, and V(a_0) = U, M(a_0) = Σ Wᵀ is one
of the splits, which are all the same function. Then Θ(a_0 + a) − Θ(a_0) − Θ(a) = V(a) M(a_0) + V(a_0) M(a) is linear
in what is sought. It gives V(a) outside the columns of U, M(a) outside the rows of Wᵀ, and the sum X + Y of what they
have inside, V(a) = p + U X, M(a) = m + Y Σ Wᵀ. Θ(a) itself has p Y and X m, and settles the two: one Sylvester
equation of the size of the heads. Nothing grows faster than the answer, d·(d + d_out) numbers a head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.linalg import solve_sylvester

from underhood.decompiler.from_outputs.questions import ChosenInputs
from underhood.decompiler.from_weights.reading import Array
from underhood.decompiler.recover import Heads

MOST_HEADS = 64  # of one decay
# Relative sizes of singular values that may separate heads from noise: rounding of float64, of compiled networks that
# approximate their products, of float32, of float16.
NOISE = (1e-9, 1e-7, 1e-5, 1e-3)


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


def factored(
    chosen: ChosenInputs, decays: tuple[float, ...], watch: Callable[[str, float], None]
) -> Iterator[list[Heads]]:
    """Heads of each decay, for each level of noise under which few enough remain."""
    start = chosen.normal(1, 0.5)
    generic = chosen.responses(start, decays)[:, 0]
    levels = dict.fromkeys(tuple(_ranks(one, noise) for one in generic) for noise in NOISE)
    levels = {counts: None for counts in levels if min(counts) > 0 and max(counts) <= min(MOST_HEADS, chosen.d)}
    if not levels:
        return
    most = np.max(list(levels), axis=0)
    projected = [*_projected(chosen, start, generic, decays, most, watch)]
    for counts in levels:
        yield [one.heads(count, chosen.queries) for one, count in zip(projected, counts, strict=True)]


def _ranks(theta: Array, noise: float) -> int:
    """As many as there are heads; none where an input adds nothing to later outputs."""
    singular = np.linalg.svd(theta, compute_uv=False)
    return int((singular > noise * singular[0]).sum())


def _projected(
    chosen: ChosenInputs,
    start: Array,
    generic: Array,
    decays: tuple[float, ...],
    counts: Array,
    watch: Callable[[str, float], None],
) -> Iterator[Projected]:
    inputs, bases = chosen.orthogonal(0.5), []
    for theta, count in zip(generic, counts, strict=True):
        left, singular, right = np.linalg.svd(theta, full_matrices=False)
        bases.append((left[:, :count], singular[:count], right[:count].T))
    parts: list[list[tuple[Array, Array, Array, Array]]] = [[] for _ in decays]
    size = max(1, 64 // len(decays))
    for begin in range(0, chosen.d, size):
        some = inputs[begin : begin + size]
        alone, beside = chosen.responses(some, decays), chosen.responses(start + some, decays)
        for g, (left, _, right) in enumerate(bases):
            crossed = beside[g] - alone[g] - generic[g]
            parts[g].append((alone[g] @ right, left.T @ alone[g], crossed @ right, left.T @ crossed))
        watch("asking with chosen inputs", (begin + len(some)) / chosen.d)
    for basis, part in zip(bases, parts, strict=True):
        columns, rows, crossed_columns, crossed_rows = (np.concatenate(one) for one in zip(*part, strict=True))
        left, singular, right = basis
        yield Projected(left, singular, right, inputs, columns, rows, crossed_columns, crossed_rows)
