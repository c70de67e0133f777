"""State dicts in: torch's LSTM and GRU, narrow and strided tensors, wrong names, and files that would run code."""

import os
import pickle
import zipfile

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch

import underhood as uh
from tests.tolerance import agree, error
from underhood.interop.read import from_state_dict, import_model


def net(cell="LSTM", layers=1, dtype=torch.float64, **options):
    torch.manual_seed(0)
    return torch.nn.ModuleDict(
        {
            "embedding": torch.nn.Linear(4, 6),
            "rnn": getattr(torch.nn, cell)(6, 5, layers, **options),
            "readout": torch.nn.Linear(5, 3),
        }
    ).to(dtype)


def outputs(parts, xs):
    with torch.no_grad():
        signal = parts["embedding"](torch.as_tensor(xs, dtype=parts["readout"].weight.dtype))
        return parts["readout"](parts["rnn"](signal)[0]).numpy()


def sequence(length, d=4):
    return np.random.default_rng(1).uniform(-3, 3, (length, d))


@pytest.mark.parametrize("suffix", ["safetensors", "pt", "legacy.pt", "checkpoint.pt"])
@pytest.mark.parametrize(("cell", "layers"), [("LSTM", 1), ("LSTM", 3), ("GRU", 1), ("GRU", 2)])
def test_torchs_networks_come_in_exactly(cell, layers, suffix, tmp_path):
    parts, path = net(cell, layers), tmp_path / f"w.{suffix}"
    if suffix == "safetensors":
        safetensors.torch.save_file(parts.state_dict(), path)
    elif suffix == "checkpoint.pt":
        torch.save({"state_dict": parts.state_dict(), "epoch": 3}, path)
    else:
        torch.save(parts.state_dict(), path, _use_new_zipfile_serialization=suffix == "pt")
    model, xs = import_model(path, cell.lower()), sequence(1000)
    assert agree(model(xs), outputs(parts, xs)), error(model(xs), outputs(parts, xs))
    assert model.layers == layers
    assert uh.load(uh.save(model, tmp_path / "m"))(xs).tobytes() == model(xs).tobytes()


@pytest.mark.parametrize("cell", ["LSTM", "GRU"])
def test_a_layer_by_itself_and_without_biases(cell):
    module = getattr(torch.nn, cell)(4, 5, 1, bias=False, dtype=torch.float64)
    tensors = {name: value.numpy() for name, value in module.state_dict().items()}
    model, xs = from_state_dict(tensors, cell.lower()), sequence(100)
    assert model.kind == f"{cell.lower()}-cell"
    assert agree(model(xs), module(torch.from_numpy(xs))[0].detach().numpy())
    two = getattr(torch.nn, cell)(4, 5, 2, dtype=torch.float64)
    stack = from_state_dict({name: value.numpy() for name, value in two.state_dict().items()}, cell.lower())
    assert agree(stack(xs), two(torch.from_numpy(xs))[0].detach().numpy())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
def test_narrow_floats_widen_exactly(dtype, suffix, tmp_path):
    parts, path = net(dtype=dtype), tmp_path / f"w.{suffix}"
    safetensors.torch.save_file(parts.state_dict(), path) if suffix == "safetensors" else torch.save(
        parts.state_dict(), path
    )
    model = import_model(path, "lstm")
    assert model.dtype == np.float32
    assert np.array_equal(model.readout.weight, parts["readout"].weight.detach().float().numpy())
    xs = sequence(50)
    assert agree(model(xs), outputs(parts.float(), xs), np.float32)


