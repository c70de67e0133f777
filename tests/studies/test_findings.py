"""The paper's findings, asked of runs that were made up to hold them, and of ones that do not."""

import json
from pathlib import Path

import numpy as np
import pytest

from underhood.decompiler.from_outputs.closeness import closeness
from underhood.studies.findings import (
    FINDINGS,
    REGRESSION,
    TEACHER,
    correlation,
    distance,
    exact_distance,
    gradient_step_loss,
    main,
    network_of,
    on_both_tasks,
    transition,
)
from underhood.studies.plans import SIZES, architectures_of, best_rates, rates_of, records_so_far, widths_of
from underhood.sweeps.store import results
from underhood.training.tasks.linear_regression import LinearRegression
from underhood.training.tasks.task import draw

COMMITTED = Path(__file__).resolve().parents[2] / "results" / "laptop" / "sweep"


def test_the_transition_is_where_the_loss_has_fallen_half_way_on_a_log_scale():
    losses = {8: 1.0, 16: 0.9, 32: 1e-3, 64: 1e-4}
    records = [{"hidden": width, "loss": loss} for width, loss in losses.items()]
    assert transition(records, "loss") == 32
    assert transition(records[:2], "loss") == 16
    assert transition([{"hidden": 4, "loss": -1e-5}, {"hidden": 2, "loss": 1.0}], "loss") == 4


@pytest.fixture
def few_draws(monkeypatch):
    """For tests that do not look at the intervals' ends."""
    monkeypatch.setattr("underhood.algebra.statistics.RANK_DRAWS", 50)


def both(budget):
    return [*widths_of(budget).expanded(), *architectures_of(budget).expanded()]


def made_up(budget="laptop", **losses):
    """A run of each kind that the sweep has, at the largest width, with these losses."""
    records = []
    for run in both(budget):
        key = f"{'t' if run.task == TEACHER else 'r'}_{run.model.replace('-', '_')}"
        loss = losses.get(key, 1.0) / run.hidden
        record = {**run.model_dump(), "held_out_loss": loss, "validation_loss": 2 * loss, "excess": loss}
        record["validation_excess"] = record["validation_loss"] - gradient_step_loss(validation=True)
        records.append({**record, "attention_r2": 1 - loss, "status": "done"})
    return records


HOLDS = {"t_gated_rnn": 1e-4, "t_gated_rnn_dense": 2e-4, "t_lru_in_out": 0.1, "t_lru_in_skip": 0.1, "t_lru": 5.0}
HOLDS |= {"r_gru": 0.01, "r_lru_in_out": 0.02, "r_lru_in_skip": 0.02, "r_lru": 0.9}


@pytest.mark.usefixtures("few_draws")
def test_findings_that_hold_and_findings_that_do_not():
    good = {row.name: row for row in FINDINGS["figure4"](made_up(**HOLDS))}
    assert all(row.met is True for row in good.values())
    bad = {row.name: row for row in FINDINGS["figure4"](made_up(**{**HOLDS, "r_gru": 9.0, "t_gated_rnn": 0.5}))}
    assert {name for name in bad if bad[name].met is False} == {
        next(name for name in bad if "over gated RNN" in name),
        next(name for name in bad if "GRU over the best" in name),
        next(name for name in bad if "GRU over the gradient step" in name),
    }
    assert not any(row.met is False for row in FINDINGS["figure5"](made_up(**HOLDS)))


@pytest.mark.usefixtures("few_draws")
def test_input_gating_is_asked_of_one_layer_and_of_two():
    """Each of its own networks; of two layers once there are any."""
    records = made_up("overnight", **HOLDS)
    for record in records:
        if (record["task"], record["model"], record["layers"]) == (TEACHER, "lru", 2):
            record["validation_loss"] = 1e-9
    rows = {row.name: row.met for row in FINDINGS["figure5"](records) if row.name.startswith("teacher")}
    asked = "LRU over LRU with input gating"
    assert rows == {f"teacher, one layer: {asked}": True, f"teacher, two layers: {asked}": False}
    begun = [record for record in records if (record["task"], record["layers"]) != (TEACHER, 2)]
    assert sum(row.name.startswith("teacher") for row in FINDINGS["figure5"](begun)) == 1


