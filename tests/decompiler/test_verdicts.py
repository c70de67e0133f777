"""Each output against its own size, each memory up to the horizon, and a yes only to functions that stay the same."""

import dataclasses

import numpy as np
import pytest

import underhood as uh
from underhood.algebra.gated import GatedArrays
from underhood.architectures.gated_rnn.cell import GatedRNN


def two_outputs(large: float, small: float, seed: int = 0) -> GatedRNN:
    """(large · attention, small · (Σ|x|²)²)."""
    arrays = uh.compile(uh.random_attention(2, seed=seed), to="gated-rnn").model.arrays
    squares, hidden = np.eye(2, 3), arrays.hidden
    row = np.append(np.zeros(hidden), np.ones(2))[None]
    left, right = (np.vstack([np.pad(side, ((0, 0), (0, 2))), row]) for side in (arrays.left, arrays.right))
    readout = np.zeros((2, len(left)))
    readout[0, :-1], readout[1, -1] = large * arrays.readout[0], small
    lambda_, (w_m, w_x) = (
        np.append(arrays.lambda_, [1, 1]),
        (np.vstack([branch, squares]) for branch in (arrays.w_m, arrays.w_x)),
    )
    return GatedRNN.from_arrays(GatedArrays(lambda_, left, right, readout, w_m=w_m, w_x=w_x))


@pytest.mark.parametrize(("large", "small"), [(1e6, 1e-5), (1.0, 1e-3), (1e-6, 1e3)])
@pytest.mark.parametrize("is_hidden", [False, True])
def test_one_output_among_several_decides(large: float, small: float, is_hidden: bool) -> None:
    network = two_outputs(large, small)
    answer = uh.decompile(uh.disguise(network, seed=1) if is_hidden else network)
    assert answer.verdict == "not-attention"
    assert "output 2 of 2" in answer.reason and "memory×memory" in answer.reason
    assert answer.evidence.deviation == pytest.approx(1.0)


def test_an_output_of_zero_is_attention() -> None:
    """Up to the rounding that a disguise leaves of what cancels."""
    for seed in range(3):
        answer = uh.decompile(uh.disguise(two_outputs(1e6, 0.0, seed), seed=seed))
        assert (answer.verdict, answer.heads) == ("linear-attention", 1), answer.reason


def test_probe_judges_each_output_too() -> None:
    network = two_outputs(1e6, 1e-5)
    answer = uh.probe(network)
    assert answer.verdict == "not-attention" and "output 2 of 2" in answer.reason
    assert answer.diagnosis[0]["what"] == "degree"  # of the second output alone
    assert uh.probe(network, pooling="together").verdict == "linear-attention"
    assert uh.probe(two_outputs(1e6, 0.0)).verdict == "linear-attention"


def test_rounding_in_a_small_output_is_no_other_function() -> None:
    """In float32 an output that should be zero is what cancels, which changes with the least change of the input."""
    attention = uh.random_attention(3, seed=1)
    mixing = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [1.0, 1.0, 0.0]])

    def call(xs: np.ndarray) -> np.ndarray:
        ys = (np.asarray(attention(xs)) @ mixing.T).astype(np.float32)
        return np.stack([ys[:, 0], ys[:, 1], ys[:, 0] + ys[:, 1] - ys[:, 2]], axis=1).astype(np.float64)

    answer = uh.probe(call, 3)
    assert answer.verdict == "linear-attention", answer.reason

    def spoiled(xs: np.ndarray) -> np.ndarray:
        ys = call(xs)
        return np.stack([ys[:, 0], ys[:, 1], 1e-6 * np.cumsum(xs[:, 0] ** 2)], axis=1)

    assert uh.probe(spoiled, 3).verdict == "not-attention"


def with_decays(decays: list[float], d: int = 2) -> uh.LinearAttention:
    random = np.random.default_rng(0)
    return uh.LinearAttention(*random.standard_normal((3, len(decays), d, d)), np.array(decays))


