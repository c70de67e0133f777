"""Attention in matrix memories: at rounding, in as few numbers as promised, in the public modules, and not by luck."""

import dataclasses

import numpy as np
import pytest
import torch

import underhood as uh
from tests.compiler.test_compile import gated_source
from tests.tolerance import error
from underhood.compiler import decays, memory, verify
from underhood.compiler.envelope import Envelope
from underhood.compiler.settings import SETTINGS
from underhood.compiler.targets import ATTENTION, TARGETS
from underhood.compiler.verify import extended, measure
from underhood.interop.torch import to_module

NAMES = ("mamba2", "gla", "gated-deltanet", "mlstm", "rwkv7", "mesanet")
PUBLIC = ("mamba2", "gated-deltanet", "mlstm")
FLOAT64 = Envelope(4.0, 200, np.dtype(np.float64))
FLOAT32 = Envelope(4.0, 200, np.dtype(np.float32))
# Numbers of the memory at d = 4, one head: d(d+1)/2 where keys and values share x; a column more for a mean that is
# subtracted; n = d + 1 and the normaliser for an mLSTM; H beside G for MesaNet.
NUMBERS = {"mamba2": 10, "gla": 10, "gated-deltanet": 10, "mlstm": 30, "rwkv7": 20, "mesanet": 20}


def lowered(name, source, envelope=FLOAT64):
    return TARGETS[name].ways[ATTENTION, 1].lower(source, envelope, 1)


@pytest.mark.parametrize("name", NAMES)
def test_attention_is_held_to_rounding(name):
    """d = 8 with three heads, the largest asked for, from several seeds."""
    for seed in (0, 1, 2):
        source = uh.random_attention(8, heads=3, seed=seed)
        found = lowered(name, source)
        measured = measure(source, found.model, FLOAT64)
        assert measured.max_rel_error <= 1e-13
        assert measured.max_abs_error <= found.error_bound <= 1000 * measured.max_abs_error


@pytest.mark.parametrize("name", NAMES)
def test_it_takes_no_more_numbers_than_promised(name):
    assert lowered(name, uh.random_attention(4, seed=1)).model.hidden == NUMBERS[name]
    low = lowered(name, uh.random_attention(6, rank=1, seed=1)).model.hidden
    assert low < NUMBERS[name]


@pytest.mark.parametrize("name", NAMES)
def test_decays_are_held_from_0_to_1(name):
    drawn = uh.random_attention(2, heads=3, seed=1)
    for decay in ([0.0, 0.3, 0.999], [1.0, 0.54, 0.55]):
        source = uh.LinearAttention(drawn.w_value, drawn.w_key, drawn.w_query, decay=np.array(decay))
        found = lowered(name, source)
        measured = measure(source, found.model, FLOAT64)
        assert measured.max_rel_error <= 1e-13
        assert measured.max_abs_error <= found.error_bound
        assert measure(drawn, found.model, FLOAT64).max_rel_error > 1e-2  # negative control


def test_rwkv7_forgets_as_fast_as_it_should_after_a_key_of_0():
    """κ = k/|k| is 0 where k is, and nothing would be forgotten then."""
    drawn = uh.random_attention(2, seed=1)
    source = uh.LinearAttention(drawn.w_value, drawn.w_key, drawn.w_query, decay=np.array([0.25]))
    xs = np.random.default_rng(0).uniform(-4, 4, (12, 2))
    xs[3::2] = 0
    xs[-1] = 1
    assert error(lowered("rwkv7", source).model(xs), extended(source, xs)) <= 1e-13


@pytest.mark.parametrize("name", PUBLIC)
def test_the_public_module_computes_it_in_float32(name):
    source = uh.random_attention(4, heads=2, seed=1)
    module = to_module(uh.compile(source, to=name, horizon=200, dtype="float32").model)
    random = np.random.default_rng(0)
    for xs in (random.uniform(-4, 4, (200, 4)), np.tile(4 * random.choice([-1.0, 1.0], 4), (200, 1))):
        xs = xs.astype(np.float32)
        with torch.no_grad():
            ys = module(torch.from_numpy(xs)).numpy()
        assert error(ys, extended(source, xs)) <= 1e-5


def test_signals_that_are_not_small_do_not_hold_it(monkeypatch):
    """Negative control: at arguments of 2⁻¹², the curvature of SiLU shows."""
    source = uh.random_attention(3, seed=1)
    monkeypatch.setattr("underhood.architectures.mamba2.lowering.linear_size", lambda envelope: 2.0**-12)
    rough = lowered("mamba2", source)
    measured = measure(source, rough.model, FLOAT64)
    assert 1e-6 < measured.max_rel_error < rough.relative_bound < 1e-3


def test_one_layer_is_refused_for_a_gated_rnn():
    with pytest.raises(uh.NotConstructible) as caught:
        uh.compile(gated_source(), to="gla", layers=1)
    assert caught.value.as_data()["refused"]["needs"] == 2


def test_constants_are_exact_where_they_have_to_be():
    decay = np.array([0.0, 0.3, 0.999, 1.0])
    with np.errstate(under="ignore"):
        assert np.array_equal(np.exp(-np.exp(decays.log_rate(decay, 64.0)) * 64)[[0, 3]], [0, 1])
        np.testing.assert_allclose(np.exp(-np.exp(decays.log_rate(decay, 64.0)) * 64), decay, rtol=1e-14)
        for normalizer in (1.0, 16.0):
            bias = decays.root_logit(decay, normalizer)
            found = np.exp(-np.logaddexp(0, -bias) / normalizer)
            np.testing.assert_allclose(found, decay, rtol=1e-13)
            assert np.array_equal(found[[0, 3]], [0, 1])


@pytest.mark.parametrize("name", ("gla", "mlstm"))
def test_products_of_their_own_are_left_where_they_cost_many_weights(name, monkeypatch):
    source = uh.random_attention(8, heads=2, d_key=4, seed=0)
    apart = lowered(name, source).model
    monkeypatch.setattr(memory, "SETTINGS", dataclasses.replace(SETTINGS, most_rows=0))
    asked = []
    monkeypatch.setattr(memory, "singles", lambda *_: asked.append(1))
    together = lowered(name, source)
    assert not asked and together.model.hidden >= apart.hidden
    assert measure(source, together.model, FLOAT64).max_rel_error <= 1e-13


def test_probes_are_as_short_as_the_memory_of_the_source_asks_for(monkeypatch):
    """The reference, in extended precision, is the slow part where a network remembers less than its source."""
    source = uh.random_attention(5, seed=0)
    model = lowered("gla", source).model
    assert model.hidden == 15 < 5 * 5
    assert measure(source, model, FLOAT64).steps == FLOAT64.horizon
    monkeypatch.setattr(verify, "SETTINGS", dataclasses.replace(SETTINGS, most_states=100))
    assert measure(source, model, FLOAT64).steps == 1 + 100 // 25
