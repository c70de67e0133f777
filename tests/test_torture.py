"""The small scale of the torture suite, and proof that it would notice: what is broken is counted as lost."""

import argparse
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from random import Random

import numpy as np
import pytest

import underhood as uh
from torture import api, memory, mutate, outputs
from torture.__main__ import tried
from torture.attempt import ANSWERED, REFUSED, attempt
from torture.children import Ended
from torture.crashes import Scenario, readable, torment
from torture.numbers import exact
from torture.tally import Tally, store

ROOT = Path(__file__).resolve().parents[1]
GROUPS = [("files",), ("crashes", "streaming", "api"), ("disk", "numbers", "determinism"), ("outputs", "memory")]


@pytest.mark.parametrize("parts", GROUPS, ids="-".join)
def test_nothing_is_lost(parts, tmp_path):
    """In a process of its own: it forks, which a process with jax under way must not."""
    out = tmp_path / "torture.json"
    command = [sys.executable, "-m", "torture", "--scale", "small", "--workers", "1", "--part", *parts]
    ended = subprocess.run([*command, "--out", str(out)], cwd=ROOT, capture_output=True, text=True)
    record = json.loads(out.read_text()) if out.exists() else {}
    assert ended.returncode == 0, ended.stderr[-2000:] + ended.stdout
    assert record["lost"] == 0
    assert record["tried"] == record["survived"] == sum(row["tried"] for row in record["rows"])
    assert {row["name"].partition(":")[0] for row in record["rows"]} == set(parts)
    assert all(row["tried"] > 0 or row.get("skipped") for row in record["rows"])


def says(text, code):
    def call():
        sys.stderr.write(text)
        return code

    return call


def busy():
    while True:
        pass


def greedy():
    kept = np.ones(2**26)  # 512 MB, touched: far more than the system may take back meanwhile
    print(json.dumps({"size": kept.size}))
    return 0


@pytest.mark.parametrize(
    ("call", "lost"),
    [
        (lambda: {}["x"], "traceback: KeyError"),
        (lambda: 1 // 0, "traceback: ZeroDivisionError"),
        (says("underhood: one\nunderhood: two\n", 2), "without one line"),
        (says("", 2), "without one line"),
        (says("something else\n", 2), "without one line"),
        (says("", 3), "exit code 3"),
        (says("", 0), "no JSON"),
        (busy, "hang"),
        (greedy, "MB for a small file"),
    ],
)
def test_a_broken_reader_is_lost(call, lost):
    problem, _ = attempt(call, seconds=0.3 if call is busy else 5.0, memory=2**26)
    assert problem is not None
    assert lost in problem


def test_waiting_is_told_from_computing_slowly(monkeypatch):
    """A busy machine may take minutes for seconds of computing; who computes nothing meanwhile, waits."""
    monkeypatch.setattr("torture.attempt.PATIENCE", 0.2)
    monkeypatch.setattr("torture.attempt.IDLE", 1e-3)
    until = time.monotonic() + 0.7

    def slow():
        while time.monotonic() < until:
            sum(range(10_000))
        return print("{}") or 0

    assert attempt(slow) == (None, ANSWERED)
    assert "without an end" in attempt(lambda: time.sleep(9))[0]


def test_what_a_reader_may_do():
    assert attempt(says("underhood: no\n", 2)) == (None, REFUSED)
    assert attempt(lambda: print("{}") or 0) == (None, ANSWERED)
    assert attempt(lambda: sys.exit(2), prints=False)[0] is not None


def test_a_refused_input_leaves_nothing(tmp_path):
    out = tmp_path / "out"
    out.write_text("half")
    assert "left out" in attempt(says("underhood: no\n", 2), out=out)[0]


def test_an_answer_that_cannot_be_read_is_lost(tmp_path):
    out = tmp_path / "out.safetensors"
    out.write_bytes(b"half a file")
    assert "cannot be read" in attempt(lambda: print("{}") or 0, out=out)[0]


@dataclasses.dataclass
class Started:
    """A plain process, as crashes wants them: a fork of this one would take its threads' locks along."""

    popen: subprocess.Popen

    @property
    def pid(self):
        return self.popen.pid

    def wait(self):
        began = time.monotonic()
        out, err = self.popen.communicate()
        return Ended(self.popen.returncode, err, out, time.monotonic() - began + 0.6)


CARELESS = """
import json, sys, time
content = json.dumps(list(range(200)))
with open(sys.argv[1] + "/a.json", "w", buffering=1) as file:
    for at in range(0, len(content), 20):
        file.write(content[at : at + 20]); file.flush(); time.sleep(0.01)
"""
FORGETFUL = """
import json, os, sys, time
path = sys.argv[1] + "/a.json"
began = os.path.exists(path)
open(path, "w").write(json.dumps("went on" if began else "at once"))
time.sleep(0.5)
"""


def scenario(script):
    def start(folder):
        command = [sys.executable, "-c", script, str(folder)]
        return Started(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))

    def content(folder):
        return {path.name: path.read_bytes() for path in folder.iterdir()}

    return Scenario("a writer", start, content, readable, codes=(0,))


def test_a_careless_writer_is_lost():
    tally = torment(scenario(CARELESS), 4, seed=1)
    assert any("a.json" in problem for problem in tally.lost), tally


def test_a_run_that_ends_otherwise_is_lost():
    tally = torment(scenario(FORGETFUL), 3, seed=0)
    assert any("other bits" in problem for problem in tally.lost), tally


