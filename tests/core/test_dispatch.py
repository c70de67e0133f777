"""step() and scan() keep a model's arrays and its compiled function; no transformation of jax notices."""

import copy
import gc

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import underhood as uh
from tests.tolerance import agree, error
from underhood.core import dispatch


def model_of(seed=0, dtype=np.float64):
    return uh.make_model("mingru", 3, hidden=4, seed=seed, dtype=dtype)


XS = np.random.default_rng(0).normal(size=(5, 3))


def test_models_of_one_structure_keep_their_own_weights():
    one, other = model_of(0), model_of(1)
    first, second = (model.step(model.initial_state(), XS[0])[1] for model in (one, other))
    assert error(first, second) > 1e-3
    assert agree(first, one(XS)[0])
    assert agree(copy.deepcopy(other).step(other.initial_state(), XS[0])[1], second)


def test_what_is_kept_goes_with_the_model():
    model = model_of()
    model.step(model.initial_state(), XS[0])
    name = id(model)
    assert name in dispatch._PREPARED
    del model
    gc.collect()
    assert name not in dispatch._PREPARED


def test_a_step_can_be_transformed():
    model = model_of(dtype=np.float32)
    state, xs = model.initial_state(), jnp.asarray(XS, jnp.float32)
    expected = model.step(state, XS[0])
    assert isinstance(expected[1], np.ndarray)
    for way in (jax.jit(model.step), jax.jit(lambda state, x: model.step(state, x))):
        assert agree(way(state, xs[0])[1], expected[1], np.float32)
    assert jax.vmap(model.step, in_axes=(None, 0))(state, xs)[1].shape == (5, 3)
    in_x = jax.grad(lambda x: jnp.sum(model.step(state, x)[1]))(xs[0])
    in_model = jax.grad(lambda model: jnp.sum(model.step(state, xs[0])[1]))(model)
    assert np.any(np.asarray(in_x))
    assert error(in_model.readout.bias, np.ones(3)) == 0


def test_jit_of_a_model_says_what_to_use():
    model = model_of(dtype=np.float32)
    for way in (model, model.scan):
        with pytest.raises(TypeError, match=r"Call it as it is, .* use eqx\.filter_jit\(function\)"):
            jax.jit(way)(XS)
    assert agree(eqx.filter_jit(model)(XS), model(XS), np.float32)


def test_a_float32_model_computes_in_float32_inside_a_float64_one():
    narrow, wide = model_of(dtype=np.float32), model_of(dtype=np.float64)
    for model in (narrow, wide, narrow):
        assert model.step(model.initial_state(), XS[0])[1].dtype == model.dtype
