"""Figures of a sweep that is still under way."""

import json

import pytest

from tests.studies.test_findings import HOLDS, made_up
from underhood.cli import main
from underhood.studies.findings import FINDINGS, REGRESSION, TEACHER
from underhood.studies.plans import architectures_of

COUNT = len(architectures_of("laptop").expanded())


def swept(out, without=lambda record: False):
    """The sweep of Figures 4 and 5 as its folder has it, without some of its runs; the records that are there."""
    folder = out / "laptop" / "sweep" / "architectures"
    folder.mkdir(parents=True)
    (folder / "spec.json").write_text(json.dumps(architectures_of("laptop").model_dump()))
    numbers = {"parameters": 100, "seconds": 1.0}
    ids = {run.id: run for run in architectures_of("laptop").expanded()}
    made = [{**record, **numbers} for record in made_up(**HOLDS) if record["probe"]]
    records = [{"id": name, **record} for name, record in zip(ids, made, strict=True)]
    there = [record for record in records if not without(record)]
    (folder / "results.jsonl").write_text("".join(json.dumps(record) + "\n" for record in there))
    return there


def drawn(out, figure="figure4"):
    code = main(["reproduce", figure, "--budget", "laptop", "--so-far", "--out", str(out)])
    return code, json.loads((out / "laptop" / f"{figure}.json").read_text())


def one_seed_of_the_widest_lstm(record):
    return (record["task"], record["model"], record["layers"], record["hidden"], record["seed"], record["steps"]) == (
        TEACHER,
        "lstm",
        1,
        32,
        1,
        4_000,
    )


@pytest.mark.parametrize("figure", ["figure4", "figure5"])
def test_a_sweep_that_has_ended_is_drawn_as_ever(figure, tmp_path, capsys):
    records = swept(tmp_path)
    _, record = drawn(tmp_path, figure)
    rows = [(row.name, row.met) for row in FINDINGS[figure](records)]
    assert [(row["name"], row["met"]) for row in record["rows"]] == rows
    assert record["provenance"]["settings"]["runs"] == COUNT


def test_a_width_is_shown_once_all_its_networks_are_there(tmp_path, capsys):
    """One run is missing: the width is left out for all that it would be compared with, and for no others."""
    there = swept(tmp_path, one_seed_of_the_widest_lstm)
    assert len(there) == COUNT - 1
    code, record = drawn(tmp_path)
    alike = [r for r in there if (r["task"], r["layers"], r["hidden"], r["steps"]) == (TEACHER, 1, 32, 4_000)]
    assert code == 1 and record["rows"][0] == {
        "name": "runs so far",
        "paper": None,
        "here": f"{len(there) - len(alike)} of {COUNT}",
        "target": f"= {COUNT}",
        "met": False,
    }
    widths = {chart["name"][0]: {tuple(curve["x"]) for curve in chart["curves"]} for chart in record["charts"]}
    assert widths["A"] == {(8, 16)} and widths["B"] == {(8, 16, 32)}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["figure4", "--budget", "laptop"], "no runs in "),
        (["table1", "--budget", "paper"], "made of a sweep; got table1. Known: figure3, figure4, figure5."),
        ([], "made of sweeps; got quick. Use --budget laptop or overnight or paper."),
    ],
)
def test_nothing_to_draw_is_one_line(arguments, message, tmp_path, capfd):
    assert main(["reproduce", *arguments, "--so-far", "--out", str(tmp_path / "out")]) == 2
    heard = capfd.readouterr().err
    assert message in heard and len(heard.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_a_sweep_that_has_just_begun_has_nothing_to_compare(tmp_path, capfd):
    swept(tmp_path, lambda record: record["task"] == REGRESSION or record["seed"] > 0)
    assert main(["reproduce", "figure4", "--budget", "laptop", "--so-far", "--out", str(tmp_path)]) == 2
    assert "no runs for figure4 yet that can be compared" in capfd.readouterr().err
    assert not (tmp_path / "laptop" / "figure4.json").exists()
