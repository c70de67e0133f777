"""H_t = decay ⊙ H_{t-1} + (V x_t) ⊙ (K x_t);  y_t = D [(A H_t) ⊙ (B Q x_t)]: products to remember and to read.

One head, y = W_V (Σ_s x_s x_sᵀ) M x_t with M = W_KᵀW_Q, needs a basis of products for the symmetric part of
(row space of W_V) ⊗ (column space of M). With r and s their dimensions and o that of their intersection these are
r·s − o(o−1)/2, because the antisymmetric part over the intersection vanishes. This is a lower bound too: the products
of the readout make every one of these forms show in some output.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np
import scipy.linalg
from jaxtyping import Float

from underhood.algebra.gated import GatedArrays
from underhood.algebra.quadratic import Array, product_forms
from underhood.algebra.subspaces import factor, independent_rows, intersect, numerical_rank, row_space


class Factors(NamedTuple):
    """What one head is written by: W_V ≈ outs @ rows and W_KᵀW_Q ≈ columnsᵀ @ asked."""

    outs: Float[Array, "d_o r"]
    rows: Float[Array, "r d"]
    columns: Float[Array, "s d"]
    asked: Float[Array, "s d"]


@dataclasses.dataclass(frozen=True)
class KeyValueForm:
    """y_t = D [(A H_t) ⊙ (B Q x_t)] with H_t = decay ⊙ H_{t-1} + (V x_t) ⊙ (K x_t), in float64."""

    values: Float[Array, "memory d"]  # V
    keys: Float[Array, "memory d"]  # K
    decay: Float[Array, " memory"]
    queries: Float[Array, "queries d"]  # Q
    reads: Float[Array, "products memory"]  # A
    asks: Float[Array, "products queries"]  # B
    readout: Float[Array, "d_o products"]  # D
    factors: tuple[Factors | None, ...] | None = None  # of each head, None where its weights are copied; None: unknown

    @property
    def d(self) -> int:
        return self.values.shape[1]

    @property
    def memory(self) -> int:
        return len(self.values)

    @property
    def products(self) -> int:
        return len(self.reads)

    @property
    def forms(self) -> Float[Array, "memory p"]:
        """The quadratic form that each memory sums."""
        return product_forms(self.values, self.keys)

    @property
    def gated(self) -> GatedArrays:
        """Memory neurons (λ = decay) first, then query neurons (λ = 0), which read x times the constant 1."""
        memory, queries, products = self.memory, len(self.queries), self.products
        w_m, w_x = np.zeros((2, memory + queries, self.d + 1))
        w_m[:memory, :-1], w_x[:memory, :-1] = self.values, self.keys
        w_m[memory:, :-1], w_x[memory:, -1] = self.queries, 1.0
        left, right = np.zeros((2, products, memory + queries))
        left[:, :memory], right[:, memory:] = self.reads, self.asks
        lambda_ = np.append(self.decay, np.zeros(queries))
        return GatedArrays(lambda_, left, right, self.readout, w_m=w_m, w_x=w_x)


def stack_forms(forms: list[KeyValueForm]) -> KeyValueForm:
    """Heads side by side: their outputs add up in the readout."""
    if len(forms) == 1:
        return forms[0]
    return KeyValueForm(
        values=np.concatenate([form.values for form in forms]),
        keys=np.concatenate([form.keys for form in forms]),
        decay=np.concatenate([form.decay for form in forms]),
        queries=np.concatenate([form.queries for form in forms]),
        reads=np.asarray(scipy.linalg.block_diag(*(form.reads for form in forms))),
        asks=np.asarray(scipy.linalg.block_diag(*(form.asks for form in forms))),
        readout=np.concatenate([form.readout for form in forms], axis=1),
        factors=None
        if any(form.factors is None for form in forms)
        else tuple(factors for form in forms for factors in form.factors or ()),
    )


def smallest_head(
    w_value: Float[Array, "d_o d"], key_query: Float[Array, "d d"], decay: float = 1.0, noise: float = 0.0
) -> KeyValueForm:
    """One head in r·s − o(o−1)/2 memories, as many products, and s queries.

    Over the intersection S is symmetric: S_pq (q_p + q_q) serves the outputs p and q, and (S_pp − Σ_{q≠p} S_pq) q_p is
    left. `noise` is the relative error that the weights come with, beyond their rounding.
    """
    columns, queries = factor(key_query, noise)
    common, rows_only, columns_only = intersect(row_space(w_value, noise), columns)
    left, right = np.concatenate([common, rows_only]), np.concatenate([common, columns_only])
    # W_V = coefficients @ left, and M = rightᵀ @ asked: y = coefficients (Σ left x xᵀ rightᵀ) asked x.
    coefficients, asked = w_value @ np.linalg.pinv(left), np.linalg.pinv(right).T @ columns.T @ queries
    r, s, o = len(left), len(right), len(common)
    p, q = np.indices((r, s)).reshape(2, -1)
    p, q = (index[~((p < o) & (q < p))] for index in (p, q))
    pairs = np.arange(len(p))
    place = np.zeros((r, s), int)
    place[p, q] = pairs
    reads, asks, outputs = np.eye(len(p)), np.zeros((len(p), s)), np.zeros((r, len(p)))
    outputs[p, pairs] = asks[pairs, q] = 1
    mixed = pairs[(p < q) & (q < o)]
    asks[mixed, p[mixed]] = outputs[q[mixed], mixed] = 1
    for diagonal in (p[mixed], q[mixed]):
        reads[place[diagonal, diagonal], mixed] = -1
    return KeyValueForm(
        values=left[p], keys=right[q], decay=np.full(len(p), decay), queries=asked, reads=reads, asks=asks,
        readout=coefficients @ outputs, factors=(Factors(coefficients, left, right, asked),),
    )  # fmt: skip


def smallest_form(heads: list[KeyValueForm]) -> KeyValueForm:
    """The smaller of: each head on its own, and all heads of one decay through shared memories and queries."""
    apart = stack_forms(heads)
    if len(heads) == 1:
        return apart
    decays = [form.decay[0] if form.memory else 1.0 for form in heads]
    groups = [[form for form, its in zip(heads, decays, strict=True) if its == decay] for decay in sorted(set(decays))]
    together = stack_forms([_share(group) for group in groups])
    return min(together, apart, key=lambda form: (form.memory + len(form.queries), form.products))


def _share(heads: list[KeyValueForm]) -> KeyValueForm:
    """Heads of one decay through one basis of memories and of queries."""
    together = stack_forms(heads)
    chosen, weights = independent_rows(together.forms)
    queries = row_space(together.queries)
    # What each head reads, as functionals of the shared memories and queries.
    reads, asks = together.reads @ weights, together.asks @ together.queries @ np.linalg.pinv(queries)
    tensor = np.einsum("ir,rp,rk->ipk", together.readout, reads, asks, optimize=True)
    # One product for each (output direction, query): rank of outputs × queries.
    outputs, sizes, _ = np.linalg.svd(tensor.reshape(len(tensor), -1), full_matrices=False)
    rank = numerical_rank(sizes, tensor.reshape(len(tensor), -1).shape)
    directions = outputs[:, :rank]
    reads = np.einsum("io,ipk->okp", directions, tensor).reshape(rank * len(queries), len(chosen))
    return KeyValueForm(
        values=together.values[chosen],
        keys=together.keys[chosen],
        decay=np.full(len(chosen), together.decay[0] if together.memory else 1.0),
        queries=queries,
        reads=reads,
        asks=np.tile(np.eye(len(queries)), (rank, 1)),
        readout=np.repeat(directions, len(queries), axis=1),
    )
