"""What benchmarks/sizes.py times: sizes, what they must meet, and what is made before the clock starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

Prepared = Callable[[], dict[str, Any]]
"""What is timed: it returns what is worth recording of the answer, with `right` and `error`."""


class Limit(NamedTuple):
    """What a size must meet."""

    seconds: float
    gigabytes: float


class Measure(NamedTuple):
    """One command at several sizes: (d, second) to what is timed, with everything it needs made before."""

    prepare: Callable[[int, int], Prepared]
    sizes: tuple[tuple[int, int], ...]
    limits: dict[int, Limit]
    second: str = "heads"
    large: int = 16  # exponents are fitted from this d on: below it, what every call takes is most of the time


def _map_error(found: Any, attention: Any) -> float:
    """Of the outputs, relative to the largest."""
    xs = np.random.default_rng(0).standard_normal((20, attention.d))
    ys = np.asarray(attention(xs))
    return float(np.abs(np.asarray(found(xs)) - ys).max() / np.abs(ys).max())


def _batched(attention: Any) -> Callable[[np.ndarray], np.ndarray]:
    """Eq. 1 for a batch (b, t, d), in NumPy: a callable as users have them."""
    weights = [np.asarray(w) for w in (attention.w_value, attention.w_key, attention.w_query)]

    def call(xs: np.ndarray) -> np.ndarray:
        past = np.tril(np.ones((xs.shape[1], xs.shape[1])))
        outputs = np.zeros((*xs.shape[:2], attention.d_out))
        for value, key, query in zip(*weights, strict=True):
            outputs += (past * (xs @ query.T @ (xs @ key.T).transpose(0, 2, 1))) @ (xs @ value.T)
        return outputs

    return call


def _probe(d: int, heads: int) -> Prepared:
    """Heads of 64 keys at most, through a callable that takes batches."""
    import underhood as uh

    attention = uh.random_attention(d, heads=heads, d_key=min(d, 64), seed=d)
    call = _batched(attention)

    def run() -> dict[str, Any]:
        found = uh.probe(call, d=d, batched=True, max_heads=max(2, heads))
        error = _map_error(found.attention, attention)
        return {"error": error, "right": found.verdict == "linear-attention" and error <= 1e-8}

    return run


def _not_attention(of_scores: Callable[[np.ndarray], np.ndarray], of_outputs: Callable[[np.ndarray], np.ndarray]):
    def prepare(d: int, heads: int) -> Prepared:
        import underhood as uh

        value, key, query = np.random.default_rng(d).normal(size=(3, d, d)) / np.sqrt(d)

        def call(xs: np.ndarray) -> np.ndarray:
            scores = of_scores(xs @ query.T @ (xs @ key.T).transpose(0, 2, 1))
            return of_outputs(scores @ (xs @ value.T))

        def run() -> dict[str, Any]:
            found = uh.probe(call, d=d, batched=True)
            return {"error": None, "right": found.verdict == "not-attention"}

        return run

    return prepare


def _causal(scores: np.ndarray) -> np.ndarray:
    return scores * np.tril(np.ones(scores.shape[-2:]))


def _softmax(scores: np.ndarray) -> np.ndarray:
    shown = np.where(np.tril(np.ones(scores.shape[-2:])) > 0, scores / np.sqrt(scores.shape[-1]), -np.inf)
    weights = np.exp(shown - shown.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def _decompile(d: int, heads: int) -> Prepared:
    """A disguised network of the fewest neurons, certificate included."""
    import underhood as uh
    from underhood.decompiler.decompile import decompile

    attention = uh.random_attention(d, heads=heads, seed=d)
    network = uh.disguise(uh.compile(attention, to="gated-rnn-minimal", horizon=10).model, seed=d)

    def run() -> dict[str, Any]:
        found = decompile(network)
        assert found.attention is not None and found.certificate is not None, found.reason
        right = found.verdict == "linear-attention"
        sizes = {"hidden": network.hidden, "hidden_after": found.hidden_after}
        return {"error": _map_error(found.attention, attention), "right": right, **sizes}

    return run


def _compile(target: str, rank: int | None = None, **options: Any) -> Callable[[int, int], Prepared]:
    """Heads of 64 keys at most, verified; `rank` 64 makes the values of a head as many."""

    def prepare(d: int, heads: int) -> Prepared:
        import underhood as uh

        attention = uh.random_attention(d, heads=heads, d_key=min(d, 64), rank=rank and min(d, rank), seed=d)

        def run() -> dict[str, Any]:
            compiled = uh.compile(attention, to=target, **options)
            seen = {"hidden": compiled.hidden, "parameters": compiled.parameters}
            steps = compiled.evidence.measured_steps
            return {"error": compiled.max_rel_error, "right": compiled.verified, **seen, "measured_steps": steps}

        return run

    return prepare


def _streaming(d: int, heads: int) -> Prepared:
    """A step of the sparse gated RNN beside one of recurrent attention: seconds are those of the former."""
    import jax
    import jax.numpy as jnp

    import underhood as uh
    from benchmarks.measure import best_seconds

    attention = uh.random_attention(d, heads=heads, d_key=min(d, 64), seed=d)
    network = uh.compile(attention, to="gated-rnn", sparse=True, horizon=2).model

    def stepper(model: Any) -> Callable[[], None]:
        with jax.enable_x64(True):
            step = jax.jit(lambda state, x: model.step(state, x))
            x, state = jnp.asarray(np.random.default_rng(0).normal(size=d)), model.initial_state()

        def call() -> None:
            with jax.enable_x64(True):
                current, y = state, None
                for _ in range(20):
                    current, y = step(current, x)
                jax.block_until_ready(y)

        return call

    def run() -> dict[str, Any]:
        took = best_seconds({"attention": (stepper(attention), 20), "network": (stepper(network), 20)}, rounds=8)
        ratio = took["network"] / took["attention"]
        return {"error": None, "right": ratio <= 3, "ratio": ratio, "seconds": took["network"]}

    return run


def _levenberg(d: int, seed: int) -> Prepared:
    """From sequences of 32 steps to a held-out loss of 1e-16, at any size of the network."""
    from benchmarks.levenberg import teacher_student
    from underhood.training.second_order.levenberg import fit_levenberg

    data, held_out = teacher_student(d, 1000 + seed, 320)

    def run() -> dict[str, Any]:
        found = fit_levenberg(*data, held_out=held_out, seed=seed, target_loss=1e-16, prune=d >= 6)
        sizes = {"hidden": found.hidden, "pre_readout": found.pre_readout}
        steps = {"iterations": found.iterations, "restarts": found.restarts}
        return {"error": found.held_out_loss, "right": found.met, **sizes, **steps}

    return run


SEEDS = tuple(range(5))
# Other targets at sizes at which their own memory shows; the larger, the smaller d.
OTHERS = {
    "lru": (24, 40),
    "lru-in-out": (24, 40),
    "lru-in-skip": (24, 40),
    "gru": (24, 40),
    "griffin": (24, 40),
    "mingru": (24, 40),
    "gated-rnn-compact": (48, 96),
    "gated-rnn-minimal": (48, 96),
    "lstm": (48, 96),
    "mamba": (96, 256),
    "mamba2": (48, 128),
    "gated-deltanet": (48, 128),
    "rwkv7": (48, 128),
    "mesanet": (48, 128),
}

MEASURES = {
    "levenberg": Measure(
        _levenberg,
        tuple((d, seed) for d in (4, 6, 8, 12) for seed in SEEDS),
        {8: Limit(60, 4), 12: Limit(600, 4)},
        second="seed",
        large=8,
    ),
    "probe tanh": Measure(_not_attention(_causal, np.tanh), ((64, 1),), {64: Limit(20, 1)}),
    "probe softmax": Measure(_not_attention(_softmax, lambda ys: ys), ((64, 1),), {64: Limit(20, 1)}),
    "decompile": Measure(
        _decompile,
        ((4, 1), (8, 1), (12, 1), (16, 1), (24, 1), (32, 1), (48, 1), (64, 1)),
        {24: Limit(5, 4), 64: Limit(60, 4)},
        large=24,
    ),
    "compile": Measure(
        _compile("gated-rnn", sparse=True),
        ((4, 1), (16, 1), (64, 1), (128, 2), (256, 4), (512, 8)),
        {512: Limit(60, 4)},
        large=64,
    ),
    "compile gla": Measure(_compile("gla", 64), ((16, 1), (64, 1), (128, 2), (512, 8)), {512: Limit(60, 4)}, large=64),
    "compile mlstm": Measure(
        _compile("mlstm", 64), ((16, 1), (64, 1), (128, 2), (512, 8)), {512: Limit(60, 4)}, large=64
    ),
    "compile lru-in-out, sparse": Measure(
        _compile("lru-in-out", 64), ((64, 1), (128, 2), (512, 8)), {512: Limit(60, 4)}, large=64
    ),
    "compile mamba, sparse": Measure(
        _compile("mamba", 64, sparse=True),
        ((64, 1), (128, 2), (256, 4), (512, 8)),
        {512: Limit(60, 4)},
        large=64,
    ),
    "streaming": Measure(_streaming, ((64, 1), (512, 8)), {}),
    "probe": Measure(
        _probe,
        ((4, 1), (8, 1), (16, 1), (32, 1), (64, 1), (128, 2), (256, 4), (512, 8)),
        {16: Limit(3, 0.5), 64: Limit(20, 1), 512: Limit(300, 6)},
        large=64,
    ),
} | {
    f"compile {target}": Measure(_compile(target, horizon=100, tolerance=1e-2), tuple((d, 1) for d in sizes), {})
    for target, sizes in OTHERS.items()
}
# One head has a way of its own to Mamba, without a channel for each product.
MEASURES["compile mamba, heads"] = Measure(
    _compile("mamba", horizon=100, tolerance=1e-2, sparse=False), ((24, 4), (40, 4)), {}
)
