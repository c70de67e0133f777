"""Chosen inputs: the cost of a probe grows as its answer does, and the answer is that of the closed form."""

import numpy as np
import pytest

import underhood as uh
from underhood.algebra.heads import head_tensor
from underhood.algebra.theta import factored
from underhood.decompiler.from_outputs import search as candidates
from underhood.decompiler.from_outputs.questions import ChosenInputs
from underhood.decompiler.from_outputs.regression import fit_dense

EXACT = 1e-8


def _plain(attention: uh.LinearAttention, decays: np.ndarray | None = None):
    """Attention in NumPy with a mask, on one sequence or a batch."""
    weights = [np.asarray(one) for one in (attention.w_value, attention.w_key, attention.w_query)]
    decays = np.ones(attention.heads) if decays is None else decays

    def call(xs: np.ndarray) -> np.ndarray:
        lags = np.arange(xs.shape[-2])[:, None] - np.arange(xs.shape[-2])[None]
        total = 0.0
        for value, key, query, decay in zip(*weights, decays, strict=True):
            mask = np.where(lags >= 0, decay ** np.maximum(lags, 0), 0.0)
            total = total + (mask * ((xs @ query.T) @ np.swapaxes(xs @ key.T, -1, -2))) @ (xs @ value.T)
        return total

    return call


def _same_map(found: uh.Found, attention: uh.LinearAttention) -> float:
    assert found.attention is not None
    xs = np.random.default_rng(5).standard_normal((4, 20, attention.d))
    mine, wanted = (_plain(one)(xs) for one in (found.attention, attention))
    return float(np.linalg.norm(mine - wanted) / np.linalg.norm(wanted))


@pytest.mark.parametrize(
    "d, settings, heads",
    [
        (12, {"heads": 1}, 1),
        (16, {"heads": 3}, 3),
        (16, {"heads": 2, "rank": 2}, 2),
        (20, {"heads": 1, "rank": 1}, 1),  # value and key in one direction each: Θ(a) alone does not split
        (12, {"heads": 2, "d_value": 1}, 2),  # more heads than outputs
        (40, {"heads": 2, "d_key": 3, "d_value": 5}, 2),
    ],
)
def test_wide_attention(d: int, settings: dict[str, int], heads: int) -> None:
    attention = uh.random_attention(d, seed=1, **settings)
    found = uh.probe(_plain(attention), d)
    assert (found.verdict, found.heads) == ("linear-attention", heads)
    assert _same_map(found, attention) < EXACT
    assert found.r2_interval is not None


@pytest.mark.parametrize("decays", [(0.9, 0.9), (0.9, 0.5), (1.0, 0.3), (0.01, 0.01)])
def test_wide_decays(decays: tuple[float, float]) -> None:
    found = uh.probe(_plain(uh.random_attention(10, heads=2, seed=2), np.array(decays)), 10)
    assert (found.verdict, found.heads) == ("decayed-attention", 2)
    assert found.decay == pytest.approx(decays, abs=1e-7)


def test_float32_is_recognised() -> None:
    plain = _plain(uh.random_attention(16, heads=2, seed=3))
    found = uh.probe(lambda xs: plain(xs).astype(np.float32), 16)
    assert (found.verdict, found.heads) == ("linear-attention", 2)


@pytest.mark.parametrize("squash", [np.tanh, lambda ys: ys + 1e-3 * ys**2])
def test_what_is_near_is_not(squash) -> None:
    plain = _plain(uh.random_attention(12, seed=0))
    found = uh.probe(lambda xs: squash(plain(xs)), 12)
    assert found.verdict == "not-attention" and found.attention is not None
    assert found.r2_interval is not None and found.r2_interval[0] < found.r2 < found.r2_interval[1]
    assert 0.3 < found.r2 < 0.9999


def test_both_ways_agree() -> None:
    """T of the regression is T of the factors, for two heads at d = 6."""
    call = _plain(uh.random_attention(6, heads=2, seed=4))
    xs = np.random.default_rng(0).standard_normal((64, 32, 6))
    dense = fit_dense(xs, call(xs), (1.0,)).tensors[0]
    chosen = ChosenInputs(call, 6, length=32, input_bound=4.0, random=np.random.default_rng(1))
    (heads,) = next(iter(factored(chosen, (1.0,), lambda what, share: None)))
    np.testing.assert_allclose(head_tensor(heads.values, heads.key_query), dense, atol=1e-9)


@pytest.mark.parametrize("name, verdict", [("attention", "linear-attention"), ("squashed", "not-attention")])
def test_both_ways_say_the_same(monkeypatch: pytest.MonkeyPatch, name: str, verdict: str) -> None:
    plain = _plain(uh.random_attention(5, heads=2, seed=6))
    function = plain if name == "attention" else lambda xs: 5 * np.tanh(plain(xs) / 5)
    regression = uh.probe(function, 5)
    monkeypatch.setattr(candidates, "SMALL", 0)
    chosen = uh.probe(function, 5, max_heads=8)
    assert regression.verdict == chosen.verdict == verdict
    assert chosen.r2 == pytest.approx(regression.r2, abs=0.02)


def test_few_questions() -> None:
    """2d + 1 inputs in front of d queries: sequences, not features."""
    asked = 0
    plain = _plain(uh.random_attention(24, seed=0))

    def count(xs: np.ndarray) -> np.ndarray:
        nonlocal asked
        asked += 1 if xs.ndim == 2 else len(xs)
        return plain(xs)

    assert uh.probe(count, 24, batched=False).verdict == "linear-attention"
    assert asked < 512 + 100