def test_half_a_checkpoint_is_seen(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    path = tmp_path / "checkpoints" / "step-000000001-0123456789abcdef.safetensors"
    path.write_bytes(b"half")
    assert "checksum" in readable(tmp_path)
    path.unlink()
    assert readable(tmp_path) is None


def test_a_wrong_network_is_noticed_by_exact_arithmetic():
    attention = uh.random_attention(2, heads=2, seed=1)
    xs = np.random.default_rng(0).normal(size=(6, 2))
    assert np.allclose(exact(attention, xs), attention(xs), rtol=1e-13)
    assert not np.allclose(exact(uh.random_attention(2, heads=2, seed=2), xs), attention(xs), rtol=1e-3)


def test_damage_is_repeatable_and_mostly_damage():
    from underhood.core.files import model_bytes

    content = model_bytes(uh.random_attention(2))
    made = [mutate.damaged_safetensors(content, Random(f"a {index}")) for index in range(200)]
    assert made == [mutate.damaged_safetensors(content, Random(f"a {index}")) for index in range(200)]
    assert len(set(made)) > 150
    assert sum(one != content for one in made) > 190


def test_an_output_that_is_lost_is_seen(tmp_path):
    """The rule of outputs, broken in each way: written over, refused where it may be written, another file touched."""
    (tmp_path / "out").write_text("years of work")
    (tmp_path / "link").symlink_to("out")
    before = outputs.state(tmp_path)
    assert outputs.wrong(before, before, 2, False, "out") is None
    assert "may not" in outputs.wrong(before, before, 0, False, "out")
    assert "exit code 2" in outputs.wrong(before, before, 2, True, "out")
    (tmp_path / "link").unlink()
    (tmp_path / "link").write_text("a model")  # renamed over the link
    after = outputs.state(tmp_path)
    assert "changed: link" in outputs.wrong(before, after, 2, False, "link")
    assert "also changed: link" in outputs.wrong(before, after, 0, True, "link")
    (tmp_path / "link").unlink()
    (tmp_path / "link").symlink_to("out")
    (tmp_path / "out").write_text("a model")  # written through it
    assert outputs.wrong(before, outputs.state(tmp_path), 0, True, "link") is None


def test_the_rule_of_outputs_covers_every_kind_of_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    earlier = {"own": b"own", "other": b"other"}
    for name, (put, right) in outputs.occupants(("input",), earlier["own"], [earlier["other"]]).items():
        folder = tmp_path / name
        folder.mkdir()
        monkeypatch.chdir(folder)
        (folder / "input").write_text("input")
        put(folder / "out")
        assert right in (outputs.NEVER, outputs.FORCED, outputs.ALWAYS)
        assert os.path.lexists(folder / "out") or name == "nothing"


def raises(error):
    def call():
        raise error

    return call


@pytest.mark.parametrize(
    ("call", "lost"),
    [
        (raises(uh.UnderhoodError("expected a size", -1)), None),
        (raises(TypeError("missing an argument")), None),
        (lambda: np.ones(3), None),
        (raises(AttributeError("no attribute d")), "AttributeError at"),
        (raises(KeyError("x")), "KeyError at"),
        (raises(ValueError("two\nlines")), "not in one line"),
        (raises(ValueError("")), "not in one line"),
        (lambda: {"weights": np.array([1.0, np.nan])}, "without a word"),
        (lambda: warnings.warn("overflow", RuntimeWarning, stacklevel=1), "a warning"),
    ],
)
def test_misuse_that_is_not_refused_is_lost(call, lost):
    problem = api.judged(call)
    assert (problem is None) if lost is None else (lost in problem)


def test_each_seed_orders_all_mistakes_anew():
    known, wrong = {"one": (max, {"a": 1, "b": 2}), "other": (min, {"c": 3})}, {"None": None, "0": 0}
    first, second = (api.ways(known, wrong, seed) for seed in (0, 1))
    assert first != second and set(first) == set(second) and len(first) == 6


def test_every_flag_of_a_size_is_beyond_the_memory(tmp_path):
    """A size that fits would be computed, and prove nothing."""
    for name, (arguments, least) in memory.sizes(tmp_path).items():
        assert least >= 10_000, name
        assert all(isinstance(one, str | int | Path) for one in arguments)


def test_the_summary_counts(tmp_path):
    tally = Tally("part", "name")
    for problem in (None, "broken", None):
        tally.count(problem)
    record = json.loads(store([tally], "small", {"part": 1.0}, tmp_path / "t.json").read_text())
    assert (record["tried"], record["survived"], record["lost"]) == (3, 2, 1)
    assert record["rows"][0]["losses"] == ["broken"]
    assert record["provenance"]["versions"]["jax"]


def test_a_part_replaces_its_own_rows(tmp_path):
    out = tmp_path / "t.json"
    for part, problem in (("files", "broken"), ("disk", None), ("files", None)):
        tally = Tally(part, "name")
        tally.count(problem)
        record = json.loads(store([tally], "long", {part: 1.0}, out).read_text())
    assert [row["name"] for row in record["rows"]] == ["files: name", "disk: name"]
    assert (record["tried"], record["lost"]) == (2, 0)
    assert set(record["provenance"]["seconds"]) == {"files", "disk"}
    other = json.loads(store([tally], "small", {"files": 1.0}, out).read_text())
    assert len(other["rows"]) == 1


def test_a_part_that_breaks_down_is_lost():
    (tally,) = tried("no_such_part", argparse.Namespace(scale="small", workers=1, seed=0))
    assert "ModuleNotFoundError" in tally.lost[0]


def test_signals_of_a_child_are_told_apart():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(9)"], text=True, stderr=subprocess.PIPE)
    os.kill(process.pid, signal.SIGTERM)
    ended = Started(process).wait()
    assert ended.code == -signal.SIGTERM
    assert not ended.is_refusal
