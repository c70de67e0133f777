"""Members of a population do not know of each other, and chunks leave no trace."""

import jax
import numpy as np
import pytest

import underhood as uh
from underhood.core.errors import UnderhoodError
from underhood.training import adamw
from underhood.training.config import FitConfig
from underhood.training.population import Member, Trainer, members_of
from underhood.training.runs import fit, fit_population
from underhood.training.tasks.linear_regression import LinearRegression
from underhood.training.tasks.teacher_student import TeacherStudent

TASK = LinearRegression(4, 2, 1)
CONFIG = FitConfig(steps=120, batch_size=8, log_every=40, checkpoint_every=60, held_out=64)


def model(seed=0):
    return uh.make_model("gated-rnn", TASK.d, hidden=5, d_out=TASK.d_out, seed=seed)


def same(a, b):
    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def test_a_member_ends_with_the_bits_it_would_have_alone():
    members = members_of(CONFIG, [3, 4], [1e-3, 1e-2], [0.0, 0.1])
    assert len(members) == len(set(members)) == 8
    together = fit_population([model(m.seed) for m in members], members, TASK, CONFIG)
    for run in (together[0], together[5]):
        config = FitConfig(
            **{
                **CONFIG.as_dict(),
                "seed": run.seed,
                "learning_rate": run.member.learning_rate,
                "weight_decay": run.member.weight_decay,
                "final_learning_rate": run.member.learning_rate * 1e-3,
            }
        )
        alone = fit(model(run.seed), TASK, config)
        assert same(alone.model, run.model)
        assert [line["loss"] for line in alone.history] == [line["loss"] for line in run.history]
    assert not same(together[0].model, together[1].model)  # another seed
    assert not same(together[0].model, together[2].model)  # another rate
    assert not same(together[0].model, together[4].model)  # another decay


def test_how_steps_are_cut_into_chunks_changes_no_bit():
    trainer, member = Trainer(model(), TASK, CONFIG), Member(0, 1e-3, 0.1)

    def after(cuts):
        at = adamw.start(trainer.ravelled.vector)
        for steps in cuts:
            at, _ = trainer.advance(at, member, steps)
        return np.asarray(at.vector)

    assert np.array_equal(after([50, 10]), after([1, 20, 39]))
    assert not np.array_equal(after([50, 10]), after([50, 9]))


def test_training_lowers_the_loss_of_both_tasks():
    for task in (LinearRegression(), TeacherStudent(uh.random_attention(2), 8)):
        start = uh.make_model("gated-rnn", task.d, hidden=16, d_out=task.d_out)
        run = uh.fit(start, task, FitConfig(steps=600, learning_rate=3e-3, held_out=512))
        first, last = run.history[0]["loss"], run.history[-1]["loss"]
        assert last < 0.5 * first
        assert run.held_out_loss == pytest.approx(last, rel=0.5)
        assert run.steps == 600
        assert run.path is None


def test_every_sequence_is_new():
    """Two steps never share a batch, and the held-out set is none of them."""
    seen = []

    def loss(_, xs, wanted):
        jax.debug.callback(lambda x: seen.append(np.array(x)), xs)
        return (xs**2).mean()

    fit(model(), TASK, FitConfig(steps=70, batch_size=2, held_out=2), loss=loss)
    jax.effects_barrier()
    assert len({batch.tobytes() for batch in seen}) == len(seen) >= 72


@pytest.mark.parametrize(
    ("models", "rule"),
    [
        ([], "one model for each member"),
        ([uh.make_model("gated-rnn", 5, hidden=3)], "expected a model with 3 inputs"),
        (
            [uh.make_model("gated-rnn", 3, hidden=3), uh.make_model("gated-rnn", 3, hidden=4)],
            "one architecture and size",
        ),
    ],
)
def test_unfit_populations_are_refused(models, rule):
    members = members_of(CONFIG, range(max(1, len(models))))
    with pytest.raises(UnderhoodError, match=rule):
        fit_population(models, members, TASK, CONFIG)


@pytest.mark.parametrize("rate", [float("nan"), float("inf"), -1e-3, 0.0, 1e300])
def test_a_member_has_a_learning_rate_that_float32_holds(rate):
    with pytest.raises(UnderhoodError, match="expected learning_rate"):
        members_of(CONFIG, [0], [rate])
    with pytest.raises(UnderhoodError, match="expected learning_rate"):
        FitConfig(learning_rate=rate)
