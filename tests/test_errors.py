"""One line, in either way of saying it, and the same after a trip through another process."""

import pickle
import subprocess
import sys

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


MISTAKES = """
import underhood as uh
for call in (
    lambda: uh.make_model("lstm", 2, hidden=2.5),
    lambda: uh.TeacherStudent("attn.safetensors", 4),
    lambda: uh.make_model("lstm", 2, hidden=2) and uh.TeacherStudent(uh.random_attention(2), 4),
):
    try:
        print(type(call()).__name__)
    except uh.UnderhoodError as error:
        print(error)
"""


def test_wrong_types_have_their_line_without_the_checks_of_these_tests():
    """Here beartype refuses them first; a user has no beartype."""
    done = subprocess.run([sys.executable, "-c", MISTAKES], capture_output=True, text=True)
    first, second, sound = done.stdout.splitlines()
    assert first == "expected hidden to be a whole number; got 2.5."
    assert second.startswith("expected a linear attention; got str. Draw one with underhood sample")
    assert sound == "TeacherStudent"
