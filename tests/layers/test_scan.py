"""h_t = λ ⊙ h_{t-1} + u_t: all kernels against the loop, real and complex, values and gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.tolerance import agree
from underhood.core.errors import UnderhoodError
from underhood.layers.scan import SCANS, diagonal_scan, fastest_scan

LENGTHS = (1, 2, 31, 32, 33, 1000)


def problem(length, dtype, seed=0):
    random = np.random.default_rng(seed)
    lambda_ = random.uniform(0, 1, 5)
    lambda_[:2] = 0, 1  # a perfect forget and a perfect memory neuron
    inputs, state = random.normal(size=(length, 5)), random.normal(size=5)
    if np.issubdtype(dtype, np.complexfloating):
        lambda_ = lambda_ * np.exp(1j * random.uniform(0, 6, 5))
        inputs = inputs + 1j * random.normal(size=inputs.shape)
    return lambda_.astype(dtype), inputs.astype(dtype), state.astype(dtype)


def loop(lambda_, inputs, state):
    states = []
    for current in inputs:
        state = lambda_ * state + current
        states.append(state)
    return np.array(states)


def both_parts(values):
    values = np.asarray(values)
    return np.stack([values.real, values.imag])


@pytest.mark.parametrize("method", SCANS)
@pytest.mark.parametrize("length", [pytest.param(n, marks=pytest.mark.slow if n in (2, 31) else ()) for n in LENGTHS])
@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_every_kernel_matches_the_loop(method, length, dtype):
    arguments = problem(length, dtype)
    with jax.enable_x64(True):
        states = diagonal_scan(*map(jnp.asarray, arguments), method=method)
    assert agree(both_parts(states), both_parts(loop(*arguments)))
    wrong = (arguments[0] * (1 - 1e-6), *arguments[1:])
    assert not agree(both_parts(states), both_parts(loop(*wrong)))


@pytest.mark.parametrize("method", SCANS)
def test_gradients_match_the_sequential_kernel(method):
    with jax.enable_x64(True):
        arguments = tuple(map(jnp.asarray, problem(33, np.float64)))
        weights = jnp.asarray(np.random.default_rng(1).normal(size=(33, 5)))

        def gradient(method):
            return jax.grad(lambda *a: jnp.sum(weights * diagonal_scan(*a, method=method)), (0, 1, 2))(*arguments)

        for got, want in zip(gradient(method), gradient("sequential"), strict=True):
            assert agree(got, want)


def test_the_choice_is_among_the_kernels():
    assert all(fastest_scan(length) in SCANS for length in (1, 32, 100_000))
    with pytest.raises(UnderhoodError, match="Known: associative, sequential, unrolled"):
        diagonal_scan(jnp.ones(2), jnp.ones((3, 2)), jnp.ones(2), method="fast")
