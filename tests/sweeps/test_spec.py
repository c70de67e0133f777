"""A specification is checked whole before anything starts, and what is wrong names its entry."""

import json
import os
from pathlib import Path

import pytest

from tests.sweeps.specs import SMALL, sweep
from underhood.core.errors import UnderhoodError
from underhood.sweeps.job import jobs_of
from underhood.sweeps.spec import parse, read_spec
from underhood.sweeps.store import RESULTS, results
from underhood.training.specification import RunSpec


def test_an_entry_stands_for_every_combination():
    runs = parse(sweep({"hidden": [3, 5], "model": ["gru", "lstm"], "layers": [1, 2], "seeds": 3})).expanded()
    assert len(runs) == 2 * 2 * 2 * 3
    assert {run.seed for run in runs} == {0, 1, 2}
    assert len({run.id for run in runs}) == len(runs)
    assert parse(sweep({"seeds": [7]})).expanded()[0].seed == 7


def test_a_run_has_the_same_name_everywhere():
    (run,) = parse(sweep({})).expanded()
    again = RunSpec(**json.loads(json.dumps(run.model_dump())))
    assert again.id == run.id
    assert RunSpec(**{**run.model_dump(), "seed": 1}).id != run.id


def test_fields_that_came_later_leave_names_as_they_were():
    """The names of the committed sweeps, which know nothing of l2 and settings."""
    for name in ("widths", "architectures"):
        folder = Path(__file__).parents[2] / "results" / "laptop" / "sweep" / name
        for record in results(folder):
            run = RunSpec(**{name: record[name] for name in RunSpec.model_fields if name in record})
            assert run.id == record["id"]
        runs = read_spec(folder / "spec.json").expanded()
        assert {run.id for run in runs} == {record["id"] for record in results(folder)}
        assert RunSpec(**{**runs[0].as_dict(), "l2": 0.1}).id != runs[0].id


def test_settings_not_given_are_the_task_s_own():
    (run,) = parse(sweep({})).expanded()
    assert run.make_task().settings() == {"task": "linear-regression", "examples": 3, "d_x": 1, "d_y": 1}
    assert RunSpec(task="teacher-student", hidden=1, d=2).make_task().d == 2


def test_runs_of_one_shape_are_one_job():
    runs = parse(sweep({"seeds": 3, "learning_rate": [1e-3, 1e-2]}, {"hidden": 4}, {"model": "gru"})).expanded()
    jobs = jobs_of(runs, checkpoint_every=10, keep_models=False)
    assert sorted(len(job["runs"]) for job in jobs) == [1, 1, 6]
    second = parse(sweep({"seeds": 2, "optimizer": "levenberg"})).expanded()
    assert len(jobs_of(second, checkpoint_every=10, keep_models=False)) == 2  # nothing to share there


@pytest.mark.parametrize(
    ("entry", "named"),
    [
        ({"model": "transformer"}, "runs[1]: unknown model"),
        ({"task": "chess"}, "runs[1]: unknown task"),
        ({"hidden": -4}, "runs[1].hidden"),
        ({"hidden": [4, 0]}, "runs[1].hidden[1]"),
        ({"hidden": "4"}, "runs[1].hidden"),
        ({"hidden": []}, "runs[1].hidden"),
        ({"steps": 0}, "runs[1].steps"),
        ({"seeds": -1}, "runs[1].seeds"),
        ({"seeds": True}, "runs[1].seeds"),
        ({"learning_rate": 0}, "runs[1].learning_rate"),
        ({"learning_rate": float("nan")}, "runs[1].learning_rate"),
        ({"colour": "red"}, "runs[1].colour"),
        ({"model": "gated-rnn", "layers": 2}, "runs[1]: expected layers"),
        ({"model": "gru", "optimizer": "levenberg"}, "runs[1]: levenberg"),
        ({"model": "gru", "pre_readout": 4}, "runs[1]: gru has no pre_readout"),
        ({"seeds": 10**7}, "runs[1].seeds"),
        ({"settings": {"size": 3}}, "runs[1]: the task linear-regression has no setting size"),
        ({"settings": {"d_x": 3}}, "runs[1]: d_x is a field of its own"),
    ],
)
def test_a_bad_entry_is_named(entry, named):
    with pytest.raises(UnderhoodError) as caught:
        parse(sweep({}, {"hidden": 9, **entry})).expanded()
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_run_that_stands_twice_is_refused():
    with pytest.raises(UnderhoodError, match=r"runs\[1\]: repeats a run of runs\[0\]"):
        parse(sweep({"hidden": [3, 4]}, {"hidden": [5, 4]})).expanded()
    with pytest.raises(UnderhoodError, match=r"runs\[0\]: repeats a run of runs\[0\]"):
        parse(sweep({"hidden": [4, 4]})).expanded()


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"runs": []}', '{"runs": 3}', "\x00", '{"runs": [' * 5000])
def test_a_file_that_is_no_specification(tmp_path, content):
    path = tmp_path / "spec.json"
    path.write_text(content)
    with pytest.raises(UnderhoodError) as caught:
        read_spec(path)
    assert "\n" not in str(caught.value)
    with pytest.raises(UnderhoodError, match="no such file"):
        read_spec(tmp_path / "none.json")


def test_a_fifo_is_refused_at_once(tmp_path):
    """Reading it would wait for a writer that may never come."""
    for name in ("spec.json", RESULTS):
        os.mkfifo(tmp_path / name)
    with pytest.raises(UnderhoodError, match="is a FIFO"):
        read_spec(tmp_path / "spec.json")
    with pytest.raises(UnderhoodError, match="is a FIFO"):
        results(tmp_path)


def test_a_misspelt_name_is_told_before_what_it_leaves_missing():
    with pytest.raises(UnderhoodError, match=r"runs\[0\]\.hiden is not a setting \(1 more\)\. Did you mean hidden\?"):
        parse({"runs": [{"task": "linear-regression", "hiden": 3}]})
    with pytest.raises(UnderhoodError, match=r"keep_models\?"):
        parse({"runs": [SMALL], "keep_model": True})
    with pytest.raises(UnderhoodError, match=r"Known: task, model, hidden"):
        parse({"runs": [{**SMALL, "zebra": 1}]})
    with pytest.raises(UnderhoodError, match=r"runs\[0\]\.hidden: Field required; got"):
        parse({"runs": [{"task": "linear-regression"}]})


def test_a_good_file_is_read(tmp_path):
    path = tmp_path / "spec.json"
    path.write_text(json.dumps({"runs": [SMALL]}))
    assert len(read_spec(path).expanded()) == 1
