"""`make reproduce` leaves the source tree as it was; `make results` starts from a commit and says so otherwise.

In a small repository with the real Makefile and .gitignore, and a stand-in for the package that writes three files.
"""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
UNDERHOOD = """#!/bin/sh
while [ "$1" != --out ]; do shift; done
mkdir -p "$2/quick" && cd "$2/quick" && touch table1.json table1.png table1.pdf report.html
exit 1
"""


@pytest.fixture
def clone(tmp_path):
    for name in ("Makefile", ".gitignore"):
        shutil.copy(ROOT / name, tmp_path)
    for name in ("results/quick/table1.json", "docs/fill_numbers.py", "pyproject.toml", "constraints.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("before")
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name, script in {"underhood": UNDERHOOD, "python": "#!/bin/sh\necho filled > README.md\n"}.items():
        (programs / name).write_text(script)
        (programs / name).chmod(0o755)
    for stamp in (".installed", ".installed-dev"):
        (tmp_path / ".venv" / stamp).touch()
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "-m", "all")
    return tmp_path


def git(folder, *arguments):
    return subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout


def make(folder, *arguments):
    return subprocess.run(["make", *arguments], cwd=folder, capture_output=True, text=True)


def test_reproduce_changes_nothing_that_git_knows(clone):
    for _ in range(2):
        done = make(clone, "reproduce")
        assert done.returncode == 0, done.stderr  # a row that is not met (exit code 1) is no failure
        assert (clone / "out" / "quick" / "report.html").exists()
        assert git(clone, "status", "--porcelain") == ""


def test_results_are_made_in_the_same_way_and_kept(clone):
    done = make(clone, "results")
    assert done.returncode == 0, done.stderr
    changed = git(clone, "status", "--porcelain").split()[1::2]
    assert sorted(changed) == ["README.md", *(f"results/quick/table1.{end}" for end in ("json", "pdf", "png"))]


def test_results_of_uncommitted_source_are_refused(clone):
    (clone / "new.py").touch()
    done = make(clone, "results")
    assert done.returncode != 0
    assert "make results needs a clean tree" in done.stderr
    assert not (clone / "out").exists()
