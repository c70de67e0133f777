"""Run folders from somebody else: what is inside a folder stays inside, whatever its links and records say."""

import json
import os
import shutil

import numpy as np
import pytest

import underhood as uh
from underhood.cli import main
from underhood.core.errors import UnderhoodError
from underhood.training.config import FitConfig
from underhood.training.runs import fit
from underhood.training.tasks.linear_regression import LinearRegression

TASK = LinearRegression(3, 1, 1)
CONFIG = FitConfig(steps=40, batch_size=4, log_every=20, checkpoint_every=20, held_out=16)
SECRET = b'{"seconds": 3}'


def model():
    return uh.make_model("gated-rnn", TASK.d, hidden=3, d_out=1)


class Stop(Exception):
    pass


def stop(step, _):
    if step >= 20:
        raise Stop


@pytest.fixture(scope="module")
def halfway(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    with pytest.raises(Stop):
        fit(model(), TASK, CONFIG, out=folder, watch=stop)
    return folder


@pytest.fixture
def run(halfway, tmp_path):
    return shutil.copytree(halfway, tmp_path / "run")


@pytest.mark.parametrize("link", [os.symlink, os.link], ids=["symbolic", "hard"])
@pytest.mark.parametrize("name", ["timing.json", "model-seed-0.safetensors", "metrics.jsonl", "run.json", ".lock"])
def test_a_link_in_a_run_folder_changes_nothing_outside(name, link, run, tmp_path):
    victim, path = tmp_path / "victim", run / name
    content = path.read_bytes() if path.exists() and name != ".lock" else SECRET
    victim.write_bytes(content)
    path.unlink(missing_ok=True)
    link(victim, path)
    try:
        fit(model(), TASK, CONFIG, out=run, resume=True)
    except UnderhoodError as error:
        assert "not a link" in str(error)
    assert victim.read_bytes() == content


def test_a_folder_of_checkpoints_that_leads_elsewhere(run, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    shutil.move(run / "checkpoints", elsewhere)
    (elsewhere / ".precious.part").write_bytes(SECRET)
    before = sorted(path.name for path in elsewhere.iterdir())
    (run / "checkpoints").symlink_to(elsewhere)
    for resume in (True, False):
        with pytest.raises(UnderhoodError, match="expected a folder, not a link"):
            fit(model(), TASK, CONFIG, out=run, resume=resume)
    assert sorted(path.name for path in elsewhere.iterdir()) == before


def test_a_run_folder_may_itself_be_a_link(run, tmp_path):
    (tmp_path / "link").symlink_to(run)
    assert fit(model(), TASK, CONFIG, out=tmp_path / "link", resume=True).steps == 40


def test_a_record_that_names_a_file_of_the_victim_s(tmp_path, capsys):
    """The teacher of a resumed run comes out of its record, not from the path that the record names."""
    private = tmp_path / "private.safetensors"
    uh.save(uh.random_attention(2, seed=7), private)
    given = tmp_path / "mine.safetensors"
    uh.save(uh.random_attention(2, seed=1), given)
    train = ["train", "--hidden", "3", "--batch-size", "4", "--length", "4", "--out", str(tmp_path / "run")]
    assert main([*train, "--steps", "40", "--teacher", str(given)]) == 0
    described = json.loads((tmp_path / "run" / "run.json").read_text())
    described["command"]["teacher"] = str(private)
    (tmp_path / "run" / "run.json").write_text(json.dumps(described))
    (tmp_path / "run" / "model-seed-0.safetensors").unlink()
    given.unlink()
    assert main(["train", "--out", str(tmp_path / "run"), "--resume"]) == 0  # and the file need not be there
    teacher = json.loads((tmp_path / "run" / "run.json").read_text())["teacher"]
    assert np.array_equal(teacher["w_key"], uh.random_attention(2, seed=1).w_key)
