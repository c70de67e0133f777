"""Sweep folders and workers of somebody else's: nothing is written outside, no record stands under another's name."""

import json
import os

import pytest

from tests.sweeps.specs import SMALL, sweep
from underhood.cli import main
from underhood.core.errors import UnderhoodError
from underhood.sweeps import sweep as module
from underhood.sweeps.job import jobs_of, own_results
from underhood.sweeps.spec import parse
from underhood.sweeps.store import RESULTS, Store, query, results
from underhood.sweeps.sweep import run_sweep
from underhood.training.specification import RunSpec

SPEC = sweep({"steps": 5, "seeds": 2}, keep_models=True)


def record(seed=0, **rest):
    run = RunSpec(**SMALL, seed=seed)
    return {"id": run.id, **run.as_dict(), "status": "done", "held_out_loss": 1.0, "seconds": 1.0, **rest}


@pytest.mark.parametrize("link", [os.symlink, os.link], ids=["symbolic", "hard"])
@pytest.mark.parametrize("name", ["results.jsonl", "spec.json", ".lock"])
def test_a_link_in_a_sweep_folder_changes_nothing_outside(name, link, tmp_path):
    folder, victim = tmp_path / "sweep", tmp_path / "victim"
    folder.mkdir()
    content = b"one line" if name == "results.jsonl" else b"{}"
    victim.write_bytes(content)
    link(victim, folder / name)
    try:
        with Store(folder).opened({}, resume=True) as store:
            store.add(record())
    except UnderhoodError as error:
        assert "not a link" in str(error)
    assert victim.read_bytes() == content


@pytest.mark.parametrize("name", ["models", "jobs", "models/x.safetensors", "jobs/x"])
def test_folders_that_lead_elsewhere(name, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "sweep" / name).parent.mkdir(parents=True)
    (tmp_path / "sweep" / name).symlink_to(elsewhere)
    with (
        pytest.raises(UnderhoodError, match=r"expected a f(ile|older), not a link"),
        Store(tmp_path / "sweep").opened({}, resume=True),
    ):
        pass
    assert list(elsewhere.iterdir()) == []


def test_a_worker_that_lies(tmp_path, monkeypatch):
    """Its records stand under the names of the runs that it was asked for, or nowhere."""
    (job,) = jobs_of(parse(SPEC).expanded(), checkpoint_every=5, keep_models=True)
    names = [RunSpec(**run).id for run in job["runs"]]
    good = {"id": names[0], **job["runs"][0], "status": "done", "held_out_loss": 1.0, "seconds": 1.0, "parameters": 3}
    escape = ({**good, "id": "../../victim/pwned"}, b"owned")
    for answer in (
        None,
        [],
        "no",
        [escape],
        [(None, None)],
        [({**good, "hidden": 4}, b"")],
        [({**good, "status": "failed"}, None)],
        [({**good, "held_out_loss": "0"}, None)],
        [(good, "text")],
        [(good, None), escape, ({**good, "id": names[1]}, None)],
    ):
        found = own_results(job, answer)
        assert [each["id"] for each, _ in found] == names
        sound = isinstance(answer, list) and len(answer) == 3
        assert [each["status"] for each, _ in found] == ["done" if sound else "failed", "failed"]
        assert all(each.get("retry") for each, _ in found if each["status"] == "failed")

    def lying(jobs, folder, workers, done):
        for each in jobs:
            done(each, [escape])

    monkeypatch.setattr(module, "run_here", lying)
    records = run_sweep(SPEC, tmp_path / "a" / "b" / "sweep", workers=1)
    assert [each["status"] for each in records] == ["failed", "failed"]
    assert not (tmp_path / "victim").exists()
    assert {path.name for path in tmp_path.iterdir()} == {"a"}


@pytest.mark.parametrize(
    "change",
    [
        {"id": "another"},
        {"hidden": 4},
        {"seed": 5},
        {"hidden": None},
        {"status": "failed"},
        {"status": "failed", "reason": 3},
        {"status": "excellent"},
    ],
    ids=str,
)
def test_a_record_that_is_not_of_its_name(change, tmp_path, capsys):
    bad = record(1) | change
    bad = {name: value for name, value in bad.items() if value is not None}
    (tmp_path / "spec.json").write_text(json.dumps(SPEC))
    (tmp_path / RESULTS).write_text(json.dumps(record()) + "\n" + json.dumps(bad) + "\n")
    for ask in (lambda: results(tmp_path), lambda: query(tmp_path, "select 1")):
        with pytest.raises(UnderhoodError, match="line 2"):
            ask()
    assert main(["sweep", str(tmp_path / "spec.json"), "--out", str(tmp_path), "--resume"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_sound_record_is_read(tmp_path):
    """Negative control; settings that a record leaves out have their defaults."""
    short = record(1)
    del short["model"]
    (tmp_path / RESULTS).write_text(json.dumps(record()) + "\n" + json.dumps(short) + "\n")
    assert [each["model"] for each in results(tmp_path)] == ["gated-rnn"] * 2
