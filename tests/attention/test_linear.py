"""Eq. 1: the masked matrix and the recurrence against a double loop, and what a LinearAttention refuses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import underhood as uh
from tests.architectures.references import attention as double_loop
from tests.tolerance import agree


@pytest.mark.parametrize(
    ("d", "d_key", "d_value", "heads", "length"),
    [(1, 1, 1, 1, 1), (1, 3, 2, 1, 2), (4, 4, 4, 1, 17), (5, 2, 3, 2, 17), (3, 1, 4, 3, 2), (2, 4, 1, 2, 33)],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_naive_and_recurrent_match_a_double_loop(d, d_key, d_value, heads, length, seed):
    attention = uh.random_attention(d, heads=heads, d_key=d_key, d_value=d_value, seed=seed)
    xs = np.random.default_rng(seed).normal(size=(length, d))
    expected = double_loop(attention, xs)
    assert agree(attention(xs), expected)
    assert agree(attention.naive(xs), expected)


def test_gradients_of_both_forms_agree():
    attention = uh.random_attention(3, heads=2, seed=1)
    xs, weights = np.random.default_rng(0).normal(size=(2, 33, 3))
    with jax.enable_x64(True):
        by_form = [
            jax.grad(lambda attention, form=form: jnp.sum(jnp.asarray(weights) * form(attention)))(attention)
            for form in (lambda a: a(jnp.asarray(xs)), lambda a: a.naive(jnp.asarray(xs)))
        ]
    for one, other in zip(*map(jax.tree.leaves, by_form), strict=True):
        assert agree(one, other)


def test_state_carries_over():
    attention, xs = (
        uh.random_attention(3, heads=2, d_key=2, seed=1),
        np.random.default_rng(0).normal(size=(40, 3)),
    )
    first, state = attention.scan(xs[:15])
    assert state.shape == (2, 3, 2)
    second, _ = attention.scan(xs[15:], state)
    assert agree(np.concatenate([first, second]), double_loop(attention, xs))
    assert not agree(attention(xs[15:]), second)


def test_one_head_may_come_without_its_axis():
    w = np.random.default_rng(0).normal(size=(3, 4, 4))
    assert uh.LinearAttention(*w).heads == 1
    assert agree(uh.LinearAttention(*w)(np.eye(4)), uh.LinearAttention(*w[:, None])(np.eye(4)))


@pytest.mark.parametrize(
    ("shapes", "says"),
    [
        (((4, 4), (3, 4), (2, 4)), "w_query of shape"),
        (((4, 4), (3, 5), (3, 5)), "w_key of shape"),
        (((4,), (4, 4), (4, 4)), "w_value of shape"),
        (((2, 4, 4), (3, 4, 4), (3, 4, 4)), "w_key of shape"),
        (((0, 4), (4, 4), (4, 4)), "w_value of shape"),
    ],
)
def test_mismatched_shapes_are_refused(shapes, says):
    with pytest.raises(uh.UnderhoodError, match=says):
        uh.LinearAttention(*map(np.zeros, shapes))


def test_gradient_descent_attention_is_one_step():
    """Eq. 4 against its own formula on a regression task with the query (x, 0) at the end."""
    random = np.random.default_rng(0)
    x, w = random.normal(size=(13, 3)), random.normal(size=(2, 3))
    y = x @ w.T
    y[-1] = 0
    output = uh.gradient_descent_attention(3, 2, eta=0.07)(np.hstack([x, y]))[-1]
    assert agree(output, np.concatenate([np.zeros(3), 0.07 * sum(np.outer(y[t], x[t]) for t in range(12)) @ x[-1]]))


@pytest.mark.parametrize("rank", [0, 1, 2, 3])
def test_rank_is_what_was_asked(rank):
    attention = uh.random_attention(5, d_key=4, d_value=3, heads=2, rank=rank, seed=3)
    for weight in (attention.w_value, attention.w_key, attention.w_query):
        assert [np.linalg.matrix_rank(np.asarray(head)) for head in weight] == [rank, rank]


@pytest.mark.parametrize("wrong", [{"d": 0}, {"heads": 0}, {"rank": 5}, {"rank": -1}, {"seed": -1}, {"d_key": 0}])
def test_impossible_sizes_are_refused(wrong):
    with pytest.raises(uh.UnderhoodError):
        uh.random_attention(**{"d": 4, **wrong})
