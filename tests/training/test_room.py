"""What cannot fit is refused before it is made; what is made fits the bound from below."""

import jax
import numpy as np
import pytest

import underhood as uh
from underhood.core import memory
from underhood.core.model import ARCHITECTURES
from underhood.training.room import require_room, shape_of

TASK = uh.TeacherStudent(uh.random_attention(3), 8)


@pytest.mark.parametrize("name", list(ARCHITECTURES))
def test_shapes_without_memory(name):
    shape, made = shape_of(lambda: uh.make_model(name, 3, hidden=5)), uh.make_model(name, 3, hidden=5)
    shapes = [[np.shape(leaf) for leaf in jax.tree.leaves(tree)] for tree in (shape, made)]
    assert shapes[0] == shapes[1]
    huge = shape_of(lambda: uh.make_model(name, 3, hidden=10**6))  # would take terabytes
    assert max(np.prod(leaf.shape) for leaf in jax.tree.leaves(huge)) >= 10**6


def test_a_maker_that_computes_with_numpy_is_simply_called():
    made = shape_of(lambda: uh.GatedRNN.from_lambda(*_parts(np.asarray(jax.numpy.ones(2)))))
    assert made.hidden == 2


def _parts(lambda_):
    one = uh.Gating(np.ones((2, 3)), np.ones((2, 3)))
    return one, lambda_, uh.Gating(np.ones((2, 2)), np.ones((2, 2))), np.ones((1, 2))


def test_need_and_limit_are_told_for_weights_and_for_sequences(monkeypatch):
    monkeypatch.setattr(memory, "available_memory", lambda: 1e6)
    small = uh.make_model("lstm", 3, hidden=4)
    require_room(small, 1, TASK, uh.FitConfig())
    for members, config in ((10**6, uh.FitConfig()), (1, uh.FitConfig(batch_size=10**6))):
        with pytest.raises(uh.UnderhoodError, match=r"not enough memory.*at least .* and 1 MB are free"):
            require_room(small, members, TASK, config)
    with pytest.raises(uh.UnderhoodError, match="not enough memory"):
        uh.fit(small, TASK, uh.FitConfig(batch_size=10**6))
