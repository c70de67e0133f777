"""The two tasks: what they draw, what they ask for, and the optimum of Appendix C.2."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import underhood as uh
from underhood.core.errors import UnderhoodError
from underhood.training.tasks.linear_regression import LinearRegression
from underhood.training.tasks.task import HELD_OUT, TASKS, TRAINING, VALIDATION, draw, half_mean_square, stream_key
from underhood.training.tasks.teacher_student import TeacherStudent


@pytest.fixture(params=list(TASKS))
def task(request):
    return TASKS[request.param]()


def test_a_batch_has_the_sizes_that_the_task_states(task):
    xs, ys = task.batch(jax.random.key(0), 5)
    assert xs.shape == (5, task.steps, task.d)
    assert ys.shape == ((5, task.d_out) if task.last_only else (5, task.steps, task.d_out))
    assert xs.dtype == ys.dtype == jnp.float32


def test_a_batch_is_a_function_of_its_key(task):
    first, again, other = (task.batch(jax.random.key(seed), 4)[0] for seed in (1, 1, 2))
    assert jnp.array_equal(first, again)
    assert not jnp.array_equal(first, other)


def test_training_and_held_out_sequences_differ(task):
    drawn = [draw(task, 0, 3, stream=stream)[0] for stream in (TRAINING, HELD_OUT, VALIDATION)]
    assert not np.array_equal(drawn[0], drawn[1])
    assert not np.array_equal(drawn[1], drawn[2])
    assert not np.array_equal(draw(task, 0, 3, part=1)[0], drawn[1])


def test_double_precision_is_drawn_in_double_precision(task):
    xs, ys = draw(task, 0, 2)
    assert xs.dtype == ys.dtype == np.float64
    assert not np.array_equal(xs, xs.astype(np.float32))


@pytest.mark.parametrize("heads", [1, 3])
def test_the_teacher_gives_what_its_attention_gives(heads):
    attention = uh.random_attention(3, heads=heads, d_value=2, seed=5)
    xs, ys = draw(TeacherStudent(attention, 9), 1, 4)
    for x, y in zip(xs, ys, strict=True):
        np.testing.assert_allclose(y, attention(x), rtol=1e-12, atol=1e-12)


def test_teacher_inputs_are_standard_normal():
    xs, _ = draw(TeacherStudent(uh.random_attention(4)), 0, 4000)
    assert abs(xs.mean()) < 0.01
    assert abs(xs.var() - 1) < 0.01
    assert abs((xs**4).mean() - 3) < 0.1


def test_how_a_teacher_s_inputs_are_laid_out_does_not_change_them():
    """They are drawn row by row, which is faster: a run that goes on with a newer version sees the same sequences."""
    key, task = jax.random.key(5), TASKS["teacher-student"](d=6, length=7)
    np.testing.assert_array_equal(task.batch(key, 3)[0], jax.random.normal(key, (3, 7, 6)))


@pytest.mark.parametrize(("stream", "variance"), [(TRAINING, 1 / 3), (VALIDATION, 2 / 3)])
def test_regression_shows_pairs_and_asks_for_the_last(stream, variance):
    task = LinearRegression()
    xs, wanted = draw(task, 0, 20_000, stream=stream)
    x, y = xs[..., :3], xs[..., 3:]
    assert np.all(y[:, -1] == 0)
    # W* is determined by three of the pairs.
    w_star = np.swapaxes(np.linalg.solve(x[:, :3], y[:, :3]), 1, 2)
    np.testing.assert_allclose(np.einsum("bij,btj->bti", w_star, x)[:, :-1], y[:, :-1], atol=1e-6)
    np.testing.assert_allclose(np.einsum("bij,bj->bi", w_star, x[:, -1]), wanted, atol=1e-6)
    well = np.abs(np.linalg.det(x[:, :3])) > 0.1
    assert abs(np.var(w_star[well]) / variance - 1) < 0.03
    assert np.abs(x).max() < 3**0.5
    assert abs(x.var() - 1) < 0.01
    assert abs((x**4).mean() - 9 / 5) < 0.02


def test_the_optimum_is_the_paper_s():
    task = LinearRegression()
    assert task.optimal_eta == pytest.approx(1 / 14.8)
    assert task.optimal_loss() == pytest.approx(7 / 74)
    assert task.optimal_loss(validation=True) == pytest.approx(7 / 37)


@pytest.mark.parametrize(("examples", "d_x", "d_y"), [(12, 3, 3), (1, 1, 2), (5, 2, 1), (20, 6, 4)])
def test_the_closed_form_agrees_with_samples(examples, d_x, d_y):
    task = LinearRegression(examples, d_x, d_y)
    for stream in (HELD_OUT, VALIDATION):
        xs, wanted = draw(task, 3, 50_000, stream=stream)
        x, y, query = xs[:, :-1, :d_x], xs[:, :-1, d_x:], xs[:, -1, :d_x]
        step = np.einsum("bty,btx,bx->by", y, x, query)
        for factor in (1.0, 1.3):
            losses = 0.5 * np.mean((factor * task.optimal_eta * step - wanted) ** 2, axis=1)
            expected = task.gradient_descent_loss(factor * task.optimal_eta, validation=stream == VALIDATION)
            assert abs(losses.mean() - expected) < 5 * losses.std() / np.sqrt(len(losses))


@pytest.mark.parametrize("off", [0.9, 1.1])
def test_no_other_rate_is_better(off):
    task = LinearRegression(7, 4, 2)
    assert task.gradient_descent_loss(off * task.optimal_eta) > task.optimal_loss()


def test_the_optimal_attention_takes_the_optimal_step():
    task = LinearRegression(5, 2, 3)
    xs, _ = draw(task, 0, 6)
    attention = task.optimal_attention()
    for x, predicted in zip(xs, np.asarray(task.optimal_prediction(jnp.asarray(xs))), strict=True):
        np.testing.assert_allclose(attention(x)[-1, 2:], predicted, rtol=1e-5, atol=1e-6)


def test_the_loss_is_half_the_mean_square_of_the_last_coordinates():
    outputs = jnp.asarray([[9.0, 1.0, 2.0], [9.0, 3.0, 4.0]])
    wanted = jnp.asarray([[0.0, 2.0], [3.0, 2.0]])
    assert float(half_mean_square(outputs, wanted)) == pytest.approx(0.5 * (1 + 0 + 0 + 4) / 4)


def test_streams_of_different_seeds_differ():
    keys = {tuple(jax.random.key_data(stream_key(seed, use)).tolist()) for seed in range(5) for use in range(3)}
    assert len(keys) == 15


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (lambda: LinearRegression(examples=0), "examples"),
        (lambda: TeacherStudent(uh.random_attention(2), 0), "expected length"),
        (lambda: TASKS["sorting"], "unknown task"),
    ],
)
def test_bad_tasks_are_refused(make, rule):
    with pytest.raises(UnderhoodError, match=rule):
        make()
