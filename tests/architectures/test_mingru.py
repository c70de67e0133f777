"""minGRU against its equations in NumPy, and against minGRU-pytorch."""

import equinox as eqx
import numpy as np
import pytest

import underhood as uh
from tests.architectures.public import FLOAT32, gradient_errors, public_outputs, sequence
from tests.architectures.references import sigmoid, transcribes
from tests.tolerance import agree, error
from underhood.architectures.mingru.cell import MinGRU
from underhood.core.model import as_dtype


@transcribes("mingru-cell")
def mingru_cell(cell, xs):
    """Algorithm 1 of the paper, or with the g of its Appendix B."""
    w_hidden, w_gate = np.split(np.asarray(cell.to_hidden_and_gate), 2)
    h, hs = np.zeros(len(w_gate)), []
    for x in xs:
        candidate, z = w_hidden @ x, sigmoid(w_gate @ x)
        if cell.candidate == "positive":
            candidate = np.array([u + 0.5 if u >= 0 else sigmoid(u) for u in candidate])
        h = (1 - z) * h + z * candidate
        hs.append(h if cell.to_out is None else np.asarray(cell.to_out) @ h)
    return np.array(hs)


def random_cell(out, candidate="positive", seed=0):
    random = np.random.default_rng(seed)
    weight = random.normal(size=(20, 6)).astype(np.float32)
    return MinGRU(weight, random.normal(size=(6, 10)).astype(np.float32) if out else None, candidate)


@pytest.mark.parametrize("out", [False, True])
def test_values_and_gradients_are_the_public_modules(out):
    cell, xs = random_cell(out), sequence(9, 6)
    assert error(cell(xs), public_outputs(cell, xs)) <= FLOAT32
    errors = gradient_errors(cell, xs)
    assert max(errors.values()) <= FLOAT32, errors


@pytest.mark.parametrize("out", [False, True])
@pytest.mark.parametrize("candidate", ["positive", "linear"])
def test_values_are_the_equations(out, candidate):
    cell, xs = as_dtype(random_cell(out, candidate), np.float64), sequence(40, 6).astype(np.float64)
    assert agree(cell(xs), mingru_cell(cell, xs))
    other = MinGRU(cell.to_hidden_and_gate, cell.to_out, "linear" if candidate == "positive" else "positive")
    assert not agree(other(xs), mingru_cell(cell, xs))


def test_a_perturbed_weight_is_noticed_by_the_public_module():
    cell, xs = random_cell(True), sequence(9, 6)
    moved = eqx.tree_at(lambda c: c.to_hidden_and_gate, cell, replace_fn=lambda w: w * 1.001)
    assert error(moved(xs), public_outputs(cell, xs)) > FLOAT32


def test_wrong_sizes_are_refused():
    with pytest.raises(uh.UnderhoodError, match=r"to_hidden_and_gate of shape \(2 × hidden, d\)"):
        MinGRU(np.ones((3, 2)))
    with pytest.raises(uh.UnderhoodError, match="hidden = 3 as in to_out"):
        MinGRU(np.ones((4, 2)), np.ones((2, 3)))
