"""A sweep on this machine: the numbers of its runs do not depend on workers, kills or what trained beside them."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from concurrent.futures.process import BrokenProcessPool

import pytest

from tests.sweeps.specs import numbers, sweep
from underhood.cli import main
from underhood.commands.rows import print_rows
from underhood.core.errors import UnderhoodError
from underhood.core.files import load
from underhood.core.folders import Folder
from underhood.core.model import make_model
from underhood.sweeps import local
from underhood.sweeps.job import jobs_of, run_job
from underhood.sweeps.spec import parse
from underhood.sweeps.store import Store, results
from underhood.sweeps.sweep import SweepProgress, run_sweep
from underhood.training.config import FitConfig
from underhood.training.runs import fit
from underhood.training.tasks.task import TASKS

SPEC = sweep({"seeds": 2, "learning_rate": [1e-3, 1e-2], "probe": True}, {"hidden": 4}, keep_models=True)
COMMAND = [sys.executable, "-c", "import sys; from underhood.cli import main; sys.exit(main())"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep") / "one"
    return folder, run_sweep(SPEC, folder, workers=1)


def test_every_run_ends_once_with_its_numbers(undisturbed):
    folder, records = undisturbed
    assert len(records) == len(results(folder)) == 5
    assert {record["status"] for record in records} == {"done"}
    assert not (folder / "jobs").exists()
    for record in records:
        assert load(folder / "models" / f"{record['id']}.safetensors").parameters == record["parameters"]
        assert abs(record["optimal_validation_loss"] - 2 * record["optimal_loss"]) < 1e-12


def test_a_run_is_what_fit_gives(undisturbed):
    """The sweep adds nothing to a run: `fit` alone ends with the same loss, to the last bit."""
    record = next(r for r in undisturbed[1] if r["seed"] == 1 and r["learning_rate"] == 1e-2)
    task = TASKS["linear-regression"](examples=3, d_x=1, d_y=1)
    config = FitConfig(steps=60, batch_size=4, learning_rate=1e-2, final_learning_rate=1e-5, seed=1)
    alone = fit(make_model("gated-rnn", 2, hidden=3, d_out=1, seed=1), task, config)
    assert alone.held_out_loss == pytest.approx(record["held_out_loss"], rel=1e-5)


def test_two_workers_resume_and_a_torn_store_give_the_same(undisturbed, tmp_path):
    folder, records = undisturbed
    kept = (folder / "results.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "results.jsonl").write_text("".join(kept[:2]) + kept[2][:20])
    heard = []
    again = run_sweep(SPEC, tmp_path, workers=2, resume=True, warn=heard.append)
    assert numbers(again) == numbers(records)
    assert len(heard) == 1
    assert len(results(tmp_path)) == 5


def test_a_run_that_diverges_leaves_the_others_alone():
    """One job, one member with a hopeless rate: it is recorded as failed, the other as if alone."""
    spec = {"task": "linear-regression", "examples": 3, "d_x": 1, "d_y": 1, "hidden": 3, "steps": 200}
    good, bad = {**spec, "learning_rate": 1e-3}, {**spec, "learning_rate": 1e30}
    job = {"id": "x", "checkpoint_every": 100, "keep_models": False}
    (one, _), (other, _) = run_job({**job, "runs": [good, bad]})
    ((alone, _),) = run_job({**job, "runs": [good]})
    assert (one["status"], other["status"]) == ("done", "failed")
    assert "step" in other["reason"]
    assert numbers([one]) == numbers([alone])


def test_an_error_where_results_are_kept_ends_the_workers(tmp_path):
    def no_room(done, total, record):
        raise UnderhoodError("results can be written", "File too large")

    with pytest.raises(UnderhoodError, match="File too large"):
        run_sweep(sweep({"hidden": [3, 4], "steps": 5}), tmp_path, workers=1, watch=no_room)
    assert not multiprocessing.active_children()


def test_what_is_left_is_told_by_work_not_by_runs(monkeypatch, capsys):
    """One run of 100 neurons took ten minutes; four of 10 neurons, 25 times less work each, are left."""
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    runs = parse(sweep({"hidden": [100, 10], "seeds": [0, 1, 2, 3]})).expanded()
    wide, *narrow = [runs[0], *(run for run in runs if run.hidden == 10)]
    teller = SweepProgress()
    teller.expects([wide, *narrow])
    clock[0] = 600.0
    teller(1, 5, {**wide.as_dict(), "id": wide.id, "held_out_loss": 0.1, "seconds": 600.0})
    assert capsys.readouterr().err.endswith("· 2 min left\n")
    teller.expects(narrow)  # resumed
    clock[0] = 660.0
    teller(2, 5, {**narrow[0].as_dict(), "id": narrow[0].id, "held_out_loss": 0.1, "seconds": 60.0})
    assert capsys.readouterr().err.endswith("· 3 min left\n")


def test_a_resumed_sweep_expects_what_is_missing(tmp_path):
    class Watch:
        def expects(self, runs):
            self.expected = [run.hidden for run in runs]

        def __call__(self, done, total, record):
            self.last = (done, total)

    watch, spec = Watch(), sweep({"hidden": [3, 4], "steps": 5})
    whole = run_sweep(spec, tmp_path / "whole", workers=1, watch=watch)
    assert (watch.expected, watch.last) == ([3, 4], (2, 2))
    lines = (tmp_path / "whole" / "results.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "whole" / "results.jsonl").write_text(lines[0])
    assert len(run_sweep(spec, tmp_path / "whole", workers=1, watch=watch, resume=True)) == len(whole)
    assert len(watch.expected) == 1


def test_killed_with_all_its_workers_and_resumed(tmp_path):
    spec, out = tmp_path / "spec.json", tmp_path / "out"
    spec.write_text(json.dumps(sweep({"hidden": [3, 4], "steps": 600}, checkpoint_every=100)))
    command = [*COMMAND, "sweep", str(spec), "--out", str(out), "--workers", "2", "--resume"]
    started = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    while not list(out.glob("jobs/*/checkpoints/*.safetensors")) and started.poll() is None:
        time.sleep(0.05)
    os.kill(started.pid, signal.SIGKILL)
    started.wait()
    time.sleep(0.5)  # its workers see that it is gone
    assert subprocess.run(command, capture_output=True).returncode == 0
    again = run_sweep(json.loads(spec.read_text()), tmp_path / "undisturbed", workers=1)
    assert numbers(results(out)) == numbers(again)
    assert len(results(out)) == 2


def test_one_impossible_run_does_not_lose_the_others(tmp_path, capsys):
    spec, out = tmp_path / "spec.json", tmp_path / "out"
    spec.write_text(json.dumps(sweep({"hidden": [3, 1_000_000], "steps": 5, "probe": True})))
    assert main(["sweep", str(spec), "--out", str(out), "--workers", "1"]) == 1
    printed = capsys.readouterr()
    assert "not enough memory for a network" in printed.err
    assert "attention_r2" in printed.out
    (good,) = (record for record in results(out) if record["status"] == "done")
    assert good["hidden"] == 3
    (bad,) = (record for record in results(out) if record["status"] == "failed")
    assert bad["retry"]
    with Store(out).opened({}, resume=True) as store:  # another machine may have the memory
        assert set(store.done) == {good["id"]}


def test_a_start_that_failed_does_not_refuse_the_next(tmp_path, monkeypatch):
    """No scheduler answered, say: nothing ended, and nothing is lost by starting again, even with another one."""

    def unreachable(*_):
        raise UnderhoodError("no dask scheduler answers")

    with monkeypatch.context() as now, pytest.raises(UnderhoodError, match="no dask"):
        now.setattr("underhood.sweeps.sweep.run_here", unreachable)
        run_sweep(sweep({"steps": 5}), tmp_path, workers=1)
    assert len(run_sweep(sweep({"steps": 6}), tmp_path, workers=1)) == 1
    assert json.loads((tmp_path / "spec.json").read_text())["runs"][0]["steps"] == [6]
    with pytest.raises(UnderhoodError, match="holds a sweep already"):  # now there is something to lose
        run_sweep(sweep({"steps": 6}), tmp_path, workers=1)


def test_a_worker_that_dies_fails_its_own_job_alone(tmp_path, monkeypatch):
    jobs = jobs_of(parse(sweep({"hidden": [3, 4], "steps": 5})).expanded(), checkpoint_every=5, keep_models=False)
    deadly, found = jobs[0]["id"], []

    def pooled(now, folder, workers, attempts):
        for job in now:
            attempts[job["id"]] += 1
        if any(job["id"] == deadly for job in now):
            raise BrokenProcessPool
        for job in now:
            yield job["id"], run_job(job)

    monkeypatch.setattr(local, "_pooled", pooled)
    local.run_here(jobs, Folder(tmp_path / "jobs"), 2, lambda job, ended: found.extend(ended))
    told = {record["hidden"]: record["status"] for record, _ in found}
    assert told == {jobs[0]["runs"][0]["hidden"]: "failed", jobs[1]["runs"][0]["hidden"]: "done"}


def test_another_specification_is_refused_by_what_differs(undisturbed, tmp_path):
    folder, records = undisturbed
    before = (folder / "spec.json").read_bytes()
    for change, words in (
        ({"hidden": 5}, r"hidden\[1\] 4 → 5"),
        ({"steps": 61}, r"steps"),
        ({"l2": 0.1}, r"l2"),
    ):
        other = {**SPEC, "runs": [SPEC["runs"][0], {**SPEC["runs"][1], **change}]}
        with pytest.raises(UnderhoodError, match=words):
            run_sweep(other, folder, workers=1, resume=True)
    with pytest.raises(UnderhoodError, match="keep_models true → false"):
        run_sweep({**SPEC, "keep_models": False}, folder, workers=1, resume=True)
    assert (folder / "spec.json").read_bytes() == before
    same = {**SPEC, "runs": [SPEC["runs"][1], {**SPEC["runs"][0], "seeds": [0, 1], "weight_decay": [0.01]}]}
    again = run_sweep(same, folder, workers=1, resume=True)  # the same runs, written otherwise
    assert numbers(again) == numbers(records)


def test_ctrl_c_says_how_to_go_on(tmp_path, capsys, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("underhood.sweeps.sweep.run_here", interrupted)
    spec, out = tmp_path / "spec.json", tmp_path / "out"
    spec.write_text(json.dumps(sweep({})))
    assert main(["sweep", str(spec), "--out", str(out)]) == 130
    assert f"go on with: underhood sweep {spec} --out {out} --resume" in capsys.readouterr().err


def test_a_sweep_that_probes_shows_what_it_found(undisturbed, tmp_path, capsys):
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps(SPEC))
    assert main(["sweep", str(spec), "--out", str(undisturbed[0]), "--resume"]) == 0
    assert "attention_r2" in capsys.readouterr().out


def test_a_table_at_80_columns_keeps_exponents(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    rows = [
        {"task": "teacher-student", "model": name, "learning_rate": 1e-3, "optimizer": "levenberg", "hidden": 100 + n}
        | {"held_out_loss": 1.2344e-23, "attention_r2": 0.999999, "status": "done", "seed": n}
        for n, name in enumerate(("gated-rnn-dense", "lru-in-skip"))
    ]
    print_rows("a sweep", rows)
    printed = capsys.readouterr().out
    assert "…" not in printed
    assert "held_out_loss 1.234e-23" in printed  # the same in all rows: told once
    assert "lru-in-skip" in printed
    print_rows("one row", rows[:1])
    printed = capsys.readouterr().out
    assert "1.234e-23" in printed
    assert "…" not in printed


def test_the_command(tmp_path, capsys):
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps(sweep({"optimizer": "levenberg", "hidden": 6, "steps": 5, "restarts": 0})))
    question = "select model, count(*) as n from runs group by model"
    assert main(["sweep", str(spec), "--out", str(tmp_path / "o"), "--json", "--query", question]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["failed"], printed["query"]) == (0, [{"model": "gated-rnn", "n": 1}])
    assert main(["sweep", str(spec), "--out", str(tmp_path / "o")]) == 2
    assert "--resume" in capsys.readouterr().err
    spec.write_text(json.dumps(sweep({"hidden": -1})))
    assert main(["sweep", str(spec), "--out", str(tmp_path / "p")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "p").exists()
    with pytest.raises(UnderhoodError, match="workers"):
        run_sweep(SPEC, tmp_path / "q", workers=0)
