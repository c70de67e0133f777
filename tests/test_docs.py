"""Every code block of the README and the docs runs as it stands; numbers are those of results/; the pages build."""

import dataclasses
import importlib.util
import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from underhood.cli import main
from underhood.core.model import ARCHITECTURES, KINDS
from underhood.studies.artifact import ARTIFACTS
from underhood.training.tasks.task import TASKS

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
CONTINUED = (
    "tutorial.md",
    "extending.md",
    "language-models.md",
)  # read from top to bottom: their blocks share a folder and their names
FENCE = re.compile(r"^```([^\n`]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def fences(page):
    return [(language.strip(), code) for language, code in FENCE.findall(page.read_text())]


def blocks():
    return [
        pytest.param(language, code, id=f"{page.name}-{index}")
        for page in PAGES
        if page.name not in CONTINUED
        for index, (language, code) in enumerate(fences(page))
        if language in ("python", "sh")
    ]


def run(language, code, names):
    if language == "python":
        exec(compile(code, "block", "exec"), names)
        return
    for line in code.splitlines():
        command, *arguments = shlex.split(line, comments=True)
        if command == "make":  # would run these tests again: that make knows what to do must be enough
            subprocess.run(["make", "--dry-run", *arguments], cwd=ROOT, check=True, capture_output=True)
        else:
            assert command == "underhood", line
            assert main(arguments) == 0, line


@pytest.fixture
def registries():
    """What a block registers is gone after it."""
    # Filled first: what a registry's own modules add, they add once.
    kept = [registry._filled() for registry in (ARCHITECTURES, KINDS, TASKS, ARTIFACTS)]
    before = [dict(things) for things in kept]
    yield
    for things, then in zip(kept, before, strict=True):
        things.clear()
        things.update(then)


@pytest.mark.parametrize(("language", "code"), blocks())
def test_blocks_run(language, code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run(language, code, {"__name__": "block"})


@pytest.mark.parametrize("name", CONTINUED)
def test_pages_run_from_top_to_bottom(name, tmp_path, monkeypatch, registries):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")  # that of language models reads what was trained there
    names = {"__name__": "block"}
    runnable = [fence for fence in fences(ROOT / "docs" / name) if fence[0] in ("python", "sh")]
    assert len(runnable) >= 3
    for language, code in runnable:
        run(language, code, names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_block_escapes(page):
    """A fence without a language would not be run: text says that there is nothing to run."""
    for language, code in fences(page):
        assert language in ("python", "sh", "json", "text", "toml", "{toctree}"), language
        if language == "json":
            json.loads(code)
    assert page.read_text().count("```") == 2 * len(fences(page))


def test_a_block_that_fails_is_noticed():
    """Negative control."""
    with pytest.raises(AssertionError):
        run("python", "assert 1 == 2", {})
    with pytest.raises(AssertionError):
        run("sh", "underhood sample --d 0 --out a", {})
    with pytest.raises(subprocess.CalledProcessError):
        run("sh", "make no-such-target", {})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", FENCE.sub("", page.read_text())):
        assert target.startswith("https://") or (page.parent / target).exists(), target


def script(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_numbers_are_those_of_the_results(page):
    fill_numbers, text = script("fill_numbers"), page.read_text()
    new = fill_numbers.filled(text, ROOT / "results", fill_numbers.phrases(page))
    assert new == text, "make numbers brings them up to date"


def test_every_page_with_numbers_exists():
    known = tomllib.loads((ROOT / "docs" / "numbers.toml").read_text())
    assert set(known) <= {page.relative_to(ROOT).as_posix() for page in PAGES}


def test_numbers_that_drift_are_noticed(tmp_path):
    filled = script("fill_numbers").filled
    (tmp_path / "results" / "quick").mkdir(parents=True)
    results = tmp_path / "results"
    rows = '[{"name": "KV score", "paper": 1e-8, "here": 2.5e-9, "target": "≤ 10⁻¹⁰", "met": false}]'
    (results / "quick" / "table1.json").write_text(f'{{"rows": {rows}}}')
    source = "results/quick/table1.json | rows / KV score / here | .1e"
    phrase = {"a score of {} in {} words": [source, source.replace("KV score", "0")]}
    assert filled("There is a score of 1\nin 3 words.", results, phrase) == (
        "There is a score of 2.5e-09\nin 2.5e-09 words."
    )
    with pytest.raises(KeyError, match="found 0 times"):
        filled("There was a score of 1.", results, phrase)
    with pytest.raises(KeyError, match="found 2 times"):
        filled("a score of 1 in 2 words, a score of 1 in 2 words", results, phrase)
    with pytest.raises(KeyError, match="no entry"):
        filled("a score of 1 in 2 words", results, {next(iter(phrase)): [source.replace("KV", "Q")] * 2})
    table = filled("<!-- numbers: paper-against-here --><!-- end numbers -->", results)
    assert "| key-values from memory neurons, 1 − R² | 1.0·10⁻⁸ | 2.5·10⁻⁹ ✗ |" in table
    spot = "<!-- numbers: torture --><!-- end numbers -->"
    assert "Not measured" in filled(spot, results)
    counts = {"tried": 9, "survived": 9, "lost": 0}
    (results / "torture.json").write_text(json.dumps({"rows": [{"name": "kill", **counts}], **counts}))
    assert "| kill | 9 | 9 | 0 |" in filled(spot, results)


def test_the_documentation_builds_and_asks_for_nothing(tmp_path):
    pytest.importorskip("sphinx", reason="the docs extra is not installed")
    build = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", "docs", str(tmp_path / "html")]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for page in (tmp_path / "html").rglob("*.html"):
        loaded = re.findall(r'<(?:script|img|iframe)[^>]+src="([^"]+)"|<link[^>]+href="([^"]+)"', page.read_text())
        assert not [one for pair in loaded for one in pair if re.match(r"(https?:)?//", one)], page
    commands = (tmp_path / "html" / "reference" / "commands.html").read_text()
    assert "underhood explore" in commands
    assert "Longest sequence that the error bound holds for" in commands
    assert "error_bound" in (tmp_path / "html" / "reference" / "python.html").read_text()


def test_the_reference_tells_every_option():
    reference = script("reference")
    from underhood.cli import COMMANDS

    for command in COMMANDS:
        told = reference.field_docs(command)
        assert {field.name for field in dataclasses.fields(command)} == set(told), command