def test_a_row_tells_what_each_seed_gives():
    """The median over seeds is what is asked; a seed that differs shows, and only in the rows that it is in."""
    records = made_up("overnight", **HOLDS)
    wide = [r for r in records if (r["task"], r["model"], r["hidden"]) == (TEACHER, "gated-rnn", 64) and r["probe"]]
    assert {record["seed"] for record in wide} == {0, 1, 2}
    next(record for record in wide if record["seed"] == 1)["validation_loss"] *= 4
    rows = FINDINGS["figure4"](records)
    changed = next(row for row in rows if "over gated RNN" in row.name)
    assert changed.here == pytest.approx(1000) and changed.by_seed == pytest.approx((1000, 250, 1000))
    assert all(len(row.by_seed) == 3 and len(set(row.by_seed)) == 1 for row in rows if row is not changed)
    long = FINDINGS["figure4"](made_up(**HOLDS))  # of the laptop's longer runs there is one seed
    assert {row.name.split(":")[0]: len(row.by_seed) for row in long} == {"teacher": 1, "regression": 2}


@pytest.mark.parametrize(("loss", "met"), [(1e-6, True), (1e-4, False)])
def test_the_plateau_is_asked_of_runs_that_are_long_enough(loss, met):
    """Of 68 neurons: what is made up is divided by the width."""
    asked = [row for row in FINDINGS["figure3"](made_up("overnight", t_gated_rnn=loss)) if "loss at 68" in row.name]
    assert [row.met for row in asked] == [met]
    assert not any("loss at" in row.name for row in FINDINGS["figure3"](made_up(t_gated_rnn=loss)))


def made_up_runs(count, *, slope, gap=0.0, noise=0.0):
    """Two architectures; loss rises with the distance by `slope` in each, and by `gap` from one to the other."""
    random, records = np.random.default_rng(1), []
    for model, offset in (("gru", 0.0), ("lru", gap)):
        for hidden in range(1, count + 1):
            far = (hidden + offset) / (4 * (count + gap))
            loss = 5 + slope * hidden + offset + noise * random.standard_normal()
            records.append(
                {"model": model, "layers": 1, "hidden": hidden, "attention_r2": 1 - far, "validation_loss": loss}
            )
    return records


def test_a_correlation_has_an_interval_that_covers_it_and_narrows():
    few, many = (correlation(made_up_runs(count, slope=1.0, noise=2.0)) for count in (6, 60))
    for one in (few, many):
        assert -1 <= one.low < one.value < one.high <= 1
    assert many.high - many.low < few.high - few.low
    assert (few.points, many.points) == (12, 120)
    chance = correlation(made_up_runs(30, slope=0.0, noise=1.0))
    assert chance.low < 0 < chance.high
    alike = correlation([{**record, "attention_r2": 0.5} for record in made_up_runs(3, slope=1.0)])
    assert np.isnan([alike.value, alike.low, alike.high]).all() and alike.points == 6
    exact = correlation(made_up_runs(10, slope=1.0))
    assert exact.value == pytest.approx(1) and exact.low == pytest.approx(1)


def test_a_gap_between_architectures_is_no_correlation_within_them():
    """Within each, networks further from attention are better; but one architecture is both further and worse."""
    records = made_up_runs(10, slope=-0.5, gap=40.0)
    assert correlation(records).low > 0
    assert correlation(records, within=("model", "layers")).value == pytest.approx(-1)


def on_tasks(of_teacher, in_context):
    """Figure 5's runs, with a loss on each task that a network's kind and width give."""
    records = made_up("overnight")
    for record in records:
        ask = of_teacher if record["task"] == TEACHER else in_context
        record["validation_loss"] = ask(record)
    rows = FINDINGS["figure5"](records)
    return {row.name.split(":")[0]: row for row in rows if "on both tasks" in row.name}


