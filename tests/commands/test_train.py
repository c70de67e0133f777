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


def test_ctrl_c_leaves_a_checkpoint_and_says_so(capsys, tmp_path, monkeypatch):
    from underhood.commands import progress

    def interrupt(self, step, losses):
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(progress.Progress, "update", interrupt)
    long = [*SMALL[:-1], "5000"]
    code, out, _ = run(capsys, *long, "--out", str(tmp_path / "run"), "--json")
    found = json.loads(out)
    assert code == 130
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
        (["--model", "lstm", "--pre-readout", "3"], "pre-readout"),
        (["--teacher", "nowhere.safetensors"], "no such file"),
        (["--optimizer", "sgd"], "levenberg"),
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


def test_tensorboard_says_what_it_needs(capsys, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    code, _, err = run(capsys, *SMALL, "--tensorboard", "--out", str(tmp_path / "run"))
    assert code == 2
    assert "underhood[tensorboard]" in err
