"""Beyond d = 16 nothing is written out: heads, distances and certificates from factors, against the dense ways."""

import itertools

import numpy as np
import pytest

import underhood as uh
from underhood.algebra.heads import fewest_heads, head_outputs, head_tensor
from underhood.algebra.quadratic import fold
from underhood.compiler.forms import figure_1, minimal, to_gated_rnn
from underhood.decompiler.from_weights import certificate as certify
from underhood.decompiler.from_weights import row_gap
from underhood.decompiler.from_weights.merge import Terms, find_twins
from underhood.decompiler.from_weights.polynomial import distance, instantaneous, of_attention, polynomial_distance
from underhood.decompiler.from_weights.reading import read
from underhood.decompiler.from_weights.rounding import _lengths_sum
from underhood.decompiler.from_weights.structure import find_structure
from underhood.decompiler.heads import recover


def terms_of(values, key_query, seed=0, mixing=3):
    """Σ_heads sym(V ⊗ M) as terms in which nothing of the heads can be seen: random ones that sum to the tensor."""
    random = np.random.default_rng(seed)
    folded = fold(head_tensor(values, key_query))
    outputs, pairs, queries = folded.shape
    outer, singular, right = np.linalg.svd(folded.reshape(outputs, -1), full_matrices=False)
    memory = (singular[:, None] * right).reshape(-1, pairs, queries).transpose(0, 2, 1).reshape(-1, pairs)
    terms = Terms(np.repeat(outer.T, queries, axis=0), memory, np.tile(np.eye(queries), (outputs, 1)))
    split = random.uniform(0.2, 0.8, (mixing, len(terms)))
    split /= split.sum(axis=0)
    readout = np.concatenate([terms.readout * share[:, None] for share in split])
    return Terms(readout, np.tile(terms.memory, (mixing, 1)), np.tile(terms.query, (mixing, 1)))


def drawn(d, heads, rank, d_out, seed):
    random = np.random.default_rng(seed)
    rank = rank or max(d, d_out)

    def low(rows):
        r = min(rank, rows, d)
        return random.normal(size=(heads, rows, r)) @ random.normal(size=(heads, r, d)) / d

    return low(d_out), low(d)


@pytest.mark.parametrize(
    ("heads", "rank", "d_out"), [(1, None, 18), (3, None, 18), (9, None, 18), (1, 1, 18), (2, 2, 18), (1, None, 5)]
)
def test_heads_from_factors(heads, rank, d_out):
    values, key_query = drawn(18, heads, rank, d_out, seed=heads)
    found = recover(terms_of(values, key_query), 18, 1e-9)
    expected = head_tensor(values, key_query)
    assert found.count <= heads
    assert np.linalg.norm(found.tensor - expected) <= 1e-9 * np.linalg.norm(expected)


def test_noise_is_averaged_out_and_more_of_it_is_more_heads():
    values, key_query = drawn(18, 2, None, 18, seed=5)
    terms = terms_of(values, key_query)
    noise = np.random.default_rng(0).normal(size=terms.readout.shape) * np.abs(terms.readout).mean()
    noisy = Terms(terms.readout + 1e-5 * noise, terms.memory, terms.query)
    found, expected = recover(noisy, 18, 1e-3), head_tensor(values, key_query)
    assert found.count == 2
    assert np.linalg.norm(found.tensor - expected) <= 1e-4 * np.linalg.norm(expected)
    exactly = recover(noisy, 18, 1e-9)  # one for each output and input always do
    assert exactly.count == 18 * 18
    np.testing.assert_allclose(fold(exactly.tensor), noisy.tensor, atol=1e-12)


def test_small_sizes_take_the_dense_way():
    values, key_query = drawn(4, 2, None, 4, seed=1)
    tensor = head_tensor(values, key_query)
    found, dense = recover(terms_of(values, key_query), 4, 1e-9), fewest_heads(tensor, 1e-9)
    assert found.count == dense.count == 2
    np.testing.assert_allclose(found.tensor, tensor, atol=1e-10)


def test_outputs_of_heads_are_those_of_the_attention():
    attention = uh.random_attention(3, heads=2, seed=4)
    decayed = uh.LinearAttention(attention.w_value, attention.w_key, attention.w_query, np.array([0.7, 0.7]))
    xs = np.random.default_rng(0).normal(size=(2, 9, 3))
    heads = fewest_heads(head_tensor(np.asarray(attention.w_value), attention.key_query), 1e-9)
    for model, decay in ((attention, 1.0), (decayed, 0.7)):
        ys = np.stack([model(one) for one in xs])
        np.testing.assert_allclose(head_outputs([heads], (decay,), xs), ys, atol=1e-10 * np.abs(ys).max())


