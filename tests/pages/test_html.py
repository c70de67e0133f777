"""The report: what it holds, that nothing can get into it or out of it, and what a browser makes of it."""

import http.server
import json
import re
import threading
from pathlib import Path

import pytest

import underhood as uh
from underhood.cli import main
from underhood.core.errors import UnderhoodError
from underhood.pages.charts import Chart, Curve
from underhood.pages.page import typeset
from underhood.pages.svg import Axis, chart_svg, panel_svg
from underhood.studies.report import load_records, report_html, write_report

RESULTS = Path(__file__).resolve().parents[2] / "results"
HOSTILE = "</title></script><script>window.hacked=1</script><img src=x onerror='window.hacked=2'>\"'`{{7*7}}"


def curve(name="a", y=(1e-2, 1e-5, 1e-9)):
    return {"name": name, "x": [4, 16, 64], "y": list(y), "low": [v / 3 for v in y], "high": [v * 3 for v in y]}


def chart(**changes):
    made = {
        "name": "A",
        "x_label": "hidden neurons",
        "y_label": "loss",
        "curves": [curve(), curve("b", (1, 0.1, 0.01))],
    }
    return made | {"marks": [["needed", 14]], "levels": [["optimum", 1e-8]], "log_x": True, "log_y": True} | changes


def record(name="figure4", budget="quick", **changes):
    row = {"name": "loss", "paper": 1e-8, "here": 2e-9, "target": "≤ 1", "met": True}
    network = {"name": "student", "verdict": "linear-attention", "reason": "because", "hidden_before": 28}
    bound = {"input_bound": 4.0, "horizon": 100, "max_abs_error": 5e-7}
    made = {"artifact": name, "budget": budget, "rows": [row], "charts": [chart()], "provenance": {"commit": "c0ffee"}}
    made["panels"] = [{"name": "W", "values": [[1.0, -2.0, 0.0], [0.5, 0.0, 0.25]]}]
    return made | {"networks": [network | {"certificate": bound}]} | changes


@pytest.fixture
def results(tmp_path):
    for budget in ("quick", "paper"):
        (tmp_path / budget).mkdir()
        (tmp_path / budget / "figure4.json").write_text(json.dumps(record(budget=budget)))
    return tmp_path


def test_the_committed_results_become_a_page(tmp_path, capsys):
    out = tmp_path / "report.html"
    assert main(["report", str(RESULTS), "--out", str(out), "--json"]) == 0
    size = json.loads(capsys.readouterr().out)["bytes"]
    assert size == out.stat().st_size < 10_000_000
    page = out.read_text()
    for made in load_records(RESULTS):
        for row in made["rows"]:
            assert typeset(row["name"]) in page
    assert not re.search(r"(src|href)=[\"']?(https?:)?//", page)


def test_budgets_are_side_by_side(results):
    page = report_html(load_records(results))
    assert page.index("here, quick") < page.index("here, paper")
    assert page.count("5.0·10⁻⁷") == 2  # the certificate of each
    assert page.count('<svg class="panel"') == page.count('<svg class="chart"') == 2


def test_budgets_come_from_the_smallest_to_the_largest():
    """In whichever order the files come."""
    page = report_html([record("zoo", budget) for budget in ("mine", "paper", "quick", "laptop")])
    places = [page.index(f"here, {budget}") for budget in ("quick", "laptop", "paper", "mine")]
    assert places == sorted(places)


def test_what_is_missing_is_left_out():
    page = report_html([{"artifact": "new", "budget": "quick", "rows": [{"name": "x"}]}])
    assert 'role="img" aria-label="met' not in page and "not met" not in page  # a row without a target has no mark
    assert '<svg class="chart"' not in page
    assert "decompiled" not in page


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({}, "no results of underhood"),
        ({"quick/a.json": "{"}, "is not JSON"),
        ({"quick/a.json": "[]"}, "no results of"),
    ],
)
def test_folders_without_results_are_refused(files, says, tmp_path, capsys):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    assert main(["report", str(tmp_path), "--out", str(tmp_path / "r.html")]) == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "r.html").exists()
    with pytest.raises(UnderhoodError, match="no such folder: "):
        write_report(tmp_path / "none", tmp_path / "r.html")


