"""One pass backwards through a held layer gives the frozen map, biases included, and leaves the outputs as they are."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import underhood as uh
from tests.tolerance import error
from underhood.core.model import ARCHITECTURES
from underhood.layers.held import holding

LENGTH, ROW = 12, 9
MARKED = [name for name in ARCHITECTURES if not name.startswith(("gated-rnn", "lru"))]


def model_of(name):
    """Two layers, with biases."""
    random = np.random.default_rng(0)
    model = uh.make_model(name, 3, hidden=8, d_out=2, layers=2, dtype=np.float64)

    def moved(leaf):
        return leaf + 0.1 * random.normal(size=leaf.shape) if eqx.is_inexact_array(leaf) else leaf

    with jax.enable_x64(True):
        return jax.tree.map(moved, model)


def backwards(model, xs, products="values"):
    def run(xs, present):
        with holding(products, present):
            return model._scan(xs, model._initial_state())[0]

    with jax.enable_x64(True):
        outputs, back = jax.vjp(run, jnp.asarray(xs), jnp.ones(len(xs)))
        aims = jnp.zeros((2, *outputs.shape)).at[np.arange(2), ROW, np.arange(2)].set(1)
        by_input, by_bias = jax.vmap(back)(aims)
        return np.asarray(outputs), np.asarray((by_input * xs[None]).sum(axis=2) + by_bias)[:, : ROW + 1].T


@pytest.mark.parametrize("name", MARKED)
def test_a_held_pass_is_a_row_of_the_frozen_map(name):
    model, xs = model_of(name), np.random.default_rng(1).uniform(-1, 1, (LENGTH, 3))
    outputs, row = backwards(model, xs)
    assert error(outputs, model(xs)) <= 1e-12
    expected = uh.attention_map(model, xs, kind="frozen").contributions(ROW)
    assert error(row, expected) <= 1e-10
    assert error(row.sum(axis=0), outputs[ROW]) <= 1e-10


def test_without_holding_slopes_are_others():
    """Negative control: the Jacobian of the same row."""
    model, xs = model_of("lstm"), np.random.default_rng(1).uniform(-1, 1, (LENGTH, 3))
    expected = uh.attention_map(model, xs, kind="jacobian").contributions(ROW)
    assert error(backwards(model, xs)[1], expected) > 1e-3
