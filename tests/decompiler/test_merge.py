"""B.2: rows whose kernels add up to fewer; and which neurons matter."""

import numpy as np
import pytest

import underhood as uh
from underhood.decompiler.from_weights.merge import (
    Terms,
    merge_rows,
    merge_terms,
    parallel_groups,
    refit_readout,
    slice_terms,
)
from underhood.decompiler.from_weights.neurons import prune, study_neurons
from underhood.decompiler.from_weights.reading import read
from underhood.decompiler.from_weights.structure import sample_inputs


def test_three_rows_of_rank_one_become_one() -> None:
    """The rows 11, 12 and 13 of Figure 2: uv = ½((u+v)² − u² − v²), all read alike."""
    u, v = np.random.default_rng(0).standard_normal((2, 6))
    left, right = np.array([u + v, u, v]), np.array([u + v, u, v])
    column = np.array([[1.0], [-2.0]])
    readout = column * np.array([0.5, -0.5, -0.5])
    new_left, new_right, new_readout, kernels = merge_rows(left, right, readout, 1e-12)
    assert len(new_left) == 1
    assert kernels[0].rows and kernels[0].needed == 1
    assert np.sum(np.abs(kernels[0].eigenvalues) > 1e-9) == 2  # of the symmetric part of a rank-one kernel
    h = np.random.default_rng(1).standard_normal(6)
    before = readout @ ((left @ h) * (right @ h))
    np.testing.assert_allclose(new_readout @ ((new_left @ h) * (new_right @ h)), before, rtol=1e-9)


def test_rows_that_read_differently_stay() -> None:
    random = np.random.default_rng(0)
    left, right, readout = (
        random.standard_normal((3, 5)),
        random.standard_normal((3, 5)),
        random.standard_normal((2, 3)),
    )
    assert len(merge_rows(left, right, readout, 1e-12)[0]) == 3


def test_terms_merge_to_what_they_were() -> None:
    random = np.random.default_rng(0)
    true = Terms(*(random.standard_normal((4, size)) for size in (3, 7, 5)))
    doubled = Terms(
        np.concatenate([true.readout * 0.3, true.readout * 0.7]),
        np.concatenate([true.memory, true.memory * 2]),
        np.concatenate([true.query, true.query / 2]),
    )
    merged = merge_terms(doubled, 1e-9)
    assert len(merged) == 4
    np.testing.assert_allclose(merged.tensor, true.tensor, atol=1e-12)


def test_slices_hold_any_tensor() -> None:
    target = np.random.default_rng(0).standard_normal((3, 7, 2))
    terms = slice_terms(target, 1e-9)
    assert len(terms) == 6
    fitted, residual = refit_readout(terms, target)
    assert residual < 1e-12
    np.testing.assert_allclose(fitted.tensor, target, atol=1e-12)
    assert refit_readout(terms.take(np.arange(3)), target)[1] > 0.1


def test_parallel_groups() -> None:
    vectors = np.array([[1.0, 2.0], [-2.0, -4.0], [1.0, 2.1], [0.5, 1.0]])
    groups = sorted(sorted(group.tolist()) for group in parallel_groups(vectors))
    assert groups == [[0, 1, 3], [2]]


def test_neurons_show_the_blocks_of_figure_2(figure_1) -> None:
    network = uh.disguise(figure_1(uh.random_attention(3, seed=0)), seed=3)
    reading, xs = read(network), sample_inputs(3)
    neurons = study_neurons(reading, xs)
    order = neurons.order()
    lambda_ = neurons.lambda_[order][neurons.needed(1e-9)[order]]
    assert sorted(lambda_, reverse=True) == list(lambda_)
    assert not neurons.needed(1e-9).all()  # the dead ones
    hidden, rows, change = prune(reading, neurons, 1e-9, xs)
    assert change < 1e-9
    assert len(hidden) < reading.hidden and len(rows) < reading.pre_readout
    *_, change = prune(reading, neurons, float(np.median(neurons.contribution)), xs)
    assert change > 1e-3


def test_contribution_is_what_removal_changes() -> None:
    network = uh.make_model("gated-rnn", 2, hidden=5, dtype=np.float64, seed=1)
    reading, xs = read(network), sample_inputs(2, sequences=2, length=9)
    neurons = study_neurons(reading, xs)
    ys = reading(xs)
    without = reading.keep(np.array([0, 1, 3, 4]))(xs)
    expected = np.sqrt(np.mean((ys - without) ** 2)) / np.sqrt(np.mean(ys**2))
    assert neurons.contribution[2] == pytest.approx(expected)
