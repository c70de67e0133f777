"""Σ_j D_j (l_j·h)(r_j·h) − attention, bounded from the rows: for a certificate where P² coefficients are many.

Of memory × query, and of all else that is narrow enough, the coefficients are summed over all rows, as for small d.
Of what is left, rows that write to the output alike are summed first, within the span of what they read:
(a + b)² − a² − b² costs what 2ab does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations_with_replacement

import numpy as np
from jaxtyping import Float

from underhood.algebra.quadratic import Array, decayed_length, fold
from underhood.attention.linear import LinearAttention
from underhood.decompiler.from_weights.merge import find_twins, join_twins, parallel_groups
from underhood.decompiler.from_weights.reading import Reading
from underhood.decompiler.from_weights.structure import Structure

MOST_WORK = 1e11  # multiplications for one pair of kinds: some seconds
UNIT = 2.3e-16  # a little above the rounding unit of float64, in which this is computed


@dataclass(frozen=True)
class _Kind:
    """What rows read of one sort of terms, in units in which no monomial, summed over its memory, exceeds 1."""

    left: Float[Array, "m w"]
    right: Float[Array, "m w"]
    units: Float[Array, " w"]

    @property
    def width(self) -> int:
        return len(self.units)

    @property
    def any(self) -> bool:
        return bool(self.left.any() or self.right.any())

    @property
    def sizes(self) -> tuple[Float[Array, " m"], Float[Array, " m"]]:
        return np.abs(self.left).sum(axis=1), np.abs(self.right).sum(axis=1)


def row_gap(
    reading: Reading, structure: Structure, attention: LinearAttention, bound: float, horizon: int
) -> Float[Array, " d_out"]:
    """The largest difference of each output within the box, with each λ at its ideal value."""
    written = np.flatnonzero(reading.readout.any(axis=0))
    reading = reading.without_silent_neurons().keep(np.arange(reading.hidden), written)
    reading, apart = _joined(reading, structure, bound, horizon)
    memories = [
        _kind(reading, group, reading.degree == 2, bound, decayed_length(decay, horizon))
        for group, decay in zip(structure.memory, structure.decays, strict=True)
    ]
    others = [
        _kind(reading, group, reading.degree < 2, bound, decayed_length(decay, horizon))
        for group, decay in zip(structure.memory, structure.decays, strict=True)
    ]
    query = _kind(reading, structure.forget, reading.degree == 1, bound, 1.0)
    others.append(_kind(reading, structure.forget, reading.degree != 1, bound, 1.0))
    kinds = [*memories, query, *others]
    sizes = [kind.sizes for kind in kinds]
    total, wide = apart, []
    for a, b in combinations_with_replacement(range(len(kinds)), 2):
        attended = b == len(memories) and a < b
        if attended or reading.d_out * reading.pre_readout * kinds[a].width * kinds[b].width <= MOST_WORK:
            heads = _heads(attention, structure.decays[a]) if attended else None
            total = total + _pair_gap(reading.readout, kinds[a], kinds[b], heads)
        else:
            wide.append((a, b))
    total = total + _grouped(reading.readout, kinds, sizes, wide)
    left, right = (sum(size[side] for size in sizes) for side in (0, 1))
    whole = np.abs(reading.readout) @ (left * right) + _attention_size(attention, bound, horizon)
    # Sums of as many terms as there are neurons, and then rows, round before anything cancels.
    return total + whole * UNIT * (reading.hidden + reading.pre_readout + attention.heads * attention.d_key)


def _joined(
    reading: Reading, structure: Structure, bound: float, horizon: int
) -> tuple[Reading, Float[Array, " d_out"]]:
    """The reading with twins joined, and what that can change: they are alike up to rounding."""
    lengths = np.ones(reading.hidden)
    for group, decay in zip(structure.memory, structure.decays, strict=True):
        lengths[group] = decayed_length(decay, horizon)
    state = np.abs(reading.forms) @ bound ** reading.degree.astype(float) * lengths
    twins, apart = find_twins(reading.left, reading.right), np.zeros(reading.d_out)
    for row, first, scales, swapped in twins:
        own = reading.left[row], reading.right[row]
        other = (reading.left[first], reading.right[first])[:: -1 if swapped else 1]
        gaps = [np.abs(mine - scale * its) @ state for mine, scale, its in zip(own, scales, other, strict=True)]
        change = gaps[0] * (np.abs(own[1]) @ state) + abs(scales[0]) * (np.abs(other[0]) @ state) * gaps[1]
        apart += np.abs(reading.readout[:, row]) * change
    readout, rows = join_twins(reading.readout, twins)
    return replace(reading, left=reading.left[rows], right=reading.right[rows], readout=readout), apart


def _kind(reading: Reading, group: Array, chosen: Array, bound: float, length: Array | float) -> _Kind:
    units = bound ** reading.degree[chosen].astype(float) * length
    forms = reading.forms[group][:, chosen] * units
    return _Kind(reading.left[:, group] @ forms, reading.right[:, group] @ forms, units)


def _grouped(
    readout: Float[Array, "d_out m"], kinds: list[_Kind], sizes: list[tuple[Array, Array]], pairs: list[tuple[int, int]]
) -> Float[Array, " d_out"]:
    gross = np.zeros(readout.shape[1])
    for a, b in pairs:
        gross += sizes[a][0] * sizes[b][1] + (sizes[a][1] * sizes[b][0] if a != b else 0.0)
    total = np.zeros(len(readout))
    for rows in parallel_groups(readout.T) if pairs else ():
        column = readout[:, rows[0]]
        if len(rows) == 1:
            total += np.abs(column) * gross[rows[0]]
            continue
        scales = column @ readout[:, rows] / (column @ column)
        total += np.abs(column) * _core_bound([_spanned(kind, rows) for kind in kinds], scales, pairs)
        total += np.abs(readout[:, rows] - column[:, None] * scales) @ gross[rows]
    return total


def _spanned(kind: _Kind, rows: Array) -> tuple[Array, Array, Array] | None:
    """Coordinates of both sides in a common orthonormal basis, and the largest value of each direction."""
    left, right = kind.left[rows], kind.right[rows]
    if not left.any() and not right.any():
        return None
    basis, _ = np.linalg.qr(np.concatenate([left, right]).T)
    return left @ basis, right @ basis, np.abs(basis).sum(axis=0)


def _core_bound(spanned: list[tuple[Array, Array, Array] | None], scales: Array, pairs: list[tuple[int, int]]) -> float:
    total = 0.0
    for a, b in pairs:
        first, second = spanned[a], spanned[b]
        if first is None or second is None:
            continue
        core = (first[0] * scales[:, None]).T @ second[1]
        core = (core + core.T) / 2 if a == b else core + (first[1] * scales[:, None]).T @ second[0]
        total += float(first[2] @ np.abs(core) @ second[2])
    return total


def _pair_gap(
    readout: Float[Array, "d_out m"], first: _Kind, second: _Kind, heads: tuple[Array, Array] | None
) -> Float[Array, " d_out"]:
    """One kind times another, less the heads, coefficient by coefficient."""
    gaps = np.zeros(len(readout))
    if heads is None and not (first.any and second.any):
        return gaps
    units = first.units[:, None] * second.units
    for k, row in enumerate(readout):
        here = first.left.T @ (second.right * row[:, None])
        here = (here + here.T) / 2 if first is second else here + first.right.T @ (second.left * row[:, None])
        if heads is not None:
            here -= fold(np.einsum("ha,hbc->abc", heads[0][:, k], heads[1])[None])[0] * units
        gaps[k] = np.abs(here).sum()
    return gaps


def _heads(attention: LinearAttention, decay: float) -> tuple[Float[Array, "h d_out d"], Float[Array, "h d d"]]:
    """W_V and W_KᵀW_Q of the heads of one decay."""
    own = np.ones(attention.heads) if attention.decay is None else np.asarray(attention.decay, np.float64)
    return np.asarray(attention.w_value, np.float64)[own == decay], attention.key_query[own == decay]


def _attention_size(attention: LinearAttention, bound: float, horizon: int) -> Float[Array, " d_out"]:
    """The largest Σ |v| |k| |q| of the attention."""
    values, keys, queries = (
        np.abs(np.asarray(weight, np.float64)).sum(axis=2) * bound
        for weight in (attention.w_value, attention.w_key, attention.w_query)
    )
    decay = np.ones(attention.heads) if attention.decay is None else np.asarray(attention.decay, np.float64)
    return np.sum(values * (np.sum(keys * queries, axis=1) * decayed_length(decay, horizon))[:, None], axis=0)
