"""A target is one registration: what follows from it, and what is refused."""

import numpy as np
import pytest

import underhood as uh
from tests.compiler.test_compile import gated_source
from underhood.compiler import forms
from underhood.compiler.envelope import Envelope
from underhood.compiler.lowered import Lowered
from underhood.compiler.targets import ATTENTION, GATED, LINEARISED, TARGETS, register_target, source_kind
from underhood.compiler.ways import either, through_form
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


def test_the_second_way_is_taken_only_where_it_is_asked_for():
    asked = []
    first = through_form(lambda form, *_: Lowered("first", 0.0, np.zeros(1)))
    way = either(first, lambda *_: asked.append("second") or Lowered("second", 0.0, np.zeros(1)))
    lowered = way(uh.random_attention(2), Envelope(4.0, 10, np.dtype(np.float64)), 1)
    assert lowered.model == "first" and not asked
    assert lowered.otherwise().model == "second" and asked == ["second"]


def test_a_second_way_that_is_too_large_leaves_the_first(monkeypatch):
    source = uh.random_attention(3, seed=0)
    # The tolerance is just met: so near to it, a second way is tried where there is one.
    tolerance = 1.1 * uh.compile(source, to="lstm", horizon=10, tolerance=1e-2).max_rel_error
    better = uh.compile(source, to="lstm", horizon=10, tolerance=tolerance)
    monkeypatch.setattr(forms, "MOST_BYTES", 10)
    first = uh.compile(source, to="lstm", horizon=10, tolerance=tolerance)
    assert first.verified and first.max_rel_error > better.max_rel_error
    with pytest.raises(NotEnoughMemory, match="18 products of coordinates"):
        forms.coordinates(source)
