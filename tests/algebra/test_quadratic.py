"""Forms, folds and decayed sums against what they mean, written out."""

import numpy as np
import pytest

from underhood.algebra.quadratic import (
    append_one,
    decayed_length,
    decayed_sums,
    fold,
    pair_indices,
    pair_products,
    product_forms,
    product_slopes,
    unfold,
)

random = np.random.default_rng(0)


def test_a_product_form_evaluates_to_the_product():
    first, second, xs = random.normal(size=(3, 5, 4))
    values = product_forms(first, second) @ pair_products(xs).T
    np.testing.assert_allclose(values, (first @ xs.T) * (second @ xs.T), atol=1e-14)
    assert np.abs(product_forms(first, first) @ pair_products(xs).T - values).max() > 0.1


def test_slopes_are_the_derivative_of_a_form():
    first, second, step = random.normal(size=(3, 5, 4))
    moved = product_forms(first + step, second) - product_forms(first, second)
    np.testing.assert_allclose(np.einsum("ndp,nd->np", product_slopes(second), step), moved, atol=1e-14)


def test_a_fold_keeps_the_values_and_unfolds_to_the_symmetric_part():
    tensor, x = random.normal(size=(2, 3, 3, 2)), random.normal(size=3)
    folded = fold(tensor)
    np.testing.assert_allclose(
        np.einsum("opq,p->oq", folded, pair_products(x)), np.einsum("oabq,a,b->oq", tensor, x, x), atol=1e-14
    )
    np.testing.assert_allclose(unfold(folded, 3), (tensor + tensor.transpose(0, 2, 1, 3)) / 2, atol=1e-15)
    assert fold(tensor.astype(np.longdouble)).dtype == np.longdouble


def test_sums_decay_step_by_step():
    drive, lambda_ = random.normal(size=(2, 6, 3)), np.array([0.0, 0.5, 1.0])
    sums = decayed_sums(drive, lambda_)
    for t in range(6):
        expected = sum(lambda_ ** (t - s) * drive[:, s] for s in range(t + 1))
        np.testing.assert_allclose(sums[:, t], expected, atol=1e-15)


@pytest.mark.parametrize("steps", [1, 2, 7, 1000])
def test_the_length_of_a_decay_is_the_sum_of_its_powers(steps):
    lambda_ = np.array([0.0, 1e-300, 0.3, 0.9, 1 - 1e-6, 1 - 1e-13, 1 - 2**-53, 1.0])
    powers = lambda_[:, None].astype(np.longdouble) ** np.arange(steps)
    np.testing.assert_allclose(decayed_length(lambda_, steps), powers.sum(axis=1).astype(float), rtol=1e-14)


def test_the_length_of_a_decay_takes_any_horizon():
    np.testing.assert_allclose(decayed_length(np.array([0.5, 1 - 1e-9, 1.0]), 10**15), [2.0, 1e9, 1e15], rtol=1e-6)


def test_one_is_appended_and_pairs_are_not_to_be_written_to():
    np.testing.assert_array_equal(append_one(np.zeros((2, 3))), [[0, 0, 0, 1]] * 2)
    with pytest.raises(ValueError, match="read-only"):
        pair_indices(3)[0][0] = 1
