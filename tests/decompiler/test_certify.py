"""The certificate holds wherever a search looks, and is not much larger than what the search finds."""

import numpy as np
import pytest

import underhood as uh
from underhood.core.model import as_dtype

BOUND, HORIZON = 2.0, 24


def _worst(network, attention, seed: int) -> float:
    """Random inputs, and corners of the box repeated: what a bound made of absolute values has to fear."""
    random = np.random.default_rng(seed)
    d = network.d
    inputs = [
        *random.uniform(-BOUND, BOUND, (8, HORIZON, d)),
        *(BOUND * random.choice([-1.0, 1.0], (8, HORIZON, d))),
        *np.repeat(BOUND * random.choice([-1.0, 1.0], (24, 1, d)), HORIZON, axis=1),
    ]
    return max(float(np.abs(network(xs) - attention(xs)).max()) for xs in inputs)


def _found(network) -> uh.Found:
    found = uh.decompile(network, input_bound=BOUND, horizon=HORIZON)
    assert found.certificate is not None and found.attention is not None
    return found


@pytest.mark.parametrize("seed", range(3))
def test_exact_network_is_certified_to_rounding(figure_1, seed: int) -> None:
    network = uh.disguise(figure_1(uh.random_attention(2 + seed, heads=1 + seed % 2, seed=seed)), seed=seed)
    found = _found(network)
    worst = _worst(network, found.attention, seed)
    assert found.certificate.max_abs_error >= worst
    assert found.certificate.max_abs_error <= 1e3 * worst
    assert found.certificate.fading == 0


@pytest.mark.parametrize("seed", range(3))
def test_fading_memories_and_lingering_queries(figure_1, changed, seed: int) -> None:
    network = figure_1(uh.random_attention(3, seed=seed))
    random, lambda_ = np.random.default_rng(seed), np.asarray(network.lambda_)
    faded = changed(network, lambda_=np.abs(lambda_ - 1e-6 * random.random(len(lambda_))))
    found = _found(faded)
    assert found.verdict == "linear-attention"
    worst = _worst(faded, found.attention, seed)
    assert worst > 1e-6
    assert worst <= found.certificate.max_abs_error <= 100 * worst
    assert found.certificate.fading > 0.9 * found.certificate.max_abs_error


def test_noise_in_every_weight(figure_1, changed) -> None:
    network, random = figure_1(uh.random_attention(3, seed=0)), np.random.default_rng(1)
    names = {
        "w_m": network.input_gating.w_m,
        "w_x": network.input_gating.w_x,
        "left": network.output_gating.w_m,
        "right": network.output_gating.w_x,
        "readout": network.readout,
    }
    noisy = changed(
        network, **{name: np.asarray(one) + 1e-6 * random.standard_normal(one.shape) for name, one in names.items()}
    )
    found = _found(noisy)
    worst = _worst(noisy, found.attention, 0)
    assert worst <= found.certificate.max_abs_error <= 100 * worst
    assert found.certificate.terms > 0.9 * found.certificate.max_abs_error


def test_wider_boxes_and_longer_sequences_cost_more(figure_1) -> None:
    network = figure_1(uh.random_attention(3, seed=0))

    def bound(**scope: float) -> float:
        certificate = uh.decompile(network, **scope).certificate
        assert certificate is not None
        return certificate.max_abs_error

    assert bound(input_bound=1.0, horizon=10) < bound(input_bound=2.0, horizon=10) < bound(input_bound=2.0, horizon=100)


def test_float32_rounds_more(figure_1) -> None:
    network = figure_1(uh.random_attention(3, seed=0))
    single = as_dtype(network, np.float32)
    found = _found(single)
    assert found.certificate.rounding > 1e6 * _found(network).certificate.rounding
    assert found.certificate.max_abs_error >= _worst(single, found.attention, 0)


def test_search_would_notice_a_bound_for_another_attention(figure_1) -> None:
    network = figure_1(uh.random_attention(3, seed=0))
    other = uh.random_attention(3, seed=1)
    assert _worst(network, other, 0) > 1e6 * _found(network).certificate.max_abs_error
