"""Every code block of the README and the docs runs as it stands."""

import re
import shlex
from pathlib import Path

import pytest

from underhood.cli import main

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(language):
    pattern = re.compile(rf"```{language}\n(.*?)```", re.DOTALL)
    return [
        pytest.param(text, id=f"{page.name}-{index}")
        for page in PAGES
        for index, text in enumerate(pattern.findall(page.read_text()))
    ]


@pytest.mark.parametrize("code", blocks("python"))
def test_python_blocks_run(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "block", "exec"), {"__name__": "block"})


@pytest.mark.parametrize("lines", blocks("sh"))
def test_shell_blocks_run(lines, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for line in lines.splitlines():
        command, *arguments = shlex.split(line, comments=True)
        assert command == "underhood", line
        assert main(arguments) == 0, line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        assert target.startswith("https://") or (page.parent / target).exists(), target
