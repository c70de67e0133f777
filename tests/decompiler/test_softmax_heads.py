"""Softmax attention recovered from a callable, head by head; what else averages is not called that."""

import numpy as np
import pytest

import underhood as uh
from underhood.decompiler.from_outputs.softmax_heads import outputs, recover_softmax

FAR = 1e-4


def drawn(d, heads, d_key, *, biased=False, seed=0):
    random = np.random.default_rng(seed)
    parts = [random.normal(size=(heads, rows, d)) / np.sqrt(d) for rows in (d, d_key, d_key)]
    biases = {"bias_query": 0.3 * random.normal(size=(heads, d_key)), "bias": random.normal(size=d)} if biased else {}
    return uh.SoftmaxAttention(*parts, **biases, scale=1.0 if seed % 2 else d_key**-0.5)


def as_numpy(model):
    """The same in NumPy, which compiles nothing."""
    bias = np.zeros(model.d_out) if model.bias is None else np.asarray(model.bias)
    return lambda xs: outputs(np.asarray(model.w_value), model.key_query, model.key_offset, bias, xs)


def recovered(call, d, seed=0):
    random = np.random.default_rng(seed)
    xs = np.clip(random.normal(size=(64, 16, d)), -4, 4)
    return recover_softmax(call, d, (xs, call(xs)), random, 4.0)


def apart(found, true):
    """The largest relative distance of a head's matrices from those found, heads in any order."""
    distances = []
    for ours, theirs in ((found.key_query, true.key_query), (found.w_value, true.w_value)):
        ours, theirs = np.asarray(ours), np.asarray(theirs)
        each = [min(np.linalg.norm(one - other) for one in ours) / np.linalg.norm(other) for other in theirs]
        distances.append(max(each))
    return max(distances)


@pytest.mark.parametrize(
    ("d", "heads", "d_key", "biased"),
    [(4, 1, 4, False), (4, 2, 2, False), (16, 1, 8, True), (16, 2, 16, False), (16, 4, 8, True), (64, 1, 16, False)],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_heads_are_recovered(d, heads, d_key, biased, seed):
    true = drawn(d, heads, d_key, biased=biased, seed=seed)
    found = recovered(as_numpy(true), d, seed)
    assert found.attention.heads == heads and 1 - found.r2 < 1e-9
    assert apart(found.attention, true) < FAR
    assert apart(found.attention, drawn(d, heads, d_key, seed=seed + 7)) > 0.1  # control


@pytest.mark.slow
@pytest.mark.parametrize("d", [4, 16, 64])
def test_twenty_of_twenty(d):
    for seed in range(20):
        true = drawn(d, 1, max(2, d // 4), biased=seed % 3 == 0, seed=seed)
        found = recovered(as_numpy(true), d, seed)
        assert apart(found.attention, true) < FAR, seed


def test_the_sizes_that_numpy_computes_are_the_models():
    model, xs = drawn(4, 2, 3, biased=True), np.random.default_rng(0).normal(size=(9, 4))
    assert np.allclose(as_numpy(model)(xs[None])[0], model(xs), atol=1e-12)


def test_probe_hands_over_the_function():
    true = drawn(3, 2, 2, seed=3)
    found = uh.probe(as_numpy(true), d=3, length=8, batched=True)
    assert found.verdict == "not-attention" and found.diagnosis[0]["what"] == "softmax"
    assert isinstance(found.function, uh.SoftmaxAttention) and found.diagnosis[0]["r2"] > 1 - 1e-8
    xs = np.random.default_rng(5).normal(size=(40, 3))
    assert np.allclose(found.function(xs), true(xs), atol=1e-5)
    assert all("function" not in entry for entry in found.as_data()["diagnosis"])


@pytest.mark.parametrize("sort", ["elu", "polynomial"])
def test_other_averages_are_not_called_softmax(sort):
    true = drawn(3, 1, 3, seed=1)
    kernels = {
        "elu": lambda z: np.where(z > 0, z + 1, np.exp(np.minimum(z, 0))) + 0.1,
        "polynomial": lambda z: (1 + z / 2) ** 2 + 0.1,
    }

    def call(xs):
        v, k, q = (xs @ np.asarray(w)[0].T for w in (true.w_value, true.w_key, true.w_query))
        weights = np.tril(kernels[sort](q @ np.swapaxes(k, 1, 2)))
        return (weights / weights.sum(axis=2, keepdims=True)) @ v

    found = uh.probe(call, d=3, length=8, batched=True)
    assert found.diagnosis[0]["what"] == "other-average" and found.function is None
    assert found.diagnosis[0]["r2"] < 0.99
