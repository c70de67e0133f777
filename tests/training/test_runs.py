"""Runs that are killed, interrupted, damaged or out of room."""

import errno
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

import underhood as uh
from underhood.core.errors import UnderhoodError
from underhood.core.folders import Folder
from underhood.training.checkpoints import newest_good, read_checkpoint, write_checkpoint
from underhood.training.config import FitConfig
from underhood.training.folder import RunFolder
from underhood.training.metrics import MetricsLog, read_metrics
from underhood.training.runs import fit
from underhood.training.tasks.linear_regression import LinearRegression

TASK = LinearRegression(3, 1, 1)
CONFIG = FitConfig(steps=300, batch_size=4, log_every=20, checkpoint_every=50, held_out=16)


def model(seed=0):
    return uh.make_model("gated-rnn", TASK.d, hidden=3, d_out=1, seed=seed)


def files_of(folder):
    """Everything that must not depend on when the run was killed."""
    kept = [folder / "run.json", folder / "metrics.jsonl", *folder.glob("model*"), *folder.glob("checkpoints/*")]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in kept}


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "unbroken"
    return fit(model(), TASK, CONFIG, out=folder), folder


class Stop(Exception):
    pass


def stop_at(last):
    def watch(step, _):
        if step >= last:
            raise Stop

    return watch


def stopped_at(step, folder):
    """A run that ends without a chance to tidy up, as close to a kill as one process can come."""

    with pytest.raises(Stop):
        fit(model(), TASK, CONFIG, out=folder, resume=True, watch=stop_at(step))


def test_a_run_folder_holds_settings_metrics_checkpoints_and_the_model(unbroken):
    run, folder = unbroken
    lines, torn = read_metrics(folder)
    assert torn == 0
    assert [line["step"] for line in lines] == list(range(20, 301, 20))
    assert lines == run.history
    assert json.loads((folder / "run.json").read_text())["config"]["steps"] == 300
    found, problems = newest_good(Folder(folder / "checkpoints"))
    assert found.step == 300
    assert problems == []
    loaded = uh.load(run.file)
    assert all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(loaded), jax.tree.leaves(run.model), strict=True))


@pytest.mark.parametrize("moments", [(20,), (50, 70, 260), (300,)])
def test_a_resumed_run_ends_with_the_same_bits(moments, unbroken, tmp_path):
    folder = tmp_path / "run"
    for moment in moments:
        stopped_at(moment, folder)
    run = fit(model(), TASK, CONFIG, out=folder, resume=True)
    assert files_of(folder) == files_of(unbroken[1])
    assert run.held_out_loss == unbroken[0].held_out_loss


def test_seconds_are_those_of_all_sittings(tmp_path):
    """Of a sitting that was killed, too, up to its last checkpoint."""
    folder = tmp_path / "run"
    stopped_at(110, folder)
    (folder / "timing.json").write_text(json.dumps({"seconds": 1000 + RunFolder(folder).add_seconds(0.0)}))
    assert json.loads((folder / "timing.json").read_text())["seconds"] > 1000, "the first 100 steps took no time?"
    assert fit(model(), TASK, CONFIG, out=folder, resume=True).seconds > 1000
    assert fit(model(), TASK, CONFIG, out=tmp_path / "other").seconds < 1000


def test_a_torn_line_is_made_whole(unbroken, tmp_path):
    folder = tmp_path / "run"
    stopped_at(110, folder)
    log = folder / "metrics.jsonl"
    log.write_bytes(log.read_bytes()[:-7])
    fit(model(), TASK, CONFIG, out=folder, resume=True)
    assert files_of(folder) == files_of(unbroken[1])


def test_the_check_of_bits_can_fail(unbroken, tmp_path):
    """Negative control: another seed of the data gives other files."""
    folder = tmp_path / "run"
    fit(model(), TASK, FitConfig(**{**CONFIG.as_dict(), "seed": 1}), out=folder)
    assert files_of(folder) != files_of(unbroken[1])


