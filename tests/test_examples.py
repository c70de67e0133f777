"""Every example runs as it stands, is short, and shows what it says."""

import runpy
import time
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def example(name):
    return runpy.run_path(str(EXAMPLES / name))


def test_an_lstm_that_computes_attention_in_plain_torch(capsys):
    error, bound, largest = example("lstm_that_attends.py")["main"](seed=1)
    assert error <= bound < 1e-4 * largest
    assert "torch.nn.LSTM" in capsys.readouterr().out


def test_a_gated_rnn_in_onnxruntime(capsys):
    worst, difference = example("gated_rnn_in_onnxruntime.py")["main"](seed=1)
    assert worst < 1e-4
    assert difference < 1e-6
    assert capsys.readouterr().out.count("\n") == 4


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # inside torch, at its first jacfwd
def test_a_torch_trained_network_decompiled(capsys):
    space, began = example("decompile_a_torch_network.py"), time.process_time()
    try:
        found, error = space["main"](seed=2)
    finally:
        torch.set_default_dtype(torch.float32)
    assert found.verdict == "linear-attention"
    assert error < 1e-9
    assert "10 iterations: loss" in capsys.readouterr().out
    assert time.process_time() - began < 60


def test_the_map_of_a_mamba(capsys, tmp_path):
    same = example("map_of_a_mamba.py")["main"](seed=1, out=tmp_path / "map.png")
    assert same.largest_difference < 1e-12 and same.correlation > 1 - 1e-12
    assert (tmp_path / "map.png").stat().st_size > 10_000
    assert capsys.readouterr().out.startswith("exact map")


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_examples_are_short(path):
    assert len(path.read_text().splitlines()) < 80


@pytest.mark.parametrize("path", sorted((EXAMPLES / "notebooks").glob("*.py")), ids=lambda path: path.stem)
def test_notebooks_run_and_find_what_they_say(path):
    pytest.importorskip("marimo")
    outputs, names = example(f"notebooks/{path.name}")["app"].run()
    assert len(outputs) >= 5
    if path.stem == "is_it_attention":
        verdicts = {name: one.verdict for name, one in names["found"].items()}
        expected = {"disguised": "linear-attention", "forgetful": "decayed-attention", "random LSTM": "not-attention"}
        assert verdicts == expected
        assert names["error"] < 1e-9
        assert names["bound"] < 1e-3
    else:
        assert names["student"].held_out_loss < 1e-12
        assert names["found"].verdict == "linear-attention"
        assert len(names["figure"].axes) == 6
