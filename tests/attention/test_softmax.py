"""Softmax and feature attention against a double loop, with heads, windows and biases; files; what is refused."""

import numpy as np
import pytest

import underhood as uh
from tests.attention.loops import averages, exponential, softmax
from underhood.core.files import load, save
from underhood.testing import (
    check_every_weight_counts,
    check_gradient,
    check_kept,
    check_program,
    error_of,
    sequence,
    ways,
)

CLOSE = 1e-13


def weights(heads, d_value, d_key, d, seed=0):
    random = np.random.default_rng(seed)
    return [random.normal(size=(heads, rows, d)) / np.sqrt(d) for rows in (d_value, d_key, d_key)]


def random_softmax(heads=2, d_value=4, d_key=3, d=5, *, biased=True, **settings):
    random = np.random.default_rng(1)
    biases = {"bias_query": random.normal(size=(heads, d_key)), "bias": random.normal(size=d_value)} if biased else {}
    return uh.SoftmaxAttention(*weights(heads, d_value, d_key, d), **biases, **settings)


@pytest.mark.parametrize("window", [None, 1, 5, 50])
@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (2, 4, 3, 5), (3, 2, 6, 4)])
def test_every_way_matches_a_double_loop(sizes, window):
    model = random_softmax(*sizes, window=window, scale=0.7)
    xs = sequence(33, sizes[3])
    expected = softmax(model, xs)
    assert max(error_of(ys, expected) for ys in ways(model, xs).values()) < CLOSE
    assert error_of(model.naive(xs), expected) < CLOSE


def test_rows_of_queries_in_more_than_one_piece():
    model, xs = random_softmax(window=300), sequence(700, 5)
    assert error_of(model(xs), softmax(model, xs)) < CLOSE


def test_scores_of_any_size():
    """The largest score is taken away first: e^1000 is no number."""
    model = random_softmax(biased=False, scale=1000.0)
    xs = sequence(20, 5)
    assert np.all(np.isfinite(model(xs)))
    assert error_of(ways(model, xs)["steps"], softmax(model, xs)) < CLOSE


def test_a_bias_of_keys_does_nothing():
    """Why there is none: it moves all scores of a query by q·b."""
    model, xs = random_softmax(), sequence(20, 5)
    shifted = softmax(model, xs, bias_key=np.random.default_rng(3).normal(size=(2, 3)))
    assert error_of(model(xs), shifted) < CLOSE
    assert error_of(random_softmax(biased=False)(xs), shifted) > 0.1


def test_state_grows_or_stays():
    growing, xs = random_softmax(), sequence(20, 5)
    assert growing.scan(xs)[1][0].shape == (2, 20, 3)
    assert random_softmax(window=7).scan(xs)[1][0].shape == (2, 7, 3)


@pytest.mark.parametrize("window", [None, 4])
def test_contract(window):
    model, xs = random_softmax(window=window), sequence(9, 5)
    check_kept(model, xs)
    check_every_weight_counts(model, sequence(32, 5))
    check_gradient(model, xs, softmax)
    if window:
        check_program(model, xs)


def test_weights_and_map():
    model, xs = random_softmax(biased=False), sequence(12, 5)
    rows = model.weights(xs)
    assert np.allclose(rows.sum(axis=2), 1) and np.all(np.triu(rows, 1) == 0)
    shown = uh.attention_map(model, xs, reduce="none")
    assert np.allclose(np.asarray(shown.weights), rows)
    assert shown.kind == "exact" and shown.completeness < 1e-12


MAPS = {
    "elu": (
        uh.EluFeatures(),
        lambda k, q: np.sum(np.where(k > 0, k + 1, np.exp(k)) * np.where(q > 0, q + 1, np.exp(q))),
    ),
    "polynomial": (
        uh.PolynomialFeatures.of(uh.exponential(4, 2.0), 3, heads=2),
        lambda k, q: uh.exponential(4, 2.0)(k @ q),
    ),
    "own": (lambda k: k**2 + 1, lambda k, q: np.sum((k**2 + 1) * (q**2 + 1))),
}


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("normalised", [True, False])
def test_features_match_a_double_loop(name, normalised):
    features, kernel = MAPS[name]
    random = np.random.default_rng(1)
    model = uh.FeatureAttention(
        *weights(2, 4, 3, 5), features, random.normal(size=(2, 3)), random.normal(size=4), normalised=normalised
    )
    xs = 0.5 * sequence(40, 5)
    expected = averages(model, xs, kernel, normalised=normalised)
    assert max(error_of(ys, expected) for ys in ways(model, xs).values()) < 1e-12
    assert error_of(model.naive(xs), expected) < 1e-12
    check_program(model, xs[:9])
    shown = uh.attention_map(model, xs)
    assert shown.kind == "exact" and shown.completeness < 1e-11


