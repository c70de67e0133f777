"""The technical report is typeset from results/ alone, and notices a number that is gone."""

import json
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
typst = pytest.importorskip("typst", reason="the docs extra is not installed")
FLAGS = {"faithfulness": "false", "softmax": "false"}


def test_it_has_eight_to_twelve_pages(tmp_path):
    from docs.report.make import make

    assert make(tmp_path / "report.pdf").read_bytes().startswith(b"%PDF")
    pages = typst.compile(
        str(ROOT / "docs/report/report.typ"), root=str(ROOT), format="png", ppi=10.0, sys_inputs=FLAGS
    )
    assert 8 <= len(pages) <= 12


def test_a_row_that_is_gone_is_an_error(tmp_path):
    shutil.copytree(ROOT / "docs" / "report", tmp_path / "docs" / "report")
    shutil.copytree(ROOT / "results", tmp_path / "results", ignore=shutil.ignore_patterns("sweep"))
    path = tmp_path / "results" / "quick" / "table3.json"
    record = json.loads(path.read_text())
    record["rows"] = [row for row in record["rows"] if not row["name"].startswith("GRU")]
    path.write_text(json.dumps(record))
    with pytest.raises(typst.TypstError, match="no row GRU"):
        typst.compile(str(tmp_path / "docs/report/report.typ"), root=str(tmp_path), sys_inputs=FLAGS)
