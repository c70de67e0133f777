"""Attention maps: the attention that compiled networks hold, completeness, one value at a time, and finite differences."""

import dataclasses

import equinox as eqx
import jax
import numpy as np
import pytest

import underhood as uh
from tests.tolerance import error
from underhood.construct.targets import TARGETS
from underhood.identify import attention_map as module
from underhood.model import ARCHITECTURES, AbstractModel

LENGTH, D = 20, 3
EXACT = 1e-10  # completeness in float64
NAMES = [name for name in ARCHITECTURES if "." not in name]


def sequence(length=LENGTH, d=D, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, (length, d))


def attention(heads=1, seed=1, **options):
    random = np.random.default_rng(seed)
    return uh.LinearAttention(*(random.normal(size=(heads, D, D)) for _ in range(3)), **options)


def contributions(model, xs):
    """c[t, s] = Σ_heads (W_V x_s)(k_s · q_t), s ≤ t, in NumPy."""
    values, keys, queries = (
        np.einsum("hkd,td->htk", np.asarray(weight), xs) for weight in (model.w_value, model.w_key, model.w_query)
    )
    return np.einsum("hsv,hsk,htk->tsv", values, keys, queries) * np.tri(len(xs))[:, :, None]


def all_contributions(found):
    length = found.weights.shape[1]
    rows = [found.contributions(t) for t in range(length)]
    return np.stack([np.pad(row, ((0, length - len(row)), (0, 0))) for row in rows])


def random_model(name, layers=1, dtype=np.float64):
    return uh.make_model(name, D, hidden=8, d_out=2, layers=layers, dtype=dtype)


@pytest.mark.parametrize("target", TARGETS)
def test_a_compiled_network_shows_the_attention_that_it_holds(target):
    source, xs = attention(), sequence()
    compiled = uh.compile(source, to=target)
    expected, outputs = contributions(source, xs), source(xs)
    own = max(error(compiled.model(xs), outputs), compiled.report["max_rel_error"], 1e-14)
    found = uh.attention_map(compiled.model, xs)
    assert error(all_contributions(found), expected) <= 10 * own
    assert error(found.weights[0], np.linalg.norm(expected, axis=2)) <= 10 * own
    assert found.completeness <= 10 * own
    signed = uh.attention_map(compiled.model, xs, reduce="sum")
    assert error(signed.weights[0], expected.sum(axis=2)) <= 10 * own