@pytest.mark.usefixtures("few_draws")
def test_who_mimics_attention_well_may_learn_well_in_context():
    kinds = ["lru", "lru-in-out", "lru-in-skip", "gated-rnn", "gated-rnn-dense", "lstm", "gru"]

    def kind(record):
        return 1.0 + kinds.index(record["model"]) + record["layers"] / 4 - record["hidden"] / 1000

    alike = on_tasks(kind, kind)
    assert all(
        row.here.startswith("1.00 (1.00 to 1.00") and row.by_seed == pytest.approx((1,) * 3) for row in alike.values()
    )
    assert alike["LRUs"].met and alike["LRUs"].here.endswith("72 runs)") and len(alike) == 3
    against = on_tasks(kind, lambda record: 9 - kind(record))
    assert against["LRUs"].here.startswith("-1.00") and not against["LRUs"].met
    # Wider networks are better at both; of one width, who is better at one is worse at the other.
    wider = on_tasks(lambda r: kind(r) - 100 * r["hidden"], lambda r: -kind(r) - 100 * r["hidden"])
    assert wider["LRUs"].met and wider["LRUs, at equal width"].here.startswith("-1.00")


@pytest.mark.usefixtures("few_draws")
def test_pairs_are_of_the_same_network_and_seed():
    records = [record for record in made_up("overnight") if record["probe"]]
    for record in records:
        if record["task"] == TEACHER:
            record["validation_loss"] = record["hidden"] + 100 * record["layers"] + 1000 * record["seed"]
    pairs = on_both_tasks(records)
    assert len(pairs) == sum(record["task"] == REGRESSION for record in records)
    assert all(one[TEACHER] == one["hidden"] + 100 * one["layers"] + 1000 * one["seed"] for one in pairs)
    begun = [record for record in records if record["task"] == REGRESSION or record["seed"] == 0]
    assert {one["seed"] for one in on_both_tasks(begun)} == {0}
    few = [record for record in records if record["task"] == REGRESSION or network_of(record)[1:] == (1, 8)]
    assert len(on_both_tasks(few)) == 3 * 7
    assert not any("both tasks" in row.name for row in FINDINGS["figure5"](few))


def test_what_predicts_exactly_is_as_far_from_attention_as_is_said():
    """A predictor that reads W off the examples; the gradient step itself is attention."""
    task = LinearRegression()
    xs, _ = draw(task, 0, task.probes)

    def exactly(xs):
        x, y = xs[:-1, : task.d_x], xs[:-1, task.d_x :]
        return np.tile(np.linalg.lstsq(x, y, rcond=None)[0].T @ xs[-1, : task.d_x], (len(xs), 1))

    def one_step(xs):
        return np.tile(task.optimal_prediction(xs[None])[0], (len(xs), 1))

    assert 1 - closeness(exactly, xs, last=True) == pytest.approx(exact_distance(), rel=0.02)
    assert 1 - closeness(one_step, xs, last=True) < 1e-9


def test_a_network_that_says_nothing_is_as_far_from_attention_as_can_be():
    """LRUs of one layer predict 0 for every task; what rounding leaves of that has an R² of −10³⁰⁰."""
    assert [distance({"attention_r2": r2}) for r2 in (1.0, 0.25, -0.5, -1e300)] == [1e-9, 0.75, 1.0, 1.0]


def by_distance(records):
    return {row.name.split(":")[0]: row for row in FINDINGS["figure5"](records) if "distance" in row.name}


