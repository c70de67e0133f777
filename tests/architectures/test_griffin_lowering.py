"""Attention in one Griffin block and gated RNNs in two; the first input, decays, and what float32 holds."""

import dataclasses

import numpy as np
import pytest

import underhood as uh
from tests.compiler.diagonal import DECAYS, MANY, SOURCES, attention, holds
from tests.compiler.test_compile import gated_source
from underhood.architectures.griffin.lowering import attention_to_griffin
from underhood.compiler.envelope import Envelope
from underhood.compiler.forms import rank_revealed
from underhood.compiler.verify import measure


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_one_layer_holds_attention(source):
    assert holds(source, "griffin", 1e-6).layers == 1


@pytest.mark.parametrize("source", DECAYS.values(), ids=DECAYS)
def test_one_layer_holds_attention_that_decays(source):
    assert holds(source, "griffin", 1e-6).layers == 1


def test_a_gated_rnn_takes_two_layers():
    assert holds(gated_source(), "griffin", 1e-6).layers == 2
    with pytest.raises(uh.NotConstructible, match="griffin needs 2 layers here: no construction with one layer"):
        uh.compile(gated_source(), to="griffin", layers=1)


def test_numbers_of_the_state():
    """2 d_v (d_k + 1) and one that sees the first input."""
    model = attention_to_griffin(rank_revealed(attention(4, 1)), Envelope(4.0, 10, np.dtype(np.float64)), 1).model
    assert model.hidden == 2 * 4 * 5 + 1


def test_without_its_watch_for_the_first_input_it_fails():
    """Negative control: the first input would count 1/√(1 − a²) times."""
    source, envelope = attention(3, 1), Envelope(4.0, 50, np.dtype(np.float64))
    model = attention_to_griffin(rank_revealed(source), envelope, 1).model
    (cell,) = model.cells
    weight = np.array(cell.input_gate.weight)
    weight[0, -1] = 0
    blind = dataclasses.replace(cell, input_gate=dataclasses.replace(cell.input_gate, weight=weight))
    assert measure(source, model, envelope).max_rel_error <= 1e-8
    assert measure(source, dataclasses.replace(model, cells=(blind,)), envelope).max_rel_error > 1


def test_further_scales_take_the_error_down():
    source = attention(3, 1, seed=2)
    first, second = (uh.compile(source, to="griffin", horizon=200, order=order) for order in (1, 2))
    assert second.verified
    assert second.max_rel_error < first.max_rel_error


def test_float32_holds_a_few_parts_in_a_thousand():
    compiled = uh.compile(attention(4, 1, seed=1), to="griffin", horizon=200, dtype="float32")
    assert compiled.verified
    assert 1e-5 < compiled.max_rel_error <= 3e-3  # 0.6e-3; 2.5e-3 where XLA does not fuse products and sums


@pytest.mark.slow
@pytest.mark.parametrize("source", MANY)
def test_many_attentions(source):
    holds(source, "griffin", 1e-6)
