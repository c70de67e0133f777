"""A target is one registration: what follows from it, and what is refused."""

import dataclasses

import numpy as np
import pytest

import underhood as uh
from tests.compiler.test_compile import CANCELLING, gated_source
from underhood.compiler import forms
from underhood.compiler.settings import SETTINGS
from underhood.compiler.targets import ATTENTION, GATED, LINEARISED, TARGETS, register_target, source_kind
from underhood.core.errors import NotConstructible, UnderhoodError
from underhood.core.memory import NotEnoughMemory
from underhood.core.registry import Registry


@pytest.fixture
def mine(monkeypatch):
    """A registry of its own, with one target of another package in it."""
    monkeypatch.setattr("underhood.compiler.targets.TARGETS", Registry("target"))
    monkeypatch.setattr("underhood.compiler.compile.TARGETS", Registry("target"))
    way = TARGETS["lru-in-out"].ways[ATTENTION, 1]
    registered = register_target("mine", attention={2: way}, why_not_fewer="one is not enough", source="a note")
    monkeypatch.setattr("underhood.compiler.compile.TARGETS", {"mine": registered})
    return registered


def test_a_registered_target_compiles(mine):
    compiled = uh.compile(uh.random_attention(2), to="mine", horizon=20)
    assert compiled.verified and (compiled.target, compiled.layers, compiled.exact) == ("mine", 2, False)
    assert mine.tolerances is LINEARISED
    with pytest.raises(NotConstructible, match=r"one is not enough \(a note\)"):
        uh.compile(uh.random_attention(2), to="mine", layers=1)


def test_a_source_without_a_construction_is_refused_in_one_line():
    for target in ("gated-rnn-compact", "gated-rnn-minimal"):
        says = f"no construction of {target} from a {GATED}. Start from a {ATTENTION}"
        with pytest.raises(UnderhoodError, match=says):
            uh.compile(gated_source(), to=target)


def test_the_kind_of_a_source():
    assert source_kind(uh.random_attention(2)) == ATTENTION
    assert source_kind(gated_source()) == GATED
    with pytest.raises(UnderhoodError, match="expects a linear attention"):
        source_kind("attention")


def test_the_second_form_is_taken_only_where_the_first_comes_near_its_limits(monkeypatch):
    asked = []
    way = TARGETS["lstm"].ways[ATTENTION, 1]
    second = dataclasses.replace(way, second=lambda source: asked.append("second") or way.second(source))
    monkeypatch.setitem(TARGETS["lstm"].ways, (ATTENTION, 1), second)
    uh.compile(uh.random_attention(2, seed=0), to="lstm", horizon=10, tolerance=1e-2)
    assert not asked
    uh.compile(uh.random_attention(**CANCELLING[0]), to="lstm", horizon=10)
    assert asked == ["second"]


def test_a_second_form_that_is_too_large_leaves_the_first(monkeypatch):
    source = uh.random_attention(3, seed=0)
    # The tolerance is just met: so near to it, a second form is tried where there is one.
    tolerance = 1.1 * uh.compile(source, to="lstm", horizon=10, tolerance=1e-2).max_rel_error
    better = uh.compile(source, to="lstm", horizon=10, tolerance=tolerance)
    monkeypatch.setattr(forms, "SETTINGS", dataclasses.replace(SETTINGS, most_bytes=10))
    first = uh.compile(source, to="lstm", horizon=10, tolerance=tolerance)
    assert first.verified and first.max_rel_error > better.max_rel_error
    with pytest.raises(NotEnoughMemory, match="18 products of coordinates"):
        forms.coordinates(source)


def test_layers_beyond_those_that_are_built_are_refused_with_the_fewest():
    with pytest.raises(NotConstructible, match="no construction with 3 layers") as caught:
        uh.compile(uh.random_attention(2), to="lstm", layers=3)
    assert caught.value.needs == 1 and "1 or 2 layers" in str(caught.value)


def test_the_fewest_layers_are_the_default():
    source = uh.random_attention(2, seed=1)
    assert uh.compile(source, to="gru", horizon=20).layers == 1
    decayed = uh.LinearAttention(source.w_value, source.w_key, source.w_query, decay=np.array([0.9]))
    assert uh.compile(decayed, to="gru", horizon=20).layers == 2
