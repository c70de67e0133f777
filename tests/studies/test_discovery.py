"""The study of what architectures find: who is in it, what is read off a network, and that it can be resumed."""

import numpy as np
import pytest

import underhood as uh
from underhood.core.model import ARCHITECTURES
from underhood.pages.drawing import rendered
from underhood.studies import discovery_runs
from underhood.studies.artifact import covered
from underhood.studies.discovery import draw_discovery, ladder, rows_of
from underhood.studies.discovery_runs import Finding, entries, fewest_layers, perturbed, read
from underhood.sweeps.spec import parse
from underhood.training.tasks.associative_recall import AssociativeRecall
from underhood.training.tasks.linear_regression import LinearRegression


@pytest.mark.parametrize("budget", discovery_runs.SIZES)
def test_every_architecture_is_in_it_and_the_specification_is_sound(budget):
    found = entries(budget, [*ARCHITECTURES])
    assert {one["model"] for one in found} == set(ARCHITECTURES)
    runs = parse({"runs": found}).expanded()
    assert len({run.make_task().name for run in runs}) == 3
    layers = {(run.model, run.layers) for run in runs}
    assert ("mingru", 2) in layers  # which needs two to hold attention
    assert ("mamba", 2) not in layers
    assert all((name, 1) in layers for name in ARCHITECTURES)


def test_it_is_not_made_by_default():
    assert "discovery" in covered("laptop") and "discovery" in covered("overnight")
    assert "discovery" not in covered("quick")


def test_layers_are_those_of_the_zoo():
    assert (fewest_layers("mamba"), fewest_layers("mingru"), fewest_layers("gru-after")) == (1, 2, None)


def test_the_ladder_has_the_losses_of_the_theory():
    levels = ladder("overnight")
    assert levels["regression, uniform"]["gradient step"] == pytest.approx(7 / 74)
    assert levels["regression, sphere"]["delta rule"] == pytest.approx(0.5 * (2 / 3) ** 12)
    assert levels["recall"]["one shown"] == pytest.approx(np.log(4))
    assert ladder("laptop")["recall"]["one shown"] == pytest.approx(np.log(3))


def test_a_perturbed_network_is_near_and_elsewhere():
    network = uh.compile(uh.random_attention(2), to="gated-rnn").model
    off = perturbed(network, 0.01, seed=0)
    xs = np.random.default_rng(0).standard_normal((6, 2))
    gap = np.max(np.abs(off(xs) - network(xs))) / np.max(np.abs(network(xs)))
    assert 1e-3 < gap < 0.3
    np.testing.assert_array_equal(perturbed(network, 0.0, seed=0)(xs), network(xs))


def test_what_is_read_off_a_network(tmp_path, monkeypatch):
    monkeypatch.setattr(discovery_runs, "READ", 2048)
    step, other = tmp_path / "step.safetensors", tmp_path / "other.safetensors"
    uh.save(uh.gradient_descent_attention(3, 3, 0.05), step)
    found = read({"file": str(step)}, LinearRegression())
    assert (found["algorithm"], found["nearest"]) == ("gradient-step", "gradient-step")
    assert found["attention_r2"] > 0.999
    uh.save(uh.make_model("gru", 16, d_out=32, hidden=4), other)
    assert read({"file": str(other)}, AssociativeRecall(32, 17, 3, 16)) == {}


def finding(model, layers, loss, **told):
    """One as the study makes it, with the numbers of the caller."""
    seeds = {"losses": [loss, 2 * loss], "found": True, "found_by": 1}
    regression = {"loss": loss, "algorithm": "none", "nearest": "gradient-step", "algorithm_r2": 0.5, **seeds, **told}
    tasks = {
        "teacher-student": {"held_out_loss": loss, "attention_r2": told.get("attention_r2", 0.2), **seeds},
        "regression, uniform": {**regression, "attention_r2": 0.4},
        "regression, sphere": {**regression, "attention_r2": 0.4},
        "recall": {"held_out_loss": 2 * loss, **seeds},
    }
    start = None if told.get("algorithm") else {"perturbed": 0.2, "trained": 0.1, "optimal": 7 / 74}
    return Finding(model, layers, fewest_layers(model), tasks, start)


def test_rows_tell_representing_from_finding():
    rows = {row.name: row.here for row in rows_of(finding("mamba", 1, 0.3))}
    assert rows["Mamba: represents attention"] == "in 1"
    assert rows["Mamba: finds attention"] == "no"
    assert rows["Mamba: stays at the compiled weights"] == "yes"
    assert rows["Mamba: regression, uniform, algorithm"] == "none"
    assert rows["Mamba: regression, uniform, median loss over seeds"] == pytest.approx(0.45)
    assert rows["Mamba: seeds that find attention"] == "1 of 2"
    found = {
        row.name: row.here for row in rows_of(finding("gru-after", 1, 0.1, algorithm="delta-rule", attention_r2=1.0))
    }
    label = ARCHITECTURES["gru-after"].label
    assert found[f"{label}: represents attention"] == "no construction"
    assert found[f"{label}: finds attention"] == "yes"
    assert f"{label}: stays at the compiled weights" not in found


def test_the_figure_shows_every_architecture():
    found = [finding(name, 1, 0.1 * (1 + index)) for index, name in enumerate(ARCHITECTURES)]
    figure = draw_discovery(found, ladder("laptop"))
    words = {text.get_text() for axes in figure.axes for text in axes.texts}
    assert {one.label for one in found} <= words
    assert {"gradient step", "Kaczmarz", "one shown"} <= words
    assert rendered(figure, "png").startswith(b"\x89PNG")


@pytest.mark.slow
def test_the_study_goes_on_where_it_stopped(tmp_path, monkeypatch):
    small = {"hidden": 4, "batch_size": 2, "steps": 2, "rates": [1e-3, 1e-2], "seeds": 2}
    monkeypatch.setitem(discovery_runs.SIZES, "laptop", small)
    (first,) = discovery_runs.findings("laptop", ["gla"], tmp_path)
    assert set(first.tasks) == set(discovery_runs.TASKS)
    assert first.start is not None and first.start["compiled"] == pytest.approx(7 / 74, rel=0.1)
    monkeypatch.setattr(discovery_runs, "read", lambda *_: pytest.fail("read again"))
    assert discovery_runs.findings("laptop", ["gla"], tmp_path) == [first]
