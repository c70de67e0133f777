"""Results print in a few lines, and a notebook shows cards: the answer first, a map as a map, weights as cells."""

import re

import numpy as np
import pytest

import underhood as uh
from underhood.core.display import Displayed
from underhood.core.model import ARCHITECTURES


@pytest.fixture(scope="module")
def things():
    attention = uh.random_attention(3, seed=0)
    compiled = uh.compile(attention, to="gated-rnn")
    xs = np.random.default_rng(0).normal(size=(8, 3))
    config = uh.FitConfig(steps=6, log_every=2, batch_size=2, held_out=8)
    run = uh.fit(uh.make_model("gru", 3, hidden=4), uh.TeacherStudent(attention, 4), config)
    return {
        "model": compiled.model,
        "compiled": compiled,
        "found": uh.decompile(compiled.model),
        "map": uh.attention_map(compiled.model, xs),
        "run": run,
        "algorithm": uh.in_context(uh.gradient_descent_attention(3, 3, 0.05)),
    }


ANSWERS = {
    "model": "Gated RNN of Eq. 2: 3 inputs",
    "compiled": "gated-rnn, 1 layer, verified",
    "found": "linear-attention, 1 head",
    "map": "AttentionMap: exact, 8 rows of 8 steps",
    "run": "GRU, 1 layer, trained for 6 steps",
    "algorithm": "gradient-step",
}


@pytest.mark.parametrize("name", ANSWERS)
def test_the_answer_comes_first_in_a_few_lines(name, things):
    lines = repr(things[name]).splitlines()
    assert lines[0].startswith(ANSWERS[name]) and len(lines) <= 12
    assert "array(" not in repr(things[name])
    html = things[name]._repr_html_()
    assert re.search(r"<p>(.*?)</p>", html)[1] == lines[0]
    assert "<script" not in html


def test_pictures(things):
    cells = things["model"].parameters
    assert things["model"]._repr_html_().count("<rect") == cells
    assert things["map"]._repr_html_().count("<rect") == 8 * 8
    assert things["run"]._repr_html_().count("<circle") == 3
    large = uh.compile(uh.random_attention(12, seed=0)).model
    assert "<rect" not in large._repr_html_()  # too many weights to look at
    long = uh.attention_map(uh.random_attention(2, seed=0), np.zeros((100, 2)) + 0.1)
    assert 24**2 <= long._repr_html_().count("<rect") <= 48**2


@pytest.mark.parametrize("name", sorted(ARCHITECTURES))
def test_every_architecture_prints(name):
    model = uh.make_model(name, 3, hidden=4)
    assert f"{model.parameters:,} parameters" in repr(model).splitlines()[0]
    assert isinstance(model, Displayed) and model._repr_html_().startswith("<div")


def test_names_cannot_become_markup(things):
    import dataclasses

    html = dataclasses.replace(things["found"], reason="<img src=x onerror=alert(1)>")._repr_html_()
    assert "<img" not in html and "&lt;img" in html


def test_a_notebook_shows_cards(tmp_path):
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    source = "import underhood as uh\nfound = uh.decompile(uh.compile(uh.random_attention(2, seed=0)).model)\nfound"
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "python", "language": "python"}
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    (output,) = [cell for cell in notebook.cells[0].outputs if cell.output_type == "execute_result"]
    assert output.data["text/plain"].startswith("linear-attention, 1 head")
    assert 'class="underhood-card"' in output.data["text/html"]
