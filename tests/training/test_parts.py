"""A batch cut into parts that fit the cache: the loss and the gradient of the whole, within rounding."""

import jax
import numpy as np
import pytest

import underhood as uh
from underhood.architectures.gated_rnn import kernel as gated_rnn
from underhood.layers.kernels.dispatch import parts_of
from underhood.training import adamw
from underhood.training.config import FitConfig
from underhood.training.population import Trainer
from underhood.training.tasks.linear_regression import LinearRegression
from underhood.training.tasks.teacher_student import TeacherStudent

TASK = TeacherStudent(uh.random_attention(2), 8)
CONFIG = FitConfig(steps=4, batch_size=24, held_out=8)


def loss_and_gradient(trainer, task, model):
    xs, wanted = task.batch(jax.random.key(1), CONFIG.batch_size)
    return jax.jit(trainer._loss_and_gradient)(adamw.ravel(model).vector, xs, wanted)


@pytest.mark.parametrize("fit_at_once", [12, 11])
def test_parts_give_what_the_whole_gives(monkeypatch, fit_at_once):
    model = uh.make_model("gated-rnn", 2, hidden=5, dtype="float32")
    right = loss_and_gradient(Trainer(model, TASK, CONFIG), TASK, model)
    monkeypatch.setattr(gated_rnn, "IN_CACHE", 5 * 8 * fit_at_once)
    assert parts_of(model, 24, 8) > 1
    found = loss_and_gradient(Trainer(model, TASK, CONFIG), TASK, model)
    for a, b in zip(found, right, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6 * np.abs(b).max())
    assert not np.array_equal(found[1], right[1])  # another order of summing: it was cut


def test_a_batch_is_cut_evenly_and_only_where_the_kernel_is_used():
    student = uh.make_model("gated-rnn", 4, hidden=100)
    assert [parts_of(student, batch, 32) for batch in (64, 20, 21, 30, 23)] == [4, 1, 1, 2, 1]
    assert parts_of(student, 64, gated_rnn.LONGEST + 1) == 1
    assert parts_of(student, 64, gated_rnn.LONGEST) == 64 // gated_rnn.FEWEST
    assert parts_of(uh.make_model("lstm", 4, hidden=100), 64, 32) == 1


def test_a_loss_of_the_users_and_a_last_output_get_the_whole_batch():
    model = uh.make_model("gated-rnn", 2, hidden=5)
    assert Trainer(model, TASK, CONFIG).in_parts
    assert not Trainer(model, TASK, CONFIG, loss=lambda model, xs, ys: 0.0).in_parts
    assert not Trainer(model, TASK, CONFIG, halves=2).in_parts
    regression = LinearRegression(4, 2, 1)
    assert not Trainer(uh.make_model("gated-rnn", regression.d, hidden=5, d_out=1), regression, CONFIG).in_parts
