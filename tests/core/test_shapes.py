"""Sizes follow from annotations: every weight of every architecture with one axis too long is refused, by name."""

import dataclasses
from typing import ClassVar

import equinox as eqx
import numpy as np
import pytest
from jaxtyping import Array, Float

import underhood as uh
from underhood.core.model import ARCHITECTURES, Part, part, tensor
from underhood.core.shapes import check_shapes

CONVOLVED = ("conv", "conv_", "q_conv", "k_conv")
MODELS = {name: uh.make_model(name, 3, hidden=8, d_out=2) for name in ARCHITECTURES}
MODELS["linear-attention"] = uh.random_attention(3, heads=2, d_key=2, d_value=4, seed=0)
MODELS["lstm of compile"] = uh.compile(uh.random_attention(2, seed=0), to="lstm").model


def arrays(module, path=()):
    """(path of field names and positions, array)."""
    if isinstance(module, tuple):
        fields = dict(enumerate(module))
    else:
        fields = {field.name: getattr(module, field.name) for field in dataclasses.fields(module)}
    for name, value in fields.items():
        if isinstance(value, Part) or (isinstance(value, tuple) and value and isinstance(value[0], Part)):
            yield from arrays(value, (*path, name))
        elif hasattr(value, "shape"):
            yield (*path, name), value


def changed(module, path, value):
    """The module with another array, remade from the inside out."""
    if not path:
        return value
    name, *rest = path
    if isinstance(module, tuple):
        return tuple(changed(each, rest, value) if index == name else each for index, each in enumerate(module))
    fields = {field.name: getattr(module, field.name) for field in dataclasses.fields(module)}
    return type(module)(**{**fields, name: changed(fields[name], rest, value)})


# What nothing else has to agree with: the inputs and outputs of a whole, and the widths of convolutions.
FREE = {("embedding", "weight", 1), ("readout", 0), ("w_value", 1), *((f"{name}1d", "weight", 1) for name in CONVOLVED)}


@pytest.mark.parametrize("name", MODELS)
def test_one_axis_too_long_is_refused(name):
    model = MODELS[name]
    for path, array in arrays(model):
        same = np.asarray(array)
        assert type(changed(model, path, same)) is type(model)  # negative control
        for axis in range(array.ndim):
            longer = np.concatenate([same, same.take([0], axis)], axis)
            if {(*path[-2:], axis), (*path[-1:], axis)} & FREE:
                changed(model, path, longer)
                continue
            with pytest.raises(uh.UnderhoodError, match="expected") as caught:
                changed(model, path, longer)
            assert caught.value.got and "\n" not in str(caught.value)


class Pair(Part):
    """Sums and quotients of names, a setting, and an attribute."""

    kind: ClassVar[str] = "pair of test_shapes"

    first: Float[Array, "rows columns"] = tensor()
    second: Float[Array, " rows*columns"] = tensor()
    third: Float[Array, "rows+1 2"] | Float[Array, " blocks"] | None = tensor(optional=True, default=None)
    fourth: Float[Array, "*any"] | None = tensor(optional=True, default=None)
    blocks: int = eqx.field(static=True, default=2)


def test_the_message_names_the_sizes_and_where_they_come_from():
    Pair(np.ones((2, 3)), np.ones(6), np.ones((3, 2)), np.ones((1, 2, 3)))
    Pair(np.ones((2, 3)), np.ones(6), np.ones(2))
    with pytest.raises(uh.UnderhoodError) as caught:
        Pair(np.ones((2, 3)), np.ones(5))
    wanted = "expected second of shape (rows × columns) with rows = 2 and columns = 3 as in first; got shape (5,)."
    assert str(caught.value) == wanted
    for third in (np.ones(3), np.ones((2, 2)), np.ones((3, 3)), np.ones((3, 2, 1))):
        with pytest.raises(uh.UnderhoodError, match=r"expected third of shape \(rows \+ 1, 2\) or \(blocks\)"):
            Pair(np.ones((2, 3)), np.ones(6), third)
    with pytest.raises(uh.UnderhoodError, match="each 1 or more; got shape"):
        Pair(np.ones((0, 3)), np.ones(0))


class Whole(Part):
    """A part whose sizes are stated where it is used."""

    kind: ClassVar[str] = "whole of test_shapes"

    gain: Float[Array, " n"] = tensor()
    inner: Pair = part(Pair.kind, rows="n", columns="n+1")


def test_the_sizes_of_a_part():
    Whole(np.ones(2), Pair(np.ones((2, 3)), np.ones(6)))
    with pytest.raises(uh.UnderhoodError) as caught:
        Whole(np.ones(2), Pair(np.ones((2, 4)), np.ones(8)))
    assert str(caught.value) == "expected inner with 3 columns (n + 1, n = 2 as in gain); got 4 columns."
    assert check_shapes(Pair(np.ones((2, 3)), np.ones(6))) == {"blocks": 2, "rows": 2, "columns": 3}
