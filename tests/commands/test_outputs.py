"""No command loses a file: inputs, files of other kinds, links and devices stay; bad outputs are found first."""

import json
import os
import stat
from pathlib import Path

import numpy as np
import pytest

import underhood as uh
from underhood.cli import main
from underhood.core.outputs import MODEL, ONNX, PAGE, STATE_DICT, require_outputs


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """attention, network, weights and results, made once and linked to by each test."""
    folder = tmp_path_factory.mktemp("made")
    attention = uh.random_attention(2, seed=0)
    uh.save(attention, folder / "attn")
    uh.save(uh.compile(attention, to="gated-rnn", horizon=5).model, folder / "rnn")
    uh.save(uh.make_model("gated-rnn", 2, hidden=3), folder / "no")
    (folder / "probed_square.py").write_text("import numpy as np\ndef f(xs):\n    return np.tril(xs @ xs.T) @ xs\n")
    np.savez(folder / "weights", w_value=np.eye(2), w_key=np.eye(2), w_query=np.eye(2))
    (folder / "results" / "quick").mkdir(parents=True)
    row = {"name": "loss", "paper": None, "here": 1.0, "met": True}
    record = {"artifact": "table1", "budget": "quick", "rows": [row], "charts": [], "panels": [], "networks": []}
    record["provenance"] = {"settings": {}, "seeds": [0], "versions": {}, "commit": None, "wall_seconds": 1.0}
    (folder / "results" / "quick" / "table1.json").write_text(json.dumps(record))
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} | {
        "results": folder / "results"
    }


@pytest.fixture
def here(made, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, content in made.items():
        if name == "results":
            (tmp_path / name).symlink_to(content)
        else:
            (tmp_path / name).write_bytes(content)
    return tmp_path


COMMANDS = {
    "sample": ["sample", "--d", "2"],
    "compile": ["compile", "attn", "--to", "gated-rnn", "--horizon", "5"],
    "disguise": ["disguise", "rnn"],
    "decompile": ["decompile", "rnn", "--against", "attn", "--horizon", "5"],
    "probe": ["probe", "probed_square:f", "--d", "2", "--against", "attn"],
    "explore": ["explore", "rnn", "--against", "attn"],
    "import": ["import", "weights.npz", "--kind", "attention"],
    "report": ["report", "results"],
    "export, torch": ["export", "rnn", "--to", "torch"],
    "export, onnx": ["export", "rnn", "--to", "onnx"],
}
INPUTS = {
    name: [one for one in arguments[1:] if one in ("attn", "rnn", "weights.npz")]
    for name, arguments in COMMANDS.items()
}


KINDS = {"explore": PAGE, "report": PAGE, "export, torch": STATE_DICT, "export, onnx": ONNX}


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def refused(arguments, capfd):
    assert main(arguments) == 2
    out, err = capfd.readouterr()
    assert out == "" and err.startswith("underhood: ") and err.count("\n") == 1
    return err


@pytest.mark.parametrize("name", COMMANDS)
def test_nothing_is_lost(name, here, capfd):
    """An input, a thesis, a folder, a FIFO, a device, a folder that is not there: refused, and all of them stay."""
    (here / "thesis.tex").write_text("years of work")
    (here / "link.tex").symlink_to("thesis.tex")
    os.mkfifo(here / "fifo")
    before = files(here)
    for given in INPUTS[name]:
        assert "over the input" in refused([*COMMANDS[name], "--out", given], capfd)
    for other in ("thesis.tex", "link.tex"):
        assert "add --force" in refused([*COMMANDS[name], "--out", other], capfd)
    for special in ("fifo", os.devnull, "."):
        refused([*COMMANDS[name], "--out", special], capfd)
        refused([*COMMANDS[name], "--out", special, "--force"], capfd)
    assert "no such folder: none" in refused([*COMMANDS[name], "--out", "none/a"], capfd)
    assert files(here) == before
    assert (here / "link.tex").is_symlink() and stat.S_ISFIFO((here / "fifo").stat().st_mode)
    assert stat.S_ISCHR(Path(os.devnull).stat().st_mode)


@pytest.mark.parametrize("name", COMMANDS)
def test_force_is_obeyed_and_its_own_kind_is_written_over(name, here, capfd):
    arguments = [*COMMANDS[name], "--out", "link.out"]
    (here / "link.out").symlink_to("target.out")
    (here / "target.out").write_text("words")
    assert "add --force" in refused(arguments, capfd)
    assert main([*arguments, "--force"]) == 0
    assert (here / "link.out").is_symlink() and (here / "target.out").read_bytes() != b"words"
    require_outputs((here / "link.out", KINDS.get(name, MODEL)))
    if name in ("sample", "report"):
        assert main(arguments) == 0


def test_an_input_is_written_over_with_force(here):
    assert main(["disguise", "rnn", "--seed", "3", "--out", "rnn", "--force"]) == 0
    xs = np.ones((4, 2))
    np.testing.assert_allclose(uh.load("rnn")(xs), uh.load("attn")(xs), atol=1e-9)


def test_two_results_need_two_names(here, capfd):
    assert "two outputs" in refused(["decompile", "rnn", "--out", "z", "--reduced", "z"], capfd)
    assert not (here / "z").exists()


def test_the_second_graph_of_onnx_is_checked_too(here, capfd):
    (here / "g.step.onnx").write_text("words")
    assert "g.step.onnx" in refused(["export", "rnn", "--to", "onnx", "--out", "g.onnx"], capfd)
    assert not (here / "g.onnx").exists()


def test_a_missing_folder_is_found_before_the_work(here, capfd, monkeypatch):
    """The network is not so much as read."""
    monkeypatch.setattr("underhood.core.files.load", lambda path: pytest.fail("read"))
    for name in ("compile", "disguise", "decompile", "explore", "export, torch", "export, onnx"):
        assert "no such folder" in refused([*COMMANDS[name], "--out", "none/a"], capfd)


def test_an_attention_that_is_not_the_network_is_written_with_a_word(here, capsys):
    (here / "probed_nearly.py").write_text(
        "import numpy as np\ndef near(xs):\n    return np.tril(xs @ xs.T) @ xs + 0.1 * xs\n"
    )
    arguments = ["probe", "probed_nearly:near", "--d", "2", "--out", "near"]
    assert main(arguments) == 1
    assert "near holds the nearest attention" in capsys.readouterr().err
    assert uh.load("near").d == 2
    assert main(["decompile", "rnn", "--out", "found"]) == 0
    assert "nearest" not in capsys.readouterr().err


def test_a_fifo_as_input_is_refused_at_once(here, capfd):
    os.mkfifo(here / "fifo")
    for arguments in (
        ["decompile", "fifo"],
        ["import", "fifo", "--kind", "lstm", "--out", "a"],
        ["explore", "rnn", "--input", "fifo"],
    ):
        assert "is a FIFO" in refused(arguments, capfd)
