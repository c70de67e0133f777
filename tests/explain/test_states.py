"""States read and changed: with all of a state exchanged, a model goes on as from the other sequence, to the bit."""

import numpy as np
import pytest

import underhood as uh
from tests.tolerance import error
from underhood.core.model import ARCHITECTURES

AT = 9


def pair(d, length=20):
    random = np.random.default_rng(0)
    return random.normal(size=(2, length, d))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_patched_state_is_the_spliced_sequence(name):
    model = uh.make_model(name, 3, hidden=8, dtype=np.float64)
    one, other = pair(3)
    run = uh.states(model, other)
    assert error(run.outputs, model(other)) <= 1e-12
    patched = uh.patch(model, one, run, at=AT)
    spliced = model(np.concatenate([other[:AT], one[AT:]]))
    assert error(patched[AT:], spliced[AT:]) <= 1e-12
    assert error(patched[:AT], model(one)[:AT]) <= 1e-12
    assert error(model(one)[AT:], spliced[AT:]) > 1e-6  # negative control: the state does matter


@pytest.mark.parametrize("target", ["gated-rnn", "mamba2", "gla"])
def test_a_compiled_network_goes_on_with_the_others_attention(target):
    attention = uh.random_attention(3, seed=1)
    model = uh.compile(attention, to=target).model
    one, other = pair(3)
    patched = uh.patch(model, one, uh.states(model, other), at=AT)
    spliced = np.concatenate([other[:AT], one[AT:]])
    assert error(patched[AT:], attention(spliced)[AT:]) <= 1e-10
    assert error(patched[AT:], model(spliced)[AT:]) <= 1e-12
    shifted = uh.patch(model, one, uh.states(model, other[::-1]), at=AT)
    assert error(shifted[AT:], attention(spliced)[AT:]) > 1e-3


def test_parts_have_names_and_go_alone():
    model = uh.make_model("lstm", 3, hidden=6, layers=2, dtype=np.float64)
    one, other = pair(3)
    run = uh.states(model, other)
    assert list(run.parts) == ["layer 0 h", "layer 0 c", "layer 1 h", "layer 1 c"]
    assert run["layer 1 c"].shape == (20, 6)
    state, _ = model.initial_state(), None
    for x in other[:4]:
        state, _ = model.step(state, x)
    np.testing.assert_allclose(run.after(4)[1][1], state[1][1], rtol=1e-12)
    everything = uh.patch(model, one, run, at=AT)
    by_name = uh.patch(model, one, {name: part[AT - 1] for name, part in run.parts.items()}, at=AT)
    np.testing.assert_array_equal(everything, by_name)
    some = uh.patch(model, one, run, at=AT, parts=["layer 0 c"])
    assert error(some[AT:], everything[AT:]) > 1e-3
    assert error(uh.patch(model, one, run, at=AT, parts=[]), model(one)) <= 1e-12


def test_what_carries_the_difference():
    """In a GLA layer the memory carries it all; in an LSTM, c carries more than h."""
    one, other = pair(3)
    model = uh.compile(uh.random_attention(3, seed=1), to="mamba2").model
    found = uh.difference(model, one, other, at=AT)
    memory = next(name for name in found.alone if "memory" in name)
    assert found.alone[memory] > 0.99 and found.without[memory] > 0.99
    assert all(share < 0.01 for name, share in found.alone.items() if name != memory)
    same = uh.difference(model, one, one, at=AT)
    assert same.change < 1e-12


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda model, xs: uh.states(lambda xs: xs, xs), r"uh\.from_torch\(module\), or uh\.from_pretrained"),
        (lambda model, xs: uh.patch(model, xs, uh.states(model, xs), at=50), "expected at from 0 to 20"),
        (lambda model, xs: uh.patch(model, xs, uh.states(model, xs[:3]), at=5), "a run of at least 5 steps"),
        (lambda model, xs: uh.patch(model, xs, uh.states(model, xs), at=5, parts=["z"]), "no part 'z' of the state"),
        (lambda model, xs: uh.patch(model, xs, {"layer 0 h": np.ones(2)}, at=5), r"of shape \(8,\); got \(2,\)"),
        (lambda model, xs: uh.patch(model, xs, 3, at=5), "expected a state of this model"),
    ],
)
def test_what_does_not_fit_is_refused(call, says):
    with pytest.raises(uh.UnderhoodError, match=says):
        call(uh.make_model("gru", 3, hidden=8), pair(3)[0])
