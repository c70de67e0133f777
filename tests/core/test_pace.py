"""The line about a long run: its step, its loss and the time that is left."""

import numpy as np

from underhood.core import pace


def test_a_line_with_the_time_left(monkeypatch, capsys):
    clock = iter([0.0, 1.0, 20.0, 61.0, 62.0])
    monkeypatch.setattr(pace.time, "monotonic", lambda: next(clock))
    watch = pace.Pace("x", 1000)
    for step in (100, 200, 700, 800):
        watch(step, np.array([0.5]))
    assert capsys.readouterr().err == "x: 700 of 1,000 steps · loss 5.00e-01 · 0 min left\n"
    assert next(clock, None) is None
