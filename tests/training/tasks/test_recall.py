"""Associative recall: what is shown, what is asked, and what knowing how much of it costs; inputs of the regression."""

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from underhood.cli import main
from underhood.core.errors import UnderhoodError
from underhood.training.tasks.associative_recall import AssociativeRecall
from underhood.training.tasks.linear_regression import LinearRegression
from underhood.training.tasks.make import make_task
from underhood.training.tasks.task import VALIDATION, draw


def test_the_answer_is_the_value_beside_the_key_that_is_asked():
    task = AssociativeRecall(vocabulary=20, length=13, pairs=4, embedding=5)
    tokens, answers = map(np.asarray, task.tokens(jax.random.key(0), 300))
    for sequence, answer in zip(tokens, answers, strict=True):
        shown = sequence[:-1].reshape(-1, 2)
        pairs = {int(key): int(value) for key, value in shown if key}
        assert len(pairs) == 4
        assert all(1 <= key < 10 <= value < 20 for key, value in pairs.items())
        assert pairs[int(sequence[-1])] == answer
    assert set(answers.tolist()) == set(range(10, 20))  # every value is asked for
    assert len({tuple(np.flatnonzero(one[:-1])) for one in tokens}) > 10  # at many places


def test_tokens_are_rows_of_one_table():
    task = AssociativeRecall(vocabulary=20, length=13, pairs=4, embedding=5)
    (first, _), (other, wanted) = draw(task, 0, 3), draw(task, 1, 3, stream=VALIDATION)
    rows = np.unique(np.concatenate([first, other]).reshape(-1, 5), axis=0)
    assert len(rows) <= 20
    np.testing.assert_array_equal(wanted.sum(axis=1), 1)


def test_the_loss_is_the_cross_entropy():
    task = AssociativeRecall(vocabulary=20, length=13, pairs=4)
    wanted = jnp.eye(20)[jnp.array([3, 15])]
    scores = jax.random.normal(jax.random.key(0), (2, 20))
    by_hand = [-math.log(math.exp(row[at]) / sum(map(math.exp, row))) for row, at in zip(scores, (3, 15), strict=True)]
    assert float(task.loss(scores, wanted)) == pytest.approx(np.mean(by_hand), rel=1e-5)
    ladder = task.ladder()
    assert float(task.loss(jnp.zeros((2, 20)), wanted)) == pytest.approx(ladder["a token"])
    assert ladder["a value"] == pytest.approx(math.log(10)) and ladder["one shown"] == pytest.approx(math.log(4))
    assert float(task.loss(40 * wanted, wanted)) < 1e-6


def test_it_is_trained_and_levenberg_refuses_it(tmp_path, capsys):
    command = ["train", "--task", "associative-recall", "--set", "vocabulary=12", "pairs=2", "embedding=8"]
    sizes = ["--length", "7", "--hidden", "12", "--steps", "150", "--learning-rate", "0.01", "--weight-decay", "0"]
    assert main([*command, *sizes, "--model", "gru", "--out", str(tmp_path / "run"), "--json"]) == 0
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert run["held_out_loss"] < math.log(6)  # less than all that tells values from other tokens
    assert main([*command, "--optimizer", "levenberg", "--out", str(tmp_path / "no")]) == 2
    assert "levenberg does not train on the task associative-recall" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        ({"pairs": 0}, "expected pairs of 1 or more; got 0"),
        ({"length": 8}, "expected length of 9 or more; got 8"),
        ({"vocabulary": 9}, "expected vocabulary of 10 or more; got 9"),
    ],
)
def test_bad_sizes_are_refused(settings, rule):
    with pytest.raises(UnderhoodError, match=rule):
        make_task("associative-recall", **settings)


@pytest.mark.parametrize(("inputs", "fourth"), [("uniform", 3.8), ("sphere", 3.0), ("normal", 5.0)])
def test_inputs_have_variance_one_and_their_fourth_moment(inputs, fourth):
    task = make_task("linear-regression", inputs=inputs)
    xs, _ = draw(task, 0, 20_000)
    x = xs[..., :3].reshape(-1, 3)
    np.testing.assert_allclose(x.T @ x / len(x), np.eye(3), atol=0.02)
    np.testing.assert_allclose((x * np.sum(x**2, axis=1)[:, None]).T @ x / len(x), fourth * np.eye(3), atol=0.1)
    assert task.fourth_moment == pytest.approx(fourth)


def test_noise_is_added_to_what_is_shown_only():
    clean, noisy = (draw(make_task("linear-regression", noise=noise), 0, 4000) for noise in (0.0, 0.3))
    x, y = noisy[0][:, :, :3], noisy[0][:, :, 3:]
    w_star = np.swapaxes(
        np.stack([np.linalg.lstsq(a, b, rcond=None)[0] for a, b in zip(x[:, :-1], y[:, :-1], strict=True)]), 1, 2
    )
    left = y[:, :-1] - np.einsum("bij,btj->bti", w_star, x[:, :-1])
    assert np.sqrt(np.sum(left**2) / (4000 * 3 * (12 - 3))) == pytest.approx(0.3, rel=0.05)
    assert np.all(y[:, -1] == 0)
    assert noisy[1].std() == pytest.approx(clean[1].std(), rel=0.05)


def test_settings_that_came_later_leave_older_runs_alone():
    assert "inputs" not in LinearRegression().settings() and "noise" not in LinearRegression().settings()
    assert LinearRegression(inputs="sphere").settings()["inputs"] == "sphere"
    with pytest.raises(UnderhoodError, match="expected inputs uniform, sphere, normal"):
        make_task("linear-regression", inputs="cube")
    with pytest.raises(UnderhoodError, match="expected noise of 0 or more"):
        make_task("linear-regression", noise=-1.0)


def test_the_paper_s_inputs_are_what_they_were():
    """Drawn before there were others to choose from."""
    xs, wanted = LinearRegression().batch(jax.random.key(7), 2)
    u = jax.random.uniform(jax.random.key(7), (2, 48), minval=jnp.nextafter(jnp.float32(-1), jnp.float32(0)), maxval=1)
    np.testing.assert_array_equal(xs[..., :3], (3.0**0.5 * u[:, :39]).reshape(2, 13, 3))
    w_star = ((2 / 3) ** 0.5 * jax.lax.erf_inv(u[:, 39:])).reshape(2, 3, 3)
    np.testing.assert_allclose(wanted, jnp.einsum("bij,bj->bi", w_star, xs[:, -1, :3]), rtol=1e-5, atol=1e-6)
