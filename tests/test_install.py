"""What `pip install underhood` gives without an extra, the line that names the extra otherwise, and the bounds."""

import json
import subprocess
import sys
import tomllib
from itertools import chain
from pathlib import Path

from packaging.requirements import Requirement

from tests.versions import lowest

ROOT = Path(__file__).resolve().parents[1]

# One process for all: `import jax` costs more than these commands do.
SCRIPT = """
import contextlib, io, json, sys
for module in ("duckdb", "jinja2", "matplotlib"):
    sys.modules[module] = None  # as if it were not installed
from underhood.cli import main

def run(*arguments):
    heard = io.StringIO()
    with contextlib.redirect_stderr(heard), contextlib.redirect_stdout(io.StringIO()):
        code = main(list(arguments))
    return code, heard.getvalue()

print(json.dumps([run(*line.split()) for line in sys.stdin.read().splitlines()]))
"""
WITHOUT = """sample --d 2 --out attention
compile attention --to gated-rnn --out network
disguise network --out hidden
decompile hidden --against attention
train --task teacher-student --d 2 --model gated-rnn --hidden 4 --steps 2 --out run"""
WITH = {
    "reproduce figure1 --out results": "report",
    "report results": "report",
    "explore network --out page.html": "report",
    "attend network --out map.html": "report",
    "sweep spec.json --out sweeps --query select": "sweep",
}


def test_the_base_compiles_and_decompiles_and_the_rest_names_its_extra(tmp_path):
    commands = [*WITHOUT.splitlines(), *WITH]
    (tmp_path / "spec.json").write_text('{"name": "one", "runs": [{"task": "teacher-student", "steps": 1}]}')
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], input="\n".join(commands), cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    ended = dict(zip(commands, json.loads(done.stdout), strict=True))
    for command in WITHOUT.splitlines():
        assert ended[command][0] == 0, (command, ended[command])
    for command, extra in WITH.items():
        code, said = ended[command]
        assert (code, said.count("\n")) == (2, 1), (command, said)
        assert f"pip install 'underhood[{extra}]'" in said
    assert not (tmp_path / "sweeps").exists()  # refused before the runs, not after them


def test_the_lowest_versions_are_the_lower_ends_of_the_bounds():
    extras = {"report": ["jinja2>=3.1"], "sweep": ["duckdb"]}
    project = {"dependencies": ["jax>=0.8,<0.11", "ml_dtypes>=0.5"], "optional-dependencies": extras}
    assert lowest(project) == ["jax==0.8", "ml_dtypes==0.5", "jinja2==3.1", "jaxlib==0.8"]


def test_what_make_installs_is_within_the_bounds():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = dict(line.lower().replace("_", "-").split("==") for line in lines if not line.startswith("#"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for text in chain(project["dependencies"], *project["optional-dependencies"].values()):
        wanted = Requirement(text)
        name = wanted.name.lower().replace("_", "-")
        assert name in ("underhood", "tensorboardx") or wanted.specifier.contains(pinned[name]), text
