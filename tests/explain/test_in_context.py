"""Which algorithm a network runs in context: known ones are named, and nothing else is."""

import json

import numpy as np
import pytest

import underhood as uh
from underhood.cli import main
from underhood.explain import elsewhere, in_context
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


@pytest.mark.parametrize(
    ("rule", "to"),
    [
        (GradientStep(0.05), "gated-rnn"),
        (DecayedGradientStep(0.05, 0.7), "linear-attention"),
        (KGradientSteps(2, 0.03), "gated-rnn"),
    ],
)
def test_an_algorithm_is_the_network_that_runs_it(rule, to):
    xs = np.random.default_rng(0).uniform(-1, 1, (7, 4))
    xs[-1, 2:] = 0
    network = rule.compiled(to, 2, 2)
    expected = rule.network(2)(xs)[-1]
    np.testing.assert_allclose(np.asarray(network(xs))[-1, -2:], expected, rtol=1e-9, atol=1e-12)
    with pytest.raises(uh.UnderhoodError, match=r"no algorithm|no construction"):
        Kaczmarz().compiled(to, 2, 2)


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


def conditions(*rows):
    return tuple(elsewhere.Condition(f"W* × {k}", dict(zip("abc", row, strict=False))) for k, row in enumerate(rows, 2))


@pytest.mark.parametrize(
    ("at_home", "there", "apart", "chosen"),
    [
        ([0.9950, 0.9995], [0.995, 0.9995], 0.01, "b"),  # which leaves a tenth of what the other does
        ([0.9950, 0.9960], [0.995, 0.996], 0.01, None),  # neither is better by enough, and they are two algorithms
        ([0.9950, 0.9960], [0.995, 0.996], 1e-5, "a"),  # they are one: the simpler one gives the name
        ([0.9999, 0.9990], [0.95, 0.999], 0.05, "b"),  # the better one does not hold elsewhere
        ([0.9950, 0.5000], [0.985, 0.5], 0.5, None),
        ([0.9890, 0.9880], [0.999, 0.999], 0.5, None),  # not enough where it was fitted
        ([0.9999999, 1.0], [0.9999999, 1.0], 1e-7, "a"),  # what it leaves is nothing
        ([0.9950, 0.5], [None, None], 0.5, "a"),  # the network takes no such tasks
    ],
)
def test_a_name_beats_every_other_and_holds_elsewhere(at_home, there, apart, chosen):
    gaps = apart * (1 - np.eye(2))
    found = elsewhere.choose(
        ["a", "b"], at_home, [r2 >= 0.99 for r2 in at_home], elsewhere.Elsewhere(conditions(there), gaps)
    )
    assert (None if found is None else "ab"[found]) == chosen


def of_spectrum(response):
    """B f(A) x at the last step: predictors that are linear in y."""

    def call(xs):
        ys = np.zeros((*xs.shape[:-1], 3))
        seen = Observed.of(xs.reshape(-1, *xs.shape[-2:]), 3)
        ys.reshape(-1, *ys.shape[-2:])[:, -1] = seen.filtered(response(seen.spectrum[0], seen.x.shape[1]))
        return ys

    return call


def momentum(values, observations, rate=0.07, share=0.3):
    now = before = np.zeros_like(values)
    for _ in range(4):
        now, before = now + rate * (1 - values * now) + share * (now - before), now
    return now


def newton(values, observations):
    """Two Newton steps for the inverse of A."""
    inverse = 2 / (values.max(axis=1, keepdims=True) + values.min(axis=1, keepdims=True)) * np.ones_like(values)
    for _ in range(2):
        inverse = inverse * (2 - values * inverse)
    return inverse


NEAR_OPTIMAL = {
    "momentum": momentum,
    "shrunk truth": lambda values, observations: 0.93 / np.maximum(values, 1e-9),
    "nearly the truth": lambda values, observations: 0.97 / np.maximum(values, 1e-9),
    "ridge that grows": lambda values, observations: 1 / (values + 0.1 * observations),
    "Newton": newton,
}


@pytest.mark.parametrize("name", NEAR_OPTIMAL)
def test_near_optimal_predictors_have_no_name(name):
    """Good predictors of a noise-free regression are all near to least squares, where they were fitted."""
    answer = uh.in_context(of_spectrum(NEAR_OPTIMAL[name]), batched=True)
    assert answer.name == "none", answer.parameters
    assert answer.nearest.r2 > 0.98
    by_name = {condition.name: condition.r2["least-squares"] for condition in answer.elsewhere}
    assert by_name["T = 4"] < 0.99
    plain = uh.in_context(of_spectrum(lambda values, observations: 1 / (values + 0.5)), batched=True)
    assert (plain.name, plain.parameters) == ("least-squares", {"ridge": pytest.approx(0.5, rel=1e-3)})
    assert all(condition.r2["least-squares"] > 0.999 for condition in plain.elsewhere)


def test_a_network_that_changes_with_the_size_of_w_has_no_name():
    """Exact where it was trained, saturated at four times that."""
    step = GradientStep(1 / 14.8).network(3)
    answer = uh.in_context(lambda xs: 12 * np.tanh(step(xs) / 12), batched=True)
    assert answer.nearest.name == "gradient-step" and answer.r2 > 0.99
    assert answer.name == "none"
    shares = [condition.r2["gradient-step"] for condition in answer.elsewhere]
    assert shares[0] > shares[1]


def test_a_network_of_one_length_is_judged_by_the_rest():
    def only_twelve(xs):
        if xs.shape[-2] != 13:
            raise ValueError("13 steps")
        return GradientStep(0.05).network(3)(xs)

    answer = uh.in_context(only_twelve, batched=True)
    assert answer.name == "gradient-step"
    assert [condition.name for condition in answer.elsewhere if condition.r2["kaczmarz"] is None] == ["T = 4", "T = 24"]
    assert answer.runners_up[0].name != "gradient-step"


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
    keys = ["name", "parameters", "r2", "r2_interval", "training_loss", "validation_loss", "ladder", "elsewhere"]
    assert list(printed) == keys
    assert printed["name"] == "gradient-step"
    assert [rung["name"] for rung in printed["ladder"]] == [rule.name for rule in RULES]
    assert main(["in-context", str(other), *sizes]) == 1
    shown = capsys.readouterr().out
    assert "none of the known ones" in shown and "nearest" in shown and "k-gradient-steps" in shown
    assert "R² elsewhere" in shown and "T = 2" in shown
    assert main(["in-context", str(other)]) == 2
    captured = capsys.readouterr()
    told = "expected d_x + d_y = 4, the inputs of this network; got 3 + 3. Give --d-x and --d-y."
    assert captured.err == f"underhood: {told}\n"
