"""Files: bit-exact round trips, hand-written ones, and everything that is not one."""

import functools
import json
import os
import struct

import jax
import numpy as np
import pytest
import safetensors.numpy

import underhood as uh
from tests.tolerance import agree
from underhood.core.files import load_with_header, to_tensors
from underhood.core.model import ARCHITECTURES
from underhood.layers.linear import Block


def sparse_network():
    dense = uh.make_model("gated-rnn", 3, hidden=4, dtype=np.float64)
    sparse = uh.SparseMatrix((Block(np.ones((1, 2)), 1, 2, repeats=3), Block(None, 0, 1)), 4)
    return uh.GatedRNN(dense.input_gating, dense.nu, uh.Gating(sparse, sparse), dense.readout)


# Made by the tests, not while they are collected, which every process does.
MODELS = {
    "attention": lambda: uh.random_attention(3, heads=2, d_key=2),
    "decayed": lambda: uh.LinearAttention(*np.random.default_rng(0).normal(size=(3, 1, 4, 4)), decay=np.array([0.9])),
    "three-layers": lambda: uh.make_model("lstm", 3, hidden=4, layers=3),
    "sparse": sparse_network,
} | {
    f"{name}-{dtype}": functools.partial(uh.make_model, name, 3, d_out=2, hidden=4, dtype=np.dtype(dtype))
    for name in ARCHITECTURES
    for dtype in ("float64", "float32")
}


@pytest.mark.parametrize("name", MODELS)
def test_round_trip_keeps_every_bit(name, tmp_path):
    model = MODELS[name]()
    path = uh.save(model, tmp_path / "m.safetensors", provenance={"seed": 3})
    loaded, header = load_with_header(path)
    assert jax.tree.structure(loaded) == jax.tree.structure(model)
    for one, other in zip(jax.tree.leaves(loaded), jax.tree.leaves(model), strict=True):
        assert one.dtype == other.dtype
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()
    assert json.loads(header["provenance"]) == {"seed": 3}
    assert json.loads(header["sizes"])["d"] == 3 or model.d == 4
    assert sorted(os.listdir(tmp_path)) == ["m.safetensors"]


def test_transposed_weights_are_not_scrambled(tmp_path):
    """safetensors writes memory as it lies: a Fortran-ordered array must be laid out anew first."""
    w = np.asfortranarray(np.random.default_rng(0).normal(size=(3, 5)))
    uh.save(uh.LinearAttention(w, w[::-1], w.T.reshape(5, 3).T.copy(order="F")), tmp_path / "a")
    loaded = uh.load(tmp_path / "a")
    assert np.array_equal(loaded.w_value[0], w)
    assert np.array_equal(loaded.w_key[0], w[::-1])


def by_hand(path, tensors, **header):
    safetensors.numpy.save_file(tensors, path, metadata={"format": "underhood/1", **header})
    return path


def gated_tensors(dtype=np.float64):
    random = np.random.default_rng(0)
    return {
        "input_gating.w_m": random.normal(size=(3, 3)).astype(dtype),
        "input_gating.w_x": random.normal(size=(3, 3)).astype(dtype),
        "lambda_": np.array([0, 0.5, 1], dtype),
        "output_gating.w_m": random.normal(size=(4, 3)).astype(dtype),
        "output_gating.w_x": random.normal(size=(4, 3)).astype(dtype),
        "readout": random.normal(size=(2, 4)).astype(dtype),
    }


def test_a_file_written_by_hand_needs_only_format_and_kind(tmp_path):
    model = uh.load(by_hand(tmp_path / "g", gated_tensors(), kind="gated-rnn"))
    assert np.array_equal(np.asarray(model.lambda_)[[0, 2]], [0, 1])
    assert agree(model.lambda_, [0, 0.5, 1])
    cell = {f"cells.0.{name}": np.ones((4, 3, size)) for name, size in {"u": 2, "v": 3}.items()}
    stack = {
        **cell,
        "cells.0.b": np.ones((4, 3)),
        "embedding.weight": np.ones((2, 2)),
        "embedding.bias": np.ones(2),
        "readout.weight": np.ones((1, 3)),
        "readout.bias": np.ones(1),
    }
    loaded = uh.load(by_hand(tmp_path / "s", stack, kind="stack", structure='{"cells": ["lstm-cell"]}'))
    assert (loaded.d, loaded.d_out, loaded.layers) == (2, 1, 1)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_narrow_floats_widen_without_change(dtype, tmp_path):
    tensors = gated_tensors(dtype)
    model = uh.load(by_hand(tmp_path / "g", tensors, kind="gated-rnn"))
    assert model.dtype == np.float32
    assert np.array_equal(model.readout, tensors["readout"].astype(np.float32))


def refusals():
    good = gated_tensors()
    nan = {**good, "readout": np.full((2, 4), np.nan)}
    yield (
        "format",
        good,
        {"format": "underhood/2", "kind": "gated-rnn"},
        "expected format underhood/1 in the header; got underhood/2",
    )
    yield "kind", good, {"kind": "transformer"}, "unknown kind"
    yield "no kind", good, {}, "unknown kind"
    yield (
        "missing",
        {k: v for k, v in good.items() if k != "readout"},
        {"kind": "gated-rnn"},
        "needs the tensor readout",
    )
    yield "extra", {**good, "bias": np.ones(2)}, {"kind": "gated-rnn"}, "unknown tensors for a gated-rnn: bias"
    yield "shape", {**good, "readout": np.ones((2, 5))}, {"kind": "gated-rnn"}, "readout of shape"
    yield "nan", nan, {"kind": "gated-rnn"}, "8 NaN or infinite of 8"
    yield "lambda", {**good, "lambda_": np.array([0, 0.5, 2])}, {"kind": "gated-rnn"}, "expected λ in"
    yield "json", good, {"kind": "gated-rnn", "structure": "{"}, "structure is not JSON"
    yield "list", good, {"kind": "gated-rnn", "structure": "[]"}, "structure to be a JSON object"
    yield (
        "cells",
        {"embedding.weight": np.ones((2, 2))},
        {"kind": "stack", "structure": '{"cells": ["x"]}'},
        "tensor",
    )
    yield "integers", {**good, "readout": np.ones((2, 4), bool)}, {"kind": "gated-rnn"}, "one of the dtypes"


