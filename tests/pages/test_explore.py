"""The explorer computes, in the page, what the library computes."""

import numpy as np
import pytest

import underhood as uh
from tests.interop.networks import network
from underhood.cli import main
from underhood.core.model import ARCHITECTURES
from underhood.training.second_order.levenberg import fit_levenberg


def compiled():
    return uh.compile(uh.random_attention(4, seed=0), to="gated-rnn").model


def disguised():
    return uh.disguise(uh.compile(uh.random_attention(3, heads=2, seed=1), to="gated-rnn-minimal").model, seed=2)


def trained():
    teacher = uh.random_attention(2, seed=3)
    xs = np.random.default_rng(3).normal(size=(120, 8, 2))
    ys = np.stack([teacher.naive(one) for one in xs])
    return fit_levenberg(xs[:80], ys[:80], held_out=(xs[80:], ys[80:]), seed=0, target_loss=1e-16).model


def inputs(browser):
    return np.array(browser.run("return window.underhood.inputs()"))


def agree(browser, model, tolerance):
    """The page's numbers against the library's, on the sequence it opens with and on another."""
    for xs in (
        inputs(browser),
        np.random.default_rng(5).normal(size=(30, model.d)),
    ):
        browser.run("window.underhood.setInputs(arguments[0])", xs.tolist())
        here, expected = np.array(browser.run("return window.underhood.outputs()")), model(xs)
        assert here.shape == expected.shape
        assert np.max(np.abs(here - expected)) <= tolerance * max(1.0, np.max(np.abs(expected)))


@pytest.mark.parametrize("make", [compiled, disguised, trained])
def test_outputs_equal_the_librarys(browser, make, tmp_path):
    model = make()
    uh.explore(model, tmp_path / "e.html")
    browser.open(tmp_path / "e.html")
    assert browser.requests() == [(tmp_path / "e.html").as_uri()]
    assert browser.complaints() == []
    assert browser.text(".verdict") == "linear-attention"
    agree(browser, model, 1e-6)
    agree(browser, model, 1e-12)  # what is asked, and what is reached
    ours, attended = (np.array(browser.run(f"return window.underhood.{name}()")) for name in ("outputs", "attention"))
    assert np.max(np.abs(ours - attended)) <= 1e-6 * np.max(np.abs(ours))


def test_another_networks_numbers_would_be_noticed(browser, tmp_path):
    """Negative control: the page of one network does not pass for another."""
    uh.explore(compiled(), tmp_path / "e.html")
    browser.open(tmp_path / "e.html")
    with pytest.raises(AssertionError):
        agree(browser, uh.compile(uh.random_attention(4, seed=9)).model, 1e-6)


@pytest.fixture
def unasked(monkeypatch):
    """Asking each network for its attention takes seconds and is not what these tests are about."""
    from underhood.decompiler.result import NOT, Evidence, Found, Scores
    from underhood.pages import explore

    nothing = Found(NOT, "not asked", None, Scores(), evidence=Evidence(r2=0.0))
    monkeypatch.setattr(explore, "decompile", lambda *arguments, **settings: nothing)


def mapped(browser):
    """The map that the page shows, in full."""
    rows = browser.run("return window.underhood.map()")
    return np.array([row + [0.0] * (len(rows) - len(row)) for row in rows])


# Those that a compiled network below stands for, and those whose steps are much like another's, in `make test-all`.
SLOW = {"gated-deltanet", "mamba", "mamba2", "mesanet", "mlstm", "gla", "griffin", "mingru"}
CELLS = [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in (*ARCHITECTURES, "gru-cell")]


@pytest.mark.parametrize("name", CELLS)
def test_every_cell_runs_in_the_page(browser, name, tmp_path, unasked):
    model = network(name)
    uh.explore(model, tmp_path / "e.html")
    browser.open(tmp_path / "e.html")
    assert browser.complaints() == []
    expected = uh.attention_map(model, inputs(browser)).weights[0]
    assert np.max(np.abs(mapped(browser) - expected)) <= 1e-6 * np.max(expected)
    agree(browser, model, 1e-9)
    assert browser.run("return window.underhood.attention()") is None


@pytest.mark.parametrize("target", ["mamba", "mlstm"])  # one channel beside many, and a convolution of one step
def test_a_compiled_layer_shows_the_map_of_its_attention(browser, target, tmp_path, unasked):
    attention = uh.random_attention(3, seed=0)
    model = uh.compile(attention, to=target, horizon=20).model
    uh.explore(model, tmp_path / "e.html", against=attention)
    browser.open(tmp_path / "e.html")
    assert browser.complaints() == []
    theirs = uh.attention_map(attention, inputs(browser)).weights[0]
    assert np.max(np.abs(mapped(browser) - theirs)) <= 1e-6 * np.max(theirs)
    assert "correlation 1, largest difference" in browser.text("#compared")
    agree(browser, model, 1e-9)


