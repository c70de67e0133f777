"""Which algorithm a network runs in context: known ones are named, and nothing else is."""

import json

import numpy as np
import pytest

import underhood as uh
from underhood.cli import main
from underhood.explain import in_context
from underhood.explain.algorithms import (
    RULES,
    DecayedGradientStep,
    DeltaRule,
    GradientStep,
    Kaczmarz,
    KGradientSteps,
    LeastSquares,
    Observed,
)
from underhood.training.tasks.linear_regression import INPUTS, LinearRegression
from underhood.training.tasks.task import VALIDATION, draw

KNOWN = [
    GradientStep(0.031),
    DeltaRule(0.21),
    Kaczmarz(),
    LeastSquares(0.4),
    DecayedGradientStep(0.09, 0.83),
    KGradientSteps(3, 0.045),
]
BY_NAME = {rule.name: rule for rule in KNOWN}


@pytest.fixture(autouse=True)
def few_tasks(monkeypatch):
    """What an algorithm without noise shows in thousands of tasks, it shows in hundreds."""
    monkeypatch.setattr(in_context, "TASKS", 1024)
    monkeypatch.setattr(in_context, "FITTED", 256)
    monkeypatch.setattr(in_context, "MONTE_CARLO", 2)


def by_hand(rule, x, y, query):
    """One task, written as the textbooks have it."""
    weights = np.zeros((y.shape[1], x.shape[1]))
    age = np.arange(len(x))[::-1]
    match rule:
        case GradientStep():
            weights = rule.eta * y.T @ x
        case DecayedGradientStep():
            weights = rule.eta * (y * rule.decay ** age[:, None]).T @ x
        case DeltaRule() | Kaczmarz():
            for one, value in zip(x, y, strict=True):
                rate = rule.beta if isinstance(rule, DeltaRule) else 1 / (one @ one)
                weights = weights + rate * np.outer(value - weights @ one, one)
        case LeastSquares():
            weights = np.linalg.solve(x.T @ x + rule.ridge * np.eye(x.shape[1]), x.T @ y).T
        case KGradientSteps():
            for _ in range(rule.k):
                weights = weights + rule.eta * (y - x @ weights.T).T @ x
    return weights @ query


def test_every_algorithm_has_a_case_here():
    assert [type(rule) for rule in KNOWN] == list(RULES)


@pytest.mark.parametrize("rule", KNOWN, ids=BY_NAME)
def test_algorithms_are_those_of_the_textbook(rule):
    random = np.random.default_rng(0)
    xs = random.standard_normal((4, 8, 5))
    predicted = rule(Observed.of(xs, 3))
    for one, sequence in zip(predicted, xs, strict=True):
        expected = by_hand(rule, sequence[:-1, :3], sequence[:-1, 3:], sequence[-1, :3])
        np.testing.assert_allclose(one, expected, rtol=1e-9, atol=1e-12)
    network = rule.network(3)
    np.testing.assert_array_equal(network(xs)[:, -1], predicted)
    np.testing.assert_array_equal(network(xs[0]), network(xs)[0])
    assert np.all(network(xs)[:, 0] == 0)


@pytest.mark.parametrize("inputs", INPUTS)
@pytest.mark.parametrize("stream", [1, VALIDATION])
def test_closed_forms_agree_with_samples(inputs, stream):
    task = LinearRegression(9, 3, 2, inputs)
    xs, right = draw(task, 5, 40_000, stream=stream)
    seen = Observed.of(xs, 3)
    for rule in (GradientStep(0.05), DecayedGradientStep(0.05, 0.7), DeltaRule(0.15), Kaczmarz()):
        losses = 0.5 * np.mean((rule(seen) - right) ** 2, axis=1)
        exact = rule.loss(task, validation=stream == VALIDATION)
        assert exact is not None
        assert abs(losses.mean() - exact) < 5 * losses.std() / len(losses) ** 0.5
        # Negative control: the sample tells a wrong formula.
        assert abs(losses.mean() - 1.3 * exact) > 5 * losses.std() / len(losses) ** 0.5