@pytest.mark.parametrize(
    ("row", "got"), [(1, "int"), (None, "NoneType"), ({}, "nothing"), ({"name": "x", "here": 1}, "name, here")]
)
def test_rows_that_are_none_are_refused_by_file(row, got, results, capsys):
    path = results / "quick" / "figure4.json"
    path.write_text(json.dumps({**record(), "rows": [*record()["rows"], row]}))
    assert main(["report", str(results), "--out", str(results / "r.html")]) == 2
    assert f"expected name, here and met in rows[1] of {path}; got {got}." in capsys.readouterr().err
    assert not (results / "r.html").exists()


def test_a_number_that_is_none_is_shown(results):
    row = {"name": "loss", "paper": None, "here": float("nan"), "target": "≤ 1", "met": False}
    (results / "quick" / "figure4.json").write_text(json.dumps(record(rows=[row])))
    assert ">NaN" in report_html(load_records(results))


@pytest.mark.parametrize(
    ("found", "shown"),
    [
        ([180.0, 264.3, 310.0], "3 seeds: 180 to 310"),
        ([12, 12], "2 seeds: 12"),
        ([1.0], "1 seed"),
        ([], None),
        (["<b>"], None),
        (7, None),
    ],
)
def test_the_seeds_behind_a_row_are_told(found, shown):
    row = {"name": "ratio", "paper": None, "here": 264.3, "target": "≤ 1", "met": True}
    page, plain = (report_html([record(rows=[some])]) for some in (row | {"by_seed": found}, row))
    assert page == plain if shown is None else f"<small>{shown}</small></td>" in page


@pytest.mark.parametrize(
    "changes", [{"panels": [{"name": "W", "values": [["x"]]}]}, {"charts": [7]}, {"provenance": [1]}, {"networks": 5}]
)
def test_results_that_are_none_are_refused(changes):
    with pytest.raises(UnderhoodError, match="cannot read these results"):
        report_html([record(**changes)])


def test_axes_hold_their_values_and_label_them():
    axis = Axis.over([1e-9, 1.0], 0, 100, log=True)
    assert 0 < axis(1e-9) < axis(1e-4) < axis(1.0) < 100
    assert [text for _, text in axis.ticks()][:2] == ["10⁻⁹", "10⁻⁷"]
    assert [value for value, _ in Axis.over([0.0, 10.0], 0, 1, log=False).ticks()] == [0, 2, 4, 6, 8, 10]
    assert len(Axis.over([3.0, 5.0], 0, 1, log=True).ticks()) >= 3
    assert [text for _, text in Axis.over([8.0, 96.0], 0, 1, log=True).ticks()] == ["10", "20", "50", "100"]
    assert Axis.over([2.0, 2.0], 0, 1, log=False)(2.0) == 0.5


def test_what_a_logarithm_cannot_show_is_left_out():
    drawn = chart_svg(chart(curves=[curve(y=(0.0, 1e-3, float("nan")))]), "label")
    assert drawn.count("<circle") == 1
    assert "nan" not in drawn.lower()
    straight = chart_svg(chart(curves=[curve(y=(0.0, 1e-3, 2e-3))], log_y=False, levels=[]), "label")
    assert straight.count("<circle") == 3


def test_a_legend_shows_lines_or_points_as_its_chart_does():
    curve = {"name": "LRU", "x": [1.0, 2.0], "y": [1.0, 2.0]}
    for joined in (True, False):
        chart = {"name": "A", "x_label": "x", "y_label": "y", "curves": [curve, curve], "joined": joined}
        page = report_html([record(charts=[chart])])
        assert ('class="legend points"' in page, 'class="legend"' in page) == (not joined, joined)


