"""One line, in either way of saying it, and the same after a trip through another process."""

import ast
import pickle
import re
import subprocess
import sys
from pathlib import Path

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


@pytest.mark.parametrize(
    ("remedy", "shell"),
    [
        ("Use `resume=True` or another `out`.", "Use --resume or another --out."),
        ("Lower `learning_rate`.", "Lower --learning-rate."),
        ("Use `to='gated-rnn-minimal'`.", "Use --to gated-rnn-minimal."),
        ("Run `underhood sweep` first.", "Run `underhood sweep` first."),  # no setting
    ],
)
def test_python_is_told_of_settings_and_the_shell_of_flags(remedy, shell):
    error = uh.UnderhoodError("`d` is what it is", "`d`", remedy)  # what a user wrote stays as it is
    assert str(error) == f"`d` is what it is; got `d`. {remedy}"
    assert error.for_shell == f"`d` is what it is; got `d`. {shell}"
    assert (error.as_data()["error"], error.as_data()["remedy"]) == (error.for_shell, shell)


def flags_in(source):
    """(line, text) of the strings that name a flag, other than in a whole command; docstrings may."""
    nodes = list(ast.walk(ast.parse(source)))
    inner = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    inner |= {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if not isinstance(node, ast.Constant | ast.JoinedStr) or id(node) in inner:
            continue
        # Without commands, from the name to the end of the sentence; without git's own. CSS has a colon or a bracket.
        text = re.sub(r"\b(?:underhood|dask) \w+[^.]*|--porcelain", "", words(node))
        if re.search(r"(?<![\w(-])--[a-z-]+(?![\w:-])", text):
            yield node.lineno, text


def test_the_library_names_no_flags():
    package = Path(uh.__file__).parent
    sources = [
        path
        for path in sorted(package.rglob("*.py"))
        if path.parent.name != "commands" and path.stem not in ("cli", "interrupts")
    ]
    found = [f"{path.relative_to(package)}:{at}: {text}" for path in sources for at, text in flags_in(path.read_text())]
    assert not found


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('UnderhoodError("a", remedy="Use --out.")', 1),
        ('remedy = f"Use --kind {kind}."', 1),
        ('"--scheduler needs dask" + "x"', 1),
        ('remedy = "Read it first: underhood decompile --out."', 0),
        ('remedy = "Run underhood sweep first. Use --out."', 1),
        ('def f():\n    """As `underhood train --seeds 3`."""', 0),
        ('remedy = "Use `out`."', 0),
    ],
)
def test_that_check_finds_flags(source, found):
    assert len(list(flags_in(source))) == found


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


# "; got …" follows the rule: it has to say what was wanted or what is wrong, never the rule as if it were the case.
KINDS = ("UnderhoodError", "NotFinite", "NotDiagonalisable", "NotEnoughMemory", "Diverged")
SAYS = re.compile(r"(?:^|: )no \w|\b(?:expected|expects|needs|unknown|cannot)\b")


def words(rule):
    """The rule's own words, or none where it hands on those of another error."""
    if isinstance(rule, ast.Constant):
        return str(rule.value)
    if not isinstance(rule, ast.JoinedStr) or ".rule}" in ast.unparse(rule):
        return ""
    text = "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in rule.values)
    return text if re.search(r"\w", text) else ""


def rules_as_facts(source):
    """(line, rule) of the errors with a `got` whose rule, written there or in a name above, would say the opposite."""
    nodes = list(ast.walk(ast.parse(source)))
    named = {}
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            named.setdefault(node.targets[0].id, []).append(node)
    for node in nodes:
        if not (isinstance(node, ast.Call) and ast.unparse(node.func) in KINDS and node.args):
            continue
        if len(node.args) == 1 and all(keyword.arg != "got" for keyword in node.keywords):
            continue
        rule = node.args[0]
        if isinstance(rule, ast.Name):
            before = [one for one in named.get(rule.id, ()) if one.lineno < node.lineno]
            rule = max(before, key=lambda one: one.lineno).value if before else rule
        text = words(rule)
        if text and not SAYS.search(text):
            yield node.lineno, text


def test_no_message_states_the_broken_rule_as_a_fact():
    package = Path(uh.__file__).parent
    found = {
        f"{path.relative_to(package)}:{line}: {text}"
        for path in sorted(package.rglob("*.py"))
        for line, text in rules_as_facts(path.read_text(encoding="utf-8"))
    }
    assert not found


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('UnderhoodError(f"{path} is a whole file", error)', 1),
        ('UnderhoodError("λ lies in [0, 1]", got="2")', 1),
        ('rule = f"{name} has shape {wanted}"\nraise UnderhoodError(rule, shape)', 1),
        ('UnderhoodError("the attention has no biases", "one")', 1),
        ('UnderhoodError(f"{path} is damaged: {error}")', 0),
        ('UnderhoodError("it is not zero", remedy="Train without biases.")', 0),
        ('UnderhoodError(f"{path}: expected λ in [0, 1]", "2")', 0),
        ('UnderhoodError(f"{path}: no tensors here", "w")', 0),
        ('UnderhoodError(f"runs[{index}]: {error.rule}", error.got)', 0),
    ],
)
def test_the_check_itself_finds_such_messages(source, found):
    assert len(list(rules_as_facts(source))) == found
