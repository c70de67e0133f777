"""Heads that see their own step alone, steps that do not see themselves, and functions that remember nothing."""

import numpy as np
import pytest

import underhood as uh
from underhood.decompiler.from_outputs.instant import instant_heads


def faded(d, decays, seed=0, *, alike=False):
    source = uh.random_attention(d, heads=len(decays), seed=seed)
    weights = (source.w_value, source.w_key, source.w_query)
    if alike:
        weights = tuple(np.repeat(np.asarray(one)[:1], len(decays), axis=0) for one in weights)
    return uh.LinearAttention(*weights, np.array(decays))


@pytest.mark.parametrize(("d", "decays"), [(1, (0.0,)), (4, (0.0,)), (5, (0.6, 0.0)), (10, (0.0,)), (12, (1.0, 0.0))])
def test_heads_of_decay_zero_are_found_at_any_size(d, decays):
    attention = faded(d, decays)
    found = uh.probe(attention)
    assert (found.verdict, found.heads) == ("decayed-attention", len(decays))
    assert found.decay is not None and sorted(found.decay) == pytest.approx(sorted(decays), abs=1e-6)
    xs = np.random.default_rng(3).normal(size=(20, d))
    assert np.allclose(found.attention(xs), attention(xs), rtol=0, atol=1e-6 * np.abs(attention(xs)).max())


def test_what_is_no_cubic_form_of_few_heads_has_none():
    xs = np.random.default_rng(0).normal(size=(256, 3))
    assert instant_heads(xs, np.tanh(xs), 1e-6) is None
    assert instant_heads(xs, np.zeros((256, 3)), 1e-6) is None


@pytest.mark.parametrize("d", [1, 2, 12])
def test_decays_that_point_the_same_way_are_told_apart(d):
    """The outputs of two such heads differ in nothing but how fast they fade."""
    found = uh.probe(faded(d, (0.9, 0.5), alike=True))
    assert found.verdict == "decayed-attention"
    assert found.decay == pytest.approx((0.9, 0.5), abs=1e-6)


@pytest.mark.parametrize("d", [1, 3, 12])
def test_steps_that_do_not_see_themselves(d):
    """One function, one verdict: by the probe and, of a network whose weights can be read, by the decompiler."""
    attention = uh.random_attention(d, seed=4)
    w_value, w_key, w_query = (np.asarray(one)[0] for one in (attention.w_value, attention.w_key, attention.w_query))

    def strict(xs):
        return np.tril((xs @ w_query.T) @ (xs @ w_key.T).T, -1) @ (xs @ w_value.T)

    for found in (uh.probe(strict, d), *([_read_from_weights(attention)] if d == 3 else [])):
        assert found.verdict == "not-attention"
        assert found.diagnosis[0]["what"] == "strictly-causal"


def _read_from_weights(attention):
    values, keys, queries = (
        np.repeat(np.asarray(one), 2, axis=0) for one in (attention.w_value, attention.w_key, attention.w_query)
    )
    values[1] *= -1
    both = uh.LinearAttention(values, keys, queries, np.array([1.0, 0.0]))
    return uh.decompile(uh.compile(both, to="gated-rnn").model)


@pytest.mark.parametrize(
    ("function", "what"),
    [(lambda xs: xs, "linear-recurrence"), (lambda xs: np.triu(xs @ xs.T) @ xs, "looks-ahead"), (np.tanh, None)],
)
def test_functions_that_remember_nothing_are_no_attention_at_any_size(function, what):
    for d in (4, 10):
        found = uh.probe(function, d)
        assert found.verdict == "not-attention"
        assert what in (None, found.diagnosis[0]["what"])


def test_a_network_of_one_length_is_asked_at_that_length():
    def fixed(xs):
        assert len(xs) == 13
        return np.tril(xs[:, :3] @ xs[:, :3].T, -1) @ xs[:, 3:] / 14.8

    assert uh.in_context(fixed).name == "gradient-step"