@pytest.mark.parametrize("decays", [list(np.linspace(0.1, 0.9, 9)), [1.0, 1e-4], [0.5, 1e-6], [1 - 1e-4, 1.0]])
def test_decays_of_any_number_and_size_are_read(decays: list[float]) -> None:
    attention = with_decays(decays)
    answer = uh.decompile(uh.disguise(uh.compile(attention, to="gated-rnn").model, seed=2), against=attention)
    assert answer.verdict == "decayed-attention", answer.reason
    assert sorted(set(answer.decay)) == pytest.approx(sorted(decays), rel=1e-9)
    assert answer.scores.polynomial_distance < 1e-9


def test_the_limit_of_decays_is_in_the_answer() -> None:
    answer = uh.probe(with_decays(list(np.linspace(0.1, 0.9, 9))))
    assert answer.verdict == "not-attention"
    assert "several rates: at most 8 are told apart" in answer.reason
    assert answer.diagnosis[0]["what"] == "several-decays"
    network = uh.compile(with_decays(list(np.linspace(0.02, 0.98, 40)), d=1), to="gated-rnn").model
    assert "at most 32 are told apart" in uh.decompile(network).reason


def fading(rate: float, seed: int = 0) -> GatedRNN:
    arrays = uh.compile(uh.random_attention(2, seed=seed), to="gated-rnn").model.arrays
    lambda_ = np.where(arrays.lambda_ == 1, 1 - rate, arrays.lambda_)
    return GatedRNN.from_arrays(dataclasses.replace(arrays, lambda_=lambda_))


@pytest.mark.parametrize("is_hidden", [False, True])
def test_what_fades_within_the_horizon_is_decayed(is_hidden: bool, rate: float = 1e-10) -> None:
    network = uh.disguise(fading(rate), seed=3) if is_hidden else fading(rate)
    near, far = uh.decompile(network, horizon=10**6), uh.decompile(network, horizon=10**12)
    assert (near.verdict, near.decay) == ("linear-attention", None)
    assert far.verdict == "decayed-attention" and far.decay == pytest.approx((1 - rate,), abs=rate * 1e-4)
    assert far.certificate.fading <= 1e-9 / rate  # of outputs of the order of 1/rate
    if not is_hidden:  # a disguise rounds in many neurons, over a horizon of 10¹² steps
        assert far.certificate.max_abs_error < 1e-2 * 64 / rate


def test_a_memory_that_lasts_and_one_that_fades() -> None:
    network = uh.compile(with_decays([1.0, 1 - 1e-10]), to="gated-rnn").model
    far = uh.decompile(network, horizon=10**12)
    assert far.verdict == "decayed-attention"
    assert sorted(far.decay) == [1 - 1e-10, 1.0]
    assert uh.decompile(network, horizon=100).verdict == "linear-attention"


@pytest.mark.parametrize("bound", [1e300, 1e110])
def test_no_certificate_is_not_a_number(bound: float) -> None:
    with pytest.raises(uh.UnderhoodError, match="within which outputs are numbers of float64"):
        uh.decompile(fading(1e-10), input_bound=bound)
    with pytest.raises(uh.UnderhoodError, match="horizon of 1 to"):
        uh.decompile(fading(1e-10), horizon=10**400)


class Drifts:
    """Attention, until it has been asked for a while."""

    def __init__(self) -> None:
        self.calls, self.attention = 0, uh.random_attention(2, seed=0)

    def __call__(self, xs: np.ndarray) -> np.ndarray:
        self.calls += 1
        return np.asarray(self.attention(xs)) * (1 + (self.calls > 566))


def test_a_function_that_depends_on_its_batch_is_called_that() -> None:
    attention = uh.random_attention(2, seed=0)

    def call(xs: np.ndarray) -> np.ndarray:
        return np.stack([np.asarray(attention(x)) for x in xs]) * (1 + 1e-2 * np.abs(xs).mean())

    answer = uh.probe(call, 2, batched=True)
    assert answer.verdict == "not-attention"
    assert answer.diagnosis[0]["what"] == "batch-dependent" and "batch" in answer.reason


def test_a_function_that_drifts_gets_no_yes() -> None:
    drifts = Drifts()
    answer = uh.probe(drifts, 2, batched=False)
    assert drifts.calls > 566
    assert answer.verdict == "not-attention"