@pytest.mark.usefixtures("few_draws")
def test_on_either_side_of_the_gradient_step_the_question_has_another_answer():
    """The gradient step is attention: who is worse is further off the worse, and who is better the better."""
    records = made_up("overnight", **HOLDS)
    asked = [r for r in records if r["task"] == REGRESSION and r["probe"]]
    for record, off in zip(asked, np.linspace(-0.9, 0.9, len(asked)), strict=True):
        record |= {"validation_loss": np.exp(off), "validation_excess": off, "attention_r2": 1 - abs(off)}
    rows = by_distance(records)
    for whose in ("", "LRUs "):
        for side, sign in (("not yet at the gradient step", 1), ("beyond the gradient step", -1)):
            assert rows[whose + side].here.startswith(f"{sign:.2f}"), whose + side
            assert rows[whose + side].by_seed == pytest.approx((sign,) * 3)
    assert len(rows["all architectures"].by_seed) == 3
    for record in asked:
        record["validation_excess"] = 1.0
    rows = by_distance(records)
    assert "not yet at the gradient step" in rows and "beyond the gradient step" not in rows


def test_the_sweeps_of_all_budgets_are_valid():
    for budget, sizes in SIZES.items():
        runs = both(budget)
        assert {run.steps for run in runs if run.probe and run.task == REGRESSION} == {sizes["steps"][REGRESSION]}
        assert {run.model for run in runs if run.probe} >= {"gated-rnn-dense", "lru-in-skip", "lstm", "gru"}


def test_each_architecture_trains_at_the_rate_of_its_search():
    found = {1e-3: 0.4, 3e-3: 0.2, 1e-2: 0.1, 3e-2: 0.15}
    searched = [
        {
            **run.model_dump(),
            "status": "done",
            "held_out_loss": 9.0 if run.layers == 2 and run.learning_rate == 3e-2 else found[run.learning_rate],
        }
        for run in rates_of("overnight").expanded()
    ]
    rates = best_rates(searched)
    runs = architectures_of("overnight", rates).expanded()
    assert {(run.layers, run.learning_rate) for run in runs} == {(1, 1e-2), (2, 3e-3)}, "the best, but not at an edge"
    assert {run.learning_rate for run in architectures_of("overnight").expanded()} == {1e-3}
    diverged = next(record for record in searched if record["layers"] == 1 and record["learning_rate"] == 1e-2)
    kind = tuple(diverged[name] for name in ("task", "model", "layers"))
    diverged |= {"status": "failed", "held_out_loss": 0.0}
    assert best_rates(searched) == {**rates, kind: 1e-3}


def test_the_committed_runs_are_whole_and_say_what_the_figures_say(capsys):
    records = [record for name in ("widths", "architectures") for record in results(COMMITTED / name)]
    longest = results(COMMITTED.parents[1] / "overnight" / "sweep" / "widths")
    assert {record["id"] for record in longest} == {run.id for run in widths_of("overnight").expanded()}
    rows = json.loads((COMMITTED.parents[1] / "overnight" / "figure3.json").read_text())["rows"]
    assert [(row["name"], row["here"]) for row in rows] == [
        (row.name, row.here) for row in FINDINGS["figure3"](longest)
    ]
    compared, planned = records_so_far(COMMITTED.parents[1] / "overnight" / "sweep", widths=False)
    assert planned == len(architectures_of("overnight").expanded())
    for figure in ("figure4", "figure5"):
        rows = json.loads((COMMITTED.parents[1] / "overnight" / f"{figure}.json").read_text())["rows"]
        told = [(row["name"], row["here"]) for row in rows]
        missing = [("runs so far", f"{len(compared)} of {planned}")] if len(compared) < planned else []
        assert told == missing + [(row.name, row.here) for row in FINDINGS[figure](compared)]
    assert {record["id"] for record in records} >= {run.id for run in both("laptop")}
    main(str(COMMITTED))
    printed = capsys.readouterr().out
    for figure, ask in FINDINGS.items():
        rows = json.loads((COMMITTED.parent / f"{figure}.json").read_text())["rows"]
        assert [(row["name"], row["target"], row["met"]) for row in rows] == [
            (row.name, row.target and row.target.text, row.met) for row in ask(records)
        ]
        assert printed.count(figure) == len(rows)
