"""W_V, W_K, W_Q in: by name, with heads, and split from torch.nn.MultiheadAttention."""

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch

import underhood as uh
from tests.tolerance import agree
from underhood.interop.read import from_state_dict, import_model
from underhood.interop.readers import read_state_dict


def linear_multihead(module, xs):
    """What torch.nn.MultiheadAttention computes, written out head by head, without softmax and its scale."""
    d, heads = module.embed_dim, module.num_heads
    w_query, w_key, w_value = module.in_proj_weight.detach().numpy().reshape(3, d, d)
    size, ys = d // heads, np.zeros((len(xs), d))
    for head in range(heads):
        rows = slice(head * size, (head + 1) * size)
        q, k, v = xs @ w_query[rows].T, xs @ w_key[rows].T, xs @ w_value[rows].T
        ys[:, rows] = np.tril(q @ k.T) @ v
    return ys @ module.out_proj.weight.detach().numpy().T


@pytest.mark.parametrize("heads", [1, 2, 3])
@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
def test_multihead_attention_is_split(heads, suffix, tmp_path):
    torch.manual_seed(heads)
    module = torch.nn.MultiheadAttention(6, heads, bias=False, dtype=torch.float64)
    path = tmp_path / f"w.{suffix}"
    layer = {f"self_attn.{name}": value for name, value in module.state_dict().items()}
    layer["linear1.weight"] = torch.ones(2, 2)
    safetensors.torch.save_file(layer, path) if suffix == "safetensors" else torch.save(layer, path)
    attention = import_model(path, "attention", part="self_attn", heads=heads)
    xs = np.random.default_rng(0).normal(size=(40, 6))
    assert (attention.heads, attention.d_key, attention.d_out) == (heads, 6 // heads, 6)
    assert agree(attention(xs), linear_multihead(module, xs))
    if heads > 1:
        wrong = import_model(path, "attention", part="self_attn", heads=1)
        assert not agree(wrong(xs), linear_multihead(module, xs))


def test_torchs_own_attention_without_softmax_is_this_one():
    """The split is torch's: queries, keys and values as torch.nn.functional makes them, found by a linear probe."""
    torch.manual_seed(0)
    module = torch.nn.MultiheadAttention(6, 2, bias=False, dtype=torch.float64)
    x = torch.randn(1, 6, dtype=torch.float64)
    with torch.no_grad():  # one key: softmax is 1, and the output is W_O W_V x, of all heads
        expected = module(x, x, x)[0][0].numpy()
    attention = from_state_dict(
        {name: value.numpy() for name, value in module.state_dict().items()}, "attention", heads=2
    )
    assert agree(np.asarray(attention.w_value).sum(axis=0) @ x[0].numpy(), expected)


@pytest.mark.parametrize("names", [("w_value", "w_key", "w_query"), ("W_V", "W_K", "W_Q")])
@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
def test_matrices_by_name(names, suffix, tmp_path):
    value, key, query = np.random.default_rng(0).normal(size=(3, 4, 4))
    tensors = dict(zip(names, (np.asfortranarray(value), key[::-1], query.T), strict=True))
    path = tmp_path / f"w.{suffix}"
    if suffix == "npz":
        np.savez(path, **tensors)
    else:
        safetensors.numpy.save_file({name: np.ascontiguousarray(w) for name, w in tensors.items()}, path)
    attention = import_model(path, "attention")
    assert np.array_equal(attention.w_value[0], value)
    assert np.array_equal(attention.w_key[0], key[::-1])
    assert np.array_equal(attention.w_query[0], query.T)


def test_a_heads_axis_is_kept_and_decay_too():
    drawn = uh.random_attention(4, heads=3, d_key=2, d_value=5)
    tensors = {name: np.asarray(getattr(drawn, name)) for name in ("w_value", "w_key", "w_query")}
    attention = from_state_dict({**tensors, "decay": np.array([1, 0.5, 0.9])}, "attention", heads=3)
    assert np.array_equal(attention.w_key, drawn.w_key)
    assert np.array_equal(attention.decay, [1, 0.5, 0.9])


def refusals():
    value, key, query = np.random.default_rng(0).normal(size=(3, 4, 4))
    good = {"w_value": value, "w_key": key, "w_query": query}
    joint = {"in_proj_weight": np.ones((12, 4)), "out_proj.weight": np.eye(4)}
    yield {**good, "w_keys": key}, {}, "w_keys"
    yield {"w_value": value, "w_key": key}, {}, "w_query"
    yield {**good, "W_V": value}, {}, "once; got w_value, W_V"
    yield good, {"heads": 3}, "that 3 heads divide"
    yield good, {"heads": 0}, "expected heads of 1 or more"
    yield {**good, "w_key": key[None]}, {}, "three matrices, or three"
    yield {**good, "w_query": query[:3]}, {}, "w_query of shape"
    yield {**joint, "in_proj_bias": np.ones(12)}, {}, "no biases"
    yield {**joint, "in_proj_weight": np.ones((4, 12))}, {}, "(3·d, d)"
    yield {**joint, "out_proj.weight": np.ones((4, 3))}, {}, "out_proj.weight of shape"
    yield {name: w[None] for name, w in good.items()}, {"heads": 2}, "no other heads"


@pytest.mark.parametrize(("tensors", "options", "says"), list(refusals()), ids=lambda value: str(value)[:12])
def test_what_is_no_attention_is_refused(tensors, options, says):
    with pytest.raises(uh.UnderhoodError) as caught:
        from_state_dict(tensors, "attention", **options)
    assert says in str(caught.value)


def test_zero_biases_do_not_matter():
    tensors = {"in_proj_weight": np.ones((12, 4)), "in_proj_bias": np.zeros(12), "out_proj.weight": np.eye(4)}
    assert from_state_dict(tensors, "attention", heads=2).heads == 2
    with pytest.raises(uh.UnderhoodError, match="no heads to split"):
        from_state_dict({"w": np.ones(2)}, "lstm", heads=2)


def test_safetensors_with_a_length_that_looks_like_a_pickle_are_read(tmp_path):
    """A header of 0x480 bytes makes the file begin as a pickle of protocol 4 does."""
    tensors = {name: np.eye(2) for name in ("w_value", "w_key", "w_query")}
    path, note = tmp_path / "a.safetensors", 0
    while not path.exists() or not path.read_bytes().startswith(b"\x80\x04"):
        note += 8
        safetensors.numpy.save_file(tensors, path, metadata={"note": "x" * note})
        assert note < 2000
    found, _ = read_state_dict(path)
    assert found.keys() == tensors.keys()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_tensors_of_a_module_are_weights(dtype):
    """As they are, gradients and all; what NumPy has no dtype for is widened."""
    weights = [torch.nn.Parameter(torch.randn(3, 3, dtype=dtype)) for _ in range(3)]
    found = uh.LinearAttention(*weights)
    assert found.dtype == (np.float64 if dtype == torch.float64 else np.float32)
    for name, weight in zip(("w_value", "w_key", "w_query"), weights, strict=True):
        np.testing.assert_array_equal(np.asarray(getattr(found, name))[0], weight.detach().double().numpy())