def test_a_chart_of_the_figures_is_drawn_as_it_is():
    import dataclasses

    made = Chart("A", "x", "y", (Curve("a", [1.0, 2.0], [1.0, 2.0], [0.5, 1.5], [1.5, 2.5]),), log_x=False, log_y=False)
    drawn = chart_svg(json.loads(json.dumps(dataclasses.asdict(made))), "label")
    assert 'class="band"' in drawn
    assert "0.5 to 1.5 over seeds" in drawn


def test_a_cloud_is_not_joined():
    drawn = chart_svg(chart(joined=False), "label")
    assert 'class="line"' not in drawn
    assert drawn.count("<circle") == 6


def test_matrices_that_belong_together_share_a_line():
    names = ["Wₘ in", "λ", "D", "W_V", "W_K", "student, y1", "teacher, y1"]
    page = report_html([record(panels=[{"name": name, "values": [[1.0]]} for name in names])])
    assert [part.count("<figcaption>") for part in page.split('class="panels"')[1:]] == [3, 2, 2 + 1]  # and the chart's


def test_weights_have_the_papers_colours():
    drawn = panel_svg({"name": "W", "values": [[1.0, -2.0, 0.0]]})
    assert re.findall(r'class="([pnz])" style="--w:([\d.]+)"', drawn) == [("p", "0.5"), ("n", "1.0"), ("z", "0.0")]
    assert "not drawn" in panel_svg({"name": "W", "values": [[0.0] * 300] * 100})


def hostile_record():
    made = json.loads(json.dumps(record()).replace('"c0ffee"', json.dumps(HOSTILE)))
    made["artifact"] = made["budget"] = HOSTILE
    made["rows"][0] |= {"name": HOSTILE, "paper": HOSTILE, "here": HOSTILE}
    made["charts"] = [
        chart(name=HOSTILE, x_label=HOSTILE, y_label=HOSTILE, curves=[curve(HOSTILE)], marks=[[HOSTILE, 9]])
    ]
    made["panels"][0]["name"] = HOSTILE
    made["networks"] = [{"name": HOSTILE, "verdict": HOSTILE, "reason": HOSTILE}]
    made["provenance"] = {"settings": {HOSTILE: HOSTILE}, "versions": {HOSTILE: HOSTILE}, "commit": HOSTILE}
    return made


def test_names_cannot_become_markup():
    page = report_html([hostile_record()])
    assert page.count("<script") == 1
    assert "<img" not in page
    assert page.count("{{7*7}}") > 10  # a template is filled in once


# With a browser.


def test_the_report_opens_from_disk_and_asks_for_nothing(browser, tmp_path):
    out = write_report(RESULTS, tmp_path / "report.html")
    for width, scheme in ((1280, "light"), (390, "dark")):
        browser.open(out, width, scheme=scheme)
        assert [url for url in browser.requests() if not url.startswith("data:image/png")] == [out.as_uri()]
        assert browser.complaints() == []
        assert browser.run("return document.documentElement.scrollWidth <= window.innerWidth")
        dark = browser.run("return getComputedStyle(document.body).backgroundColor") != "rgb(252, 252, 250)"
        assert dark == (scheme == "dark")


