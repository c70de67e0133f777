"""An architecture and a task of somebody else's package: every command works with them or refuses in one line.

The package is made of the blocks of docs/extending.md.
"""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import underhood as uh
from underhood.cli import main
from underhood.core import registry
from underhood.core.model import ARCHITECTURES, KINDS
from underhood.training.tasks.task import TASKS

ROOT = Path(__file__).resolve().parents[1]
BLOCKS = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs" / "extending.md").read_text(), re.DOTALL | re.MULTILINE)


def block(marker):
    (found,) = (one for one in BLOCKS if marker in one)
    return found


CELL, CHECK, TASK = block("class Leaky"), block("def reference"), block("class Remember")


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """A package on the path with an entry point, as pip would leave it."""
    folder = tmp_path / "site"
    (folder / "my_package").mkdir(parents=True)
    (folder / "my_package" / "__init__.py").write_text("")
    (folder / "my_package" / "leaky.py").write_text(CELL)
    (folder / "my_package" / "remember.py").write_text(TASK)
    info = folder / "my_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[underhood]\ncells = my_package.leaky\ntasks = my_package.remember\nbroken = my_package.missing\n"
    )
    kept = [(one, dict(one._things)) for one in (ARCHITECTURES, KINDS, TASKS)]
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(registry, "_loaded", False)
    with pytest.warns(RuntimeWarning, match="could not load my_package.missing of my-package: ModuleNotFoundError"):
        assert "leaky" in ARCHITECTURES
    yield folder
    for one, things in kept:
        one._things.clear()
        one._things.update(things)
    for name in [name for name in sys.modules if name.startswith("my_package")]:
        del sys.modules[name]


def run(capsys, *arguments):
    """Exit code, the JSON on stdout and the one line on stderr."""
    try:
        code = main([str(one) for one in arguments])
    except SystemExit as stop:
        code = stop.code
    printed = capsys.readouterr()
    assert "Traceback" not in printed.err
    if code == 2:
        (line,) = printed.err.splitlines()
        assert line.startswith("underhood: ")
        return code, line
    return code, json.loads(printed.out) if "--json" in arguments else printed.out


def test_every_command_knows_them_or_refuses_in_one_line(plugin, tmp_path, capsys, browser):
    monkey = ["--task", "remember", "--model", "leaky", "--set", "size=3", "--hidden", 4, "--steps", 30, "--json"]
    code, payload = run(capsys, "train", *monkey, "--out", tmp_path / "run")
    assert (code, payload["runs"][0]["hidden"]) == (0, 4)
    model = Path(payload["runs"][0]["file"])
    code, line = run(capsys, "train", *monkey, "--optimizer", "levenberg", "--out", tmp_path / "lm")
    assert (code, "levenberg" in line) == (2, True)
    gated = ["--task", "remember", "--model", "gated-rnn", "--hidden", 6, "--steps", 3, "--json"]
    code, payload = run(capsys, "train", *gated, "--optimizer", "levenberg", "--out", tmp_path / "lm")
    assert code in (0, 2)
    entry = {"task": "remember", "model": "leaky", "hidden": 4, "steps": 20, "probe": True, "settings": {"size": 3}}
    (tmp_path / "spec.json").write_text(json.dumps({"runs": [entry]}))
    code, payload = run(capsys, "sweep", tmp_path / "spec.json", "--out", tmp_path / "sweep", "--json")
    assert code == 0
    (record,) = [json.loads(line) for line in (tmp_path / "sweep" / "results.jsonl").read_text().splitlines()]
    assert (record["status"], record["attention_r2"] < 1) == ("done", True)

    network = uh.load(model)
    xs = np.random.default_rng(0).normal(size=(12, 3))
    assert run(capsys, "export", model, "--to", "torch", "--out", tmp_path / "t.safetensors", "--json")[0] == 0
    assert run(capsys, "export", model, "--to", "onnx", "--out", tmp_path / "t.onnx", "--json")[0] == 0
    back = tmp_path / "back.safetensors"
    assert run(capsys, "import", tmp_path / "t.safetensors", "--kind", "leaky", "--out", back, "--json")[0] == 0
    assert uh.load(back)(xs).tobytes() == network(xs).tobytes()
    assert np.allclose(uh.from_torch(uh.to_torch(network))(xs), network(xs))
    code, line = run(capsys, "disguise", model, "--out", tmp_path / "d.safetensors")
    assert (code, "leaky-cell" in line) == (2, True)
    code, line = run(capsys, "compile", model, "--to", "lstm", "--out", tmp_path / "c.safetensors")
    assert (code, "stack" in line) == (2, True)
    assert run(capsys, "decompile", model, "--json")[0] == 1
    found = uh.probe(network, d=3)
    assert found.verdict == "not-attention"

    assert run(capsys, "explore", model, "--out", tmp_path / "e.html", "--json")[0] == 0
    browser.open(tmp_path / "e.html")
    assert browser.complaints() == []
    browser.run("window.underhood.setInputs(arguments[0])", xs.tolist())
    assert np.allclose(browser.run("return window.underhood.outputs()"), network(xs), atol=1e-6)


def test_inside_the_package_it_is_one_folder_and_its_test(tmp_path):
    """architectures/leaky/cell.py and a test: the docs' own blocks, in a copy of the package."""
    shutil.copytree(ROOT / "underhood", tmp_path / "underhood", ignore=shutil.ignore_patterns("__pycache__"))
    room = tmp_path / "underhood" / "architectures" / "leaky"
    room.mkdir()
    (room / "__init__.py").touch()
    (room / "cell.py").write_text(CELL)
    (tmp_path / "test_leaky.py").write_text(CHECK + "import underhood\nprint(underhood.__file__, measured)\n")
    done = subprocess.run([sys.executable, "test_leaky.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(tmp_path))


def test_a_wrong_cell_does_not_pass_the_checks(plugin):
    """Negative control: the same equations with another rate."""
    names = {"__name__": "block"}
    with pytest.raises(AssertionError, match="leaky, 1 layers, float64"):
        exec(compile(CHECK.replace("(1 - rate) * h", "(1.001 - rate) * h"), "block", "exec"), names)
