"""`underhood train` from the outside: flags, JSON, exit codes."""

import json
import signal
import sys

import pytest

import underhood as uh
from underhood.cli import main

SMALL = ["--task", "linear-regression", "--examples", "3", "--d-x", "1", "--d-y", "1", "--hidden", "3"]
SMALL += ["--batch-size", "4", "--steps", "60"]


def run(capsys, *arguments):
    code = main(["train", *arguments])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_one_json_object_with_a_row_for_each_seed(capsys, tmp_path):
    code, out, _ = run(capsys, *SMALL, "--seeds", "2", "--first-seed", "3", "--out", str(tmp_path / "run"), "--json")
    found = json.loads(out)
    assert code == 0
    assert [row["seed"] for row in found["runs"]] == [3, 4]
    for row in found["runs"]:
        assert {"held_out_loss", "steps", "seconds", "hidden", "pre_readout", "seed"} <= set(row)
        assert (row["steps"], row["hidden"], row["pre_readout"]) == (60, 3, 3)
        assert uh.load(row["file"]).hidden == 3
    code, out, _ = run(capsys, *SMALL, "--seeds", "2", "--first-seed", "3", "--out", str(tmp_path / "run"), "--resume")
    assert code == 0
    assert "held_out_loss" in out
    code, _, err = run(capsys, *SMALL, "--out", str(tmp_path / "run"))
    assert code == 2
    assert "--resume" in err
    assert err.count("\n") == 1


def test_decays_and_rates_side_by_side(capsys, tmp_path):
    options = ["--weight-decay", "0.0", "0.1", "--learning-rate", "1e-3", "1e-2", "--out", str(tmp_path / "run")]
    _, out, _ = run(capsys, *SMALL, *options, "--json")
    rows = json.loads(out)["runs"]
    assert [(row["weight_decay"], row["learning_rate"]) for row in rows] == [
        (0.0, 1e-3),
        (0.0, 1e-2),
        (0.1, 1e-3),
        (0.1, 1e-2),
    ]
    assert len({row["file"] for row in rows}) == 4


@pytest.mark.parametrize("name", ["lstm", "gated-rnn-dense"])
def test_other_models_and_a_teacher_of_one_s_own(name, capsys, tmp_path):
    teacher = tmp_path / "teacher.safetensors"
    uh.save(uh.random_attention(2), teacher)
    arguments = ["--model", name, "--hidden", "4", "--steps", "3", "--teacher", str(teacher), "--length", "5"]
    code, out, _ = run(capsys, *arguments, "--batch-size", "2", "--out", str(tmp_path / "run"), "--json")
    assert code == 0
    assert json.loads(out)["runs"][0]["held_out_loss"] > 0


def test_levenberg_finds_a_small_teacher(capsys, tmp_path):
    arguments = ["--optimizer", "levenberg", "--d", "2", "--length", "8", "--out", str(tmp_path / "run"), "--json"]
    code, out, _ = run(capsys, *arguments)
    (row,) = json.loads(out)["runs"]
    assert code == 0
    assert row["held_out_loss"] < 1e-18
    again = run(capsys, *arguments, "--resume")
    assert json.loads(again[1])["runs"] == [row]


def test_levenberg_takes_as_many_steps_as_it_is_given(capsys, tmp_path):
    arguments = ["--optimizer", "levenberg", "--d", "2", "--length", "8", "--hidden", "6", "--steps", "3"]
    _, out, _ = run(capsys, *arguments, "--out", str(tmp_path / "run"), "--json")
    (row,) = json.loads(out)["runs"]
    assert row["steps"] == 3
    assert row["hidden"] <= 6
    assert uh.load(row["file"]).hidden == row["hidden"]


def test_resume_alone_takes_the_settings_from_the_folder(capsys, tmp_path):
    out = ["--out", str(tmp_path / "run"), "--json"]
    _, first, _ = run(capsys, *SMALL, "--seeds", "2", *out)
    code, again, _ = run(capsys, *out, "--resume")
    assert code == 0
    losses = [[row["held_out_loss"] for row in json.loads(told)["runs"]] for told in (first, again)]
    assert losses[0] == losses[1]
    assert run(capsys, *out, "--resume", "--hidden", "3")[0] == 0  # what is given may be the same
    code, _, err = run(capsys, *out, "--resume", "--hidden", "4", "--task", "teacher-student")
    assert code == 2
    assert "hidden 3 → 4" in err
    assert 'task "linear-regression" → "teacher-student"' in err