def test_the_map_of_an_earlier_sequence_says_so(browser, tmp_path, unasked):
    uh.explore(compiled(), tmp_path / "e.html")
    browser.open(tmp_path / "e.html")
    hidden = "return document.querySelector('#stale').hidden"
    assert browser.run(hidden)
    first = mapped(browser)
    browser.run("const xs = window.underhood.inputs(); xs[3][0] += 1; window.underhood.setInputs(xs)")
    assert not browser.run(hidden)
    assert np.array_equal(mapped(browser), first)
    browser.press("#first", "\ue007")
    assert browser.run(hidden)
    browser.press("#map canvas", "\ue013")
    assert browser.text("#at") == "step 10 of 0 to 11"
    assert browser.complaints() == []


def test_steps_and_edits(browser, tmp_path):
    model = compiled()
    xs = np.random.default_rng(0).normal(size=(6, 4)).round(3)
    uh.explore(model, tmp_path / "e.html", xs=xs)
    browser.open(tmp_path / "e.html", width=390)
    assert browser.run("return document.documentElement.scrollWidth <= window.innerWidth")
    assert browser.text("#at") == "step 5 of 0 to 5"
    left, all_of_it, delete = "\ue012", "\ue009a\ue000", "\ue017"
    browser.press("body", left, left)
    assert browser.text("#at") == "step 3 of 0 to 5"
    assert browser.text("#numbers tbody tr td") == f"{model(xs)[3, 0]:.4g}"
    browser.press("#edit tbody tr:nth-child(2) td:nth-child(4) input", all_of_it + "2.5")
    xs[2, 1] = 2.5
    assert np.allclose(browser.run("return window.underhood.outputs()"), model(xs), rtol=1e-12, atol=1e-12)
    assert browser.text("#numbers tbody tr td") == f"{model(xs)[3, 0]:.4g}"
    browser.press(
        "#edit tbody tr:nth-child(2) td:nth-child(4) input", all_of_it + delete
    )  # empty: keeps the last number
    assert np.allclose(browser.run("return window.underhood.outputs()"), model(xs), rtol=1e-12, atol=1e-12)
    browser.hover("#states svg.cells:last-of-type rect.p")
    assert browser.text("#tip")
    assert browser.complaints() == []


def test_memory_and_forget_neurons_are_told_apart(browser, tmp_path):
    uh.explore(compiled(), tmp_path / "e.html")
    browser.open(tmp_path / "e.html")
    count = "return document.querySelectorAll(arguments[0]).length"
    assert browser.run(count, "#states .rail.memory") == 16
    assert browser.run(count, "#states .rail.forget") == 4
    assert browser.run(count, "#states .rail.between") == 0


def test_a_network_that_is_not_attention_says_so(tmp_path, capsys):
    uh.save(uh.make_model("gated-rnn", 2, hidden=4, dtype=np.float64), tmp_path / "rnn")
    uh.save(uh.random_attention(2), tmp_path / "attn")
    assert main(["explore", str(tmp_path / "rnn"), "--out", str(tmp_path / "e.html"), "--json"]) == 0
    page = (tmp_path / "e.html").read_text()
    assert '<span class="verdict no">not-attention</span>' in page
    assert '<section id="attention">' not in page
    arguments = [
        "explore",
        str(tmp_path / "rnn"),
        "--against",
        str(tmp_path / "attn"),
        "--out",
        str(tmp_path / "e.html"),
    ]
    assert main(arguments) == 0
    assert "The attention given to compare with" in (tmp_path / "e.html").read_text()


def test_what_cannot_be_shown_is_refused(tmp_path, capsys):
    uh.save(uh.random_attention(2), tmp_path / "attn")
    assert main(["explore", str(tmp_path / "attn"), "--out", str(tmp_path / "e.html")]) == 2
    assert "expected a recurrent network; got linear-attention" in capsys.readouterr().err
    large = uh.compile(uh.random_attention(20), to="gated-rnn", horizon=10).model
    with pytest.raises(uh.UnderhoodError, match="weights"):
        uh.explore(large, tmp_path / "e.html")
    with pytest.raises(uh.UnderhoodError, match="sequence"):
        uh.explore(compiled(), tmp_path / "e.html", xs=np.ones((3, 7)))
    with pytest.raises(uh.UnderhoodError, match="expected real inputs; got complex"):
        uh.explore(compiled(), tmp_path / "e.html", xs=1j * np.ones((3, compiled().d)))
    assert not (tmp_path / "e.html").exists()
