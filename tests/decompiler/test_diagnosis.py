"""Each "no" says what the function is instead, and a "yes" says nothing."""

import equinox as eqx
import numpy as np
import pytest
import torch

import underhood as uh
from benchmarks.diagnosis import CLASSES, Instance
from underhood.decompiler.from_outputs.diagnosis import DIAGNOSES
from underhood.decompiler.from_outputs.parts import parts_of


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


def gru(bias: float, scale: float) -> torch.nn.Module:
    torch.manual_seed(0)
    layer, readout = (
        torch.nn.GRU(3, 8, batch_first=True, dtype=torch.float64),
        torch.nn.Linear(8, 2, dtype=torch.float64),
    )
    with torch.no_grad():
        readout.bias.fill_(bias)
        readout.weight.mul_(scale)

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.readout = layer, readout

        def forward(self, xs):
            return self.readout(self.layer(xs)[0])

    return Network()


def test_a_nearly_constant_network_is_called_that() -> None:
    """An error relative to what varies says little where next to nothing does."""
    answer = uh.probe(gru(bias=5.0, scale=0.1), 3)
    assert answer.verdict == "not-attention" and answer.r2 < 0
    assert "misses" not in answer.reason
    assert answer.diagnosis[0]["what"] == "constant-part"
    assert "% of the output is constant; of what varies" in answer.reason
    assert "linear in the inputs so far" in answer.reason


def test_every_no_says_what_the_output_is_made_of() -> None:
    answer = uh.probe(gru(bias=0.0, scale=1.0), 3)
    assert {"linear-part", "none-of-these"} <= {part["what"] for part in answer.diagnosis}
    assert "linear in the inputs so far" in answer.reason


@pytest.mark.parametrize("function", [np.tanh, lambda xs: np.abs(xs) - xs**2, lambda xs: np.cos(xs @ np.ones((3, 2)))])
def test_functions_of_the_current_input_are_called_that(function) -> None:
    answer = uh.probe(function, 3)
    assert answer.diagnosis[0]["what"] == "memoryless" and answer.diagnosis[0]["r2"] == pytest.approx(1.0, abs=1e-9)
    assert uh.probe(lambda xs: np.cumsum(xs, axis=0), 3).diagnosis[0]["what"] == "linear-recurrence"


def test_parts_add_up_and_are_what_went_in() -> None:
    random = np.random.default_rng(0)

    def call(xs: np.ndarray) -> np.ndarray:
        past = np.cumsum(xs, axis=1)
        return 2.0 + past @ np.ones((2, 1)) / 4 + np.abs(xs[..., :1]) + 0.5 * np.sin(3 * past[..., :1] * past[..., 1:])

    fit, held = ((xs, call(xs)) for xs in (random.standard_normal((count, 16, 2)) for count in (512, 256)))
    parts = parts_of(call, fit, held, random)
    assert sum(parts.shares.values()) == pytest.approx(1.0)
    power = np.mean(held[1] ** 2)
    memoryless = 1 - 2 / np.pi  # the variance of |x|
    assert parts.shares["constant"] * power == pytest.approx((2 + np.sqrt(2 / np.pi)) ** 2, rel=0.05)
    assert parts.shares["linear"] * power == pytest.approx(17 / 2 * 2 / 16, rel=0.15)
    assert parts.shares["memoryless"] * power == pytest.approx(memoryless, rel=0.15)
    assert parts.shares["rest"] * power == pytest.approx(0.125, rel=0.2)
    assert parts.shares["attention"] < 0.01


def test_what_float64_can_tell_of_an_error_is_shown() -> None:
    attention = uh.random_attention(3, seed=0)
    near = uh.probe(lambda xs: np.asarray(attention(xs)) + 1e-9 * np.cumsum(xs, axis=0) ** 2, 3)
    assert near.verdict == "linear-attention"
    error = float(near.reason.split("all but ")[1].split(" of")[0])
    assert 1e-11 < error < 1e-8
    assert "all but rounding" in uh.probe(lambda xs: np.tril(xs @ xs.T) @ xs, 3).reason