def test_a_start_that_failed_does_not_refuse_the_next(capsys, tmp_path):
    out = ["--out", str(tmp_path / "run")]
    code, _, err = run(capsys, *SMALL, "--learning-rate", "1e30", *out)
    assert code == 2
    assert "became" in err
    assert run(capsys, *SMALL, *out)[0] == 0
    assert run(capsys, *SMALL, *out)[0] == 2  # now there is something to lose


def test_a_file_is_no_run_folder(capsys, tmp_path):
    (tmp_path / "thesis").write_text("years of work")
    for flags in ([], ["--resume"]):
        code, _, err = run(capsys, *SMALL, "--out", str(tmp_path / "thesis"), *flags)
        assert (code, err) == (2, f"underhood: not a folder: {tmp_path / 'thesis'}. Choose another --out.\n")
    assert (tmp_path / "thesis").read_text() == "years of work"


def test_ctrl_c_leaves_a_checkpoint_and_says_so(capsys, tmp_path, monkeypatch):
    from underhood.core import progress

    def interrupt(self, step, losses):
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(progress.Progress, "losses", interrupt)
    long = [*SMALL[:-1], "5000"]
    code, out, err = run(capsys, *long, "--out", str(tmp_path / "run"), "--json")
    found = json.loads(out)
    assert code == 130
    assert f"interrupted; go on with: underhood train --out {tmp_path / 'run'} --resume" in err
    assert found["interrupted"] is True
    assert 0 < found["runs"][0]["steps"] < 5000
    assert list((tmp_path / "run" / "checkpoints").iterdir())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--task", "sorting"], "teacher-student"),
        (["--model", "transformer"], "gated-rnn"),
        (["--preset", "section-9"], "section-3.1"),
        (["--steps", "0"], "steps"),
        (["--seeds", "0"], "seeds"),
        (["--optimizer", "levenberg", "--model", "lstm"], "adamw"),
        (["--model", "lstm", "--pre-readout", "3"], "pre_readout"),
        (["--teacher", "nowhere.safetensors"], "no such file"),
        (["--optimizer", "sgd"], "levenberg"),
        (["--hidden", "0"], "expected hidden of 1 or more; got 0"),
        (["--hidden", "20000", "--layers", "9", "--model", "lstm"], "not enough memory for a network"),
        (["--hidden", "1000000"], "not enough memory for a network"),
        (["--seeds", "1000000000"], "not enough memory for 1000000000 networks"),
        (["--batch-size", "1000000000"], "not enough memory for 50000000000 sequences"),
        (["--task", "linear-regression", "--examples", "1000000000"], "not enough memory"),
        (["--d", "1000000"], "not enough memory for a teacher"),
        (["--optimizer", "levenberg", "--d", "1000"], "not enough memory for"),
        (["--optimizer", "levenberg", "--max-seconds", "0"], "expected --max-seconds above 0"),
        (["--optimizer", "levenberg", "--target-loss", "nan"], "expected --target-loss"),
        (["--optimizer", "levenberg", "--learning-rate", "0.1"], "--learning-rate belongs to --optimizer adamw"),
        (["--optimizer", "levenberg", "--l2", "0.1"], "--l2 belongs to --optimizer adamw"),
        (["--max-seconds", "3"], "--max-seconds belongs to --optimizer levenberg"),
        (["--optimizer", "levenberg", "--layers", "2"], "one layer"),
        (["--optimizer", "levenberg", "--tensorboard"], "--tensorboard belongs to"),
        (["--task", "linear-regression", "--length", "3"], "no setting length"),
        (["--set", "length"], "name=value"),
        (["--set"], "--set has no value"),
        (["--learning-rate"], "--learning-rate has no value. Give one or more"),
        (["--weight-decay", "--steps", "3"], "--weight-decay has no value"),
        (["--length", "3", "--set", "length=4"], "given twice"),
    ],
)
def test_bad_flags_are_one_line_and_exit_2(arguments, words, capsys, tmp_path):
    try:
        code = main(["train", *arguments, "--out", str(tmp_path / "run")])
    except SystemExit as stop:
        code = stop.code
    err = capsys.readouterr().err
    assert code == 2
    assert words in err
    assert err.strip().count("\n") == 0
    assert not (tmp_path / "run").exists()


