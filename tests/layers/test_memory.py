"""The matrix memory in chunks against one step after another, and the diagonal loop: values and gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.tolerance import agree
from underhood.layers.memory import Signals, empty_memory, memory_scan, memory_step
from underhood.layers.selective import selective_scan

HEADS, KEYS, VALUES = 2, 3, 4


def signals_of(length, delta, seed=0):
    random = np.random.default_rng(seed)
    q, k, r = (jnp.asarray(random.normal(size=(length, HEADS, KEYS))) / 2 for _ in range(3))
    v, log_decay = random.normal(size=(length, HEADS, VALUES)), -random.exponential(0.3, size=(length, HEADS))
    log_decay[1] = -300.0  # all is forgotten: sums of logarithms, not quotients of products
    log_decay = jnp.asarray(log_decay)
    left = -jnp.exp(log_decay)[:, :, None] * k if delta else None
    return Signals(q, k, jnp.asarray(v), log_decay, left, r if delta else None)


def step_by_step(state, signals):
    return jax.lax.scan(memory_step, state, signals)[1]


def with_gradients(function, signals):
    weights = jnp.asarray(np.random.default_rng(1).normal(size=(*signals.v.shape[:2], VALUES)))
    return jax.value_and_grad(lambda some: jnp.sum(weights * function(some)))(signals)


@pytest.mark.parametrize("length", [pytest.param(2, marks=pytest.mark.slow), 32, 33])
@pytest.mark.parametrize("delta", [False, True])
@pytest.mark.parametrize("empty", [False, True])
def test_chunks_are_steps(length, delta, empty):
    with jax.enable_x64(True):
        signals = signals_of(length, delta)
        state = empty_memory(HEADS, KEYS, VALUES, np.float64)
        state = state if empty else jnp.asarray(np.random.default_rng(2).normal(size=state.shape))

        def chunks(signals):
            if delta:  # l follows from k, as it does in a layer
                signals = signals._replace(left=-jnp.exp(signals.log_decay)[:, :, None] * signals.k)
            return memory_scan(state, signals)[0]

        def steps(signals):
            if delta:
                signals = signals._replace(left=-jnp.exp(signals.log_decay)[:, :, None] * signals.k)
            return step_by_step(jnp.asarray(state), signals)

        found, expected = (jax.tree.leaves(with_gradients(way, signals)) for way in (chunks, steps))
        assert all(agree(one, other) for one, other in zip(found, expected, strict=True))
        moved = signals._replace(k=signals.k * (1 + 1e-6))
        assert not agree(chunks(moved), steps(signals))  # negative control


def test_a_memory_that_is_wider_than_its_values_counts():
    with jax.enable_x64(True):
        signals = signals_of(33, False)
        ones = jnp.concatenate([signals.v, jnp.ones((33, HEADS, 1))], axis=2)
        state = jnp.asarray(np.random.default_rng(2).normal(size=(HEADS, KEYS, VALUES + 1)))
        for start in (state, empty_memory(HEADS, KEYS, VALUES + 1, np.float64)):
            counted, end = memory_scan(start, signals)
            plain, other = memory_scan(jnp.asarray(start), signals._replace(v=ones))
            assert agree(counted, plain)
            assert agree(end, other)


def test_the_diagonal_loop_has_the_slopes_of_the_associative_scan():
    random = np.random.default_rng(0)
    with jax.enable_x64(True):
        arguments = [jnp.asarray(random.uniform(0, 1, (9, 3))), jnp.asarray(random.normal(size=(9, 3))), jnp.ones(3)]
        tangents = [jnp.asarray(random.normal(size=np.shape(one))) for one in arguments]

        def both_ways(method):
            def function(*some):
                return selective_scan(*some, method=method)

            forwards = jax.jvp(function, arguments, tangents)
            return *forwards, *jax.vjp(function, *arguments)[1](forwards[1])

        for got, want in zip(both_ways("sequential"), both_ways("associative"), strict=True):
            assert agree(got, want)
