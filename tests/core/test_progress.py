"""The line about long work: how much is done, and the time that is left."""

import io
import sys

import numpy as np

from underhood.core import progress


def test_a_line_with_the_time_left(monkeypatch, capsys):
    clock = iter([0.0, 1.0, 20.0, 61.0, 62.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    shown = progress.Progress("x", 1000, "steps")
    for step in (100, 200, 700, 800):
        shown.losses(step, np.array([0.5]))
    assert capsys.readouterr().err == "x: 700 of 1,000 steps · loss 5.00e-01 · 0 min left\n"
    assert next(clock, None) is None


def test_what_has_no_end_and_what_is_said_at_once(capsys):
    with progress.Progress("seed 3", None) as shown:
        shown.update(1, "iteration 1")
        shown.update(2, "held-out loss 1e-20", now=True)
    assert capsys.readouterr().err == "seed 3: held-out loss 1e-20\n"


def test_a_terminal_gets_a_bar(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress.Progress("x", 10, "steps") as shown:
        shown.losses(5, np.array([0.5]))
    assert "50 %" in terminal.getvalue()
    assert "loss 5.00e-01" in terminal.getvalue()
