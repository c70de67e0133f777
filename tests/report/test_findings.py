"""The paper's findings, asked of runs that were made up to hold them, and of ones that do not."""

import json
from pathlib import Path

from underhood.report.findings import FINDINGS, main, transition
from underhood.report.sweeps import REGRESSION, SIZES, TEACHER, sweep_of
from underhood.sweep.store import results

COMMITTED = Path(__file__).resolve().parents[2] / "results" / "laptop" / "sweep"


def test_the_transition_is_where_the_loss_has_fallen_half_way_on_a_log_scale():
    losses = {8: 1.0, 16: 0.9, 32: 1e-3, 64: 1e-4}
    records = [{"hidden": width, "loss": loss} for width, loss in losses.items()]
    assert transition(records, "loss") == 32
    assert transition(records[:2], "loss") == 16
    assert transition([{"hidden": 4, "loss": -1e-5}, {"hidden": 2, "loss": 1.0}], "loss") == 4


def made_up(**losses):
    """A run of each kind that the laptop sweep has, at the largest width, with these losses."""
    records = []
    for run in sweep_of("laptop").expanded():
        key = f"{'t' if run.task == TEACHER else 'r'}_{run.model.replace('-', '_')}"
        loss = losses.get(key, 1.0) / run.hidden
        record = {**run.model_dump(), "held_out_loss": loss, "validation_loss": 2 * loss, "excess": loss}
        records.append({**record, "attention_r2": 1 - loss, "status": "done"})
    return records


HOLDS = {"t_gated_rnn": 1e-4, "t_gated_rnn_dense": 2e-4, "t_lru_in_out": 0.1, "t_lru_in_skip": 0.1, "t_lru": 5.0}
HOLDS |= {"r_gru": 0.01, "r_lru_in_out": 0.02, "r_lru_in_skip": 0.02, "r_lru": 0.9}


def test_findings_that_hold_and_findings_that_do_not():
    good = {row.name: row for row in FINDINGS["figure4"](made_up(**HOLDS))}
    assert all(row.met for row in good.values())
    bad = {row.name: row for row in FINDINGS["figure4"](made_up(**{**HOLDS, "r_gru": 9.0, "t_gated_rnn": 0.5}))}
    assert {name for name in bad if not bad[name].met} == {
        next(name for name in bad if "over gated RNN" in name),
        next(name for name in bad if "GRU over the best" in name),
        next(name for name in bad if "GRU over the gradient step" in name),
    }
    assert all(row.met for row in FINDINGS["figure5"](made_up(**HOLDS)))


def test_the_sweeps_of_both_budgets_are_valid():
    for budget, sizes in SIZES.items():
        runs = sweep_of(budget).expanded()
        assert {run.steps for run in runs if run.probe and run.task == REGRESSION} == {sizes["steps"][REGRESSION]}
        assert {run.model for run in runs if run.probe} >= {"gated-rnn-dense", "lru-in-skip", "lstm", "gru"}


def test_the_committed_runs_are_whole_and_say_what_the_figures_say(capsys):
    records = results(COMMITTED)
    assert {record["id"] for record in records} >= {run.id for run in sweep_of("laptop").expanded()}
    main(str(COMMITTED))
    printed = capsys.readouterr().out
    for figure, ask in FINDINGS.items():
        rows = json.loads((COMMITTED.parent / f"{figure}.json").read_text())["rows"]
        assert [(row["name"], row["met"]) for row in rows] == [(row.name, row.met) for row in ask(records)]
        assert printed.count(figure) == len(rows)
