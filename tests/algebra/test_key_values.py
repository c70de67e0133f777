"""Laws that hold for every network, on networks that hypothesis draws: sizes, ranks, scales and disguises."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import underhood as uh
from tests.decompiler.conftest import _changed as changed
from tests.decompiler.conftest import _figure_1 as figure_1
from underhood.decompiler.from_weights.polynomial import instantaneous
from underhood.decompiler.from_weights.reading import read

# A strategy that imports a module for the first time may meet that module's own use of `random`.
pytestmark = pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisDeprecationWarning")

BOUND, HORIZON = 2.0, 6
seeds = st.integers(0, 10_000)


@st.composite
def attentions(draw, most=3):
    """Heads of any rank from 0 on, rectangular values, weights of very different size."""
    d = draw(st.integers(1, most))
    sizes = {
        "heads": draw(st.integers(1, 2)),
        "d_key": draw(st.integers(1, most)),
        "d_value": draw(st.integers(1, most)),
    }
    rank = draw(st.none() | st.integers(0, min(d, sizes["d_key"], sizes["d_value"])))
    made = uh.random_attention(d, **sizes, rank=rank, seed=draw(seeds))
    scale = 10.0 ** draw(st.integers(-3, 3))
    return uh.LinearAttention(scale * np.asarray(made.w_value), made.w_key, made.w_query)


def inputs(d, seed):
    random = np.random.default_rng(seed)
    varied, corner = random.uniform(-BOUND, BOUND, (HORIZON, d)), BOUND * random.choice([-1.0, 1.0], (1, d))
    return [varied, np.repeat(corner, HORIZON, axis=0)]


@settings(max_examples=6)
@given(attention=attentions(), seed=seeds, target=st.sampled_from(["gated-rnn", "gated-rnn-minimal"]))
def test_decompile_undoes_compile(attention, seed, target):
    """decompile(disguise(compile(a))) is a, as a function."""
    network = uh.compile(attention, to=target, horizon=HORIZON, input_bound=BOUND).model
    found = uh.decompile(network, input_bound=BOUND, horizon=HORIZON)
    assert found.verdict == "linear-attention", found.reason
    for xs in inputs(attention.d, seed):
        ys = attention(xs)
        assert np.abs(found.attention(xs) - ys).max() <= 1e-9 * max(np.abs(ys).max(), 1e-300)


@settings(max_examples=6)
@given(attention=attentions(), seed=seeds, disguise=seeds)
def test_a_disguise_changes_no_output(attention, seed, disguise):
    network = figure_1(attention)
    hidden = uh.disguise(network, seed=disguise)
    for xs in inputs(attention.d, seed):
        ys = network(xs)
        assert np.abs(hidden(xs) - ys).max() <= 1e-10 * np.abs(ys).max()


def beside(one, other):
    """Two networks side by side, their outputs summed."""
    blocks = [(np.asarray(a), np.asarray(b)) for a, b in zip(_gatings(one), _gatings(other), strict=True)]
    inner = [np.concatenate(pair) for pair in blocks[:2]]
    outer = [_diagonal(*pair) for pair in blocks[2:]]
    lambda_ = np.concatenate([np.asarray(one.lambda_), np.asarray(other.lambda_)])
    readout = np.concatenate([np.asarray(one.readout), np.asarray(other.readout)], axis=1)
    return uh.GatedRNN.from_lambda(uh.Gating(*inner), lambda_, uh.Gating(*outer), readout)


def _gatings(model):
    return model.input_gating.w_m, model.input_gating.w_x, model.output_gating.w_m, model.output_gating.w_x


def _diagonal(a, b):
    top, bottom = np.zeros((len(a), b.shape[1])), np.zeros((len(b), a.shape[1]))
    return np.block([[a, top], [bottom, b]])


@settings(max_examples=10)
@given(d=st.integers(1, 3), hidden=st.tuples(st.integers(1, 6), st.integers(1, 6)), seed=seeds)
def test_the_polynomial_of_a_sum_is_the_sum_of_the_polynomials(d, hidden, seed):
    one, other = (
        uh.make_model("gated-rnn", d, hidden=size, d_out=2, dtype=np.float64, seed=seed + index)
        for index, size in enumerate(hidden)
    )
    first, second, both = (instantaneous(read(model)) for model in (one, other, beside(one, other)))
    assert np.array_equal(first.exponents, both.exponents)
    total = first.coefficients + second.coefficients
    assert np.abs(both.coefficients - total).max() <= 1e-12 * np.abs(total).max()
    assert np.abs(both.coefficients - first.coefficients).max() > 1e-9 * np.abs(total).max()  # the check can fail


@settings(max_examples=6)
@given(attention=attentions(), seed=seeds, noise=st.sampled_from([0.0, 1e-12, 1e-8]))
def test_no_input_errs_more_than_the_certificate_says(attention, seed, noise):
    network, random = figure_1(attention), np.random.default_rng(seed)
    noisy = {name: np.asarray(w) * (1 + noise * random.standard_normal(w.shape)) for name, w in _named(network).items()}
    network = changed(network, **noisy)
    found = uh.decompile(network, input_bound=BOUND, horizon=HORIZON, tolerance=1e-3)
    if found.certificate is None:
        assert found.verdict == "not-attention"
        return
    for xs in inputs(attention.d, seed):
        assert np.abs(network(xs) - found.attention(xs)).max() <= found.certificate.max_abs_error


def _named(model):
    names = ("w_m", "w_x", "left", "right")
    return {**dict(zip(names, _gatings(model), strict=True)), "readout": model.readout}
