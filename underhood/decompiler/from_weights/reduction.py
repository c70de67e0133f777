"""The same function in as few neurons as can be found: exact reduction instead of refitting.

The output gating reads linear functionals of the memory neurons, that is, a subspace of quadratic forms in x.
As many products (a·x)(b·x) as that subspace has dimensions hold it, where it has a basis of products. The
queries are a subspace of linear forms, and the pre-readout neurons a sum of terms (merge.py). For one head
with r = rank W_V, s = rank M and o = dim(row space of W_V ∩ column space of M) this meets r·s − o(o−1)/2
memory neurons and as many pre-readout neurons, and s queries.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import scipy.linalg
from jaxtyping import Float

from underhood.algebra.heads import Heads
from underhood.algebra.key_values import KeyValueForm, smallest_form, smallest_head, stack_forms
from underhood.algebra.quadratic import Array, fold, pair_indices, product_forms
from underhood.algebra.subspaces import SAME_DIRECTION, independent_rows, row_space
from underhood.architectures.gated_rnn.cell import GatedRNN, Gating
from underhood.decompiler.from_weights.merge import (
    MergedKernel,
    Terms,
    concatenate,
    merge_rows,
    merge_terms,
    refit_readout,
    slice_terms,
)
from underhood.decompiler.from_weights.reading import MOST_DENSE, Reading
from underhood.decompiler.from_weights.structure import Structure


def reduce_attention(
    structure: Structure, heads: list[Heads], terms: list[Terms], products: tuple[Array, Array] | None
) -> GatedRNN:
    """The smallest gated RNN found for the attention in `heads`, one entry for each decay.

    `terms` are what the network's own rows read, and `products` the two branches of its input gating, whose neurons are
    candidates as they are; both are looked through up to d = 16.
    """
    # The heads are exact products, whatever noise they were found in.
    forms = [
        [smallest_head(value, key_query, decay, SAME_DIRECTION) for value, key_query in one.pairs]
        for one, decay in zip(heads, structure.decays, strict=True)
    ]
    d = heads[0].values.shape[2]
    if d > MOST_DENSE:
        return _network(smallest_form([form for one in forms for form in one]))
    folded = [fold(one.tensor) for one in heads]
    target = np.concatenate(folded, axis=1)
    spaces = [row_space(_as_forms(part), SAME_DIRECTION) for part in folded]
    memories = [
        _memory_products(space, one, group, products)
        for space, one, group in zip(spaces, forms, structure.memory, strict=True)
    ]
    seen = [np.real(one.memory) @ space.T @ space for one, space in zip(terms, spaces, strict=True)]
    own = Terms(terms[0].readout, np.concatenate(seen, axis=1), np.real(terms[0].query))
    queries = row_space(target.reshape(-1, d), SAME_DIRECTION)
    return _network(_form_of(_fewest_terms(forms, own, target), memories, queries, structure.decays))


def _as_forms(folded: Float[Array, "d_out p d"]) -> Float[Array, "k p"]:
    """Every quadratic form that some output multiplies with some query."""
    return folded.transpose(0, 2, 1).reshape(-1, folded.shape[1])


def _memory_products(
    space: Float[Array, "r p"], heads: list[KeyValueForm], group: Array, products: tuple[Array, Array] | None
) -> tuple[Array, Array]:
    """Products that span the forms the output needs: of the heads, of the network, or of the inputs."""
    d = heads[0].d
    if not len(space):
        return np.zeros((0, d)), np.zeros((0, d))
    together = stack_forms(heads)
    candidates = [(together.values, together.keys)]
    if products is not None:
        first, second = (branch[group] for branch in products)
        pure = (np.abs(first[:, -1]) + np.abs(second[:, -1])) <= SAME_DIRECTION * np.abs(first).max(initial=1.0)
        candidates.append((first[pure, :-1], second[pure, :-1]))
    rows, columns = pair_indices(d)
    candidates.append((np.eye(d)[rows], np.eye(d)[columns]))
    found = [_spanning(*pair, space) for pair in candidates]
    return min((pair for pair in found if pair is not None), key=lambda pair: len(pair[0]))


def _spanning(first: Array, second: Array, space: Array) -> tuple[Array, Array] | None:
    """As few of these products as span the space; None where they do not."""
    forms = product_forms(first, second)
    norms = np.linalg.norm(forms, axis=1)
    coordinates = forms @ space.T
    inside = (np.linalg.norm(forms - coordinates @ space, axis=1) <= 1e3 * SAME_DIRECTION * norms) & (norms > 0)
    chosen = np.flatnonzero(inside)[independent_rows(coordinates[inside])[0]]
    if len(chosen) < len(space):
        chosen, _ = independent_rows(forms)
        if not len(chosen):
            return None
        scaled = forms[chosen] / norms[chosen, None]
        weights, *_ = np.linalg.lstsq(scaled.T, space.T, rcond=None)
        if np.linalg.norm(scaled.T @ weights - space.T) > 1e3 * SAME_DIRECTION:
            return None
        chosen = chosen[np.linalg.norm(weights, axis=1) > 1e2 * SAME_DIRECTION]
    return first[chosen], second[chosen]


def _head_terms(form: KeyValueForm) -> Terms:
    """y = D [(A H) ⊙ (B Q x)] of one head."""
    return Terms(form.readout.T, form.reads @ form.forms, form.asks @ form.queries)


def _fewest_terms(heads: list[list[KeyValueForm]], own: Terms, target: Float[Array, "d_out p d"]) -> Terms:
    """Of the heads, of the network's own rows, or one a slice; each decay's memories beside those of the others."""
    tolerance = SAME_DIRECTION * (float(np.linalg.norm(target)) or 1.0)
    by_head = concatenate([_head_terms(form) for one in heads for form in one])
    memory = scipy.linalg.block_diag(*(np.concatenate([_head_terms(form).memory for form in one]) for one in heads))
    candidates = [
        merge_terms(replace(by_head, memory=np.asarray(memory)), tolerance),
        merge_terms(own, tolerance),
        slice_terms(target, tolerance),
    ]
    fitted = [refit_readout(terms, target) for terms in candidates]
    good = [terms for terms, residual in fitted if residual <= 1e2 * SAME_DIRECTION]
    return min(good or [fitted[2][0]], key=len)


def _form_of(
    terms: Terms, memories: list[tuple[Array, Array]], queries: Array, decays: tuple[float, ...]
) -> KeyValueForm:
    """The terms, read from these products and queries."""
    pairs, reads = terms.memory.shape[1] // len(memories), []
    for index, (first, second) in enumerate(memories):
        part = terms.memory[:, index * pairs : (index + 1) * pairs]
        forms = product_forms(first, second)
        reads.append(np.linalg.lstsq(forms.T, part.T, rcond=None)[0].T if len(forms) else part[:, :0])
    return KeyValueForm(
        values=np.concatenate([first for first, _ in memories]),
        keys=np.concatenate([second for _, second in memories]),
        decay=np.repeat(decays, [len(first) for first, _ in memories]),
        queries=queries,
        reads=np.concatenate(reads, axis=1),
        asks=np.linalg.lstsq(queries.T, terms.query.T, rcond=None)[0].T,
        readout=terms.readout.T,
    )


def _network(form: KeyValueForm) -> GatedRNN:
    """Memory neurons first, then queries: the blocks of Figure 2.A."""
    weights = form.gated
    gatings = Gating(weights.w_m, weights.w_x), Gating(weights.left, weights.right)
    return GatedRNN.from_lambda(gatings[0], weights.lambda_, gatings[1], weights.readout)


def reduce_general(reading: Reading, products: tuple[Array, Array]) -> tuple[GatedRNN, list[MergedKernel]]:
    """Any gated RNN: neurons of equal λ that depend on others are expressed through them, unread ones go,
    and rows that share a readout column merge."""
    left, right, keep = reading.left.copy(), reading.right.copy(), []
    for value in np.unique(reading.lambda_):
        group = np.flatnonzero(reading.lambda_ == value)
        chosen, weights = independent_rows(reading.forms[group])
        for reads in (left, right):
            reads[:, group[chosen]] = reads[:, group] @ weights
        keep.extend(group[chosen])
    kept = np.sort(np.array(keep, int))
    left, right, readout, kernels = merge_rows(left[:, kept], right[:, kept], reading.readout, 1e-12)
    reads = np.abs(left).max(axis=0, initial=0.0) + np.abs(right).max(axis=0, initial=0.0)
    read = np.flatnonzero(reads > 1e-14 * max(reads.max(initial=0.0), 1e-300))
    if not len(read):
        return _silent(reading), kernels
    kept = kept[read]
    first, second = (branch[kept] for branch in products)
    lambda_ = np.real(reading.lambda_[kept])
    gating = Gating(left[:, read], right[:, read])
    return GatedRNN.from_lambda(Gating(first, second), lambda_, gating, readout), kernels


def _silent(reading: Reading) -> GatedRNN:
    """Zero for every input takes no neuron at all."""
    nothing = np.zeros((0, reading.d + 1))
    silence = Gating(np.zeros((0, 0)), np.zeros((0, 0)))
    return GatedRNN.from_lambda(Gating(nothing, nothing), np.zeros(0), silence, np.zeros((reading.d_out, 0)))
