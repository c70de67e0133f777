"""A disguise keeps the function and changes the weights."""

import warnings

import equinox as eqx
import numpy as np
import pytest

import underhood as uh
from underhood.core.model import as_dtype


@pytest.mark.parametrize("seed", range(6))
def test_gated_rnn_keeps_its_function_to_rounding(figure_1, seed: int) -> None:
    attention = uh.random_attention(2 + seed % 4, heads=1 + seed % 3, seed=seed)
    network = figure_1(attention)
    hidden = uh.disguise(network, seed=seed)
    xs = np.random.default_rng(seed).standard_normal((40, attention.d))
    ys = network(xs)
    assert np.abs(hidden(xs) - ys).max() <= 1e-12 * np.abs(ys).max()
    assert hidden.hidden > network.hidden
    assert hidden.pre_readout > network.pre_readout


def test_random_network_keeps_its_function_too() -> None:
    network = uh.make_model("gated-rnn", 3, hidden=12, dtype=np.float64, seed=1)
    xs = np.random.default_rng(0).standard_normal((20, 3))
    np.testing.assert_allclose(uh.disguise(network, seed=4)(xs), network(xs), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["lstm", "gru", "gru-after", "lru", "lru-in-out", "lru-in-skip", "gated-rnn-dense"])
def test_other_cells(name: str) -> None:
    layers = 1 if name == "gated-rnn-dense" else 2
    network = uh.make_model(name, 3, hidden=7, layers=layers, dtype=np.float64, seed=2)
    hidden = uh.disguise(network, seed=5)
    xs = np.random.default_rng(0).standard_normal((20, 3))
    ys = network(xs)
    assert np.abs(hidden(xs) - ys).max() <= 1e-13 * max(1.0, np.abs(ys).max())
    readouts = [np.asarray(getattr(one.readout, "weight", one.readout)) for one in (network, hidden)]
    assert not np.array_equal(*readouts)


def test_same_seed_same_disguise(figure_1) -> None:
    network = figure_1(uh.random_attention(3, seed=0))
    first, second, other = (uh.disguise(network, seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(first.output_gating.w_m, second.output_gating.w_m)
    assert first.output_gating.w_m.shape != other.output_gating.w_m.shape or not np.array_equal(
        first.output_gating.w_m, other.output_gating.w_m
    )


def test_dtype_stays(figure_1) -> None:
    network = as_dtype(figure_1(uh.random_attention(3, seed=0)), np.float32)
    assert uh.disguise(network).dtype == np.float32


def test_attention_has_no_weights_to_hide() -> None:
    with pytest.raises(uh.UnderhoodError, match="expected a gated RNN"):
        uh.disguise(uh.random_attention(3))


@pytest.mark.parametrize("size", [1e30, 1e-30])
@pytest.mark.parametrize("target", ["gated-rnn", "gated-rnn-minimal"])
def test_weights_of_any_size_keep_the_function_and_are_read_again(size: float, target: str) -> None:
    one = uh.random_attention(2)
    attention = uh.LinearAttention(*(size * np.asarray(w) for w in (one.w_value, one.w_key, one.w_query)))
    network = uh.compile(attention, to=target, horizon=5).model
    hidden = uh.disguise(network, seed=1)  # spreads a product of 1e60 and 1e30, which have to be balanced
    xs = np.random.default_rng(0).standard_normal((20, 2))
    wanted = attention(xs)
    assert np.abs(hidden(xs) - wanted).max() <= 1e-12 * np.abs(wanted).max()
    found = uh.decompile(hidden)
    assert found.verdict == "linear-attention"
    assert np.abs(found.attention(xs) - wanted).max() <= 1e-10 * np.abs(wanted).max()


def test_weights_that_a_disguise_would_push_out_of_range_are_refused(figure_1) -> None:
    network = figure_1(uh.random_attention(2))
    largest = np.finfo(np.float64).max
    network = eqx.tree_at(lambda n: n.readout, network, np.sign(network.readout) * largest)
    with warnings.catch_warnings(), pytest.raises(uh.UnderhoodError, match="leave the range of float64"):
        warnings.simplefilter("error")
        uh.disguise(network, seed=1)
