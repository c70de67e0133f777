"""Table 3, Table 4, Figure 1: the files, their keys, and rows that can fail."""

import dataclasses
import json
import re
import subprocess

import numpy as np
import pytest

import underhood as uh
from underhood.cli import main
from underhood.pages.drawing import text_of
from underhood.studies import artifact, constructions
from underhood.studies.artifact import ARTIFACTS, Artifact, make_artifact
from underhood.studies.rows import Row, equals


@pytest.mark.parametrize("name", ["table4", "figure1"])
def test_an_artifact_is_json_png_and_pdf(name, tmp_path, capsys):
    assert main(["reproduce", name, "--out", str(tmp_path), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    record = json.loads((tmp_path / "quick" / f"{name}.json").read_text())
    assert printed["artifacts"] == [record]
    assert {"artifact", "budget", "rows", "provenance"} <= set(record)
    assert all(set(row) == {"name", "paper", "here", "target", "met"} for row in record["rows"])
    assert {"settings", "seeds", "versions", "commit", "wall_seconds"} <= set(record["provenance"])
    assert (tmp_path / "quick" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "quick" / f"{name}.pdf").read_bytes().startswith(b"%PDF")


def test_table_3_finds_the_fewest_layers():
    attention, gated = uh.random_attention(2, seed=0), constructions.gated_source(2, 4, 3)
    assert constructions.fewest_layers(attention, "gru")[0] == 1
    assert constructions.fewest_layers(gated, "gru")[0] == 2
    assert constructions.fewest_layers(attention, "lru")[0] == 2
    assert constructions.fewest_layers(gated, "lru-in-out")[0] == 1


def test_table_4_notices_other_weights():
    """Negative control: weights that are not the table's are named as other."""
    rows = np.random.default_rng(0).normal(size=(3, 4))
    assert constructions._proportional_to(2 * rows, {"W": rows}) == "W"
    assert constructions._proportional_to(rows + 0.1, {"W": rows}) == "other"
    assert constructions._proportional_to(0 * rows, {"W": rows}) == "0"


def test_a_row_that_is_not_met_ends_with_1(tmp_path, monkeypatch, capsys):
    failing = Artifact("figure1", [Row("x", 1, 2, equals(1)), Row("y", None, 3)], {})
    recipe = dataclasses.replace(ARTIFACTS["figure1"], make=lambda budget, runs: failing)
    monkeypatch.setitem(ARTIFACTS._things, "figure1", recipe)
    assert main(["reproduce", "figure1", "--out", str(tmp_path)]) == 1
    printed = capsys.readouterr().out
    assert "✗" in printed and "= 1" in printed and "0 of 1" in printed
    assert make_artifact("figure1", "quick", tmp_path)[1]["rows"][0]["here"] == 2


def test_numbers_as_people_write_them():
    assert [text_of(v) for v in (None, 2, 0.5, 9.96e-10, 3.1e-9)] == ["–", "2", "0.5", "1.0·10⁻⁹", "3.1·10⁻⁹"]
    assert [text_of(v) for v in (264.3, 8512.3, 98_765.0, 1.2e6)] == ["264", "8,510", "98,800", "1.2·10⁶"]
    assert [text_of(float(v)) for v in ("nan", "inf", "-inf")] == ["NaN", "∞", "-∞"]


def test_only_changed_source_makes_a_commit_dirty(tmp_path, monkeypatch):
    package = tmp_path / "underhood"
    (package / "studies").mkdir(parents=True)
    monkeypatch.setattr(artifact, "__file__", str(package / "studies" / "artifact.py"))
    assert artifact.commit_of_source() is None  # outside a checkout
    (package / "source.py").write_text("1\n")
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for arguments in (["init", "-q"], ["add", "."], [*identity, "commit", "-qm", "a"]):
        subprocess.run(["git", "-C", str(tmp_path), *arguments], check=True)
    (tmp_path / "results.json").write_text("{}")
    assert re.fullmatch(r"[0-9a-f]{40}", artifact.commit_of_source())
    (package / "source.py").write_text("2\n")
    assert artifact.commit_of_source().endswith("-dirty")