class Counting(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.asked.append(self.path)
        self.send_error(404)

    def log_message(self, *arguments):
        """Not on the tests' screen."""


def test_a_request_would_be_noticed_and_is_stopped(browser, tmp_path):
    """Negative control: a page with an image from a server is seen to ask for it; under our policy it cannot."""
    with http.server.HTTPServer(("127.0.0.1", 0), Counting) as server:
        server.asked = []
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            image = (
                f"<img src='http://127.0.0.1:{server.server_port}/x.png'><script>hacked = 1; console.error(1)</script>"
            )
            (tmp_path / "loose.html").write_text(f"<!doctype html>{image}")
            browser.open(tmp_path / "loose.html")
            assert browser.run("return window.hacked") == 1
            assert browser.complaints()
            assert any(url.endswith("/x.png") for url in browser.requests())
            assert server.asked == ["/x.png"]
            policy = re.search(r"<meta http-equiv=[^>]+>", report_html([record()])).group()
            (tmp_path / "strict.html").write_text(f"<!doctype html><html><head>{policy}</head>{image}")
            browser.open(tmp_path / "strict.html")
            assert browser.run("return typeof window.hacked") == "undefined"
            assert len([one for one in browser.complaints() if "Content Security Policy" in one]) == 2
            assert server.asked == ["/x.png"]
        finally:
            server.shutdown()
            thread.join()


def test_hovering_and_keys_show_values(browser, results, tmp_path):
    browser.open(write_report(results, tmp_path / "report.html"))
    assert browser.run("return document.getElementById('tip').hidden")
    browser.hover("svg.chart circle")
    assert browser.text("#tip").startswith("a\nhidden neurons: 4\nloss: 0.01\n0.00333 to 0.03 over seeds")
    browser.hover("svg.panel rect:nth-child(2)")
    assert browser.text("#tip") == "W [1, 2] = -2"
    right, down, escape = "\ue014", "\ue015", "\ue00c"
    browser.press("svg.chart", right, right, down)
    assert browser.text("#tip").startswith("b\nhidden neurons: 16\nloss: 0.1")
    browser.press("svg.panel", right, right)
    assert browser.text("#tip") == "W [1, 2] = -2"
    browser.press("body", escape)
    assert browser.run("return document.getElementById('tip').hidden")
    assert browser.complaints() == []


def test_rows_and_curves_can_be_chosen(browser, tmp_path):
    made = record(
        rows=[
            {"name": "a", "paper": 1, "here": 2, "target": "≤ 1", "met": False},
            {"name": "b", "paper": None, "here": 2, "target": "≤ 1", "met": True},
        ]
    )
    (tmp_path / "quick").mkdir()
    (tmp_path / "quick" / "figure4.json").write_text(json.dumps(made))
    browser.open(write_report(tmp_path, tmp_path / "report.html"))
    shown = "return [...document.querySelectorAll('#rows tr[data-met]:not([hidden])')].map(r => r.cells[0].innerText)"
    assert browser.run(shown) == ["a"]
    browser.press("[data-show=all]", "\n")
    assert browser.run(shown) == ["a", "b"]
    browser.press("[data-show=open]", "\n")
    assert browser.run(shown) == ["a"]
    visible = "return [...document.querySelectorAll('.series')].map(s => getComputedStyle(s).display !== 'none')"
    assert browser.run(visible) == [True, True]
    browser.press("[data-toggle='1']", "\n")
    assert browser.run(visible) == [True, False]
    before = browser.run("return getComputedStyle(document.body).backgroundColor")
    browser.press("#theme", "\n")
    assert browser.run("return getComputedStyle(document.body).backgroundColor") != before
    browser.run("localStorage.clear()")


def test_hostile_names_do_nothing_in_a_browser(browser, tmp_path):
    (tmp_path / "r.html").write_text(report_html([hostile_record()]))
    browser.open(tmp_path / "r.html")
    assert browser.run("return typeof window.hacked") == "undefined"
    assert browser.complaints() == []
    assert HOSTILE in browser.text("#rows tbody tr th")
    name = HOSTILE.replace("/", "\\")  # a file's name has no slash
    uh.save(uh.compile(uh.random_attention(2, seed=0)).model, tmp_path / name, provenance={"by": HOSTILE})
    assert main(["explore", str(tmp_path / name), "--out", str(tmp_path / "e.html")]) == 0
    browser.open(tmp_path / "e.html")
    assert browser.run("return typeof window.hacked") == "undefined"
    assert browser.complaints() == []
    assert browser.text("h1") == name
    assert browser.run("return document.scripts.length") == 2  # ours, and the weights as data
