"""Every fast forward pass against the model taken step by step, in value and in gradient."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import underhood as uh
from underhood.architectures.gated_rnn.cell import GatedRNN
from underhood.architectures.gated_rnn.kernel import LONGEST, power_matrices
from underhood.architectures.gated_rnn.kernel_products import MOST_INPUTS, products, quadratic_weights
from underhood.architectures.gru.cell import GRU
from underhood.architectures.lstm.cell import LSTM
from underhood.architectures.stack.cell import Stack
from underhood.core.model import ARCHITECTURES
from underhood.layers.kernels.dispatch import KERNELS, forward
from underhood.training.tasks.task import half_mean_square


def step_by_step(model, xs, last):
    """The definition: one step after the other, one sequence at a time, and jax's own derivative of that."""

    def sequence(x):
        return jax.lax.scan(lambda state, now: model._step(state, now), model._initial_state(), x)[1]

    ys = jax.vmap(sequence)(xs)
    return ys[:, -1] if last else ys


def disturbed(model, seed):
    """Every parameter off its special initial value, biases among them."""
    random = np.random.default_rng(seed)
    with jax.enable_x64(True):
        return jax.tree.map(lambda leaf: leaf + 0.1 * random.normal(size=leaf.shape).astype(leaf.dtype), model)


def value_and_gradient(apply, model, xs, wanted, last):
    def loss(arguments):
        if last == "both":  # one program instead of two: compiling is what these tests spend their time on
            ends = half_mean_square(apply(*arguments, True), wanted[:, 0])
            return ends + half_mean_square(apply(*arguments, False), wanted)
        return half_mean_square(apply(*arguments, last), wanted)

    value, gradient = jax.jit(jax.value_and_grad(loss))((model, xs))
    return value, jax.tree.leaves(gradient)


def compare(model, t, last, dtype, seed=0):
    """The largest difference of value and gradients, relative to the largest number of each."""
    with jax.enable_x64(dtype == np.float64):
        random = np.random.default_rng(seed)
        xs = jnp.asarray(random.normal(size=(3, t, model.d)), dtype)
        wanted = jnp.asarray(random.normal(size=(3, model.d_out) if last is True else (3, t, model.d_out)), dtype)
        found, found_gradient = value_and_gradient(forward, model, xs, wanted, last)
        right, right_gradient = value_and_gradient(step_by_step, model, xs, wanted, last)
        differences = [abs(found - right) / abs(right)]
        for a, b in zip(found_gradient, right_gradient, strict=True):
            differences.append(jnp.max(jnp.abs(a - b)) / (jnp.max(jnp.abs(b)) + jnp.finfo(dtype).tiny))
        return float(max(differences))


# Sums of a few thousand products, in another order: a few hundred roundings at most.
def tolerance(dtype):
    return 500 * np.finfo(dtype).eps


@pytest.mark.parametrize("name", list(ARCHITECTURES))
def test_every_architecture_matches_its_steps(name):
    model = disturbed(uh.make_model(name, 3, hidden=6, d_out=2, dtype=np.float64, seed=1), 2)
    assert compare(model, 7, "both", np.float64) < tolerance(np.float64)


@pytest.mark.parametrize(("name", "t"), [("lstm", 6), ("gru", 6), ("lru-in-out", 6), ("lru-in-skip", 1)])
def test_two_layers_match(name, t):
    """At every step, and where the last layer is asked for its last step alone."""
    model = disturbed(uh.make_model(name, 3, hidden=5, layers=2, dtype=np.float64), 2)
    assert compare(model, t, "both", np.float64) < tolerance(np.float64)


@pytest.mark.parametrize("cell", [LSTM, GRU])
def test_a_cell_without_a_stack_matches(cell):
    model = disturbed(cell.random(d=3, hidden=5, key=jax.random.key(0)), 1)
    assert type(model) in KERNELS
    assert compare(model, 5, "both", np.float32) < tolerance(np.float32)


@pytest.mark.parametrize("t", [1, 2, 10, 32])  # in 1, 1, 2 and 4 blocks
def test_the_gated_rnn_matches_at_every_length_with_lambda_at_its_ends(t):
    model = uh.make_model("gated-rnn", 4, hidden=9, d_out=3, dtype=np.float64, seed=t)
    with jax.enable_x64(True):
        nu = model.nu.at[:3].set(-40.0).at[3:6].set(7.0)  # λ = 1 and λ = 0, exactly
    model = eqx.tree_at(lambda m: m.nu, model, nu)
    assert compare(model, t, "both", np.float64) < tolerance(np.float64)


def test_lengths_and_sizes_beyond_the_kernel_take_the_model_s_own_scan():
    for d, t in ((MOST_INPUTS + 1, 3), (2, LONGEST + 1)):
        model = uh.make_model("gated-rnn", d, hidden=3, dtype=np.float64)
        assert compare(model, t, False, np.float64) < 100 * tolerance(np.float64)


@pytest.mark.parametrize("target", ["gated-rnn", "lstm", "gru"])
def test_compiled_networks_take_the_kernel_or_their_own_scan(target):
    """They may have sparse weights, or gates that do not read the state."""
    compiled = uh.compile(uh.random_attention(2), to=target).model
    xs = np.random.default_rng(0).normal(size=(2, 4, 2))
    with jax.enable_x64(True):
        found = forward(compiled, jnp.asarray(xs))
    for x, y in zip(xs, found, strict=True):
        np.testing.assert_allclose(y, compiled(x), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["gated-rnn", "lstm", "gru"])
def test_the_comparison_can_fail(name, monkeypatch):
    """Negative control: a kernel that is off by one part in 10⁴ in one output is caught."""
    model = disturbed(uh.make_model(name, 3, hidden=6, seed=1), 2)
    kernel = KERNELS[type(model)]
    monkeypatch.setitem(KERNELS, type(model), lambda m, xs, last: kernel(m, xs, last) * (1 + 1e-4))
    assert compare(model, 7, False, np.float32) > tolerance(np.float32)


def test_kernels_are_used():
    assert {GatedRNN, Stack, LSTM, GRU} <= set(KERNELS)


def test_a_gating_is_linear_in_the_products():
    random = np.random.default_rng(0)
    w_m, w_x, xs = random.normal(size=(5, 4)), random.normal(size=(5, 4)), random.normal(size=(4, 7))
    with jax.enable_x64(True):
        found = quadratic_weights(jnp.asarray(w_m), jnp.asarray(w_x)) @ products(jnp.asarray(xs), axis=0)
    np.testing.assert_allclose(found, (w_m @ xs) * (w_x @ xs), rtol=1e-12, atol=1e-12)


def test_power_matrices():
    lambda_ = np.array([0.0, 0.3, 1.0])
    with jax.enable_x64(True):
        nu = jnp.asarray(uh.GatedRNN.random(d=1, hidden=3, key=jax.random.key(0)).nu, jnp.float64)
        nu = nu.at[:].set(jnp.asarray([7.0, np.log(-np.log(0.3)), -40.0]))
        lower, upper = power_matrices(nu, 5)
    lag = np.arange(5)[:, None] - np.arange(5)[None, :]
    right = np.where(lag >= 0, lambda_[:, None, None] ** np.maximum(lag, 0), 0)
    np.testing.assert_allclose(lower, right, atol=1e-15)
    np.testing.assert_allclose(upper, np.swapaxes(right, 1, 2), atol=1e-15)
