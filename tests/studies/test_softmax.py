"""The study of softmax in a fixed state: its bounds against what is measured, its floor against the definition."""

import numpy as np
import pytest

from underhood.attention.polynomials import exponential
from underhood.studies import softmax as study


@pytest.fixture(scope="module")
def cells():
    return [study.study_cell(2, 1.0), study.study_cell(2, 8.0)]


def test_measured_errors_are_within_bounds_and_near_them(cells):
    for cell in cells:
        assert cell.bound / 10 < cell.measured <= cell.bound <= study.WANTED
        assert dict(cell.ours)[cell.numbers] == cell.bound


def test_a_degree_less_is_not_enough(cells):
    """Negative control."""
    for cell in cells:
        fewer = exponential(cell.degree - 1, cell.scores)
        assert max(study.polynomial_error(fewer, 2, seed) for seed in range(3)) > cell.bound


def test_states_count_features_and_sums():
    assert study.state_numbers(2, 6) == 28 * 3


@pytest.mark.parametrize(("d_key", "scores"), [(2, 4.0), (4, 8.0)])
def test_keys_told_apart(d_key, scores):
    """More with sharper scores, and no more than weights of one half allow: N − 1 others of e^{−2B} at least."""
    found = study.keys_told_apart(d_key, scores)
    assert study.keys_told_apart(d_key, scores / 4) < found <= np.exp(2 * scores) + 1


def test_rows_and_figure(cells):
    wide = [study.Cell(d_key, scores, *_fields(cells[0])) for d_key in study.KEYS for scores in study.SCORES]
    rows = study._rows(wide)
    assert len({row.name for row in rows}) == len(rows) == 8 * 16
    assert all(row.paper is None for row in rows)
    assert len(study.draw_softmax(wide).axes) == 4
    assert "1 %" not in study.in_a_sentence(wide) and "one percent" in study.in_a_sentence(wide)


def _fields(cell):
    return cell.ours, cell.taylor, cell.random, cell.degree, cell.measured, cell.items
