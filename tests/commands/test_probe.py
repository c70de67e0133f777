"""probe as a user types it: sizes, mistakes, own inputs, and what the function is instead."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from underhood.cli import main

SOURCE = """
import sys
import numpy as np

def attention(xs):
    return np.tril(xs @ xs.T) @ xs

def shifted(xs):
    return attention(xs) + 1.0

def on_positive(xs):
    return attention(np.abs(xs))

def leaves(xs):
    sys.exit(0)

class Network:
    def __call__(self, xs):
        return attention(xs)
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "probed_by_hand.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "probed_by_hand", raising=False)


def _probe(*arguments: str) -> int:
    return main(["probe", *arguments])


def test_a_no_is_diagnosed(capsys: pytest.CaptureFixture[str]) -> None:
    assert _probe("probed_by_hand:shifted", "--d", "2", "--json") == 1
    (first, *_) = json.loads(capsys.readouterr().out)["diagnosis"]
    assert (first["what"], round(first["r2"], 6)) == ("constant-output", 1.0)
    assert first["remedy"]
    assert _probe("probed_by_hand:shifted", "--d", "2") == 1
    assert "constant-output: attention plus a constant output (R² = 1)" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("probed_by_hand:attention", "--d", "1000000"), "not enough memory for probing d = 1000000"),
        (("probed_by_hand:attention", "--d", "2", "--length", "1000000000"), "not enough memory"),
        (("probed_by_hand:attention", "--d", "2", "--length", "1"), "expected length of 3 or more; got 1"),
        (("probed_by_hand:attention", "--d", "-2"), "expected d of 1 or more; got -2"),
        (("probed_by_hand:attention", "--d", "0"), "expected d of 1 or more; got 0"),
        (("probed_by_hand:attention", "--d", "3", "--inputs", "pairs.npy"), "expected sequences with 3 inputs"),
        (("probed_by_hand:attention", "--d", "3", "--task", "linear-regression"), "got 6 inputs. Leave out --d"),
        (("probed_by_hand:attention", "--d", "2", "--seed", "-1"), "expected a seed of 0 or more"),
        (("probed_by_hand:attention",), "cannot tell the input size"),
        (("probed_by_hand:leaves", "--d", "2"), "SystemExit: 0"),
        (("probed_by_hand:Network", "--d", "2"), "not the class Network"),
        (("probed_by_hand:attention", "--inputs", "none.npy"), "none.npy"),
        (("probed_by_hand:attention", "--inputs", "probed_by_hand.py"), "cannot read numbers from"),
        (("probed_by_hand:attention", "--inputs", "flat.npy"), "expected two or more sequences"),
        (("probed_by_hand:attention", "--inputs", "complex.npy"), "expected real numbers in complex.npy"),
        (("probed_by_hand:attention", "--inputs", "flat.npy", "--task", "teacher-student"), "not both"),
        (("probed_by_hand:attention", "--task", "no-such-task"), "no-such-task"),
    ],
)
def test_one_line_for_each_mistake(arguments: tuple[str, ...], message: str, capsys) -> None:
    np.save("flat.npy", np.ones((5, 2)))
    np.save("complex.npy", np.zeros((4, 5, 3), complex))
    np.save("pairs.npy", np.ones((4, 5, 2)))
    assert _probe(*arguments) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("underhood: ") and message in line


@pytest.mark.parametrize(
    "name, remedy",
    [
        ("probed_by_hand", "package.module:callable"),
        ("probed_by_hand.py:attention", "Use probed_by_hand:attention."),
        ("rnn", "underhood decompile rnn"),
    ],
)
def test_a_name_that_names_no_function_runs_nothing(name: str, remedy: str, capsys) -> None:
    Path("rnn").write_text("a network, say")
    assert _probe(name, "--d", "2") == 2
    error = capsys.readouterr().err
    assert "running" not in error and remedy in error and error.count("\n") == 1


@pytest.mark.parametrize("sizes", [("--d", "100000"), ("--d", "4", "--length", "100000")])
def test_sizes_beyond_8_gigabytes_are_refused_before_anything_is_drawn(sizes, monkeypatch, capsys) -> None:
    monkeypatch.setattr("underhood.core.memory.available_memory", lambda: 8e9)
    assert _probe("probed_by_hand:attention", *sizes) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert "not enough memory" in line and "8 GB are free" in line


def test_inputs_of_ones_own(capsys: pytest.CaptureFixture[str]) -> None:
    """Attention on positive inputs only: no in general, yes on these."""
    np.save("xs.npy", np.abs(np.random.default_rng(0).standard_normal((128, 10, 2))))
    assert _probe("probed_by_hand:on_positive", "--inputs", "xs.npy", "--json") == 1
    printed = json.loads(capsys.readouterr().out)
    assert printed["r2_on_inputs"] == pytest.approx(1.0, abs=1e-9) and printed["r2"] < 0.9


def test_inputs_of_a_task(capsys: pytest.CaptureFixture[str]) -> None:
    assert _probe("probed_by_hand:attention", "--task", "linear-regression") == 0
    assert "R² on your inputs" in capsys.readouterr().out