def test_networks_beyond_8_gigabytes_are_refused_before_they_are_made(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("underhood.core.memory.available_memory", lambda: 8e9)
    assert main(["train", "--hidden", "20000", "--out", str(tmp_path / "run")]) == 2
    err = capsys.readouterr().err
    assert "not enough memory for a network" in err and "8 GB are free" in err
    assert not (tmp_path / "run").exists()


def test_train_needs_a_folder_and_its_help_shows_no_empty_default(capsys):
    assert run(capsys, *SMALL)[0] == 2
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    told = capsys.readouterr().out
    assert "(default: )" not in told
    assert "gated-rnn)" in told


def test_help_tells_the_defaults_that_are_used():
    """The numbers that docstrings of flags tell are those of the configuration, of the task and of the sweep."""
    from underhood.training.specification import RunSpec
    from underhood.training.tasks.make import task_settings

    usual, run = uh.FitConfig(), RunSpec(task="teacher-student", hidden=1)
    assert (usual.steps, usual.batch_size, usual.learning_rate, usual.weight_decay) == (10_000, 64, 1e-3, 0.01)
    for name in ("steps", "batch_size", "learning_rate", "weight_decay", "l2"):
        assert getattr(run, name) == getattr(usual, name)
    for task in ("teacher-student", "linear-regression"):
        for name, value in task_settings(task).items():
            assert getattr(run, name, value) == value


def test_a_penalty_is_kept_in_the_run(capsys, tmp_path):
    assert run(capsys, *SMALL, "--l2", "0.5", "--out", str(tmp_path / "run"))[0] == 0
    assert json.loads((tmp_path / "run" / "run.json").read_text())["config"]["l2"] == 0.5


def test_tensorboard_says_what_it_needs(capsys, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    code, _, err = run(capsys, *SMALL, "--tensorboard", "--out", str(tmp_path / "run"))
    assert code == 2
    assert "underhood[tensorboard]" in err


def typed(capsys, *arguments):
    code = main([*arguments])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_a_curve_and_questions(capsys, tmp_path):
    folder = str(tmp_path / "run")
    assert run(capsys, *SMALL, "--seeds", "2", "--out", folder)[0] == 0
    code, out, _ = typed(capsys, "plot", folder, "--json")
    assert code == 0
    assert len(json.loads(out)["curves"]) == 2
    assert (tmp_path / "run" / "loss.png").read_bytes().startswith(b"\x89PNG")
    (tmp_path / "a.svg").write_text("mine")
    assert typed(capsys, "plot", folder, "--out", str(tmp_path / "a.svg"))[0] == 2
    code, out, _ = typed(capsys, "query", folder, "select count(distinct seed) as seeds from metrics", "--json")
    assert (code, json.loads(out)["rows"]) == (0, [{"seeds": 2}])
    for command in (["plot", str(tmp_path)], ["query", str(tmp_path), "select 1"], ["query", folder, "drop it"]):
        code, _, err = typed(capsys, *command)
        assert (code, err.count("\n")) == (2, 1)


def test_progress_in_a_log(capsys, tmp_path, monkeypatch):
    from underhood.core import progress

    monkeypatch.setattr(progress, "EVERY", 0.0)
    _, _, err = run(capsys, *SMALL, "--out", str(tmp_path / "run"))
    assert "train: " in err
    assert " steps · loss " in err


def test_a_run_that_has_ended_goes_on_for_more(capsys, tmp_path):
    folder = str(tmp_path / "run")
    first = [*SMALL, "--out", folder]
    assert run(capsys, *first)[0] == 0
    steps = int(SMALL[SMALL.index("--steps") + 1])
    code, out, _ = typed(capsys, "train", "--out", folder, "--resume", "--steps", str(2 * steps), "--json")
    assert (code, json.loads(out)["runs"][0]["steps"]) == (0, 2 * steps)
    code, out, _ = typed(capsys, "train", "--out", folder, "--resume", "--json")  # and is remembered
    assert (code, json.loads(out)["runs"][0]["steps"]) == (0, 2 * steps)
