"""Forms: the same function from every one, and the counts of docs/theory.md against ranks known by design."""

import dataclasses

import numpy as np
import pytest

import underhood as uh
from tests.tolerance import agree, error
from underhood.architectures.gated_rnn.lowering import to_sparse_gated_rnn
from underhood.compiler.forms import (
    compact,
    compact_coordinates,
    coordinates,
    figure_1,
    memory_count,
    minimal,
    rank_revealed,
    to_gated_rnn,
)
from underhood.layers.linear import dense


def coefficient_tensor(form):
    """T_i[a,b,c] of y_i = Σ_s T_i[a,b,c] x_s,a x_s,b x_t,c, straight from the form."""
    outer = form.values[:, :, None] * form.keys[:, None, :]
    forms = (outer + outer.transpose(0, 2, 1)) / 2
    reads = np.einsum("rp,pab->rab", form.reads, forms)
    return np.einsum("ir,rab,rc->iabc", form.readout, reads, form.asks @ form.queries)


def attention_tensor(attention):
    tensor = np.einsum("hia,hbc->iabc", np.asarray(attention.w_value), attention.key_query)
    return (tensor + tensor.transpose(0, 2, 1, 3)) / 2


def by_ranks(r, s, o, d, seed):
    """An attention with rank r values, rank s of W_KᵀW_Q, and o shared dimensions."""
    random = np.random.default_rng(seed)
    basis = np.linalg.qr(random.normal(size=(d, d)))[0]
    rows = random.normal(size=(r, r)) @ basis[:, :r].T
    columns = random.normal(size=(s, s)) @ basis[:, r - o : r - o + s].T
    w_value = random.normal(size=(d, r)) @ rows
    w_key = random.normal(size=(d, s)) @ columns
    w_query = np.linalg.pinv(w_key.T) @ columns.T @ random.normal(size=(s, d))
    return uh.LinearAttention(w_value, w_key, w_query)


def patterns(count=100):
    random = np.random.default_rng(0)
    made = []
    while len(made) < count:
        d = int(random.integers(1, 8))
        r, s = random.integers(0, d + 1, 2)
        least, most = max(0, r + s - d), min(r, s)
        made.append((int(r), int(s), int(random.integers(least, most + 1)), d, len(made)))
    return made


@pytest.mark.parametrize(("r", "s", "o", "d", "seed"), patterns())
def test_minimal_meets_the_formula_for_any_ranks(r, s, o, d, seed):
    attention = by_ranks(r, s, o, d, seed)
    form = minimal(attention)
    if r == 0 or s == 0:
        assert form.memory == 0
        return
    assert (form.memory, len(form.queries)) == (r * s - o * (o - 1) // 2, s)
    assert memory_count(attention) == [(form.memory, s)]
    assert form.products == form.memory
    tensor = coefficient_tensor(form)
    assert error(tensor, attention_tensor(attention)) <= 1e-10
    # No smaller number of memories reads all the quadratic forms that the outputs show.
    functionals = tensor.transpose(0, 3, 1, 2).reshape(-1, d * d)
    assert np.linalg.matrix_rank(functionals, tol=1e-9 * np.abs(functionals).max()) == form.memory


@pytest.mark.parametrize(("d", "memory", "products"), [(4, 10, 10), (6, 21, 21), (1, 1, 1), (8, 36, 36)])
def test_full_rank_counts(d, memory, products):
    form = minimal(uh.random_attention(d, seed=5))
    assert (form.memory, len(form.queries), form.products) == (memory, d, products)


def test_gradient_descent_takes_nine_and_three():
    form = minimal(uh.gradient_descent_attention(3, 3, eta=1 / 14.8))
    assert (form.memory, len(form.queries)) == (9, 3)


@pytest.mark.parametrize("heads", [2, 3, 4])
@pytest.mark.parametrize(("d", "rank"), [(3, None), (5, None), (5, 1), (6, 2)])
def test_heads_share_memories(heads, d, rank):
    attention = uh.random_attention(d, heads=heads, rank=rank, seed=heads)
    form = minimal(attention)
    assert error(coefficient_tensor(form), attention_tensor(attention)) <= 1e-11
    assert form.memory <= min(d * (d + 1) // 2, sum(memory for memory, _ in memory_count(attention)))
    assert len(form.queries) <= min(d, sum(queries for _, queries in memory_count(attention)))
    assert form.products <= d * d


@pytest.mark.parametrize("write", [figure_1, rank_revealed, coordinates, minimal])
@pytest.mark.parametrize(
    "sizes", [{"d": 4}, {"d": 4, "d_key": 2, "d_value": 3, "heads": 2}, {"d": 5, "rank": 2}, {"d": 3, "rank": 0}]
)
def test_every_form_is_the_attention(write, sizes):
    attention = uh.random_attention(**sizes, seed=2)
    assert np.allclose(coefficient_tensor(write(attention)), attention_tensor(attention), rtol=0, atol=1e-13)


@pytest.mark.parametrize("write", [compact, compact_coordinates])
def test_both_compact_forms_are_the_attention(write):
    attention = uh.random_attention(4, heads=2, seed=1)
    assert error(coefficient_tensor(write(attention)), attention_tensor(attention)) <= 1e-12


def test_coordinates_keep_decays_apart():
    whole = uh.random_attention(3, heads=3, seed=1)
    weights = (whole.w_value, whole.w_key, whole.w_query)
    form = coordinates(uh.LinearAttention(*weights, decay=np.array([0.5, 1.0, 0.5])))
    assert form.memory == 2 * 6
    for decay, heads in ((0.5, [0, 2]), (1.0, [1])):
        chosen = form.decay == decay
        part = dataclasses.replace(form, reads=form.reads * chosen)
        expected = attention_tensor(uh.LinearAttention(*(weight[np.array(heads)] for weight in weights)))
        assert np.allclose(coefficient_tensor(part), expected, rtol=0, atol=1e-13)


def test_figure_1_has_the_papers_counts_and_compact_too():
    full = to_gated_rnn(figure_1(uh.random_attention(4, d_key=3, d_value=2, heads=2)))
    assert (full.hidden, full.pre_readout) == (2 * (2 * 3 + 3), 2 * 2 * 3)
    small = to_gated_rnn(compact(uh.random_attention(4, seed=1)))
    assert (small.hidden, small.pre_readout) == (10 + 4, 16)
    assert set(np.asarray(small.lambda_)) == {0.0, 1.0}


@pytest.mark.parametrize("sizes", [{"rank": 3}, {"d_value": 3}])
def test_compact_refuses_a_singular_value_matrix_with_the_remedy(sizes):
    for write in (compact, compact_coordinates):
        with pytest.raises(
            uh.UnderhoodError, match=r"compact expects an invertible w_value; got .* Use `to='gated-rnn-minimal'`"
        ):
            write(uh.random_attention(4, **sizes))


def test_sparse_is_figure_1_without_its_zeros():
    attention = uh.random_attention(4, heads=2, d_key=3, d_value=2)
    sparse, full = to_sparse_gated_rnn(attention), to_gated_rnn(figure_1(attention))
    for gating in ("input_gating", "output_gating"):
        for branch in ("w_m", "w_x"):
            assert np.array_equal(
                dense(getattr(getattr(sparse, gating), branch)), dense(getattr(getattr(full, gating), branch))
            )
    assert np.array_equal(dense(sparse.readout), dense(full.readout))
    xs = np.random.default_rng(0).normal(size=(50, 4))
    assert agree(sparse(xs), attention(xs))
