"""Numbers at the edge: each command gives the right answer or says that it cannot.

A network that `compile` calls verified is compared with Eq. 1 in exact rational arithmetic, on inputs that it was not
measured with: its error must be within the bound it was given. A network that is refused, or that the compiler
itself calls not verified, survives as well; a NaN that is passed on, or a traceback, does not.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from torture.attempt import attempt
from torture.children import command, in_processes
from torture.tally import Tally

TARGETS = ("gated-rnn", "gated-rnn-compact", "gated-rnn-minimal", "lru", "lru-in-out", "lru-in-skip", "lstm", "gru")


def sources() -> dict[str, Any]:
    """Attentions that are hard to compute with, by name."""
    import jax

    import underhood as uh

    def attention(scale: float = 1.0, d: int = 2, seed: int = 0, **more: Any) -> Any:
        made = uh.random_attention(d, seed=seed, **more)
        weights = made.w_value, made.w_key, made.w_query
        return uh.LinearAttention(*(scale * np.asarray(weight) for weight in weights))

    one = attention(d=3)
    left, _, right = np.linalg.svd(np.asarray(one.w_value[0]))
    ill = left @ np.diag([1.0, 1e-6, 1e-12]) @ right
    two = attention(heads=2)
    silent = np.array(two.w_value)
    silent[1] = 0
    huge = np.array(attention().w_value)
    huge[0, 0, 0] = 1e200
    return {
        "usual": attention(),
        "d = 1": attention(d=1),
        "d = 1, negative": attention(-1.0, d=1),
        "overflow, 1e200": attention(1e200),
        "overflow of the product, 1e110": attention(1e110),
        "large, 1e30": attention(1e30),
        "small, 1e-30": attention(1e-30),
        "products underflow, 1e-110": attention(1e-110),
        "denormal, 1e-310": attention(1e-310),
        "one entry of 1e200": uh.LinearAttention(huge, two.w_key[:1], two.w_query[:1]),
        "scales apart, 1e150 and 1e-150": uh.LinearAttention(
            1e150 * np.asarray(one.w_value), 1e-150 * np.asarray(one.w_key), one.w_query
        ),
        "W_V of condition 1e12": uh.LinearAttention(ill, one.w_key, one.w_query),
        "W_K of condition 1e12": uh.LinearAttention(one.w_value, ill, one.w_query),
        "all zero": attention(0.0),
        "a head of rank 0": uh.LinearAttention(silent, two.w_key, two.w_query),
        "rank 0": attention(rank=0),
        "rank 1": attention(d=3, rank=1),
        "decay 0 and 1": uh.LinearAttention(two.w_value, two.w_key, two.w_query, np.array([0.0, 1.0])),
        "decay next to 1": uh.LinearAttention(two.w_value, two.w_key, two.w_query, np.array([1 - 2**-53, 0.5])),
        "heads that cancel": uh.LinearAttention(
            np.concatenate([one.w_value, -np.asarray(one.w_value)]),
            *(np.repeat(w, 2, 0) for w in (one.w_key, one.w_query)),
        ),
        # The constructor refuses these; a transformation of jax's can still make them.
        "no number": jax.tree.map(lambda leaf: np.full_like(leaf, np.nan), attention()),
        "infinite": jax.tree.map(lambda leaf: np.full_like(leaf, np.inf), attention()),
        "5 × 1 values": attention(d_value=5, d_key=1),
    }


def exact(attention: Any, xs: np.ndarray) -> np.ndarray:
    """Eq. 1 in fractions, rounded at the end: nothing overflows and nothing is lost."""
    inputs = [[Fraction(x) for x in row] for row in xs.tolist()]
    weights = [np.asarray(w, np.float64).tolist() for w in (attention.w_value, attention.w_key, attention.w_query)]
    decays = [1.0] * attention.heads if attention.decay is None else np.asarray(attention.decay).tolist()
    ys = np.zeros((len(xs), attention.d_out))
    total = [[Fraction(0)] * attention.d_out for _ in inputs]
    for *matrices, decay in zip(*weights, decays, strict=True):
        rows = [[[Fraction(entry) for entry in row] for row in matrix] for matrix in matrices]
        memory = [[Fraction(0)] * len(rows[1]) for _ in rows[0]]
        for t, x in enumerate(inputs):
            value, key, query = ([sum(w * e for w, e in zip(row, x, strict=True)) for row in m] for m in rows)
            memory = [
                [Fraction(decay) * old + v * k for old, k in zip(line, key, strict=True)]
                for line, v in zip(memory, value, strict=True)
            ]
            for index, line in enumerate(memory):
                total[t][index] += sum(m * q for m, q in zip(line, query, strict=True))
    for t, outputs in enumerate(total):
        for index, output in enumerate(outputs):
            ys[t, index] = _rounded(output)
    return ys


def _rounded(value: Fraction) -> float:
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def compiled(name: str, target: str, dtype: str, horizon: int) -> str | None:
    """Compile, and compare with exact arithmetic on fresh inputs within the bound."""
    import underhood as uh

    source = sources()[name]
    try:
        found = uh.compile(source, to=target, dtype=dtype, horizon=horizon, input_bound=2.0)
    except uh.UnderhoodError:
        return None
    if not found.verified:
        return None
    random = np.random.default_rng(7)
    for xs in (random.uniform(-2, 2, (horizon, source.d)), 2 * random.choice([-1.0, 1.0], (horizon, source.d))):
        ys, wanted = np.asarray(found.model(xs), np.float64), exact(source, xs)
        error = np.max(np.abs(ys - wanted))
        if not error <= found.error_bound:
            return f"verified with the bound {found.error_bound:.3g}, and off by {error:.3g}"
    return None


def decompiled(name: str, target: str) -> str | None:
    """Compile, disguise, decompile: the attention that is found has the function of the one that went in."""
    import underhood as uh

    source = sources()[name]
    try:
        network = uh.compile(source, to=target, horizon=5, input_bound=2.0)
        found = uh.decompile(uh.disguise(network.model, seed=1), input_bound=2.0, horizon=5)
    except uh.UnderhoodError:
        return None
    if found.attention is None or found.verdict == "not-attention":
        return None if not network.verified else f"attention was not recognised: {found.reason}"
    xs = np.random.default_rng(3).uniform(-2, 2, (5, source.d))
    wanted = exact(source, xs)
    off, size = np.max(np.abs(found.attention(xs) - wanted)), np.max(np.abs(wanted))
    if network.verified and not off <= max(1e-6 * size, np.finfo(float).tiny):
        return f"the attention found is off by {off:.3g} of {size:.3g}"
    return None


def probed(name: str, function: Callable[[Any], Any], d: int, verdicts: tuple[str, ...]) -> str | None:
    """A function, as a black box; with no verdict given, a refusal."""
    import underhood as uh

    try:
        found = uh.probe(function, d=d, length=6)
    except uh.UnderhoodError:
        return None
    return None if found.verdict in verdicts else f"called {found.verdict}: {found.reason}"


def functions() -> dict[str, tuple[Callable[[Any], Any], int, tuple[str, ...]]]:
    """name → a function, its inputs, and the verdicts that are right; none where only a refusal is."""
    made, yes, no = sources(), ("linear-attention", "decayed-attention"), ("not-attention",)
    either = (*yes, *no)
    attentions = {
        f"attention, {name}": (made[name], made[name].d, yes)
        for name in ("usual", "d = 1", "all zero", "a head of rank 0", "large, 1e30", "small, 1e-30", "rank 1")
    }
    return {
        **attentions,
        "attention, overflow": (made["overflow, 1e200"], 2, ()),
        "zero": (lambda xs: 0 * xs, 2, yes),
        "one for all": (lambda xs: np.ones((len(xs), 1)), 2, no),
        "NaN": (lambda xs: xs * np.nan, 2, ()),
        "infinite": (lambda xs: xs / 0.0, 2, ()),
        "1e300": (lambda xs: 1e300 * xs, 2, no),
        "1e-310": (lambda xs: 1e-310 * xs, 2, either),
        "one NaN late": (lambda xs: np.where(np.arange(len(xs))[:, None] > 4, np.nan, xs), 2, ()),
        "complex": (lambda xs: 1j * xs, 2, ()),
        "words": (lambda xs: [["a"] * 2] * len(xs), 2, ()),
        "a number": (lambda xs: 1.0, 2, ()),
        "nothing": (lambda xs: None, 2, ()),
        "no rows": (lambda xs: xs[:0], 2, ()),
        "no columns": (lambda xs: xs[:, :0], 2, ()),
        "an error": (lambda xs: {}["no"], 2, ()),
    }


def by_name(name: str) -> str | None:
    return probed(name, *functions()[name])


TRAININGS: dict[str, list[Any]] = {
    "usual": [],
    "d = 1": ["--d", 1],
    "t = 1": ["--length", 1],
    "hidden = 1": ["--hidden", 1],
    "d = t = hidden = batch = 1": ["--d", 1, "--length", 1, "--hidden", 1, "--batch-size", 1],
    "pre-readout = 1": ["--pre-readout", 1],
    "lstm, hidden = 1": ["--model", "lstm", "--hidden", 1],
    "lru, t = 1": ["--model", "lru", "--length", 1],
    "gru, d = 1": ["--model", "gru", "--d", 1],
    "teacher all zero": ["--teacher", "all zero"],
    "teacher of rank 0": ["--teacher", "rank 0"],
    "teacher of 1e200": ["--teacher", "overflow, 1e200"],
    "teacher of 1e-310": ["--teacher", "denormal, 1e-310"],
    "teacher of 1e30": ["--teacher", "large, 1e30"],
    "learning rate 1e300": ["--learning-rate", "1e300"],
    "learning rate 1e-320": ["--learning-rate", "1e-320"],
    "learning rate NaN": ["--learning-rate", "nan"],
    "decay infinite": ["--weight-decay", "inf"],
    "d = 0": ["--d", 0],
    "hidden = −1": ["--hidden", -1],
    "one example": ["--task", "linear-regression", "--examples", 1, "--d-x", 1, "--d-y", 1],
}


def trained(name: str, optimizer: str) -> str | None:
    """`underhood train`: finite losses and a file that loads, or one line."""
    import underhood as uh

    flags = list(TRAININGS[name])
    with tempfile.TemporaryDirectory() as temporary:
        if "--teacher" in flags:
            teacher = Path(temporary, "teacher.safetensors")
            uh.save(sources()[flags[1]], teacher)
            flags[1] = teacher
        sizes = [] if "--task" in flags else ["--length", 4] if "--teacher" in flags else ["--d", 2, "--length", 4]
        usual = ["train", *sizes, "--steps", 6, "--optimizer", optimizer, "--json"]
        usual += ["--hidden", 4, "--batch-size", 4] if optimizer == "adamw" else ["--max-seconds", 20]
        out = Path(temporary, "run")
        problem, _ = attempt(command(*usual, *flags, "--out", out), seconds=120)
        for path in out.glob("model*.safetensors"):
            uh.load(path)
        return problem


def _without_warnings(call: Callable[[], str | None]) -> str | None:
    """A warning on stderr is a line too many; what it says is a loss like any other exception."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        try:
            return call()
        except Exception as error:
            import traceback

            where = traceback.extract_tb(error.__traceback__)[-1]
            return f"{type(error).__name__} at {Path(where.filename).name}:{where.lineno}: {str(error)[:160]}"


