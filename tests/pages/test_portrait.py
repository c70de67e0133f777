"""A picture of any network: every weight once, the same bytes each time, refusals in one line."""

import numpy as np
import pytest

import underhood as uh
from underhood.core.errors import UnderhoodError
from underhood.core.model import ARCHITECTURES
from underhood.pages.portrait import lines_of, portrait


@pytest.mark.parametrize("name", sorted(ARCHITECTURES))
def test_every_weight_of_every_architecture_is_drawn(name, tmp_path):
    model = uh.make_model(name, 2, hidden=3)
    drawn = sum(np.size(panel.values) for line in lines_of(model) for panel in line.panels)
    assert drawn == model.parameters
    assert len(portrait(model).axes) == sum(len(line.panels) for line in lines_of(model))


@pytest.mark.parametrize(("suffix", "head"), [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")])
def test_the_name_decides_the_format(suffix, head, tmp_path):
    model = uh.compile(uh.random_attention(2, seed=0)).model
    one = uh.draw(model, tmp_path / f"a.{suffix}", title="mine").read_bytes()
    assert one.startswith(head)
    assert one == uh.draw(model, tmp_path / f"b.{suffix}", title="mine").read_bytes()


def test_what_cannot_be_drawn_is_refused(tmp_path):
    model = uh.random_attention(2, seed=0)
    with pytest.raises(UnderhoodError, match=r"ends in \.png, \.pdf or \.svg; got .*a\.jpg"):
        uh.draw(model, tmp_path / "a.jpg")
    with pytest.raises(UnderhoodError, match="expected a model of this package; got ndarray"):
        portrait(np.ones(2))
    with pytest.raises(UnderhoodError, match="expected at most 20,000 weights"):
        portrait(uh.random_attention(100, seed=0))
