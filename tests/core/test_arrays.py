"""What is taken for numbers, and what is not: masks, dates, text, the byte order of another machine, jit's rounding."""

import warnings

import equinox as eqx
import jax
import numpy as np
import pytest

import underhood as uh

MODEL = uh.compile(uh.random_attention(3, seed=0), to="gated-rnn").model
XS = np.random.default_rng(0).normal(size=(6, 3))


@pytest.mark.parametrize(
    "bad",
    [
        np.ma.masked_array(XS, XS > 0),
        XS.astype("M8[s]"),
        XS.astype("m8[s]"),
        XS.astype("S8"),
        XS.astype(str),
        XS.astype(str).tolist(),
        np.zeros((6, 3), [("a", "f8")]),
        XS + 1j,
    ],
    ids=["mask", "date", "duration", "bytes", "text", "lists of text", "structured", "complex"],
)
def test_what_is_no_array_of_numbers_is_refused(bad):
    for call in (MODEL, uh.random_attention(3, seed=0), lambda xs: uh.attention_map(MODEL, xs)):
        with pytest.raises(uh.UnderhoodError, match=r"expected .*inputs"):
            call(bad)
    with pytest.raises(uh.UnderhoodError):
        MODEL.step(MODEL.initial_state(), bad[0])


def test_what_stands_for_the_same_numbers_is_taken():
    wanted = MODEL(XS)
    for good in (XS.astype(">f8"), np.ma.masked_array(XS), XS.tolist(), np.asfortranarray(XS), XS.astype(object)):
        assert np.array_equal(MODEL(good), wanted)


def test_a_state_in_the_byte_order_of_another_machine():
    _, state = MODEL.scan(XS)
    swapped = jax.tree.map(lambda leaf: np.asarray(leaf).astype(">f8"), state)
    assert np.array_equal(MODEL.step(swapped, XS[0])[1], MODEL.step(state, XS[0])[1])
    assert np.array_equal(MODEL.scan(XS, swapped)[0], MODEL.scan(XS, state)[0])


def test_what_the_error_of_jit_recommends_gives_the_same_numbers():
    wanted = MODEL(XS)
    with pytest.raises(TypeError, match=r"eqx\.filter_jit\(function\) within `with jax\.enable_x64\(True\):`"):
        jax.jit(MODEL)(XS)
    with jax.enable_x64(True):
        assert np.max(np.abs(eqx.filter_jit(MODEL)(XS) - wanted)) < 1e-14
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.max(np.abs(np.asarray(jax.vmap(MODEL)(XS[None])[0]) - wanted)) < 1e-14  # of a batch


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype float64:UserWarning")  # jax's own
def test_inputs_that_jit_rounded_are_not_passed_over_in_silence():
    with pytest.warns(RuntimeWarning, match="float64 inputs were rounded on the way in"):
        rounded = eqx.filter_jit(lambda xs: MODEL(xs))(XS)
    assert np.max(np.abs(rounded - MODEL(XS))) > 1e-9  # the warning is needed
    narrow = uh.make_model("gru", 3, hidden=4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        eqx.filter_jit(lambda xs: narrow(xs))(XS)