def cases(scale: str) -> Iterator[tuple[str, str, Callable[[], str | None]]]:
    """(row of the table, what it is, the case)."""
    small = scale == "small"
    # Names alone: this process starts no jax (torture/children.py).
    names = in_processes([_names], 1)[0]
    chosen = [name for index, name in enumerate(names[0]) if not small or index % 5 == 0]
    for number, name in enumerate(chosen):
        for target in TARGETS if not small else (TARGETS[number % 8], TARGETS[(number + 3) % 8]):
            for dtype, horizon in (("float64", 12), ("float32", 12), ("float64", 1))[: 1 if small else 3]:
                yield "compile", f"{name} → {target} {dtype}", partial(compiled, name, target, dtype, horizon)
        for target in TARGETS[:3] if not small else TARGETS[number % 3 : number % 3 + 1]:
            yield "decompile", f"{name} in {target}", partial(decompiled, name, target)
    for name in names[1] if not small else names[1][::4]:
        yield "probe", name, partial(by_name, name)
    for optimizer in ("adamw", "levenberg"):
        for name in list(TRAININGS) if not small else list(TRAININGS)[4:20:8]:
            if optimizer == "adamw" or not any(flag in TRAININGS[name] for flag in ("--model", "--weight-decay")):
                yield f"train, {optimizer}", name, partial(trained, name, optimizer)


def _names() -> tuple[list[str], list[str]]:
    return list(sources()), list(functions())


def run(scale: str, workers: int = 2, seed: int = 0) -> list[Tally]:
    found = list(cases(scale))
    tallies = {row: Tally("numbers", row) for row, _, _ in found}
    problems = in_processes([partial(_without_warnings, call) for _, _, call in found], workers)
    for (row, what, _), problem in zip(found, problems, strict=True):
        tallies[row].count(problem and f"{what}: {problem}")
    for tally in tallies.values():
        tally.detail = "right, or refused in words"
    return list(tallies.values())
