"""`uh.decompile` and `uh.probe` on torch modules and ONNX files."""

import json

import numpy as np
import pytest
import torch

import underhood as uh
from underhood.cli import main
from underhood.interop.onnx import export
from underhood.interop.torch import as_callable, to_torch


class Squashed(torch.nn.Module):
    """Has the weights of an LSTM with embedding and readout, and does something else with them."""

    def __init__(self, inner):
        super().__init__()
        self.embedding, self.lstm, self.readout = inner.embedding, inner.lstm, inner.readout

    def forward(self, xs):
        return torch.tanh(self.readout(self.lstm(self.embedding(xs))[0]))


def test_a_gated_rnn_in_torch_is_read_from_its_weights():
    attention = uh.random_attention(3, seed=1)
    module = to_torch(uh.disguise(uh.compile(attention, to="gated-rnn").model, seed=4))
    found = uh.decompile(module, against=attention)
    assert found.verdict == "linear-attention"
    assert found.certificate is not None
    assert found.scores.polynomial_distance < 1e-8


def test_a_compiled_lstm_in_torch_is_found_out():
    attention = uh.random_attention(2, seed=1)
    compiled = uh.compile(attention, to="lstm", horizon=100)
    found = uh.decompile(to_torch(compiled.model), against=attention)
    assert found.verdict == "linear-attention", found.reason
    assert found.scores.polynomial_distance < 1e-4


def test_a_module_that_does_more_than_its_names_say_is_not_taken_for_ours():
    compiled = uh.compile(uh.random_attention(2, seed=1), to="lstm", horizon=100)
    module = Squashed(to_torch(compiled.model))
    assert uh.decompile(module).verdict == "not-attention"


def test_a_random_torch_lstm_is_not_attention():
    torch.manual_seed(0)
    assert uh.decompile(torch.nn.LSTM(2, 3)).verdict == "not-attention"


def test_an_onnx_file_is_probed(tmp_path, capsys):
    attention = uh.random_attention(2, seed=3)
    export(uh.compile(attention, to="gated-rnn-minimal").model, tmp_path / "rnn.onnx")
    uh.save(attention, tmp_path / "attn")
    found = uh.decompile(str(tmp_path / "rnn.onnx"), against=attention)
    assert found.verdict == "linear-attention", found.reason
    assert found.scores.polynomial_distance < 1e-4
    arguments = ["probe", str(tmp_path / "rnn.onnx"), "--d", "2", "--against", str(tmp_path / "attn"), "--json"]
    assert main(arguments) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "linear-attention"
    export(uh.make_model("gated-rnn", 2, hidden=3), tmp_path / "other.onnx")
    assert main(["decompile", str(tmp_path / "other.onnx"), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["verdict"] == "not-attention"


def test_what_cannot_be_read_is_refused(tmp_path):
    with pytest.raises(uh.UnderhoodError, match="cannot tell the input size"):
        uh.decompile(torch.nn.Tanh())
    with pytest.raises(uh.UnderhoodError, match="cannot tell the input size"):
        uh.probe(lambda xs: xs)
    with pytest.raises(uh.UnderhoodError, match="no such file"):
        uh.probe(tmp_path / "none.onnx", d=2)
    with pytest.raises(uh.UnderhoodError, match=r"torch\.nn\.Module"):
        as_callable(np.tanh)


@pytest.mark.parametrize(
    ("call", "given", "says"),
    [
        (uh.decompile, uh.LSTM, r"not the class LSTM\. Use LSTM\(\.\.\.\)"),
        (uh.decompile, torch.nn.LSTM, "not the class LSTM"),
        (uh.decompile, "rnn.safetensors", r"Read the file with uh\.load"),
        (uh.from_torch, torch.nn.LSTM, "Give the instance, not the class"),
        (uh.from_torch, torch.nn.LSTM(2, 3).state_dict(), "got OrderedDict. Weights in a file: underhood import"),
        (uh.from_torch, torch.nn.LSTM(2, 3, device="meta"), r"without weights\. Load its weights first"),
    ],
)
def test_what_is_given_by_mistake_has_its_line(call, given, says):
    with pytest.raises(uh.UnderhoodError, match=says) as caught:
        call(given)
    assert "\n" not in str(caught.value)


def test_a_compiled_network_is_its_model():
    compiled = uh.compile(uh.random_attention(2, seed=0), to="gated-rnn", horizon=3)
    with pytest.raises(uh.UnderhoodError, match=r"got Compiled\. Use its \.model\."):
        uh.decompile(compiled)
    assert uh.decompile(compiled.model).verdict == "linear-attention"