@pytest.mark.parametrize("damage", ["cut", "flip", "empty"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(damage, unbroken, tmp_path):
    folder = tmp_path / "run"
    stopped_at(210, folder)
    newest = max((folder / "checkpoints").iterdir())
    content = bytearray(newest.read_bytes())
    if damage == "flip":
        content[random.Random(0).randrange(len(content))] ^= 0x10
    newest.write_bytes({"cut": content[:-9], "flip": content, "empty": b""}[damage])
    found, (problem,) = newest_good(Folder(folder / "checkpoints"))
    assert found.step == 150
    assert newest.name in str(problem)
    heard = []
    from underhood.training.population import Member
    from underhood.training.runs import fit_population

    member = Member(0, CONFIG.learning_rate, CONFIG.weight_decay)
    fit_population([model()], [member], TASK, CONFIG, out=folder, resume=True, warn=heard.append)
    assert newest.name in heard[0]
    assert "step-000000150" in heard[0]
    right = files_of(unbroken[1])
    assert {name: bits for name, bits in files_of(folder).items() if "checkpoints" not in name} == {
        name: bits for name, bits in right.items() if "checkpoints" not in name
    }


def test_every_byte_of_a_checkpoint_is_covered(tmp_path):
    path = write_checkpoint(Folder(tmp_path), 7, {"a": np.arange(3.0)}, 5)
    content = path.read_bytes()
    for index in range(len(content)):
        changed = bytearray(content)
        changed[index] ^= 1
        path.write_bytes(changed)
        with pytest.raises(UnderhoodError, match="checksum"):
            read_checkpoint(Folder(path.parent), path.name)
    path.write_bytes(content)
    assert read_checkpoint(Folder(path.parent), path.name).log_bytes == 5


def test_three_checkpoints_are_kept(tmp_path):
    for step in range(5):
        write_checkpoint(Folder(tmp_path), step, {"a": np.zeros(1)}, 0)
    assert sorted(path.name[5:14] for path in tmp_path.iterdir()) == ["000000002", "000000003", "000000004"]


def test_a_loss_that_turns_nan_stops_with_the_step_and_the_last_checkpoint(tmp_path):
    def loss(_, xs, wanted):
        import jax.numpy as jnp

        return jnp.where(xs[0, 0, 0] > 1.72, jnp.nan, 1.0)

    with pytest.raises(UnderhoodError, match=r"at step (\d+) of seed 0") as caught:
        fit(model(), TASK, CONFIG, out=tmp_path / "run", loss=loss)
    last, _ = newest_good(Folder(tmp_path / "run" / "checkpoints"))
    assert (last.path.name if last else "none") in str(caught.value)
    lines, _ = read_metrics(tmp_path / "run")
    assert all(np.isfinite(line["loss"]) for line in lines)


def test_ctrl_c_stops_with_a_checkpoint_and_the_run_goes_on_from_it(unbroken, tmp_path):
    before = signal.getsignal(signal.SIGINT)

    def watch(step, _):
        if step >= 70:
            signal.raise_signal(signal.SIGINT)

    run = fit(model(), TASK, CONFIG, out=tmp_path / "run", watch=watch, on_interrupt="return")
    assert run.interrupted
    assert run.steps < 300
    found, _ = newest_good(Folder(tmp_path / "run" / "checkpoints"))
    assert found.step == run.steps
    assert signal.getsignal(signal.SIGINT) is before
    fit(model(), TASK, CONFIG, out=tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == (unbroken[1] / "metrics.jsonl").read_bytes()


def test_a_folder_holds_one_run(unbroken, tmp_path):
    with pytest.raises(UnderhoodError, match="resume=True"):
        fit(model(), TASK, CONFIG, out=unbroken[1])
    with pytest.raises(UnderhoodError, match=r"config\.steps 300 → 7"):
        fit(model(), TASK, FitConfig(steps=7), out=unbroken[1], resume=True)
    with pytest.raises(UnderhoodError, match=r"model\[0\].start"):
        fit(model(seed=1), TASK, CONFIG, out=unbroken[1], resume=True)


def test_a_folder_holds_one_process(tmp_path):
    with RunFolder(tmp_path / "run").locked(), pytest.raises(UnderhoodError, match="another process"):
        fit(model(), TASK, CONFIG, out=tmp_path / "run")


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UnderhoodError, match="cannot write"):
        fit(model(), TASK, CONFIG, out=tmp_path / "file" / "run")


def test_a_disk_without_room_is_an_error_that_loses_nothing(unbroken, tmp_path):
    """The operating system refuses to let a file grow: first the log, then a checkpoint."""
    folder = tmp_path / "run"
    stopped_at(110, folder)
    before = files_of(folder)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    checkpoint = min(len(bits) for name, bits in before.items() if "checkpoints" in name)
    for room in (len(before["metrics.jsonl"]) + 3, checkpoint - 1):
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
        try:
            with pytest.raises(UnderhoodError, match=r"cannot write|can be written"):
                fit(model(), TASK, CONFIG, out=folder, resume=True)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        after = files_of(folder)
        assert after["metrics.jsonl"].startswith(before["metrics.jsonl"])
        assert after["metrics.jsonl"].endswith(b"\n")
        assert {name for name in before if "checkpoints" in name} <= set(after)
        assert not list((folder / "checkpoints").glob("*.part"))
    signal.signal(signal.SIGXFSZ, old)
    fit(model(), TASK, CONFIG, out=folder, resume=True)
    assert files_of(folder) == files_of(unbroken[1])


def test_lines_that_differ_are_replaced_from_there_on(tmp_path):
    def line(number):
        return {"member": 0, "n": number}

    log = MetricsLog(Folder(tmp_path))
    for number in range(4):
        log.write(line(number))
    log.close()
    size = len((tmp_path / "metrics.jsonl").read_bytes()) // 4
    log = MetricsLog(Folder(tmp_path), log_bytes=size)
    log.write(line(1))
    log.write(line(7))
    log.close()
    assert read_metrics(tmp_path) == ([line(0), line(1), line(7)], 0)


def test_killed_for_good_and_resumed(tmp_path):
    """SIGKILL to a process of its own; benchmarks/restart.py does it twenty times."""
    root = Path(uh.__file__).parent.parent
    arguments = "train --task linear-regression --examples 3 --d-x 1 --d-y 1 --hidden 3 --steps 4000 --batch-size 4"
    arguments += " --log-every 20 --checkpoint-every 100 --resume --out"
    environment = {**os.environ, "PYTHONPATH": str(root), "NPROC": "1", "OMP_NUM_THREADS": "1"}

    def start(folder):
        command = [sys.executable, "-m", "underhood.cli", *arguments.split(), str(folder)]
        return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    assert start(tmp_path / "unbroken").wait(timeout=300) == 0
    broken = tmp_path / "broken"
    process = start(broken)
    log = broken / "metrics.jsonl"
    while process.poll() is None and not (log.exists() and log.stat().st_size > 4_000):
        time.sleep(0.002)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert start(broken).wait(timeout=300) == 0
    assert files_of(broken) == files_of(tmp_path / "unbroken")


@pytest.mark.parametrize("member", ["1e999", "null", '"x"', "[]"])
def test_a_log_that_names_no_member_is_one_line(member, tmp_path):
    (tmp_path / "metrics.jsonl").write_text(f'{{"step": 1, "member": {member}}}\n')
    with pytest.raises(UnderhoodError, match=r"expected one JSON object per line in .*; got line 1"):
        read_metrics(tmp_path)


def squares(model, xs, wanted):
    return jax.numpy.mean((jax.vmap(model)(xs)[:, -1, -1:] - wanted) ** 2)


def test_another_loss_is_another_run(tmp_path):
    """One log with two losses would be no log."""
    scale = 2.0

    def scaled(*batch):
        return scale * squares(*batch)

    with pytest.raises(Stop):
        fit(model(), TASK, CONFIG, out=tmp_path, loss=scaled, watch=stop_at(70))
    for other in (None, squares, lambda *batch: 3.0 * squares(*batch)):
        with pytest.raises(UnderhoodError, match="other settings: loss"):
            fit(model(), TASK, CONFIG, out=tmp_path, loss=other, resume=True)
    scale = 3.0  # closed over: the same code, another function
    with pytest.raises(UnderhoodError, match="other settings: loss"):
        fit(model(), TASK, CONFIG, out=tmp_path, loss=scaled, resume=True)
    scale = 2.0
    assert fit(model(), TASK, CONFIG, out=tmp_path, loss=scaled, resume=True).steps == 300


def test_a_task_s_own_loss_is_not_gone_on_with_by_another(tmp_path):
    stopped_at(70, tmp_path)
    with pytest.raises(UnderhoodError, match="other settings: loss"):
        fit(model(), TASK, CONFIG, out=tmp_path, loss=squares, resume=True)


def test_a_run_from_before_losses_were_written_down_goes_on(unbroken, tmp_path):
    stopped_at(70, tmp_path)
    recorded = json.loads((tmp_path / "run.json").read_text())
    assert recorded.pop("loss") == "task"
    (tmp_path / "run.json").write_text(json.dumps(recorded))
    fit(model(), TASK, CONFIG, out=tmp_path, resume=True)
    assert files_of(tmp_path).keys() == files_of(unbroken[1]).keys()
    assert (tmp_path / "model-seed-0.safetensors").read_bytes() == unbroken[0].file.read_bytes()


def test_the_switch_for_float64_changes_no_digit(unbroken, tmp_path):
    stopped_at(70, tmp_path / "switched")
    with jax.enable_x64(True):
        whole = fit(model(), TASK, CONFIG, out=tmp_path / "run")
        fit(model(), TASK, CONFIG, out=tmp_path / "switched", resume=True)
    assert np.array_equal(whole.model.readout, unbroken[0].model.readout)
    for name in ("run", "switched"):
        assert files_of(tmp_path / name) == files_of(unbroken[1])


def test_killed_before_the_oldest_checkpoint_went(unbroken, tmp_path, monkeypatch):
    """At the last checkpoint of a run nothing later would take it away."""
    with monkeypatch.context() as now, pytest.raises(Stop):
        now.setattr("underhood.training.checkpoints.remove_oldest", lambda folder: stop_at(50)(*last_step(folder)))
        fit(model(), TASK, CONFIG, out=tmp_path)
    assert len(list((tmp_path / "checkpoints").iterdir())) > 3
    fit(model(), TASK, CONFIG, out=tmp_path, resume=True)
    assert files_of(tmp_path) == files_of(unbroken[1])


def last_step(folder):
    return (50 if max(folder.names()).startswith("step-000000300") else 0), None


def test_a_new_name_is_on_the_disk_too(tmp_path, monkeypatch):
    synced = []
    fsync = os.fsync

    def noted(number):
        synced.append(str(Path(f"/proc/self/fd/{number}").readlink()))
        fsync(number)

    monkeypatch.setattr(os, "fsync", noted)
    write_checkpoint(Folder(tmp_path), 7, {"a": np.arange(3.0)}, 5)
    assert synced[-1] == str(tmp_path)
    uh.save(uh.random_attention(2, seed=0), tmp_path / "a")
    assert synced[-1] == str(tmp_path) and len(synced) == 4


def test_a_file_system_without_locks_is_called_one(tmp_path, monkeypatch):
    def no_locks(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", no_locks)
    with pytest.raises(UnderhoodError, match=r"cannot lock .*No locks available"):
        fit(model(), TASK, CONFIG, out=tmp_path)


def test_ctrl_c_in_fit_raises_once_all_is_saved(unbroken, tmp_path):
    def interrupt(step, _):
        if step >= 70:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt, match="resume=True"):
        fit(model(), TASK, CONFIG, out=tmp_path, watch=interrupt)
    fit(model(), TASK, CONFIG, out=tmp_path, resume=True)
    assert (tmp_path / "model-seed-0.safetensors").read_bytes() == unbroken[0].file.read_bytes()


def test_a_run_that_has_ended_goes_on(tmp_path):
    """With a cosine of its own over the further steps, and the same bits as one run with both from the start."""
    import dataclasses

    longer = dataclasses.replace(CONFIG, steps=500)
    fit(model(), TASK, CONFIG, out=tmp_path / "run")
    with pytest.raises(Stop):
        fit(model(), TASK, longer, out=tmp_path / "run", resume=True, watch=stop_at(400))
    run = fit(model(), TASK, longer, out=tmp_path / "run", resume=True)
    assert run.steps == 500
    rates = {line["step"]: line["learning_rate"] for line in run.history}
    assert rates[300] == rates[500] == pytest.approx(1e-6)
    assert rates[320] == pytest.approx(1e-3, rel=0.1)
    whole = fit(model(), TASK, dataclasses.replace(longer, restarts=(300,)), out=tmp_path / "whole")
    assert files_of(tmp_path / "run") == files_of(tmp_path / "whole")
    assert np.array_equal(whole.model.readout, run.model.readout)
    for other in (CONFIG, dataclasses.replace(longer, steps=600, batch_size=5)):
        with pytest.raises(UnderhoodError, match="other settings"):
            fit(model(), TASK, other, out=tmp_path / "run", resume=True)


def test_a_run_that_has_not_ended_keeps_its_length(tmp_path):
    stopped_at(70, tmp_path)
    with pytest.raises(UnderhoodError, match=r"config\.steps 300 → 400"):
        fit(model(), TASK, FitConfig(**{**CONFIG.as_dict(), "steps": 400}), out=tmp_path, resume=True)