def test_noise_is_in_the_closed_form_of_the_steps():
    task = LinearRegression(noise=0.5)
    xs, right = draw(task, 5, 40_000)
    for rule in (GradientStep(task.optimal_eta), DecayedGradientStep(0.05, 0.7)):
        losses = 0.5 * np.mean((rule(Observed.of(xs, 3)) - right) ** 2, axis=1)
        exact = rule.loss(task)
        assert exact is not None and abs(losses.mean() - exact) < 5 * losses.std() / len(losses) ** 0.5
    assert DeltaRule(0.2).loss(task) is None
    assert DeltaRule(0.2).loss(LinearRegression()) is not None


def test_the_ladder_is_that_of_the_paper_s_task():
    found = uh.in_context(GradientStep(1 / 14.8).network(3), batched=True)
    best = {rung.name: rung.best_loss for rung in found.ladder}
    assert best["gradient-step"] == pytest.approx(7 / 74)
    assert best["delta-rule"] == pytest.approx(0.5 * (1 - 1 / 3.8) ** 12)
    assert best["kaczmarz"] == pytest.approx(0.5 * (2 / 3) ** 12)
    assert best["least-squares"] < 1e-12
    assert found.training_loss == pytest.approx(7 / 74, rel=1e-9)
    assert found.validation_loss == pytest.approx(7 / 37, rel=1e-9)
    for rung in found.ladder:
        assert rung.loss is None or rung.monte_carlo == pytest.approx(rung.loss, rel=0.3)


@pytest.mark.parametrize(
    ("rule", "inputs"),
    [*((rule, "uniform") for rule in KNOWN), (DeltaRule(0.3), "sphere"), (LeastSquares(3.0), "normal")],
    ids=lambda given: getattr(given, "name", given),
)
def test_known_algorithms_are_recognised(rule, inputs):
    found = uh.in_context(rule.network(2), 2, 2, 9, inputs, seed=1, batched=True)
    assert found.name == rule.name
    assert found.r2 >= 0.999
    assert found.parameters == pytest.approx(rule.parameters, rel=0.01)


def test_on_the_sphere_kaczmarz_is_the_delta_rule():
    found = uh.in_context(Kaczmarz().network(3), inputs="sphere", batched=True)
    assert (found.name, found.parameters) == ("delta-rule", {"beta": pytest.approx(1 / 3, rel=1e-6)})


@pytest.mark.parametrize("share", [0.97, 0.9999])
def test_noise_takes_the_name_away(share):
    """Below R² 0.99 there is no name; above, noise does not stand in its way."""
    random, rule = np.random.default_rng(0), GradientStep(1 / 14.8)

    def noisy(xs):
        ys = rule.network(3)(xs)
        return ys + 0.9 * np.sqrt(1 / share - 1) * random.standard_normal(ys.shape)

    found = uh.in_context(noisy, batched=True)
    assert found.name == ("none" if share < 0.99 else "gradient-step")
    assert found.parameters == ({} if share < 0.99 else {"eta": pytest.approx(1 / 14.8, rel=0.01)})
    low, high = found.r2_interval
    assert low <= found.r2 <= high and high - low < 0.02
    assert found.nearest.r2 >= found.r2


def rung(name, r2, interval=0.001):
    return in_context.Rung(name, {}, r2, (r2 - interval, r2 + interval), None, 0.1, 0.1)


