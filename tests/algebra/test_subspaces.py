"""Spans and intersections known by design; and compiler and decompiler that count alike at any angle."""

import numpy as np
import pytest

import underhood as uh
from underhood.algebra.key_values import smallest_head
from underhood.algebra.subspaces import SAME_DIRECTION, factor, independent_rows, intersect, row_space
from underhood.compiler.forms import memory_count, minimal

random = np.random.default_rng(1)


def spans(rows):
    """The projector on the span of orthonormal rows."""
    np.testing.assert_allclose(rows @ rows.T, np.eye(len(rows)), atol=1e-13)
    return rows.T @ rows


@pytest.mark.parametrize(("r", "s", "o"), [(3, 4, 2), (3, 3, 0), (2, 2, 2), (6, 2, 2), (0, 3, 0)])
def test_an_intersection_known_by_design(r, s, o):
    basis = np.linalg.qr(random.normal(size=(7, 7)))[0].T
    first = row_space(random.normal(size=(r, r)) @ basis[:r])
    second = row_space(random.normal(size=(s, s)) @ basis[r - o : r - o + s])
    common, beyond_first, beyond_second = intersect(first, second)
    assert (len(common), len(beyond_first), len(beyond_second)) == (o, r - o, s - o)
    np.testing.assert_allclose(spans(common), basis[r - o : r].T @ basis[r - o : r], atol=1e-13)
    np.testing.assert_allclose(spans(np.concatenate([common, beyond_first])), spans(first), atol=1e-13)
    np.testing.assert_allclose(spans(np.concatenate([common, beyond_second])), spans(second), atol=1e-13)


def test_a_factorisation_has_as_many_rows_as_the_rank():
    matrix = random.normal(size=(5, 2)) @ random.normal(size=(2, 4))
    columns, rows = factor(matrix)
    assert len(rows) == 2
    np.testing.assert_allclose(columns.T @ rows, matrix, atol=1e-14)
    assert len(factor(matrix + 1e-6 * random.normal(size=(5, 4)))[1]) == 4
    assert len(factor(matrix + 1e-6 * random.normal(size=(5, 4)), noise=1e-4)[1]) == 2


def test_independent_rows_express_the_others():
    basis = random.normal(size=(3, 8))
    matrix = np.concatenate([1e3 * random.normal(size=(4, 3)) @ basis, np.zeros((1, 8)), 1e-3 * basis])
    chosen, weights = independent_rows(matrix)
    assert len(chosen) == 3
    np.testing.assert_allclose(weights @ matrix[chosen], matrix, atol=1e-10)
    assert len(independent_rows(np.zeros((2, 3)))[0]) == len(independent_rows(np.zeros((0, 3)))[0]) == 0


def near(angle):
    """W_V reads e_1 and e_2, keys e_1 and a direction at this angle to e_2: four products, three where it is e_2."""
    turned = np.array([[1.0, 0, 0, 0], [0, np.cos(angle), np.sin(angle), 0]])
    mixing = np.linalg.qr(random.normal(size=(4, 4)))[0]
    w_value = np.linalg.qr(random.normal(size=(4, 4)))[0][:, :2] @ np.eye(2, 4)
    return uh.LinearAttention(w_value @ mixing, turned @ mixing, np.eye(2, 4) @ mixing)


@pytest.mark.parametrize(("angle", "memory"), [(1e-3, 4), (1e-5, 4), (1e-9, 4), (1e-16, 3), (0.0, 3)])
def test_compiler_and_decompiler_agree_on_directions_that_nearly_coincide(angle, memory):
    """Pivots saw two directions at 1e-5 rad where cosines saw one, and left an error of 1e-5 behind."""
    attention = near(angle)
    form = minimal(attention)
    assert memory_count(attention) == [(memory, 2)]
    assert (form.memory, form.products) == (memory, memory)
    assert smallest_head(np.asarray(attention.w_value[0]), attention.key_query[0]).memory == memory
    network = uh.compile(attention, to="gated-rnn", horizon=20).model  # Figure 1: 8 memories, whatever the angle
    found = uh.decompile(network, horizon=20)
    assert (found.hidden_after, found.pre_readout_after) == (memory + 2, memory)
    assert found.reduced_change <= 1e-11
    assert uh.compile(attention, to="gated-rnn-minimal", horizon=20).verified


def test_heads_that_nearly_share_a_memory():
    """The same decision through pivots: two heads whose only products are at an angle to each other."""

    def two(angle):
        value = np.zeros((2, 2, 3))  # each writes to an output of its own
        value[0, 0, 0], value[1, 1, :2] = 1.0, (np.cos(angle), np.sin(angle))
        return uh.LinearAttention(value, np.tile(np.eye(3)[2:], (2, 1, 1)), np.eye(3)[:2, None])

    for angle, memory in ((1e-5, 2), (SAME_DIRECTION / 100, 1)):
        attention = two(angle)
        assert minimal(attention).memory == memory
        found = uh.decompile(uh.compile(attention, to="gated-rnn", horizon=20).model, horizon=20)
        assert found.hidden_after == memory + 2
