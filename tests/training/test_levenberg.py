"""Second-order training: its reduction of the data, its Jacobian, what it reaches, and that it can be resumed."""

from __future__ import annotations

import numpy as np
import pytest

from underhood.attention.linear import LinearAttention
from underhood.attention.teachers import random_attention
from underhood.core.errors import UnderhoodError
from underhood.training.prune import drop_dead
from underhood.training.second_order.alternating import WIDE_FROM, Wide
from underhood.training.second_order.descent import Progress
from underhood.training.second_order.gauss_newton import linearise, project, residual_at
from underhood.training.second_order.levenberg import default_sizes, fit_levenberg, starting_sizes
from underhood.training.second_order.moments import reduce_data
from underhood.training.second_order.problems import FixedLambda, FreeLambda, draw_weights, outputs_of, to_model
from underhood.training.second_order.symmetry import reduce_symmetric
from underhood.training.tasks.linear_regression import regression_signs


def attend(attention: LinearAttention, xs: np.ndarray) -> np.ndarray:
    """Eq. 1 for a batch, in NumPy."""
    decay = 1.0 if attention.decay is None else float(np.max(np.asarray(attention.decay)))
    outputs = 0.0
    lag = np.subtract.outer(np.arange(xs.shape[1]), np.arange(xs.shape[1]))
    kernel = np.where(lag >= 0, decay ** np.maximum(lag, 0), 0.0)
    heads = zip(*(np.asarray(w) for w in (attention.w_value, attention.w_key, attention.w_query)), strict=True)
    for w_value, w_key, w_query in heads:
        scores = np.einsum("btk,bsk->bts", xs @ w_query.T, xs @ w_key.T)
        outputs = outputs + np.einsum("bts,bsv->btv", scores * kernel, xs @ w_value.T)
    return np.asarray(outputs)


def teacher_data(d: int, *, seed: int = 0, batch: int = 60, t: int = 16) -> tuple[np.ndarray, np.ndarray]:
    attention = random_attention(d, seed=seed)
    xs = np.random.default_rng(seed + 100).normal(size=(batch, t, d))
    return xs, attend(attention, xs)


def regression_data(tasks: int, *, seed: int, d_x: int = 1, d_y: int = 1, t: int = 4) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    x = random.uniform(-(3**0.5), 3**0.5, size=(tasks, t + 1, d_x))
    w_star = random.normal(size=(tasks, d_y, d_x)) / np.sqrt(d_x)
    y = np.einsum("nij,ntj->nti", w_star, x)
    shown = y.copy()
    shown[:, -1] = 0
    return np.concatenate([x, shown], axis=-1), y[:, -1]


def some_weights(d: int = 2, *, lambda_: np.ndarray | None = None, split: bool = False, seed: int = 3):
    lambda_ = np.array([1.0, 1, 1, 0, 0]) if lambda_ is None else lambda_
    return draw_weights(np.random.default_rng(seed), d, 4, lambda_, split=split)


@pytest.mark.parametrize("targets_at", ["every", "last"])
@pytest.mark.parametrize("split", [False, True])
def test_the_reduced_loss_is_the_loss_over_all_sequences(targets_at, split):
    xs, ys = teacher_data(2, batch=300)
    problem = FixedLambda(reduce_data(xs, ys, targets_at=targets_at))
    weights = some_weights(split=split)
    _, readout, loss = project(problem.products(weights), problem.targets, 1e-3)
    outputs = outputs_of(to_model(problem, weights, readout), xs, last=targets_at == "last")
    wanted = ys[:, -1] if targets_at == "last" else ys
    direct = 0.5 * np.mean((outputs - wanted) ** 2)
    assert problem.half_mean(loss) == pytest.approx(direct, rel=1e-9)
    # Negative control: another network has another loss.
    other = weights._replace(lambda_=weights.lambda_[::-1])
    assert 0.5 * np.mean((outputs_of(to_model(problem, other, readout), xs, last=False)[:, -1] - ys[:, -1]) ** 2) != (
        pytest.approx(direct, rel=1e-3)
    )


