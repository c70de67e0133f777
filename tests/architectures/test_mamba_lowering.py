"""Attention in one layer of Mamba and gated RNNs in two, exactly; and the public module with these weights."""

import dataclasses

import numpy as np
import pytest
import torch

import underhood as uh
from tests.compiler.diagonal import DECAYS, MANY, SOURCES, attention, holds
from tests.compiler.test_compile import gated_source
from tests.tolerance import error
from underhood.architectures.mamba.lowering import attention_to_mamba
from underhood.compiler.envelope import Envelope
from underhood.compiler.verify import extended, measure, probes
from underhood.interop.torch import to_module


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_one_layer_holds_attention(source):
    assert holds(source, "mamba", 1e-12).layers == 1


@pytest.mark.parametrize("source", DECAYS.values(), ids=DECAYS)
def test_one_layer_holds_attention_that_decays(source):
    assert holds(source, "mamba", 1e-12).layers == 1


def test_a_gated_rnn_takes_two_layers():
    assert holds(gated_source(), "mamba", 1e-12).layers == 2
    with pytest.raises(uh.NotConstructible, match="mamba needs 2 layers here: no construction with one layer"):
        uh.compile(gated_source(), to="mamba", layers=1)


def test_numbers_of_the_state():
    """2 d d_k for one head, as docs/theory.md says, and 8 a product and 2 d + 1 readers for two."""
    envelope = Envelope(4.0, 10, np.dtype(np.float64))
    sizes = [attention_to_mamba(attention(4, heads), envelope, 1).model.hidden for heads in (1, 2)]
    assert sizes == [2 * 4 * 4, 8 * 32 + 9]
    low_rank = attention_to_mamba(SOURCES["low rank"], envelope, 1).model
    assert low_rank.hidden == 2 * 5 * 2


def test_a_convolution_that_is_not_off_is_noticed():
    """Negative control."""
    source, envelope = attention(3, 1), Envelope(4.0, 50, np.dtype(np.float64))
    model = attention_to_mamba(source, envelope, 1).model
    (cell,) = model.cells
    kernel = np.array(cell.conv1d.weight)
    kernel[:, -2] = 1e-6
    wrong = dataclasses.replace(cell, conv1d=dataclasses.replace(cell.conv1d, weight=kernel))
    assert measure(source, model, envelope).max_rel_error <= 1e-12
    assert measure(source, dataclasses.replace(model, cells=(wrong,)), envelope).max_rel_error > 1e-9


@pytest.mark.parametrize("source", [SOURCES["one head"], SOURCES["rectangular"], DECAYS["heads"]])
def test_the_public_module_computes_it_in_float32(source):
    compiled = uh.compile(source, to="mamba", horizon=200, dtype="float32")
    module = to_module(compiled.model)
    for sequences in probes(source, Envelope(4.0, 200, np.dtype(np.float32)), 200):
        for xs in sequences:
            with torch.no_grad():
                ys = module(torch.from_numpy(xs.astype(np.float32))).numpy()
            assert error(ys, extended(source, xs)) <= 1e-5


def test_the_public_module_has_the_sparse_form_written_out():
    source = SOURCES["rectangular"]
    module = uh.to_torch(uh.compile(source, to="mamba", sparse=True, horizon=20).model)
    xs = np.random.default_rng(5).normal(size=(12, source.d))
    with torch.no_grad():
        ys = module(torch.from_numpy(xs)).numpy()
    assert error(ys, source(xs)) <= 1e-6  # its states are float32


@pytest.mark.slow
@pytest.mark.parametrize("source", MANY)
def test_many_attentions(source):
    holds(source, "mamba", 1e-12)
