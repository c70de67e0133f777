"""One line, in either way of saying it, and the same after a trip through another process."""

import pickle

import pytest

import underhood as uh


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("expected a seed of 0 or more", -1, "Use --seed 0."), "expected a seed of 0 or more; got -1. Use --seed 0."),
        (("expected a seed of 0 or more", -1), "expected a seed of 0 or more; got -1."),
        (("no such file: a.safetensors",), "no such file: a.safetensors"),
        (("no such folder: a", "", "Make it first."), "no such folder: a. Make it first."),
        (("it ends here.", "", "Go on."), "it ends here. Go on."),
        (("two\nlines", "a\n b"), "two lines; got a b."),
    ],
)
def test_both_ways_read_as_a_sentence(arguments, text):
    error = uh.UnderhoodError(*arguments)
    assert str(error) == text
    assert str(pickle.loads(pickle.dumps(error))) == text


def test_a_refusal_stays_data_through_a_pickle():
    refusal = uh.NotConstructible("lru", layers=1, needs=2, reason="needs input gating", source="Table 3")
    again = pickle.loads(pickle.dumps(refusal))
    assert isinstance(again, uh.NotConstructible)
    assert again.as_data() == refusal.as_data()