@pytest.mark.parametrize(("case", "tensors", "header", "says"), list(refusals()), ids=lambda value: str(value)[:8])
def test_what_is_not_a_model_is_refused_in_one_line(case, tensors, header, says, tmp_path):
    by_hand(tmp_path / "bad", tensors, **header)
    with pytest.raises(uh.UnderhoodError) as caught:
        uh.load(tmp_path / "bad")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value), case


def test_both_branches_of_an_input_gating_read_the_same_inputs(tmp_path):
    structure, tensors = to_tensors(uh.make_model("lru-in-out", 2, hidden=3))
    name = "cells.0.input_gating.w_x"
    wide = np.concatenate([tensors[name], tensors[name][:, :1]], axis=1)
    by_hand(tmp_path / "bad", {**tensors, name: wide}, kind="stack", structure=json.dumps(structure))
    with pytest.raises(uh.UnderhoodError, match=r"expected input_gating with 3 inputs_x"):
        uh.load(tmp_path / "bad")


def test_broken_files_are_refused_at_every_length(tmp_path):
    whole = uh.save(uh.random_attention(2), tmp_path / "whole").read_bytes()
    for length in (0, 1, 7, 8, 9, 100, len(whole) // 2, len(whole) - 1):
        (tmp_path / "cut").write_bytes(whole[:length])
        with pytest.raises(uh.UnderhoodError, match="whole safetensors file"):
            uh.load(tmp_path / "cut")
    (tmp_path / "huge").write_bytes(struct.pack("<Q", 2**62) + whole[8:])
    with pytest.raises(uh.UnderhoodError, match="whole safetensors file"):
        uh.load(tmp_path / "huge")
    with pytest.raises(uh.UnderhoodError, match="no such file: "):
        uh.load(tmp_path / "missing")
    with pytest.raises(uh.UnderhoodError, match="not a regular file: "):
        uh.load(tmp_path)


def test_save_refuses_what_it_could_not_load(tmp_path):
    bad = jax.tree.map(lambda leaf: np.asarray(leaf) * np.inf, uh.random_attention(2))  # no constructor was asked
    with pytest.raises(uh.UnderhoodError, match="finite weights in w_value"):
        uh.save(bad, tmp_path / "a")
    with pytest.raises(uh.UnderhoodError, match="finite weights in w_value"):
        uh.LinearAttention(*np.full((3, 2, 2), np.nan))
    with pytest.raises(uh.UnderhoodError, match="a model of underhood"):
        uh.save({"w": np.ones(3)}, tmp_path / "a")
    with pytest.raises(uh.UnderhoodError, match="no such folder: "):
        uh.save(uh.random_attention(2), tmp_path / "none" / "a")
    with pytest.raises(uh.UnderhoodError, match="over a folder: "):
        uh.save(uh.random_attention(2), tmp_path)
    assert os.listdir(tmp_path) == []


def test_a_failed_write_leaves_what_was_there(tmp_path, monkeypatch):
    path = uh.save(uh.random_attention(2), tmp_path / "a")
    before = path.read_bytes()

    def full_disk(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(uh.UnderhoodError, match="No space left"):
        uh.save(uh.random_attention(3), path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["a"]


def test_sparse_matrices_act_as_their_dense_form():
    random = np.random.default_rng(0)
    base = random.normal(size=(3, 2))
    for blocks in (
        (Block(base, 1, 2, repeats=2, tiles=3), Block(None, 0, 5)),
        (Block(None, 2, 3, tiles=4), Block(base, 0, 2)),
        (Block(None, 1, 2, repeats=2, tiles=1, transposed=True),),
        (Block(None, 0, 1, repeats=2, tiles=2, transposed=True), Block(base, 3, 2)),
        (Block(base[0], 3, 2, tiles=2), Block(base[1], 1, 2, tiles=2, transposed=True)),
        (Block(None, 0, 1, repeats=1, tiles=5, transposed=True), Block(base[2, :1], 0, 1, tiles=5, transposed=True)),
        (Block(base[:2], 1, 2, repeats=2, transposed=True), Block(base[:1], 0, 2, tiles=4, transposed=True)),
    ):
        sparse = uh.SparseMatrix(blocks, 5)
        dense = sparse.dense()
        assert sparse.shape == dense.shape
        with jax.enable_x64(True):
            xs = jax.numpy.asarray(random.normal(size=(7, 5)))
            assert agree(sparse.apply(xs), np.asarray(xs) @ dense.T)
            assert agree(sparse.apply(xs[0]), dense @ np.asarray(xs[0]))
    with pytest.raises(uh.UnderhoodError, match="within the 4 columns"):
        uh.SparseMatrix((Block(None, 0, 5),), 4)
    with pytest.raises(uh.UnderhoodError, match=r"expected base of shape .* with width = 2"):
        Block(base[0, :1], 0, 2)
    with pytest.raises(uh.UnderhoodError, match="a whole number of 1 or more as a block's repeats"):
        Block(None, 0, 5, repeats=0)
