"""decompile, probe and disguise as a user types them."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import underhood as uh
from underhood.cli import main

KEYS = [
    "verdict",
    "reason",
    "heads",
    "kv_score",
    "q_score",
    "polynomial_distance",
    "r2",
    "hidden_before",
    "hidden_after",
    "pre_readout_before",
    "pre_readout_after",
    "certificate",
]


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    attention = uh.random_attention(3, seed=0)
    paths = {name: str(tmp_path / f"{name}.safetensors") for name in ("attn", "rnn", "hidden", "found", "small", "no")}
    uh.save(attention, paths["attn"])
    uh.save(uh.compile(attention, to="gated-rnn").model, paths["rnn"])
    uh.save(uh.make_model("gated-rnn", 3, hidden=9), paths["no"])
    return paths


def test_round_trip(files, capsys) -> None:
    assert main(["disguise", files["rnn"], "--seed", "3", "--out", files["hidden"], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["relative_change"] < 1e-12
    arguments = ["--against", files["attn"], "--out", files["found"], "--reduced", files["small"]]
    assert main(["decompile", files["hidden"], *arguments, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert list(printed) == KEYS
    assert (printed["verdict"], printed["heads"]) == ("linear-attention", 1)
    assert printed["kv_score"] < 1e-15 and printed["q_score"] < 1e-15
    assert list(printed["certificate"]) == ["input_bound", "horizon", "max_abs_error"]
    xs = np.random.default_rng(0).standard_normal((9, 3))
    for name in ("found", "small"):
        np.testing.assert_allclose(uh.load(files[name])(xs), uh.load(files["attn"])(xs), atol=1e-9)
    assert uh.load(files["small"]).hidden == printed["hidden_after"] == 9


def test_no_is_exit_code_one(files, capsys) -> None:
    assert main(["decompile", files["no"], "--out", files["found"], "--json"]) == 1
    captured = capsys.readouterr()
    printed = json.loads(captured.out)
    assert list(printed) == [*KEYS, "diagnosis"]
    assert printed["verdict"] == "not-attention"
    assert printed["heads"] is None and printed["certificate"] is None
    assert "not written" in captured.err and not Path(files["found"]).exists()


def test_table_says_the_verdict_first(files, capsys) -> None:
    assert main(["decompile", files["rnn"]]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("linear-attention")
    text = "\n".join(lines)
    for word in ("certificate", "hidden neurons", "W_V", "KV score"):
        assert word in text
    assert main(["decompile", files["no"]]) == 1
    assert capsys.readouterr().out.startswith("not-attention")


def test_pruning_is_told_only_where_there_was_some(files, capsys) -> None:
    assert main(["decompile", files["rnn"], "--reduced", files["small"]]) == 0
    assert "after pruning and merging" in " ".join(capsys.readouterr().out.replace("│", "").split())
    assert main(["decompile", files["small"]]) == 0
    printed = capsys.readouterr().out
    assert "none to prune or merge" in printed and "after pruning" not in printed


def test_weights_of_torch_are_sent_to_import(tmp_path, capsys) -> None:
    for content in (b"PK\x03\x04 a zip archive", b"\x80\x02 a pickle"):
        (tmp_path / "w.pt").write_bytes(content)
        assert main(["decompile", str(tmp_path / "w.pt")]) == 2
        assert f"underhood import {tmp_path / 'w.pt'} --kind" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--against", "rnn"], ["--horizon", "0"], ["--tolerance", "7"]])
def test_bad_input(files, capsys, arguments: list[str]) -> None:
    arguments = [files.get(one, one) for one in arguments]
    assert main(["decompile", files["rnn"], *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("underhood: ") and captured.err.count("\n") == 1


def test_attention_is_not_a_network(files, capsys) -> None:
    assert main(["decompile", files["attn"]]) == 2
    assert "nothing to decompile" in capsys.readouterr().err
    assert main(["disguise", files["attn"], "--out", files["hidden"]]) == 2
    assert main(["decompile", files["hidden"]]) == 2


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "probed_here.py").write_text(
        "import numpy as np\n"
        "print('chatter')\n"
        "def attention(xs):\n    return np.tril(xs @ xs.T) @ xs\n"
        "def other(xs):\n    return np.tanh(xs)\n"
        "def broken(xs):\n    raise KeyError('no such\\nthing')\n"
        "number = 3\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "probed_here", raising=False)
    return "probed_here"


def test_probe_runs_code_and_says_so(module: str, capsys) -> None:
    assert main(["probe", f"{module}:attention", "--d", "2", "--json"]) == 0
    captured = capsys.readouterr()
    assert "running the code of probed_here:attention" in captured.err
    assert "chatter" in captured.err
    printed = json.loads(captured.out)
    assert list(printed) == KEYS
    assert (printed["verdict"], printed["heads"]) == ("linear-attention", 1)
    assert main(["probe", f"{module}:other", "--d", "2"]) == 1
    assert capsys.readouterr().out.startswith("not-attention")


@pytest.mark.parametrize("name", ["attention:", "no_such_module:f", "probed_here:none", "probed_here:number", "f"])
def test_probe_of_nothing(module: str, capsys, name: str) -> None:
    assert main(["probe", name, "--d", "2"]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("underhood: ")


def test_probe_of_a_function_that_fails(module: str, capsys) -> None:
    assert main(["probe", f"{module}:broken", "--d", "2"]) == 2
    assert "KeyError" in capsys.readouterr().err.splitlines()[-1]