def test_random_features_come_near_softmax():
    """Unbiased: with 64 times the features, an eighth of the error."""
    parts = [0.3 * one for one in weights(1, 4, 3, 5)]
    xs, exact = 0.5 * sequence(40, 5), uh.SoftmaxAttention(*parts)
    few, many = (
        np.mean(
            [
                error_of(uh.FeatureAttention(*parts, uh.RandomFeatures.random(3, count, seed))(xs), exact(xs))
                for seed in range(5)
            ]
        )
        for count in (16, 1024)
    )
    assert many < few / 4 and many < 0.05


def test_polynomial_features_come_near_softmax_within_the_bound():
    parts = [0.3 * one for one in weights(1, 4, 3, 5)]
    xs = np.clip(sequence(200, 5), -1, 1)
    bound = float(np.max(np.abs((xs @ parts[1][0].T) @ (xs @ parts[2][0].T).T)))
    largest = np.max(np.abs(xs @ parts[0][0].T))
    exact = uh.SoftmaxAttention(*parts)(xs)
    for degree in (2, 4, 6):
        polynomial = uh.exponential(degree, bound)
        near = uh.FeatureAttention(*parts, uh.PolynomialFeatures.of(polynomial, 3))
        assert near.hidden == 5 * [10, 35, 84][degree // 2 - 1]
        error = np.max(np.abs(near(xs) - exact))
        assert 0 < error <= 2 * polynomial.error / (1 - polynomial.error) * largest


@pytest.mark.parametrize("name", ["elu", "polynomial"])
def test_files(name, tmp_path):
    model = uh.FeatureAttention(*weights(2, 4, 3, 5), MAPS[name][0])
    check_kept(model, sequence(9, 5))
    random = uh.FeatureAttention(*weights(2, 4, 3, 5), uh.RandomFeatures.random(3, 8))
    assert load(save(random, tmp_path / "a.safetensors")).features.directions.shape == (8, 3)


def test_a_function_of_ones_own_is_no_file(tmp_path):
    model = uh.FeatureAttention(*weights(1, 2, 2, 2), lambda k: k**2)
    with pytest.raises(uh.UnderhoodError, match=r"features\.function is a function of your own"):
        save(model, tmp_path / "a.safetensors")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: uh.SoftmaxAttention(np.eye(3), np.eye(3), np.eye(2)), "w_query"),
        (lambda: uh.SoftmaxAttention(*np.zeros((3, 0, 3, 3))), "w_value"),
        (lambda: uh.SoftmaxAttention(*np.zeros((3, 3, 0))), "w_value"),
        (lambda: uh.SoftmaxAttention(*np.full((3, 2, 2), np.nan)), "finite weights"),
        (lambda: uh.SoftmaxAttention(*np.ones((3, 2, 2)), scale=float("inf")), "a finite scale; got inf"),
        (lambda: uh.SoftmaxAttention(*np.ones((3, 2, 2)), window=0), "window of 1 step"),
        (lambda: uh.SoftmaxAttention(*np.ones((3, 2, 2)), bias_query=np.ones(3)), "bias_query"),
        (lambda: uh.SoftmaxAttention(*np.ones((3, 2, 2)))(np.full((3, 2), np.nan)), "finite inputs"),
        (lambda: uh.FeatureAttention(*np.ones((3, 2, 2)), "elu"), "expected a feature map; got str"),
        (lambda: uh.FeatureAttention(*np.ones((3, 2, 2)), lambda k: k[0])(np.ones((3, 2))), "features"),
        (lambda: uh.PolynomialFeatures(np.full((1, 2, 2), 0.5), np.ones((1, 2)), 2), "whole numbers"),
        (lambda: uh.PolynomialFeatures.of(np.ones(30), 60), "not enough memory"),
    ],
)
def test_refusals(make, says):
    with pytest.raises(uh.UnderhoodError, match=says):
        make()


def test_the_loop_itself():
    """Two steps by hand."""
    model = uh.SoftmaxAttention(np.eye(1), np.eye(1), np.eye(1))
    weight = np.exp(2 * 1) / (np.exp(2 * 1) + np.exp(2 * 2))
    assert np.allclose(softmax(model, np.array([[1.0], [2.0]])), [[1.0], [weight * 1 + (1 - weight) * 2]])
    assert exponential(np.array([1.0]), np.array([2.0])) == np.exp(2.0)
