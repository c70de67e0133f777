"""Draws that are cut from longer ones are those of jax.random, bit for bit."""

import jax
import numpy as np
import pytest

from underhood.core.arrays import precision
from underhood.layers.draws import normal, uniform
from underhood.layers.linear import lecun_normal

SHAPES = [(1,), (3,), (7, 5), (4, 7, 7), (33, 17)]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_they_are_those_of_jax(shape, dtype):
    with precision(np.dtype(dtype)):
        key, other = jax.random.key(3), jax.random.key(4)
        pairs = [
            (normal(key, shape, dtype), jax.random.normal(key, shape, dtype)),
            (uniform(key, shape, dtype), jax.random.uniform(key, shape, dtype)),
            (uniform(key, shape, dtype, -0.3, 2.0), jax.random.uniform(key, shape, dtype, -0.3, 2.0)),
        ]
        for ours, theirs in pairs:
            assert (ours.shape, ours.dtype) == (shape, dtype)
            assert np.asarray(ours).tobytes() == np.asarray(theirs).tobytes()
        assert np.asarray(normal(other, shape, dtype)).tobytes() != np.asarray(pairs[0][1]).tobytes()


def test_within_a_program_they_are_part_of_it():
    key = jax.random.key(1)
    inside = jax.jit(lambda key: lecun_normal(key, (3, 4), np.float32))(key)
    assert np.allclose(inside, lecun_normal(key, (3, 4), np.float32), rtol=1e-6)