@pytest.mark.parametrize(
    ("explained", "chosen"),
    [
        ([0.9950, 0.9960], "first"),  # the simpler one, which is nearly as good
        ([0.9920, 0.9990], "second"),  # which halves what is left
        ([0.9890, 0.9930], "second"),  # the simpler one does not explain enough
        ([0.9999995, 1.0], "first"),  # what it leaves is nothing
        ([0.9904, 0.5], None),  # 0.99 is within the interval
        ([0.3, -np.inf], None),
    ],
)
def test_the_simplest_algorithm_that_explains_enough_gives_the_name(explained, chosen):
    ladder = tuple(rung(name, r2) for name, r2 in zip(("first", "second"), explained, strict=True))
    found = in_context._chosen(ladder)
    assert (found and found.name) == chosen


@pytest.mark.parametrize(
    "network",
    [
        uh.make_model("lstm", 6, d_out=3, hidden=16),
        lambda xs: np.cumsum(xs, axis=-2),
        lambda xs: -GradientStep(0.05).network(3)(xs),  # a sign that no algorithm has
        lambda xs: GradientStep(0.05).network(3)(xs) + 0.2,
        lambda xs: np.tanh(3 * GradientStep(0.07).network(3)(xs)),
    ],
    ids=["random LSTM", "linear RNN", "negative step", "step and a constant", "step through tanh"],
)
def test_other_networks_have_no_name(network):
    found = uh.in_context(network, batched=True)
    assert found.name == "none" and not found.is_known
    assert found.parameters == {}
    assert found.r2 < 0.99


def test_only_the_last_outputs_of_the_last_step_count():
    def elsewhere(xs):
        ys = np.full(xs.shape, 7.0)
        ys[:, -1, 3:] = GradientStep(0.05).network(3)(xs)[:, -1]
        return ys

    found = uh.in_context(elsewhere, batched=True)
    assert (found.name, found.parameters) == ("gradient-step", {"eta": pytest.approx(0.05, rel=1e-6)})


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        ({"d_x": 0}, "expected d_x of 1 or more; got 0"),
        ({"seed": -1}, "expected seed of 0 or more"),
        ({"inputs": "cubic"}, "expected inputs uniform, sphere, normal"),
        ({"d_y": 2}, r"expected d_x \+ d_y = 6"),
        ({"observations": 10**12}, "not enough memory"),
    ],
)
def test_bad_settings_are_refused(arguments, rule):
    with pytest.raises(uh.UnderhoodError, match=rule):
        uh.in_context(uh.gradient_descent_attention(3, 3, 0.05), **arguments)


@pytest.mark.parametrize(
    ("network", "rule"),
    [
        (lambda xs: xs[..., :2], "expected outputs y of size 3, or"),
        (lambda xs: np.zeros((*xs.shape[:-1], 3)), "predictions vary"),
        (lambda xs: np.full((*xs.shape[:-1], 3), np.nan), "finite"),
    ],
)
def test_networks_that_predict_nothing_are_refused(network, rule):
    with pytest.raises(uh.UnderhoodError, match=rule):
        uh.in_context(network)


def test_the_command_answers_in_json_and_by_its_exit_code(tmp_path, capsys):
    step, other = tmp_path / "step.safetensors", tmp_path / "other.safetensors"
    uh.save(uh.gradient_descent_attention(2, 2, 0.1), step)
    uh.save(uh.make_model("lstm", 4, hidden=8), other)
    sizes = ["--d-x", "2", "--d-y", "2", "--observations", "6"]
    assert main(["in-context", str(step), *sizes, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    keys = ["name", "parameters", "r2", "r2_interval", "training_loss", "validation_loss", "ladder"]
    assert list(printed) == keys
    assert printed["name"] == "gradient-step"
    assert [rung["name"] for rung in printed["ladder"]] == [rule.name for rule in RULES]
    assert main(["in-context", str(other), *sizes]) == 1
    shown = capsys.readouterr().out
    assert "none of the known ones" in shown and "nearest" in shown and "k-gradient-steps" in shown
    assert main(["in-context", str(other)]) == 2
    captured = capsys.readouterr()
    told = "expected d_x + d_y = 4, the inputs of this network; got 3 + 3. Give --d-x and --d-y."
    assert captured.err == f"underhood: {told}\n"
