"""`export` and `import` as a user meets them, with and without the extras."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

import underhood as uh
from underhood.cli import main

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
HIDDEN = """
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {hidden!r}:
            raise ModuleNotFoundError("hidden", name=name)
sys.meta_path.insert(0, Hidden())
from underhood.cli import main
sys.exit(main(sys.argv[1:]))
"""


def without(hidden, *arguments, folder):
    """The command line of an installation that lacks these modules."""
    code = HIDDEN.format(hidden=list(hidden))
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, cwd=folder, env=ENVIRONMENT
    )


def test_there_and_back(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = uh.make_model("lstm", 3, hidden=4, dtype=np.float64)
    uh.save(model, "rnn")
    assert main(["export", "rnn", "--to", "torch", "--out", "w.safetensors", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["verified"], report["module"], report["dtype"]) == (True, None, "float64")
    assert "torch.nn.LSTM" in report["loads_into"]
    assert main(["import", "w.safetensors", "--kind", "lstm", "--out", "back", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["hidden"] == 4
    xs = np.ones((5, 3))
    assert uh.load("back")(xs).tobytes() == model(xs).tobytes()
    assert main(["export", "rnn", "--to", "onnx", "--out", "w.onnx"]) == 0
    assert sorted(os.listdir()) == ["back", "rnn", "w.onnx", "w.safetensors", "w.step.onnx"]


def test_a_gated_rnn_brings_its_module(tmp_path, capsys):
    uh.save(uh.make_model("gated-rnn", 3, hidden=4), tmp_path / "rnn")
    assert main(["export", str(tmp_path / "rnn"), "--to", "torch", "--out", str(tmp_path / "w"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["module"] == str(tmp_path / "underhood_torch.py")
    code = "import sys, torch, underhood_torch as u; n = u.load('w'); print(tuple(n(torch.ones(7, 3)).shape)); "
    code += "sys.exit('underhood' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "(7, 3)\n"), done.stderr


@pytest.mark.parametrize(
    ("hidden", "extra", "arguments"),
    [
        (["torch"], "torch", ["export", "rnn", "--to", "torch", "--out", "new"]),
        (["torch"], "torch", ["import", "w.pt", "--kind", "lstm", "--out", "new"]),
        (["onnxruntime"], "onnx", ["export", "rnn", "--to", "onnx", "--out", "new"]),
        (["onnx", "onnxruntime", "jax2onnx"], "onnx", ["export", "rnn", "--to", "onnx", "--out", "new"]),
        pytest.param(["jax2onnx"], "onnx", ["export", "rnn", "--to", "onnx", "--out", "new"], marks=pytest.mark.slow),
    ],
)
def test_without_an_extra_the_command_says_which(hidden, extra, arguments, tmp_path):
    uh.save(uh.make_model("lstm", 3, hidden=4), tmp_path / "rnn")
    torch.save(torch.nn.LSTM(2, 3).state_dict(), tmp_path / "w.pt")
    done = without(hidden, *arguments, folder=tmp_path)
    assert done.returncode == 2, done.stderr
    assert f"pip install 'underhood[{extra}]'" in done.stderr
    assert done.stderr.count("\n") == 1
    assert sorted(os.listdir(tmp_path)) == ["rnn", "w.pt"]


def test_safetensors_come_in_without_torch(tmp_path):
    safetensors.torch.save_file(torch.nn.LSTM(2, 3).state_dict(), tmp_path / "w")
    done = without(["torch"], "import", "w", "--kind", "lstm", "--out", "rnn", "--json", folder=tmp_path)
    assert (done.returncode, json.loads(done.stdout)["kind"]) == (0, "lstm-cell"), done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["export", "rnn", "--to", "tf", "--out", "new"], "Known: torch, onnx"),
        (["export", "rnn", "--to", "torch", "--dtype", "float32", "--out", "new"], "keeps the dtype"),
        (["export", "none", "--to", "torch", "--out", "new"], "no such file: none"),
        (["export", "rnn", "--to", "torch", "--out", "no/new"], "no such folder: no"),
        (["import", "rnn", "--kind", "x", "--out", "new"], "to import. Known: "),
        (["import", "rnn", "--kind", "lstm", "--out", "new"], "weight_ih_l0"),
    ],
)
def test_bad_input_leaves_nothing_behind(arguments, says, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    uh.save(uh.random_attention(3), "rnn")
    assert main(arguments) == 2
    err = capsys.readouterr().err
    assert says in err
    assert err.count("\n") == 1
    assert os.listdir() == ["rnn"]


def test_a_checkpoint_names_the_entry_to_choose(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    lstm = torch.nn.LSTM(2, 3)
    torch.save({"epoch": 3, "model": lstm.state_dict(), "optimizer": {"lr": 0.1}}, "w.pt")
    assert main(["import", "w.pt", "--kind", "lstm", "--out", "rnn"]) == 2
    err = capsys.readouterr().err
    assert "--part model" in err and err.count("\n") == 1
    assert main(["import", "w.pt", "--kind", "lstm", "--part", "model", "--out", "rnn"]) == 0
    xs = torch.randn(5, 2)
    np.testing.assert_allclose(uh.load("rnn")(xs.numpy()), lstm(xs)[0].detach().numpy(), atol=1e-6)
    torch.save({"net": {"encoder": {f"rnn.{name}": one for name, one in lstm.state_dict().items()}}, "step": 1}, "n.pt")
    assert main(["import", "n.pt", "--kind", "lstm", "--part", "net.encoder.rnn", "--out", "deep"]) == 0
    assert (tmp_path / "deep").read_bytes().endswith((tmp_path / "rnn").read_bytes()[-64:])
    assert main(["import", "n.pt", "--kind", "lstm", "--part", "net", "--out", "no"]) == 2
    assert "--part net.encoder" in capsys.readouterr().err


def test_a_file_or_a_folder_says_its_kind_itself(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    uh.save(uh.make_model("gated-rnn", 3, hidden=4), "rnn")
    assert main(["export", "rnn", "--to", "torch", "--out", "w.safetensors"]) == 0
    assert main(["import", "w.safetensors", "--out", "back"]) == 0
    xs = np.ones((5, 3))
    assert np.array_equal(uh.load("back")(xs), uh.load("rnn")(xs))
    capsys.readouterr()
    safetensors.torch.save_file(torch.nn.LSTM(2, 3).state_dict(), "w")
    assert main(["import", "w", "--out", "lstm", "--json"]) == 0  # four gates
    assert json.loads(capsys.readouterr().out)["kind"] == "lstm-cell"
    safetensors.torch.save_file({"w": torch.ones(3, 3)}, "w")
    assert main(["import", "w", "--out", "new"]) == 2
    assert "w does not say what its weights are. Use --kind, one of" in capsys.readouterr().err
    (tmp_path / "folder").mkdir()
    for flag, value in {"kind": "mamba", "part": "foo", "heads": "2", "embedding": "e", "readout": "r"}.items():
        assert main(["import", "folder", "--layer", "1", f"--{flag}", value, "--out", "new"]) == 2
        assert f"--{flag} is for files" in capsys.readouterr().err


def test_explore_begins_with_a_sequence_of_ones_own(tmp_path, capsys):
    uh.save(uh.make_model("gated-rnn", 2, hidden=3), tmp_path / "rnn")
    np.save(tmp_path / "xs.npy", np.array([[0.125, -7.5], [3.0625, 1.0]]))
    page, flags = tmp_path / "page.html", ["--input", str(tmp_path / "xs.npy")]
    assert main(["explore", str(tmp_path / "rnn"), *flags, "--out", str(page), "--json"]) == 0
    text = page.read_text()
    assert "[0.125, -7.5], [3.0625, 1.0]" in text
    assert main(["explore", str(tmp_path / "rnn"), "--out", str(page)]) == 0
    assert "[0.125, -7.5]" not in page.read_text()
    np.save(tmp_path / "xs.npy", np.ones((4, 3)))
    assert main(["explore", str(tmp_path / "rnn"), *flags, "--out", str(page)]) == 2
    assert "expected a sequence of shape (t, 2)" in capsys.readouterr().err


def test_a_blocked_torch_is_a_missing_torch(tmp_path, monkeypatch, capsys):
    """sys.modules[name] = None is how a program says that a module must not be imported."""
    uh.save(uh.make_model("lstm", 3, hidden=4), tmp_path / "rnn")
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["export", str(tmp_path / "rnn"), "--to", "torch", "--out", str(tmp_path / "w")]) == 2
    assert "pip install 'underhood[torch]'" in capsys.readouterr().err
    assert sys.modules["torch"] is None
    assert os.listdir(tmp_path) == ["rnn"]