def test_strided_tensors_are_not_scrambled(tmp_path):
    parts = net()
    plain = parts.state_dict()
    # The same values on transposed and on interleaved memory.
    strided = {name: value.T.contiguous().T if value.ndim == 2 else value for name, value in plain.items()}
    strided = {
        name: torch.stack([value, value * 0], -1)[..., 0] if "bias" in name else value
        for name, value in strided.items()
    }
    assert not strided["rnn.weight_ih_l0"].is_contiguous()
    torch.save(strided, tmp_path / "w.pt")
    xs = sequence(50)
    assert agree(import_model(tmp_path / "w.pt", "lstm")(xs), outputs(parts, xs))
    arrays = {name: np.asfortranarray(value.numpy()) for name, value in plain.items()}
    assert agree(from_state_dict(arrays, "lstm")(xs), outputs(parts, xs))


def test_other_names_are_given_by_hand(tmp_path):
    parts = net("GRU")
    renamed = {"embedding": "encoder.fc", "rnn": "encoder.core", "readout": "encoder.head"}
    tensors = {}
    for name, value in parts.state_dict().items():
        first, _, rest = name.partition(".")
        tensors[f"{renamed[first]}.{rest}"] = value
    tensors["other.weight"] = torch.ones(2, 2)
    safetensors.torch.save_file(tensors, tmp_path / "w")
    with pytest.raises(uh.UnderhoodError, match=r"unknown tensors: encoder\.fc\.bias"):
        import_model(tmp_path / "w", "gru")
    model = import_model(tmp_path / "w", "gru", part="encoder", embedding="fc", readout="head")
    xs = sequence(50)
    assert agree(model(xs), outputs(parts, xs))
    with pytest.raises(uh.UnderhoodError, match="no tensors under"):
        import_model(tmp_path / "w", "gru", part="decoder")


def gated():
    random = np.random.default_rng(0)
    sizes = {"input_gating.w_m": (3, 3), "input_gating.w_x": (3, 3), "nu": (3,), "readout": (2, 4)}
    sizes |= {"output_gating.w_m": (4, 3), "output_gating.w_x": (4, 3)}
    return {name: random.normal(size=size) for name, size in sizes.items()}


def test_a_gated_rnn_by_the_documented_names(tmp_path):
    tensors = gated()
    safetensors.numpy.save_file(tensors, tmp_path / "w")
    model = import_model(tmp_path / "w", "gated-rnn")
    assert np.array_equal(model.readout, tensors["readout"])
    tensors["lambda_"] = np.array([0, 0.25, 1.0])
    del tensors["nu"]
    assert np.allclose(from_state_dict(tensors, "gated-rnn").lambda_, [0, 0.25, 1], rtol=1e-15)


def refusals():
    state = {name: value.numpy() for name, value in net().state_dict().items()}
    yield "gate count", state, "gru", "This looks like `kind='lstm'`"
    yield "kind", state, "transformer", "gated-rnn, gated-rnn-dense"
    yield "no weights", {"w": np.ones(3)}, "lstm", "weight_ih_l0 once"
    bare = {name.removeprefix("rnn."): value for name, value in state.items() if name.startswith("rnn.")}
    yield "two", {**state, **bare}, "lstm", "weight_ih_l0 once"
    yield "no hh", {k: v for k, v in state.items() if "weight_hh" not in k}, "lstm", "is there without rnn.weight_hh_l0"
    yield "bias", {**state, "rnn.bias_hh_l0": np.ones(7)}, "lstm", "bias_hh_l0 of shape (20,)"
    yield "transposed", {**state, "rnn.weight_ih_l0": state["rnn.weight_ih_l0"].T}, "lstm", "(4·n, inputs)"
    yield "readout", {**state, "readout.weight": np.ones((3, 9))}, "lstm", "of readout"
    yield "extra", {**state, "norm.weight": np.ones(3)}, "lstm", "norm.weight (3,)"
    yield "missing layer", {**state, "rnn.weight_ih_l2": np.ones((20, 5))}, "lstm", "rnn.weight_ih_l2"
    both = net(bidirectional=True)["rnn"].state_dict()
    yield "two directions", {name: value.numpy() for name, value in both.items()}, "lstm", "one direction"
    projected = torch.nn.LSTM(4, 5, proj_size=2).state_dict()
    yield "projection", {name: value.numpy() for name, value in projected.items()}, "lstm", "no projection"
    yield "integers", {**state, "readout.weight": np.ones((3, 5), np.int32)}, "lstm", "float16 and bfloat16 to float64"
    yield "nan", {**state, "readout.weight": np.full((3, 5), np.nan)}, "lstm", "15 NaN"
    yield "wrong name", {**gated(), "nus": gated()["nu"]}, "gated-rnn", "unknown tensors for a gated-rnn: nus"
    yield "missing", {k: v for k, v in gated().items() if k != "nu"}, "gated-rnn", "needs the tensor nu"
    yield "shape", {**gated(), "readout": np.ones((4, 2))}, "gated-rnn", "readout of shape"


