"""Deletion, Shapley values and path integrals against loops; faithfulness with its negative controls."""

import itertools
import math
import warnings

import numpy as np
import pytest

import underhood as uh
from tests.tolerance import error
from underhood.explain import replaced
from underhood.explain.maps import CancellationWarning

D = 3


def sequence(length, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, (length, D))


@pytest.fixture(scope="module")
def lstm():
    return uh.make_model("lstm", D, hidden=8, d_out=2, dtype=np.float64)


def without(model, xs, steps, base=0.0):
    other = xs.copy()
    other[list(steps)] = base
    return np.asarray(model(other))


@pytest.mark.parametrize("length", [20, 150])
def test_deletion_is_a_loop_over_steps(lstm, length, monkeypatch):
    monkeypatch.setattr(replaced, "AT_ONCE", 2**20)  # so that it takes several runs, from several places
    xs = sequence(length)
    found, outputs = uh.attention_map(lstm, xs), np.asarray(lstm(xs))
    assert found.kind == "deletion"
    for s in range(0, length - 1, 7):
        changed = outputs - without(lstm, xs, [s])
        rows = np.stack([found.contributions(t)[s] for t in range(s + 1, length)])
        assert error(rows, changed[s + 1 :]) <= 1e-10
    own, left = found.contributions(-1)[-1], outputs[-1] - found.contributions(-1)[:-1].sum(axis=0)
    assert min(error(own, left), error(own, (outputs - without(lstm, xs, [length - 1]))[-1])) <= 1e-10


def test_baselines(lstm):
    xs, vector = sequence(9), np.array([0.3, -0.2, 0.1])
    for baseline, value in (("mean", xs.mean(axis=0)), (vector, vector), (vector[None, None], vector)):
        found = uh.attention_map(lstm, xs, rows=[-1], baseline=baseline)
        assert error(found.contributions(-1)[2], (lstm(xs) - without(lstm, xs, [2], value))[-1]) <= 1e-10


def test_deletion_is_attention_where_there_is_attention():
    attention, xs = uh.random_attention(D, heads=2, seed=1), sequence(20)
    found = uh.attention_map(attention, xs, kind="deletion")
    assert uh.compare_maps(found, uh.attention_map(attention, xs)).largest_difference <= 1e-10
    assert found.completeness <= 1e-10


def test_shapley_is_the_mean_over_all_orders(lstm):
    xs = sequence(4)
    sets = [frozenset(kept) for size in range(5) for kept in itertools.combinations(range(4), size)]
    value = {kept: without(lstm, xs, set(range(4)) - kept)[-1] for kept in sets}
    expected = np.zeros((4, 2))
    for kept in sets:
        for s in set(range(4)) - kept:
            weight = math.factorial(len(kept)) * math.factorial(3 - len(kept)) / math.factorial(4)
            expected[s] += weight * (value[kept | {s}] - value[kept])
    found = uh.attention_map(lstm, xs, kind="shapley", rows=[-1], permutations=60)
    assert np.all(np.linalg.norm(found.contributions(-1) - expected, axis=1) <= 5 * found.standard_error[0] + 1e-12)
    assert error(found.contributions(-1).sum(axis=0), value[frozenset(range(4))] - value[frozenset()]) <= 1e-10


def test_path_integrals_add_up(lstm):
    xs, base = sequence(12), np.full(D, 0.2)
    found = uh.attention_map(lstm, xs, kind="integrated", baseline=base)
    difference = lstm(xs) - without(lstm, xs, range(12), base)
    assert error(np.stack([found.contributions(t).sum(axis=0) for t in range(12)]), difference) <= 1e-8


@pytest.mark.parametrize("kind", ["deletion", "frozen", "jacobian", "integrated"])
def test_rows_targets_states_and_batches(lstm, kind):
    xs = sequence(12)
    whole, last = uh.attention_map(lstm, xs, kind=kind), uh.attention_map(lstm, xs, kind=kind, rows=[-1])
    assert error(last.weights[0, 0], whole.weights[0, -1]) <= 1e-10
    logit = uh.attention_map(lstm, xs, kind=kind, rows=[-1], target=1)
    assert error(logit.weights[0, 0], whole.contributions(-1)[:, 1]) <= 1e-10
    _, state = lstm.scan(xs[:5])
    later = uh.attention_map(lstm, xs[5:], kind=kind, rows=[-1], state=state)
    if kind != "integrated":  # whose way begins at other inputs
        assert error(later.contributions(-1)[:-1], whole.contributions(-1)[5:-1]) <= 1e-10
    maps = uh.attention_map(lstm, xs[None].repeat(2, axis=0), kind=kind, rows=[-1])
    assert [error(made.weights, last.weights) for made in maps] == [0, 0]


def test_a_faithful_map_passes_and_a_shuffled_one_fails():
    attention, xs = uh.random_attention(D, seed=2), sequence(24)
    found = uh.attention_map(attention, xs, rows=[-1])
    trust = uh.faithfulness(found, attention, xs)
    assert list(trust.sensitivity) == [1, 3, 8]
    assert trust.passed and all(value > 0.999 for value in trust.sensitivity.values())
    row = found.contributions(-1)
    for seed in range(3):
        order = np.append(np.random.default_rng(seed).permutation(23), 23)
        wrong = uh.AttentionMap(
            found.weights, "exact", found.completeness, source=lambda t, order=order: row[order], rows=(23,)
        )
        assert not uh.faithfulness(wrong, attention, xs).passed


def test_planted_cancellation_warns():
    """Values that alternate in sign, under equal scores, so that they add up to next to nothing."""
    network = uh.make_model("gated-rnn", D, hidden=8, dtype=np.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        uh.attention_map(network, sequence(20))
    undone = uh.LinearAttention(np.eye(D)[:1], np.array([[0, 1.0, 0]]), np.array([[0, 1.0, 0]]))
    xs = np.tile([[1.0, 1.0, 0.0], [-1.0, 1.0, 0.0]], (20, 1))
    xs[-1, 0] = -0.99
    with pytest.warns(CancellationWarning, match="most of them cancel"):
        found = uh.attention_map(undone, xs, rows=[-1])
    assert found.cancellation > 100 and "warning" in repr(found)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"baseline": "median"}, "expected a baseline of zero, mean"),
        ({"baseline": np.ones(2)}, "shape"),
        ({"state": (np.zeros(3),)}, "expected a state with arrays of shape"),
        ({"rows": [12]}, "expected rows"),
        ({"target": 2}, "expected a target"),
        ({"permutations": 1, "kind": "shapley"}, "permutations"),
    ],
)
def test_bad_settings(lstm, settings, says):
    with pytest.raises(uh.UnderhoodError, match=says):
        uh.attention_map(lstm, sequence(12), **settings)


def test_no_more_subsets_than_there_are(lstm):
    xs = sequence(6)
    found = uh.attention_map(lstm, xs)
    with pytest.raises(uh.UnderhoodError, match="expected at most 10 subsets"):
        uh.faithfulness(found, lstm, xs, subsets=11)
