"""API: calls of the public functions with one argument that is wrong. A line that says so, or an answer that is right.

A sound call is changed in one place, by something that a person gives by mistake: None, a word, a class in place of an
instance, a batch in place of a sequence, NaN. It survives if it raises `TypeError`, `OverflowError` or
`ValueError`, of which `UnderhoodError` is one, in one line, or returns something whose numbers are finite. What is
given stays as it was.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import traceback
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from torture.attempt import alarms
from torture.children import Child, in_processes, said
from torture.tally import Tally

CALLS = {"small": 24, "long": None}  # None: every call with every mistake, some 3,200
BATCH = 100  # calls of one process at most: its start takes longer than most of them
SECONDS = 60  # of computing, in one call

Call = tuple[Callable[..., Any], dict[str, Any]]  # function, sound arguments by name


def calls() -> dict[str, Call]:
    """Every public function with arguments that it takes."""
    import underhood as uh

    attention = uh.random_attention(2, seed=0)
    weights = {name: np.asarray(getattr(attention, name)) for name in ("w_value", "w_key", "w_query")}
    network = uh.compile(attention, to="gated-rnn", horizon=3).model
    lstm = uh.make_model("lstm", 2, hidden=3)
    task = uh.TeacherStudent(attention, 4)
    uh.save(network, "network.safetensors")
    xs = np.random.default_rng(0).standard_normal((4, 2))
    return {
        "LinearAttention": (uh.LinearAttention, {**weights, "decay": np.array([0.5])}),
        "random_attention": (uh.random_attention, {"d": 2, "heads": 2, "d_key": 2, "d_value": 3, "rank": 1, "seed": 0}),
        "gradient_descent_attention": (uh.gradient_descent_attention, {"d_x": 2, "d_y": 1, "eta": 0.1}),
        "make_model": (uh.make_model, {"name": "lstm", "d": 2, "hidden": 3, "d_out": 2, "layers": 1, "seed": 0}),
        "attention(xs)": (lambda xs: attention(xs), {"xs": xs}),
        "network(xs)": (lambda xs: network(xs), {"xs": xs}),
        "lstm(xs)": (lambda xs: lstm(xs), {"xs": xs}),
        "compile": (
            uh.compile,
            {"source": attention, "to": "gated-rnn", "layers": 1, "input_bound": 2.0, "horizon": 3, "order": 1}
            | {"dtype": "float64", "tolerance": 1e-9, "sparse": False},
        ),
        "disguise": (uh.disguise, {"model": network, "seed": 1}),
        "decompile": (
            uh.decompile,
            {"model": network, "against": attention, "tolerance": 1e-6, "input_bound": 2.0, "horizon": 3, "seed": 0},
        ),
        "probe": (
            uh.probe,
            {"function": attention, "d": 2, "against": attention, "length": 6, "input_bound": 3.0, "seed": 0},
        ),
        "in_context": (
            uh.in_context,
            {"network": attention, "d_x": 1, "d_y": 1, "observations": 3, "inputs": "uniform", "seed": 0},
        ),
        "algorithm_network": (
            uh.algorithm_network,
            {"name": "k-gradient-steps", "to": "gated-rnn", "d_x": 1, "d_y": 1, "eta": 0.1, "decay": 0.5, "beta": 0.1}
            | {"ridge": 0.1, "k": 2},
        ),
        "fit": (uh.fit, {"model": lstm, "task": task, "config": uh.FitConfig(steps=2, batch_size=2)}),
        "FitConfig": (
            uh.FitConfig,
            {"steps": 2, "batch_size": 2, "learning_rate": 1e-3, "weight_decay": 0.0, "seed": 0},
        ),
        "TeacherStudent": (uh.TeacherStudent, {"teacher": attention, "length": 4}),
        "LinearRegression": (
            uh.LinearRegression,
            {"examples": 4, "d_x": 2, "d_y": 1, "inputs": "sphere", "noise": 0.1},
        ),
        "save": (uh.save, {"model": network, "path": "out.safetensors"}),
        "load": (uh.load, {"path": "network.safetensors"}),
        "explore": (uh.explore, {"model": network, "out": "page.html", "against": attention, "xs": xs, "seed": 0}),
        "attention_map": (uh.attention_map, {"model": lstm, "xs": xs, "layer": 0, "reduce": "norm"}),
        "attend": (
            uh.attend,
            {"model": network, "xs": xs, "out": "map.html", "layer": None, "reduce": "sum", "tokens": list("abcd")},
        ),
    }


def mistakes() -> dict[str, Any]:
    """What a person gives by mistake."""
    import underhood as uh

    return {
        "None": None,
        "−1": -1,
        "0": 0,
        "2.5": 2.5,
        "NaN": float("nan"),
        "infinity": float("inf"),
        "10⁴⁰⁰": 10**400,
        "True": True,
        "no word": "",
        "a word": "nowhere/at/all",
        "bytes": b"bytes",
        "a path": Path("nowhere"),
        "an empty list": [],
        "a ragged list": [[1.0, 2.0], [3.0]],
        "a dictionary": {"w_value": 1},
        "an object": object(),
        "a class": uh.LSTM,
        "a function of nothing": lambda: None,
        "a function": lambda xs: xs,
        "no numbers": np.zeros((0, 2)),
        "a number": np.float32(3.0),
        "a vector": np.ones(2),
        "a sequence": np.ones((4, 2)),
        "other sizes": np.ones((4, 7)),
        "a batch": np.ones((3, 4, 2)),
        "four axes": np.ones((1, 1, 2, 2)),
        "NaN in an array": np.full((2, 2), np.nan),
        "complex numbers": 1j * np.ones((4, 2)),
        "words in an array": np.array([["a", "b"]]),
        "objects in an array": np.array([[object(), 1]], object),
        "whole numbers": np.ones((4, 2), np.int64),
        "half precision": np.ones((4, 2), np.float16),
        "an attention": uh.random_attention(3, seed=1),
        "an LSTM": uh.make_model("lstm", 3, hidden=2),
    }


def judged(call: Callable[[], Any]) -> str | None:
    """What is wrong with how a call ends."""
    with warnings.catch_warnings(record=True) as warned, alarms(SECONDS):
        warnings.simplefilter("always")
        try:
            answer = call()
        except (TypeError, ValueError, OverflowError) as error:
            return None if str(error).strip() and "\n" not in str(error) else f"not in one line: {str(error)[:200]!r}"
        except BaseException as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            return f"{type(error).__name__} at {Path(where.filename).name}:{where.lineno}: {str(error)[:160]}"
    told = [str(one.message) for one in warned if issubclass(one.category, RuntimeWarning)]
    return f"a warning: {told[0][:160]}" if told else _not_finite(answer)


def _not_finite(answer: Any) -> str | None:
    import jax

    for leaf in jax.tree.leaves(answer):
        if isinstance(leaf, np.ndarray | jax.Array) and leaf.dtype.kind in "fc" and not np.isfinite(leaf).all():
            return "NaN or infinite numbers came back without a word"
    return None


def ways(known: dict[str, Call], wrong: dict[str, Any], seed: int) -> list[tuple[str, str, str]]:
    """Every argument of every call with every mistake, in the order of the seed."""
    found = [(name, argument, mistake) for name in known for argument in known[name][1] for mistake in wrong]
    Random(seed).shuffle(found)
    return found


def tried(seed: int, begin: int, end: int) -> list[str | None]:
    """Calls `begin` to `end` in one process; each is changed in one place."""
    with tempfile.TemporaryDirectory() as temporary:
        os.chdir(temporary)
        known, wrong, problems = calls(), mistakes(), []
        for name, argument, mistake in ways(known, wrong, seed)[begin:end]:
            (function, sound), given = known[name], wrong[mistake]
            before = given.copy() if isinstance(given, np.ndarray) else None
            problem = judged(partial(function, **{**sound, argument: given}))
            if before is not None and problem is None and not _same(before, given):
                problem = "what was given is changed"
            problems.append(problem and f"{name}, {argument} = {mistake}: {problem}")
        os.chdir("/")
    return problems


def _same(before: np.ndarray, after: np.ndarray) -> bool:
    return before.dtype == object or before.tobytes() == after.tobytes()


def _batch(seed: int, begin: int, end: int) -> list[str | None]:
    """A process of its own; one that breaks down loses its calls."""

    def inside() -> int:
        with contextlib.redirect_stdout(None):
            problems = tried(seed, begin, end)
        print(json.dumps({"problems": problems}))
        return 0

    ended = Child(inside).wait()
    try:
        return json.loads(ended.out)["problems"]
    except (ValueError, KeyError):
        return [said(f"calls {begin} to {end}", ended)] * (end - begin)


def _ways_there_are() -> int:
    """Counted in a process of its own: batches are forks, which jax in this one would hang."""
    with tempfile.TemporaryDirectory() as temporary:

        def inside() -> int:
            os.chdir(temporary)
            print(len(ways(calls(), mistakes(), 0)))
            return 0

        return int(Child(inside).wait().out)


def run(scale: str, workers: int = 2, seed: int = 0) -> list[Tally]:
    tally = Tally("api", "one wrong argument")
    count = CALLS[scale] or _ways_there_are()
    step = min(BATCH, -(-count // workers))
    batches = [partial(_batch, seed, begin, min(begin + step, count)) for begin in range(0, count, step)]
    for problem in (one for batch in in_processes(batches, workers) for one in batch):
        tally.count(problem)
    tally.detail = "TypeError or ValueError in one line, or finite numbers; arguments untouched"
    return [tally]
