"""Any callable: the best linear attention in closed form, and an honest R²."""

import numpy as np
import pytest

import underhood as uh
from underhood.algebra.heads import head_tensor

torch = pytest.importorskip("torch")


def _plain(attention: uh.LinearAttention, decay: float = 1.0):
    """Attention in NumPy, with a mask, by another path than the package's own."""
    values, keys, queries = (np.asarray(one) for one in (attention.w_value, attention.w_key, attention.w_query))

    def call(xs: np.ndarray) -> np.ndarray:
        lags = np.arange(len(xs))[:, None] - np.arange(len(xs))[None]
        mask = np.where(lags >= 0, float(decay) ** np.maximum(lags, 0), 0.0)
        heads = zip(values, keys, queries, strict=True)
        return sum((mask * ((xs @ q.T) @ (xs @ k.T).T)) @ (xs @ v.T) for v, k, q in heads)

    return call


def test_numpy_function() -> None:
    attention = uh.random_attention(3, heads=2, seed=0)
    found = uh.probe(_plain(attention), 3, against=attention)
    assert (found.verdict, found.heads) == ("linear-attention", 2)
    assert found.attention is not None
    tensor = head_tensor(np.asarray(attention.w_value), attention.key_query)
    mine = head_tensor(np.asarray(found.attention.w_value), found.attention.key_query)
    np.testing.assert_allclose(mine, tensor, atol=1e-9)
    assert found.scores.polynomial_distance is not None and found.scores.polynomial_distance < 1e-9
    assert found.certificate is None and found.r2_interval is not None


@pytest.mark.parametrize("decay", [0.9, 0.47])
def test_decay_is_found(decay: float) -> None:
    found = uh.probe(_plain(uh.random_attention(3, seed=1), decay), 3)
    assert (found.verdict, found.heads) == ("decayed-attention", 1)
    assert found.decay == pytest.approx((decay,), abs=1e-7)


def test_torch_module_that_also_returns_a_state() -> None:
    torch.manual_seed(0)
    found = uh.probe(torch.nn.LSTM(3, 4, batch_first=True), 3)
    assert found.verdict == "not-attention"
    assert found.r2 < 0.99
    assert found.attention is not None  # the nearest one, for who wants to see it
    assert "misses" in found.reason


def test_torch_module_that_is_attention() -> None:
    attention = uh.random_attention(3, seed=2)
    weights = [torch.tensor(np.asarray(one[0])) for one in (attention.w_value, attention.w_key, attention.w_query)]

    class Attention(torch.nn.Module):
        def forward(self, xs):
            values, keys, queries = (xs @ weight.T for weight in weights)
            return torch.tril(queries @ keys.T) @ values

    assert uh.probe(Attention(), 3).verdict == "linear-attention"


@pytest.mark.parametrize("target", ["lstm", "lru", "lru-in-skip", "gru"])
def test_compiled_cells_are_attention(target: str) -> None:
    attention = uh.random_attention(2, seed=3)
    model = uh.compile(attention, to=target).model
    found = uh.decompile(uh.disguise(model, seed=0), against=attention)
    assert (found.verdict, found.heads) == ("linear-attention", 1)
    assert found.r2 >= 0.999999
    assert found.scores.polynomial_distance is not None and found.scores.polynomial_distance < 1e-6
    assert found.certificate is None and "black box" in found.reason
    assert found.hidden_before == model.hidden and found.hidden_after is None


@pytest.mark.parametrize("name", [pytest.param("lstm", marks=pytest.mark.slow), "gru", "lru"])
def test_random_stacks_are_not(name: str) -> None:
    model = uh.make_model(name, 2, hidden=12, layers=2, seed=1)
    assert uh.decompile(model).verdict == "not-attention"


def test_r2_does_not_depend_on_the_seed() -> None:
    """Attention squashed: neither yes nor nothing."""
    plain = _plain(uh.random_attention(3, seed=0))
    found = [uh.probe(lambda xs: 5 * np.tanh(plain(xs) / 5), 3, seed=seed) for seed in range(3)]
    values = [one.r2 for one in found]
    assert max(values) - min(values) < 0.01
    assert 0.5 < min(values) < 0.99
    for one in found:
        assert one.r2_interval is not None and one.r2_interval[0] < one.r2 < one.r2_interval[1]


def test_small_other_terms_are_noticed() -> None:
    plain = _plain(uh.random_attention(3, seed=0))
    assert uh.probe(lambda xs: plain(xs) + 0.01 * xs * np.cumsum(xs, axis=0), 3).verdict == "not-attention"
    assert uh.probe(lambda xs: plain(xs) + 1e-7 * xs, 3).verdict == "linear-attention"


@pytest.mark.parametrize(
    "function, message",
    [
        (3, "callable"),
        (lambda xs: xs[:, :1, None], "maps"),
        (lambda xs: xs[:-1], "maps"),
        (lambda xs: xs * np.nan, "finite"),
        (lambda xs: np.zeros_like(xs), "varies"),
        (lambda xs: xs @ np.zeros((7, 7)), "shape"),
    ],
)
def test_what_cannot_be_probed(function, message: str) -> None:
    with pytest.raises(uh.UnderhoodError, match=message):
        uh.probe(function, 3)


@pytest.mark.parametrize("decays", [(0.9, 0.5), (0.0,), (0.01,), (1, 0), (0.9, 0)])
def test_one_function_has_one_verdict(decays: tuple[float, ...]) -> None:
    """The decompiler reads the weights, the probe asks: several decays, and those next to nothing."""
    source = uh.random_attention(3, heads=len(decays), seed=1)
    faded = uh.LinearAttention(source.w_value, source.w_key, source.w_query, np.array(decays))
    network = uh.compile(faded, to="gated-rnn").model
    assert uh.decompile(network).verdict == "decayed-attention"
    found = uh.probe(network)
    assert found.verdict == "decayed-attention"
    assert found.decay is not None
    assert sorted(set(np.round(found.decay, 6))) == sorted(set(decays))


def test_two_decays_are_found_in_an_lstm() -> None:
    """The same function in a network that has to be probed gets the verdict that weights get."""
    source = uh.random_attention(2, heads=2, seed=1)
    faded = uh.LinearAttention(source.w_value, source.w_key, source.w_query, np.array([0.9, 0.5]))
    found = uh.decompile(uh.compile(faded, to="lstm").model)
    assert found.verdict == "decayed-attention" and found.decay is not None
    assert sorted(set(np.round(found.decay, 3))) == [0.5, 0.9]
