"""A pickle keeps every bit: float64 stays float64, in this process and through another one."""

import multiprocessing
import pickle

import jax
import numpy as np
import pytest

import underhood as uh
from underhood.core.model import as_dtype


def same_bits(one, other):
    pairs = list(zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True))
    return bool(pairs) and all(
        np.asarray(a).dtype == np.asarray(b).dtype and np.array_equal(np.asarray(a), np.asarray(b)) for a, b in pairs
    )


@pytest.fixture(scope="module")
def compiled():
    return uh.compile(uh.random_attention(3, seed=0), to="lstm").model


def test_a_compiled_network_keeps_its_digits(compiled):
    again = pickle.loads(pickle.dumps(compiled))
    xs = np.random.default_rng(0).normal(size=(20, 3))
    assert same_bits(again, compiled)
    assert np.array_equal(again(xs), compiled(xs))
    assert not same_bits(as_dtype(compiled, np.float32), compiled)


def test_what_was_found_keeps_its_digits():
    found = uh.decompile(uh.compile(uh.random_attention(3, seed=0), to="gated-rnn").model)
    assert same_bits(pickle.loads(pickle.dumps(found)).attention, found.attention)
    assert np.asarray(found.attention.w_value).dtype == np.float64


def test_a_process_of_its_own_gives_it_back(compiled):
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert same_bits(pool.apply(pickle.loads, (pickle.dumps(compiled),)), compiled)
