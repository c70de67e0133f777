"""Nothing that comes in is run: no pickle, eval, exec or shell in the package, and `probe` says what it does."""

import ast
import io
import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest

import underhood as uh
from underhood.cli import main
from underhood.layers.linear import Block

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted((ROOT / "underhood").rglob("*.py"))

MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "yaml", "pty", "commands", "code"}
CALLS = {"eval", "exec", "builtins.compile", "__import__", "os.system", "os.popen", "pickle.loads", "pickle.load"}
# What may start a program: the commit of the source tree is asked of git, with fixed arguments and no input of a file.
# A graph of ONNX, which is no code, runs in a child of this interpreter with limits of memory and time.
MAY_START = {"underhood/studies/artifact.py", "underhood/interop/onnx_child.py"}
# What may import by name: `probe package.module:callable`, and the lists of modules of the package's own.
MAY_IMPORT = {
    f"underhood/{name}.py"
    for name in ("core/registry", "core/extras", "decompiler/from_outputs/functions", "studies/artifact")
}


def findings(source: str, name: str) -> list[str]:
    """What a file does that nothing that reads input should do."""
    found = []
    for node in ast.walk(ast.parse(source)):
        imported = [one.name for one in node.names] if isinstance(node, ast.Import) else []
        imported += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        found += [f"imports {one}" for one in imported if one.partition(".")[0] in MODULES]
        if any(one.partition(".")[0] in ("subprocess", "pexpect") for one in imported) and name not in MAY_START:
            found.append("starts programs")
        if "importlib" in imported and isinstance(node, ast.Import) and name not in MAY_IMPORT:
            found.append("imports by name")
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            found += [f"calls {called}"] if called in CALLS or called.startswith(("os.spawn", "os.exec")) else []
            arguments = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            if arguments.get("shell", "False") != "False":
                found.append("starts a shell")
            if called.endswith("torch.load") and arguments.get("weights_only") != "True":
                found.append("loads a pickle with torch")
            if called in ("np.load", "numpy.load") and arguments.get("allow_pickle", "False") != "False":
                found.append("loads a pickle with numpy")
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_file_runs_what_it_reads(path):
    assert findings(path.read_text(), path.relative_to(ROOT).as_posix()) == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "eval('1')",
        "exec(text)",
        "import os\nos.system('ls')",
        "import subprocess",
        "run(x, shell=True)",
        "torch.load(x)",
        "torch.load(x, weights_only=False)",
        "np.load(x, allow_pickle=True)",
        "import importlib",
    ],
)
def test_the_search_finds_what_it_looks_for(source):
    assert findings(source, "underhood/x.py")


class Bomb:
    def __reduce__(self):
        return os.mkdir, ("ran",)


def bombs():
    plain = pickle.dumps({"w_value": Bomb()}, protocol=2)
    yield "a pickle", plain
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("archive/data.pkl", plain)
        file.writestr("archive/version", "3")
    yield "torch's archive", archive.getvalue()
    objects = io.BytesIO()
    np.savez(objects, w_value=np.array([Bomb()], object))
    yield "an array of objects", objects.getvalue()


@pytest.mark.parametrize(("what", "content"), list(bombs()), ids=lambda value: value if isinstance(value, str) else "")
def test_code_in_a_file_does_not_run(what, content, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    Path("weights").write_bytes(content)
    assert main(["import", "weights", "--kind", "attention", "--out", "out"]) == 2
    assert os.listdir(tmp_path) == ["weights"], what
    assert capfd.readouterr().err.count("\n") == 1


def test_a_small_file_cannot_grow_without_end(tmp_path, capfd):
    """A gigabyte of zeros is a megabyte of zip."""
    path = tmp_path / "bomb.npz"
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file,
        file.open("w_value.npy", "w", force_zip64=True) as entry,
    ):
        for _ in range(300):
            entry.write(bytes(2**20))
    assert path.stat().st_size < 2**20
    assert main(["import", str(path), "--kind", "attention", "--out", str(tmp_path / "out")]) == 2
    assert "to unpack to at most" in capfd.readouterr().err