@pytest.mark.parametrize(("case", "tensors", "kind", "says"), list(refusals()), ids=lambda value: str(value)[:12])
def test_what_does_not_fit_is_refused_in_one_line(case, tensors, kind, says, tmp_path):
    contiguous = {name: np.ascontiguousarray(value) for name, value in tensors.items()}
    safetensors.numpy.save_file(contiguous, tmp_path / "w")
    with pytest.raises(uh.UnderhoodError) as caught:
        import_model(tmp_path / "w", kind)
    assert says in str(caught.value), case
    assert "\n" not in str(caught.value)


def test_quantised_and_sparse_tensors_are_refused(tmp_path):
    for value in (torch.ones(3, 3, dtype=torch.int8), torch.eye(3).to_sparse()):
        torch.save({"readout.weight": value}, tmp_path / "w.pt")
        with pytest.raises(uh.UnderhoodError, match=r"dense float tensor|holds more than tensors"):
            import_model(tmp_path / "w.pt", "lstm")


class Payload:
    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return os.system, (f"touch {self.target}",)


@pytest.mark.parametrize("form", ["torch", "legacy", "pickle", "inside", "npz", "script"])
@pytest.mark.parametrize("forced", [False, True])
def test_a_malicious_pickle_is_refused_and_does_not_run(form, forced, tmp_path, monkeypatch):
    mark, path = tmp_path / "ran", tmp_path / "w.pt"
    if forced:  # the switch with which torch would load anything
        monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    payload = Payload(mark)
    if form == "torch":
        torch.save(payload, path)
    elif form == "legacy":
        torch.save(payload, path, _use_new_zipfile_serialization=False)
    elif form == "pickle":
        path.write_bytes(pickle.dumps(payload))
    elif form == "inside":
        torch.save({**net().state_dict(), "extra": payload}, path)
    elif form == "npz":
        np.savez(tmp_path / "w.npz", w_value=np.array([payload], dtype=object))
        path = tmp_path / "w.npz"
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("archive/constants.pkl", pickle.dumps(payload))
            archive.writestr("archive/data.pkl", pickle.dumps(payload))
            archive.writestr("archive/version", "3")
    with pytest.raises(uh.UnderhoodError) as caught:
        import_model(path, "attention" if form == "npz" else "lstm")
    assert not mark.exists()
    assert "\n" not in str(caught.value)
    # Negative control: the same file does run where pickles are allowed to.
    if form == "pickle":
        pickle.loads(path.read_bytes())
        assert mark.exists()


def test_what_is_no_file_of_tensors_is_refused(tmp_path):
    for content in (b"", b"PK\x03\x04", b"\x80\x04.", b"hello", b"\x80"):
        (tmp_path / "w").write_bytes(content)
        with pytest.raises(uh.UnderhoodError):
            import_model(tmp_path / "w", "lstm")
    torch.save([1, 2], tmp_path / "w")
    with pytest.raises(uh.UnderhoodError, match="expected a state dict in"):
        import_model(tmp_path / "w", "lstm")
    torch.save({"epoch": 3}, tmp_path / "w")
    with pytest.raises(uh.UnderhoodError, match="got entries epoch"):
        import_model(tmp_path / "w", "lstm")
