"""`attend FOLDER --text` and `why`: pages and JSON from a folder and a text, and one line where it cannot be."""

import json

import numpy as np
import pytest

from tests.language.public import saved
from underhood.cli import main

TEXT = "the cat sat on the mat"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    saved("qwen3_next", path)
    return path


def test_why_prints_a_table_that_adds_up(folder, tmp_path, capsys):
    out = tmp_path / "why.html"
    assert (
        main(["why", str(folder), "--text", TEXT, "--target", "s", "--against", "x", "--out", str(out), "--json"]) == 0
    )
    told = json.loads(capsys.readouterr().out)
    table = np.array(told["contributions"])
    assert table.shape == (len(told["layers"]), len(told["tokens"]))
    assert table.sum() == pytest.approx(told["logit"], abs=1e-4)
    assert "".join(told["tokens"]) == TEXT
    assert (told["target"], told["against"]) == ("s", "x")
    assert {"completeness", "cancellation"} <= told.keys()
    assert "<script" in out.read_text()


def test_attend_writes_a_page_of_all_layers(folder, tmp_path, capsys):
    out = tmp_path / "map.html"
    assert main(["attend", str(folder), "--text", TEXT, "--out", str(out), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["layers"] == [0, 1, 2, 3] and told["completeness"] < 1e-4
    page = out.read_text()
    assert "layer 3" in page and "induction" in page
    assert main(["attend", str(folder), "--text", TEXT, "--layer", "1", "--out", str(tmp_path / "m.png")]) == 0
    assert main(["attend", str(folder), "--text", TEXT, "--layer", "1", "--out", str(tmp_path / "m.npz")]) == 0
    assert np.load(tmp_path / "m.npz")["weights"].shape[1:] == (len(TEXT), len(TEXT))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["why", "--text", TEXT, "--target", "xyz", "--json"], "expected a target of one token: 'xyz' has 3"),
        (["why", "--text", "", "--target", "x", "--json"], "expected a text with a token in it"),
        (["why", "--text", TEXT, "--target", "x"], "expected --out FILE.html, --json, or both"),
        (["attend", "--text", TEXT, "--layer", "9", "--out", "m.html"], "expected a layer from 0 to 3; got 9"),
        (["attend", "--text", TEXT, "--out", "m.png"], "expected --layer for .png"),
        (["attend", "--text", TEXT, "--seed", "1", "--out", "m.html"], "expected --text, or --seed, not both"),
    ],
)
def test_bad_questions_end_with_one_line(folder, tmp_path, monkeypatch, capsys, arguments, says):
    monkeypatch.chdir(tmp_path)
    assert main([arguments[0], str(folder), *arguments[1:]]) == 2
    told = capsys.readouterr().err.strip().splitlines()
    assert says in told[-1]
    assert list(tmp_path.iterdir()) == []


def test_the_pages_show_the_text(browser, folder, tmp_path):
    out = tmp_path / "why.html"
    assert main(["why", str(folder), "--text", TEXT, "--target", "s", "--out", str(out)]) == 0
    assert main(["attend", str(folder), "--text", TEXT, "--out", str(tmp_path / "map.html")]) == 0
    for path in (out, tmp_path / "map.html"):
        for width, scheme in ((400, "light"), (1300, "dark")):
            browser.open(path, width=width, scheme=scheme)
            assert browser.requests() == [path.as_uri()]
            assert browser.run("return document.documentElement.scrollWidth <= window.innerWidth")
            assert browser.text("#text") == TEXT
            browser.hover("#text .token:nth-child(5)")
            assert browser.run("return window.underhood.at()") == 4
            assert "token 5 of" in browser.text("#at")
        assert browser.complaints() == []