def test_a_header_cannot_ask_for_a_matrix_of_any_size(tmp_path):
    """A sparse matrix is a line of the header: 10¹² rows are refused before anything has that length."""
    import json

    from torture.mutate import joined_safetensors, split_safetensors

    model = uh.compile(uh.random_attention(2), to="gated-rnn", horizon=2, sparse=True).model
    path = uh.save(model, tmp_path / "a.safetensors")
    header, body = split_safetensors(path.read_bytes())
    structure = json.loads(header["__metadata__"]["structure"])
    for gating in ("input_gating", "output_gating"):
        for branch in ("w_m", "w_x"):
            structure[gating][branch]["columns"] = 10**12
    header["__metadata__"]["structure"] = json.dumps(structure)
    path.write_bytes(joined_safetensors(header, body))
    with pytest.raises(uh.UnderhoodError, match=r"rows and columns|with 6 inputs_m"):
        uh.load(path)
    big = uh.SparseMatrix((Block(None, 0, 1, tiles=2**28),), 1)
    with pytest.raises(uh.UnderhoodError, match="MB when written out"):
        big.dense()


def test_parts_of_a_network_have_the_kinds_they_must_have(tmp_path):
    """A readout that is a stack, or a cell that is a matrix, would fail later and far from here."""
    from underhood.core.files import from_tensors, to_tensors

    structure, tensors = to_tensors(uh.make_model("lstm", 2, hidden=3))
    for field, kind in (("readout", "stack"), ("embedding", "gating"), ("cells", "lstm-cell")):
        with pytest.raises(uh.UnderhoodError):
            from_tensors({**structure, field: {**structure["readout"], "kind": kind}}, tensors, "here")
    with pytest.raises(uh.UnderhoodError, match="unknown kind"):
        from_tensors({**structure, "cells": [{"kind": "sparse", "columns": 3, "blocks": []}]}, tensors, "here")


def test_probe_says_that_it_runs_code(tmp_path, monkeypatch, capsys):
    with pytest.raises(SystemExit):
        main(["probe", "--help"])
    assert "Runs the callable: probe only code that you trust" in " ".join(capsys.readouterr().out.split())
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "mine_to_probe.py").write_text("def f(xs):\n    return 2 * xs\n")
    assert main(["probe", "mine_to_probe:f", "--d", "2", "--json"]) == 1
    assert "running the code of mine_to_probe:f" in capsys.readouterr().err


def test_the_policy_is_there():
    text = (ROOT / "SECURITY.md").read_text()
    assert "private" in text and "advisor" in text
    assert "probe" in text and "pickle" in text


def test_every_package_that_the_package_needs_is_pinned():
    """All extras, and what they need in turn, as far as it is installed here."""
    import importlib.metadata

    from packaging.requirements import Requirement

    from torture.audit import PINS, canonical, pins

    pinned = {canonical(name) for name in pins(PINS.read_text())}
    extras = ["", *(importlib.metadata.metadata("underhood").get_all("Provides-Extra") or [])]
    waiting, seen = [("underhood", tuple(extras))], set()
    while waiting:
        name, wanted = waiting.pop()
        for line in importlib.metadata.requires(name) or []:
            needed = Requirement(line)
            if needed.marker is not None and not any(needed.marker.evaluate({"extra": extra}) for extra in wanted):
                continue
            entry = canonical(needed.name), ("", *sorted(needed.extras))
            try:
                importlib.metadata.distribution(entry[0])
            except importlib.metadata.PackageNotFoundError:
                continue
            if entry not in seen:
                seen.add(entry)
                waiting.append(entry)
    assert len(seen) > 50
    assert {name for name, _ in seen} - pinned - {"underhood", "pip", "setuptools", "wheel"} == set()