@pytest.mark.parametrize(("form", "heads"), [(minimal, 1), (minimal, 2), (figure_1, 1)])
def test_disguised_networks_are_read_beyond_the_dense_sizes(form, heads):
    attention = uh.random_attention(18, heads=heads, seed=3)
    network = uh.disguise(to_gated_rnn(form(attention)), seed=2)
    found = uh.decompile(network, against=attention, horizon=30, input_bound=2.0)
    assert (found.verdict, found.heads) == ("linear-attention", heads), found.reason
    assert found.scores.polynomial_distance < 1e-12 and found.scores.kv_score < 1e-20
    assert found.reduced.hidden == found.hidden_after == 18 * 19 // 2 + 18
    assert found.reduced_change < 1e-12
    assert found.evidence.tensor is None and found.evidence.polynomial is None
    random = np.random.default_rng(0)
    for xs in (random.uniform(-2, 2, (30, 18)), np.repeat(2 * random.choice([-1.0, 1.0], (1, 18)), 30, axis=0)):
        ys = attention(xs)
        error = np.abs(found.attention(xs) - network(xs)).max()
        assert error <= found.certificate.max_abs_error <= 1e-4 * np.abs(ys).max()


def test_what_is_not_attention_is_not_called_so_beyond_the_dense_sizes(changed):
    network = to_gated_rnn(minimal(uh.random_attention(18, seed=3)))
    right = np.array(network.output_gating.w_x)
    right[0, 0] = 0.1  # memory × memory
    found = uh.decompile(changed(network, right=right))
    assert found.verdict == "not-attention" and "memory×memory" in found.reason
    assert found.certificate is None


def test_sparse_networks_are_read(figure_1):
    attention = uh.random_attention(17, d_key=5, d_value=4, seed=1)
    found = uh.decompile(uh.compile(attention, to="gated-rnn", sparse=True, horizon=10).model, horizon=10)
    assert (found.verdict, found.heads) == ("linear-attention", 1)
    assert found.hidden_after == minimal(attention).memory + 5


@pytest.mark.parametrize("seed", [0, 1])
def test_the_distance_from_rows_is_that_of_the_polynomials(seed):
    attention = uh.random_attention(3, heads=2, seed=seed)
    random_network = uh.make_model("gated-rnn", 3, hidden=7, dtype=np.float64, seed=seed)
    for network in (random_network, uh.disguise(to_gated_rnn(figure_1(uh.random_attention(3, seed=9))), seed=seed)):
        reading = read(network)
        tensor = head_tensor(np.asarray(attention.w_value), attention.key_query)
        expected = distance(instantaneous(reading), of_attention(tensor))
        assert expected > 0.1
        np.testing.assert_allclose(polynomial_distance(reading, attention, None), expected, rtol=1e-12)


@pytest.mark.parametrize("work", [1e11, 0.0])
@pytest.mark.parametrize("form", [minimal, figure_1])
def test_the_gap_from_rows_is_a_bound_and_as_tight_as_the_dense_one(monkeypatch, form, work):
    attention = uh.random_attention(4, seed=2)
    other = uh.LinearAttention(1.001 * np.asarray(attention.w_value), attention.w_key, attention.w_query)
    reading = read(uh.disguise(to_gated_rnn(form(attention)), seed=5))
    structure = find_structure(reading)
    monkeypatch.setattr(row_gap, "MOST_WORK", work)
    for one in (attention, other):
        dense = certify._function_gap(reading, structure, one, 4.0, 50)
        rows = row_gap.row_gap(reading, structure, one, 4.0, 50)
        assert np.all(rows >= dense * (1 - 1e-9))
        assert np.all(rows <= 1.001 * dense + 1e-6)
    assert dense.min() > 1e-2  # the other attention is told apart


def test_twins_are_rows_that_read_alike():
    random = np.random.default_rng(0)
    left, right = random.normal(size=(2, 4, 6))
    left[2], right[2] = -2 * left[0], 3 * right[0]
    left[3], right[3] = 0.5 * right[1], 4 * left[1]
    twins = find_twins(left, right)
    assert [(twin.row, twin.first, twin.swapped) for twin in twins] == [(2, 0, False), (3, 1, True)]
    np.testing.assert_allclose([twin.scales for twin in twins], [(-2, 3), (0.5, 4)])
    left[3, 0] += 1e-6
    assert len(find_twins(left, right)) == 1


@pytest.mark.parametrize("horizon", [1, 2, 3, 50])
def test_rounding_in_closed_form_is_the_sum_step_by_step(horizon):
    lambda_ = np.array([0.0, 0.2, 0.9, 1 - 1e-3, 1 - 1e-7, 1.0])
    lengths = [sum(lambda_**s for s in range(t)) for t in range(horizon + 1)]
    expected = sum((lambda_ ** (horizon - t) * lengths[t] for t in range(2, horizon + 1)), start=np.zeros(6))
    found = _lengths_sum(lambda_, horizon)
    assert np.all(found >= expected * (1 - 1e-14))
    assert np.all(found <= expected * (1 + 2e-4))


def test_a_certificate_takes_any_horizon(figure_1, changed):
    network = figure_1(uh.random_attention(2, seed=1))
    lambda_ = np.where(np.asarray(network.lambda_) > 0, 1 - 1e-12, 0.0)
    for model in (network, changed(network, lambda_=lambda_)):
        bounds = [uh.decompile(model, horizon=horizon).certificate for horizon in (10**2, 10**7, 10**9)]
        errors = [bound.max_abs_error for bound in bounds]
        assert all(after > before for before, after in itertools.pairwise(errors))
        assert (bounds[1].fading > 0) == (model is not network)
