"""T_i[a,b,c] in bases of the outputs, inputs and queries that it has: heads where Θ(a) alone does not split.

Θ(a) at one a shows at most d_out heads, and heads of rank one leave it open which of two directions is the value's
and which the key's. The whole tensor knows; it is asked for entry by entry where it is small in bases of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from underhood.decompiler.from_outputs.questions import ChosenInputs
from underhood.decompiler.from_weights.reading import Array, pair_indices
from underhood.decompiler.recover import Heads, recover_heads

GENERIC = 8  # inputs, or more where one Θ has few rows, whose Θ span what all of them span
MOST_ENTRIES = 1 << 20
MOST_SEARCHED = 1 << 12  # entries in which the fewest heads are searched for: seconds


@dataclass(frozen=True)
class Compressed:
    """One decay's T in its own bases; `rotation` takes queries back to the inputs' coordinates."""

    core: Float[Array, "o r r q"]
    output: Float[Array, "d_out o"]
    basis: Float[Array, "d r"]
    rotation: Float[Array, "q d"]

    def heads(self, tolerance: float, *, seed: int = 0, search: bool = True) -> Heads:
        """The fewest heads that a search finds, or else heads that always exist: singular vectors of T."""
        found = recover_heads(self.core, tolerance, seed=seed, search=search and self.core.size <= MOST_SEARCHED)
        values = np.einsum("hjk,oj,ak->hoa", found.values, self.output, self.basis, optimize=True)
        key_query = np.einsum("hkl,ak,lc->hac", found.key_query, self.basis, self.rotation, optimize=True)
        return Heads(values, key_query, found.residual)


def compress(chosen: ChosenInputs, decays: tuple[float, ...], noise: float) -> list[Compressed]:
    """T of each decay; nothing where one of them is too large to be asked for."""
    d_out = chosen.responses(chosen.normal(1, 0.5), decays).shape[2]
    probes, inputs = chosen.normal(max(GENERIC, -(-2 * chosen.d // d_out)), 0.5), chosen.orthogonal(0.5)
    generic = chosen.responses(probes, decays)
    outputs = [_basis(one.transpose(1, 0, 2).reshape(one.shape[1], -1), noise) for one in generic]
    queries = [_basis(one.transpose(2, 0, 1).reshape(one.shape[2], -1), noise) for one in generic]
    if any(
        o.shape[1] * q.shape[1] * len(probes) * chosen.d > MOST_ENTRIES for o, q in zip(outputs, queries, strict=True)
    ):
        return []
    bases = _input_bases(chosen, decays, probes, inputs, outputs, queries, noise)
    parts = list(zip(outputs, bases, queries, strict=True))
    if any(output.shape[1] * basis.shape[1] ** 2 * query.shape[1] > MOST_ENTRIES for output, basis, query in parts):
        return []
    turn = chosen.queries / np.sum(chosen.queries[0] ** 2)
    return [
        Compressed(_core(chosen, decays, g, output, basis, query), output, basis, query.T @ turn)
        for g, (output, basis, query) in enumerate(parts)
    ]


def _basis(unfolded: Float[Array, "n m"], noise: float) -> Float[Array, "n r"]:
    vectors, singular, _ = np.linalg.svd(unfolded, full_matrices=False)
    return vectors[:, : max(1, int((singular > noise * singular[0]).sum()))]


def _input_bases(
    chosen: ChosenInputs,
    decays: tuple[float, ...],
    probes: Array,
    inputs: Array,
    outputs: list[Array],
    queries: list[Array],
    noise: float,
) -> list[Float[Array, "d r"]]:
    """The directions a on which Θ(r, a) depends, r generic."""

    def shown(rows: Array) -> list[Array]:
        responses = chosen.responses(rows, decays)
        return [output.T @ one @ query for output, one, query in zip(outputs, responses, queries, strict=True)]

    alone, columns = shown(inputs), [[] for _ in decays]
    for probe in probes:
        beside, itself = shown(probe + inputs), shown(probe[None])
        for g in range(len(decays)):
            columns[g].append((beside[g] - alone[g] - itself[g]).reshape(len(inputs), -1))
    directions = inputs.T / np.linalg.norm(inputs[0])
    return [directions @ _basis(np.concatenate(one, axis=1), noise) for one in columns]


def _core(
    chosen: ChosenInputs, decays: tuple[float, ...], g: int, output: Array, basis: Array, query: Array
) -> Float[Array, "o r r q"]:
    """T on pairs of basis vectors, by polarisation: 2 Θ(a, b) = Θ(a + b) − Θ(a) − Θ(b)."""
    scale = 0.5 * chosen.input_bound / np.abs(basis).max()
    rows = scale * basis.T
    first, second = pair_indices(len(rows))
    sums = chosen.responses(rows[first] + rows[second], decays)[g]
    theta = np.einsum("nok,oi,kq->niq", sums, output, query, optimize=True) / scale**2
    same = first == second
    diagonal = theta[same] / 4
    mixed = (theta - diagonal[first] - diagonal[second]) / 2
    pairs = np.where(same[:, None, None], diagonal[first], mixed)
    core = np.empty((output.shape[1], len(rows), len(rows), query.shape[1]))
    core[:, first, second] = core[:, second, first] = pairs.transpose(1, 0, 2)
    return core