def test_the_numpy_network_is_the_model_itself():
    xs, ys = teacher_data(2, batch=3)
    problem = FixedLambda(reduce_data(xs, ys))
    weights = some_weights()
    model = to_model(problem, weights, np.random.default_rng(0).normal(size=(4, 2)))
    for sequence, outputs in zip(xs, outputs_of(model, xs, last=False), strict=True):
        np.testing.assert_allclose(np.asarray(model(sequence)), outputs, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("free", [False, True])
@pytest.mark.parametrize("split", [False, True])
def test_every_column_of_the_jacobian_is_the_slope_of_the_products(free, split):
    xs, ys = teacher_data(2, batch=20, t=6)
    problem = FreeLambda(xs, ys, "every") if free else FixedLambda(reduce_data(xs, ys))
    lambda_ = np.array([0.9, 0.6, 0.8, 0.3, 0.1]) if free else None
    weights = some_weights(lambda_=lambda_, split=split)
    readout = np.random.default_rng(1).normal(size=(4,))
    products, output, through = problem.blocks(weights)
    np.testing.assert_allclose(products, problem.products(weights), rtol=1e-12, atol=1e-13)
    exact = np.concatenate([(output * readout[:, None]).reshape(len(output), -1), through(readout)], axis=1)
    step = 1e-6
    for column in range(exact.shape[1]):
        direction = np.zeros(exact.shape[1])
        direction[column] = step
        ahead = problem.products(weights.moved(direction, free)) @ readout
        behind = problem.products(weights.moved(-direction, free)) @ readout
        np.testing.assert_allclose(exact[:, column], (ahead - behind) / (2 * step), atol=1e-7 * np.abs(exact).max())


def test_the_projected_gradient_is_the_slope_of_the_merit():
    xs, ys = teacher_data(2, batch=40)
    problem, weights, decay = FixedLambda(reduce_data(xs, ys)), some_weights(), 1e-4
    _, residual, pull = linearise(problem, weights, decay)
    np.testing.assert_allclose(residual, residual_at(problem, weights, decay), atol=1e-12)
    direction = np.random.default_rng(5).normal(size=len(weights.vector(False)))
    values = [np.sum(residual_at(problem, weights.moved(s * 1e-6 * direction, False), decay) ** 2) for s in (1, -1)]
    slope = (values[0] - values[1]) / 2e-6
    assert -2 * pull(residual) @ direction == pytest.approx(slope, rel=1e-5)


@pytest.mark.parametrize(("d", "seed"), [(2, 0), (2, 7), (3, 1)])
def test_a_student_reaches_its_teacher_and_shrinks_to_few_neurons(d, seed):
    xs, ys = teacher_data(d, seed=seed, batch=120)
    fresh = teacher_data(d, seed=seed, batch=200)[0][120:]
    held_out = (fresh, attend(random_attention(d, seed=seed), fresh))
    found = fit_levenberg(xs, ys, held_out=held_out, seed=seed, target_loss=1e-20, max_iterations=120)
    assert found.met and found.held_out_loss <= 1e-20
    outputs = np.stack([np.asarray(found.model(sequence)) for sequence in fresh])
    assert 0.5 * np.mean((outputs - held_out[1]) ** 2) <= 1e-20
    assert set(np.unique(np.asarray(found.model.lambda_))) <= {0.0, 1.0}
    # Minimal are d(d+1)/2 memory and d query neurons, and d(d+1)/2 products.
    assert found.pre_readout <= d * (d + 1) // 2 + 2
    assert d * (d + 3) // 2 <= found.hidden <= d * (d + 3) // 2 + 6
    assert found.hidden < default_sizes(d)[0]


def test_without_reduction_no_neuron_is_taken_that_is_needed_and_too_few_neurons_fail():
    xs, ys = teacher_data(2, batch=120)
    wide = fit_levenberg(xs, ys, held_out=(xs, ys), seed=0, prune=False, max_iterations=100)
    assert wide.met and wide.hidden > 5
    narrow = fit_levenberg(xs, ys, held_out=(xs, ys), hidden=4, pre_readout=2, restarts=1, max_iterations=40)
    assert not narrow.met and narrow.held_out_loss > 1e-6
    assert (narrow.hidden, narrow.pre_readout) <= (4, 2)


def test_a_network_of_the_least_sizes_is_reached_from_a_wider_one():
    xs, ys = teacher_data(2, batch=120)
    least = fit_levenberg(xs, ys, held_out=(xs, ys), hidden=5, pre_readout=3, prune=False, max_iterations=80)
    assert least.met and least.hidden == 5 and least.pre_readout == 3


def test_free_lambdas_find_a_decay_that_fixed_ones_cannot_hold():
    base = random_attention(2, seed=4)
    teacher = LinearAttention(base.w_value, base.w_key, base.w_query, decay=np.array([0.8]))
    xs, fresh = np.random.default_rng(0).normal(size=(2, 40, 12, 2))
    data, held_out = (xs, attend(teacher, xs)), (fresh, attend(teacher, fresh))
    free = fit_levenberg(*data, held_out=held_out, lambdas="free", target_loss=1e-18, max_iterations=150, prune=False)
    assert free.met
    fixed = fit_levenberg(*data, held_out=held_out, target_loss=1e-18, max_iterations=40, restarts=0, prune=False)
    assert not fixed.met and fixed.held_out_loss > 1e-3


def test_averaging_over_signs_equals_training_on_all_mirrored_copies():
    xs, ys = regression_data(50, seed=1)
    signs = regression_signs(1, 1)
    copies, wanted = xs, ys
    for examples, query, outputs in zip(*signs, strict=True):
        mirrored = copies * examples
        mirrored[:, -1] = copies[:, -1] * query
        copies, wanted = np.concatenate([copies, mirrored]), np.concatenate([wanted, wanted * outputs])
    averaged = FixedLambda(reduce_symmetric(xs, ys, signs))
    explicit = FixedLambda(reduce_data(copies, wanted, targets_at="last"))
    weights, losses = some_weights(), []
    for problem in (averaged, explicit):
        _, readout, loss = project(problem.products(weights), problem.targets, 1e-12)
        model = to_model(problem, weights, readout)
        direct = 0.5 * np.mean((outputs_of(model, copies, last=True) - wanted) ** 2)
        assert problem.half_mean(loss) == pytest.approx(direct, rel=1e-8)
        losses.append(direct)
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    plain = FixedLambda(reduce_data(xs, ys, targets_at="last"))
    _, _, loss = project(plain.products(weights), plain.targets, 1e-12)
    assert plain.half_mean(loss) != pytest.approx(losses[0], rel=1e-3)


def test_regression_comes_within_a_thousandth_of_the_optimal_step():
    t, data = 4, regression_data(20000, seed=2)
    found = fit_levenberg(
        *data, held_out=regression_data(1000, seed=3), targets_at="last", symmetry=regression_signs(1, 1), prune=False
    )
    xs, ys = regression_data(200_000, seed=4)
    step = np.einsum("bty,btx,bx->by", xs[:, :-1, 1:], xs[:, :-1, :1], xs[:, -1, :1]) / (t + 1 - 0.2)
    best = np.mean((step - ys) ** 2)
    excess = np.mean((outputs_of(found.model, xs, last=True) - ys) ** 2) - best
    assert excess <= 1e-3 * best
    worse = np.mean((1.1 * step - ys) ** 2) - best  # negative control: a rate that is 10 % off is seen
    assert worse > 1e-3 * best


@pytest.mark.parametrize("at", [3, 20, 45])
def test_a_resumed_run_ends_with_the_same_bits(at):
    xs, ys = teacher_data(2, batch=80)
    options = {"held_out": (xs, ys), "seed": 1, "max_iterations": 60}
    seen: list[Progress] = []
    whole = fit_levenberg(xs, ys, **options, checkpoint=seen.append)
    assert len(seen) > at
    stopped = fit_levenberg(xs, ys, **options, callback=lambda iteration, *_: iteration == at)
    assert stopped.stopped and stopped.iterations == at
    resumed = fit_levenberg(xs, ys, **options, resume=seen[at - 1])
    for one, other in zip(whole.progress.state.weights, resumed.progress.state.weights, strict=True):
        assert np.array_equal(one, other)
    assert (whole.held_out_loss, whole.iterations) == (resumed.held_out_loss, resumed.iterations)


def test_dead_neurons_go_and_living_ones_stay():
    xs, ys = teacher_data(2, batch=80)
    found = fit_levenberg(xs, ys, held_out=(xs, ys), prune=False)
    problem, state = FixedLambda(reduce_data(xs, ys)), found.progress.state
    weights = state.weights
    dead = weights._replace(out_m=np.vstack([weights.out_m, 1e-9 * weights.out_m[:1]]))
    dead = dead._replace(out_x=np.vstack([weights.out_x, weights.out_x[:1]]))
    padded = state._replace(weights=dead, readout=np.vstack([state.readout, 1e-9 * state.readout[:1]]), decay=1e-6)
    fewer = drop_dead(padded, problem)
    assert len(fewer.weights.out_m) <= len(weights.out_m)
    assert len(fewer.weights.out_m) >= 3  # a symmetric 2×2 matrix times a vector takes three products


def test_wide_requests_are_cut_and_impossible_ones_refused():
    memory, forget, pre = starting_sizes(4, 100, 100)
    assert memory <= 15 and forget <= 15 and pre <= 40
    xs, ys = teacher_data(2, batch=5)
    for options, rule in [
        ({"lambdas": "half"}, "lambdas"),
        ({"targets_at": "first"}, "targets_at"),
        ({"hidden": 1}, "2 hidden"),
    ]:
        with pytest.raises(UnderhoodError, match=rule):
            fit_levenberg(xs, ys, held_out=(xs, ys), **options)
    with pytest.raises(UnderhoodError, match="finite"):
        fit_levenberg(xs * np.nan, ys, held_out=(xs, ys))
    with pytest.raises(UnderhoodError, match="shape"):
        fit_levenberg(xs[0], ys, held_out=(xs, ys))


def test_the_wide_problem_s_products_are_the_network_s():
    xs, ys = teacher_data(3, batch=40)
    for targets_at in ("every", "last"):
        wanted = ys if targets_at == "every" else ys[:, -1]
        problem = Wide(xs, wanted, targets_at)
        state = problem.start(np.random.default_rng(2), 12)
        outputs = outputs_of(to_model(problem, state.weights, state.readout), xs, last=targets_at == "last")
        direct = 0.5 * np.mean((outputs - wanted) ** 2)
        assert problem.half_mean(state.loss) == pytest.approx(direct, rel=1e-10)
        assert problem.half_mean(0.5 * state.loss) != pytest.approx(direct, rel=1e-3)


def test_half_a_sweep_is_the_least_squares_solution():
    """Against the dense matrix of all m·p unknowns: what conjugate gradients leave is a ten-thousandth of the gain."""
    xs, ys = teacher_data(2, batch=60)
    problem = Wide(xs, ys, "every")
    random = np.random.default_rng(4)
    reads, others, readout = (random.normal(size=shape) for shape in ((4, 6), (len(problem.past), 4), (4, 2)))
    columns = np.einsum("rp,rm,mo->romp", problem.past, others / np.sqrt(problem.count), readout)
    matrix, targets = columns.reshape(-1, 24), problem.targets.ravel()
    best = np.linalg.norm(targets - matrix @ np.linalg.lstsq(matrix, targets, rcond=None)[0]) ** 2
    before = np.linalg.norm(targets - matrix @ reads.ravel()) ** 2
    found, loss = problem._half(problem.past, reads, others, readout, 1e-12)
    assert loss == pytest.approx(np.linalg.norm(targets - matrix @ found.ravel()) ** 2, rel=1e-9)
    assert best <= loss * (1 + 1e-12) and loss - best <= 1e-3 * (before - best)


@pytest.mark.parametrize("prune", [False, True])
def test_a_wide_student_reaches_a_larger_teacher(prune):
    d = WIDE_FROM
    xs, ys = teacher_data(d, batch=90, t=32)
    data, held_out = (xs[:80], ys[:80]), (xs[80:], ys[80:])
    found = fit_levenberg(*data, held_out=held_out, target_loss=1e-18, prune=prune)
    assert found.met and found.restarts == 0
    least, wide = (d * (d + 3) // 2, d * (d + 1) // 2), ((d + 1) * (d + 2), d * (d + 1))
    assert (found.hidden, found.pre_readout) == (least if prune else wide)
    assert 0.5 * np.mean((outputs_of(found.model, xs[80:], last=False) - ys[80:]) ** 2) <= 1e-18
    # Negative control: the same network against outputs that no attention gives.
    spoiled = fit_levenberg(
        data[0], np.tanh(data[1]), held_out=held_out, target_loss=1e-18, prune=prune, restarts=0, max_iterations=3
    )
    assert not spoiled.met and spoiled.held_out_loss > 1e-3


def test_a_wide_run_that_is_resumed_ends_with_the_same_bits_and_a_narrow_request_is_kept():
    xs, ys = teacher_data(WIDE_FROM, batch=40, t=32)
    options = {"held_out": (xs[:5], ys[:5]), "max_iterations": 4, "restarts": 0, "prune": False}
    seen: list[Progress] = []
    whole = fit_levenberg(xs, ys, **options, checkpoint=seen.append)
    resumed = fit_levenberg(xs, ys, **options, resume=seen[1])
    assert np.array_equal(whole.progress.state.weights.out_x, resumed.progress.state.weights.out_x)
    assert not np.array_equal(whole.progress.state.weights.out_x, seen[1].state.weights.out_x)
    narrow = fit_levenberg(xs, ys, **options, hidden=20, pre_readout=9)
    assert narrow.hidden <= 20 and narrow.pre_readout <= 9 and not narrow.met
