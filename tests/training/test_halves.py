"""A batch in halves on two devices: the bits of one device that goes through them in turn, the values of the whole.

jax's devices are counted once, at its start: what needs two of them runs in a process of its own.
"""

import json
import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import underhood as uh
from underhood.core import threads
from underhood.training import adamw
from underhood.training.config import FitConfig
from underhood.training.population import Member, Trainer
from underhood.training.tasks.teacher_student import TeacherStudent

TASK = TeacherStudent(uh.random_attention(2), 8)
CONFIG = FitConfig(steps=120, batch_size=6, log_every=40, checkpoint_every=60, held_out=64)

SHARED = """
import sys, jax
from underhood.core.threads import offer_two_devices
offer_two_devices()
import numpy as np, underhood as uh
from underhood.training.tasks.linear_regression import LinearRegression
from underhood.training.tasks.teacher_student import TeacherStudent
from underhood.training import adamw, population
from underhood.training.config import FitConfig
from underhood.training.population import Member, Trainer
assert len(jax.local_devices()) == 2, jax.local_devices()
population.LEAST_WORK = 0
"""

BITS = """
def after(model, task, config, **options):
    trainer = Trainer(model, task, config, **options)
    at = adamw.start(trainer.ravelled.vector)
    for steps in (50, 7):
        at, losses = trainer.advance(at, Member(0, 1e-2, 0.1), steps)
    return trainer, np.asarray(at.vector), np.asarray(losses[:7])

one = jax.local_devices()[:1]
for task, name, dtype in (
    (TeacherStudent(uh.random_attention(2), 8), "gated-rnn", "float32"),
    (LinearRegression(4, 2, 1), "gated-rnn", "float32"),  # reads the last step only
    (TeacherStudent(uh.random_attention(2), 5), "lru", "float64"),  # no kernel of its own
):
    config = FitConfig(steps=100, batch_size=6, held_out=8)
    with jax.enable_x64(dtype == "float64"):
        model = uh.make_model(name, task.d, hidden=5, d_out=task.d_out, dtype=dtype)
        two, vector, losses = after(model, task, config)
        assert two.halves == 2 and two.everywhere is not None
        turn, in_turn, its = after(model, task, config, halves=2, devices=one)
        assert turn.everywhere is None
        assert np.array_equal(vector, in_turn) and np.array_equal(losses, its), (name, abs(vector - in_turn).max())
        _, whole, _ = after(model, task, config, halves=1)
        assert np.allclose(vector, whole, rtol=0, atol=1e-3 if dtype == "float32" else 1e-9), abs(vector - whole).max()
model, task = uh.make_model("gated-rnn", 2, hidden=5), TeacherStudent(uh.random_attention(2), 5)
odd = Trainer(model, task, FitConfig(batch_size=5))
assert odd.halves == 1
own = Trainer(model, task, FitConfig(), lambda model, xs, ys: ys.max())
assert own.halves == 1
"""

BROKEN_RUN = """
def stop(step, losses):
    if step > 60 and sys.argv[2] == "stop":
        raise RuntimeError("stop")

task = TeacherStudent(uh.random_attention(2), 8)
config = FitConfig(steps=120, batch_size=6, log_every=40, checkpoint_every=60, held_out=64)
try:
    uh.fit(uh.make_model("gated-rnn", 2, hidden=5), task, config, out=sys.argv[1], watch=stop)
except RuntimeError:
    pass
"""


def with_two_devices(code, *arguments):
    environment = {**os.environ, "NPROC": "2"}
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(SHARED + code), *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]


needs_two_cores = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one core")


@needs_two_cores
def test_two_devices_end_with_the_bits_of_one_and_the_values_of_the_whole():
    with_two_devices(BITS)


@needs_two_cores
def test_a_run_begun_on_two_devices_ends_with_the_same_bits_on_one(tmp_path):
    with_two_devices(BROKEN_RUN, tmp_path / "unbroken", "go")
    with_two_devices(BROKEN_RUN, tmp_path / "broken", "stop")
    assert json.loads((tmp_path / "broken" / "run.json").read_text())["halves"] == 2
    assert not (tmp_path / "broken" / "model-seed-0.safetensors").exists()
    run = uh.fit(uh.make_model("gated-rnn", 2, hidden=5), TASK, CONFIG, out=tmp_path / "broken", resume=True)
    unbroken = uh.load(tmp_path / "unbroken" / "model-seed-0.safetensors")
    assert np.array_equal(np.asarray(adamw.ravel(run.model).vector), np.asarray(adamw.ravel(unbroken).vector))
    logs = [(tmp_path / name / "metrics.jsonl").read_bytes() for name in ("unbroken", "broken")]
    assert logs[0] == logs[1]


def test_halves_in_turn_take_the_step_of_the_whole():
    model = uh.make_model("gated-rnn", 2, hidden=5)

    def after(batch_size, halves):
        trainer = Trainer(model, TASK, FitConfig(batch_size=batch_size), halves=halves)
        at, losses = trainer.advance(adamw.start(trainer.ravelled.vector), Member(0, 1e-3, 0.1), 3)
        return np.asarray(at.vector), np.asarray(losses[:3])

    for found, right in zip(after(6, 2), after(6, 1), strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-5)
    assert np.max(np.abs(after(8, 2)[1] - after(6, 1)[1])) > 1e-3  # another batch shows


def test_one_device_works_on_the_whole_batch():
    big = uh.make_model("gated-rnn", 4, hidden=100)
    assert Trainer(big, TeacherStudent(uh.random_attention(4)), FitConfig(), devices=[None]).halves == 1


def test_cores_are_counted_after_the_affinity_and_nproc(monkeypatch):
    monkeypatch.delenv("NPROC", raising=False)
    assert threads.usable_cores() == len(os.sched_getaffinity(0))
    monkeypatch.setenv("NPROC", "1")
    assert threads.usable_cores() == 1
    monkeypatch.setenv("NPROC", "many")
    assert threads.usable_cores() == len(os.sched_getaffinity(0))
