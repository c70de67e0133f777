"""In-context algorithms, weights set by hand: each network predicts what its algorithm does."""

import numpy as np
import pytest

import underhood as uh
from underhood.explain.algorithms import DecayedGradientStep, DeltaRule, GradientStep, KGradientSteps, LeastSquares
from underhood.training.tasks.linear_regression import LinearRegression
from underhood.training.tasks.task import draw


def gap(network, rule, inputs="sphere", d_x=3, d_y=2):
    """Largest distance at the query, over the largest prediction."""
    xs, _ = draw(LinearRegression(10, d_x, d_y, inputs), 0, 20)
    predicted = np.stack([np.asarray(network(one))[-1, -d_y:] for one in xs])
    expected = rule.network(d_x)(xs)[:, -1]
    return np.max(np.abs(predicted - expected)) / np.max(np.abs(expected))


@pytest.mark.parametrize("k", [1, 2, 5])
@pytest.mark.parametrize("to", ["linear-attention", "gated-rnn"])
def test_k_layers_are_k_steps(k, to):
    network = uh.algorithm_network("k-gradient-steps", to=to, d_y=2, k=k, eta=0.04)
    assert network.layers == k
    assert gap(network, KGradientSteps(k, 0.04), "uniform") < 1e-12
    assert gap(network, KGradientSteps(k + 1, 0.04), "uniform") > 1e-2  # negative control


@pytest.mark.parametrize("to", ["linear-attention", "gated-rnn", "mamba", "lstm"])
def test_a_gradient_step_is_attention_in_every_target(to):
    decayed = uh.algorithm_network("decayed-gradient-step", to=to, d_y=2, eta=0.05, decay=0.8)
    assert gap(decayed, DecayedGradientStep(0.05, 0.8), "uniform") < 1e-4
    plain = uh.algorithm_network("gradient-step", to=to, d_y=2, eta=0.05)
    assert gap(plain, GradientStep(0.05), "uniform") < 1e-4
    assert gap(plain, GradientStep(0.06), "uniform") > 1e-2


@pytest.mark.parametrize("beta", [None, 0.2])
def test_the_delta_rule_in_a_gated_deltanet(beta):
    network = uh.algorithm_network("delta-rule", to="gated-deltanet", d_y=2, beta=beta)
    assert gap(network, DeltaRule(beta or 1 / 3)) < 3e-3
    assert gap(network, DeltaRule(0.27)) > 2e-2
    assert gap(network, DeltaRule(beta or 1 / 3), "uniform") > 0.1  # keys have lost the length of x


@pytest.mark.parametrize("ridge", [None, 0.2, 3.0])
def test_least_squares_in_a_mesanet(ridge):
    network = uh.algorithm_network("least-squares", to="mesanet", d_y=2, ridge=ridge)
    assert network.layers == 2
    assert gap(network, LeastSquares(ridge or 0.75)) < 3e-3
    assert gap(network, LeastSquares(1.2)) > 2e-2


def test_the_networks_are_named():
    delta = uh.in_context(uh.algorithm_network("delta-rule", to="gated-deltanet"), inputs="sphere")
    assert delta.name == "delta-rule"
    assert delta.training_loss == pytest.approx(0.00385, rel=0.02)
    mesa = uh.in_context(uh.algorithm_network("least-squares", to="mesanet"), inputs="sphere")
    assert mesa.name == "least-squares"


def test_they_are_kept_in_files(tmp_path):
    for name, to in (("k-gradient-steps", "linear-attention"), ("least-squares", "mesanet")):
        network = uh.algorithm_network(name, to=to)
        uh.save(network, tmp_path / "network.safetensors")
        xs = np.random.default_rng(0).standard_normal((5, 6))
        np.testing.assert_array_equal(uh.load(tmp_path / "network.safetensors")(xs), network(xs))


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        ({"name": "delta-rule", "to": "lstm"}, "no construction of delta-rule in lstm. Known: gated-deltanet"),
        ({"name": "sorting", "to": "lstm"}, "no algorithm 'sorting'"),
        ({"name": "delta-rule", "to": "gated-deltanet", "beta": 0.5}, "expected beta of at most 0.333333"),
        ({"name": "decayed-gradient-step", "to": "gla", "decay": 1.5}, "expected a decay of at most 1"),
        ({"name": "k-gradient-steps", "to": "gated-rnn", "k": 0}, "expected k to be a whole number of 1 or more"),
        ({"name": "gradient-step", "to": "lstm", "eta": -1.0}, "expected eta above 0"),
        ({"name": "gradient-step", "to": "lstm", "d_x": 10**9}, "not enough memory"),
    ],
)
def test_refusals(arguments, rule):
    with pytest.raises(uh.UnderhoodError, match=rule):
        uh.algorithm_network(**arguments)
