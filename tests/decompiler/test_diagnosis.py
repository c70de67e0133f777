"""Each "no" says what the function is instead, and a "yes" says nothing."""

import equinox as eqx
import numpy as np
import pytest

import underhood as uh
from benchmarks.diagnosis import CLASSES, Instance
from underhood.decompiler.from_outputs.diagnosis import DIAGNOSES


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", CLASSES)
def test_each_class_is_named_first(name: str, seed: int) -> None:
    one = Instance(seed)
    found = uh.probe(CLASSES[name](one), one.d, seed=seed).diagnosis
    assert found[0]["what"] == name
    assert set(found[0]) == {"what", "r2", "remedy", "meaning"}


def test_every_name_has_an_instance() -> None:
    assert set(CLASSES) == {diagnosis.what for diagnosis in DIAGNOSES}


def test_wide_functions_are_diagnosed_in_a_subspace() -> None:
    xs_to_ys = uh.random_attention(16, seed=0)
    found = uh.probe(lambda xs: np.asarray(xs_to_ys(xs)) + 1.0, d=16, batched=False)
    assert found.verdict == "not-attention"
    assert found.diagnosis[0]["what"] == "constant-output"
    assert found.diagnosis[0]["r2"] == pytest.approx(1.0, abs=1e-9)


def test_a_yes_has_no_diagnosis() -> None:
    one = Instance(0)
    found = uh.probe(one.attention, one.d)
    assert found.is_attention and found.diagnosis == [] and "diagnosis" not in found.as_data()


def test_a_remedy_works() -> None:
    one = Instance(3)
    constant = CLASSES["constant-output"](one)
    zero = constant(np.zeros((1, one.d)))
    assert uh.probe(constant, one.d).diagnosis[0]["remedy"].startswith("Subtract the output on zeros")
    assert uh.probe(lambda xs: constant(xs) - zero, one.d).verdict == "linear-attention"


def test_a_no_that_is_read_from_weights_is_diagnosed_too():
    """Queries W_Q x + b: x̃ has the constant, so that Eq. 2 holds it."""
    network = uh.compile(uh.random_attention(3, seed=0), to="gated-rnn").model
    weights = np.array(network.input_gating.w_m)
    weights[np.asarray(network.lambda_) == 0, -1] += 0.7
    found = uh.decompile(eqx.tree_at(lambda one: one.input_gating.w_m, network, weights))
    assert found.diagnosis[0]["what"] == "constant-inputs"
    assert found.as_data()["diagnosis"] == found.diagnosis
    assert uh.decompile(network).diagnosis == []
