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


@pytest.mark.slow
def test_byte_models_train_and_open_again(tmp_path):
    """A few steps of each, in a process without type checks; transformers computes the same from the folder."""
    import subprocess
    import sys

    import numpy as np
    import transformers

    import underhood as uh

    code = "import train_byte_models as t, pathlib, sys; t.main(pathlib.Path(sys.argv[1]), sys.argv[2:], "
    code += "dict.fromkeys(t.PHASES, ((2, 1e-3, 0.5, 16), (1, 1e-3, 0.5, 16))))"
    names = ["llama", "gru"]
    subprocess.run([sys.executable, "-c", code, str(tmp_path), *names], cwd=EXAMPLES, check=True, capture_output=True)
    tokens = np.arange(32, 96)
    with torch.no_grad():
        public = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "llama")
        wanted = public(torch.from_numpy(tokens)[None]).logits[0].numpy()
    logits = uh.open_model(tmp_path / "llama").read_tokens(tokens).logits
    assert np.abs(logits - wanted).max() <= 1e-4 * np.abs(wanted).max()
    assert uh.open_model(tmp_path / "gru").read("text").logits.shape == (4, 256)


@pytest.mark.parametrize("name", ["mamba", "qwen3_next", "llama"])
def test_trained_models_are_those_that_transformers_reads(name):
    import numpy as np
    import transformers

    import underhood as uh

    folder, tokens = EXAMPLES / "byte-models" / name, np.frombuffer(b"The str.format method; see str.f", np.uint8)
    model = uh.open_model(folder)
    run = model.read("The str.format method; see str.f")
    assert run.loss < 2.5
    with torch.no_grad():
        public = transformers.AutoModelForCausalLM.from_pretrained(folder)
        wanted = public(torch.from_numpy(tokens.astype(np.int64))[None], use_cache=False).logits[0].numpy()
    assert np.abs(run.logits - wanted).max() <= 1e-4 * np.abs(wanted).max()
