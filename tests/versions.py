"""The fast tests at both ends of the bounds in pyproject.toml, on every Python it names (`make test-versions`).

    python tests/versions.py                      # all of them
    python tests/versions.py 3.12-lowest          # one

`lowest` installs the lower end of each bound of the package and of its extras `report` and `sweep`, `newest` what pip
finds today. Each has an environment of its own in .venvs/, used again as long as its requirements are the same.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = ("3.11", "3.12", "3.13")
ENDS = ("lowest", "newest")
# Together they call each dependency; a minute or two.
FAST = (
    "algebra",
    "attention",
    "architectures/test_conformance.py",
    "commands/test_cli.py",
    "compiler/test_forms.py",
    "core/test_files.py",
    "pages/test_html.py",
    "sweeps/test_spec.py",
    "sweeps/test_store.py",
    "training/tasks",
    "test_install.py",
)
BOUND = re.compile(r"([\w-]+)>=([\w.]+)")


def lowest(project: dict) -> list[str]:
    """`name==version` for every lower bound of what a user can install; jaxlib follows jax."""
    extras = project["optional-dependencies"]
    bounds = [BOUND.match(one) for one in (*project["dependencies"], *extras["report"], *extras["sweep"])]
    pins = {found[1]: found[2] for found in bounds if found}
    return [f"{name}=={version}" for name, version in {**pins, "jaxlib": pins["jax"]}.items()]


def environment(python: str, end: str, pins: list[str]) -> Path:
    """A virtual environment with the package, its tests' needs and these pins."""
    folder = ROOT / ".venvs" / f"{python}-{end}"
    stamp, wanted = folder / ".installed", "\n".join([(ROOT / "pyproject.toml").read_text(), *pins])
    if not (stamp.exists() and stamp.read_text() == wanted):
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([f"python{python}", "-m", "venv", folder], check=True)
        pip = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-compile"]
        subprocess.run([*pip, "--editable", ".[report,sweep,test]", *pins], cwd=ROOT, check=True)
        stamp.write_text(wanted)
    return folder / "bin" / "python"


def runs(program: str) -> bool:
    """It is there and works; a version manager may have put a stand-in on the PATH."""
    found = shutil.which(program)
    return found is not None and subprocess.run([found, "-c", ""], capture_output=True).returncode == 0


def outcome(python: str, end: str, pins: list[str]) -> str:
    if not runs(f"python{python}"):
        return f"missing: no python{python} on the PATH"
    try:
        interpreter = environment(python, end, pins if end == "lowest" else [])
    except subprocess.CalledProcessError:
        return "failed: the dependencies cannot be installed"
    tests = [
        interpreter,
        "-m",
        "pytest",
        "-n",
        "2",
        "-m",
        "not slow",
        "-k",
        "not gradients and not perturbed and not 1000",
    ]
    tests += [f"tests/{one}" for one in FAST]
    if end == "lowest":  # an old matplotlib calls a new pyparsing by its old names
        tests += ["-W", "ignore::DeprecationWarning"]
    threads = {"NPROC": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(tests, cwd=ROOT, env=os.environ | threads, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.stdout.write(done.stdout)
    return ("failed: " if done.returncode else "passed: ") + done.stdout.strip().rpartition("\n")[2]


def main(chosen: list[str]) -> int:
    pins = lowest(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"])
    outcomes = {}
    for name in chosen or [f"{python}-{end}" for python in PYTHONS for end in ENDS]:
        outcomes[name] = outcome(*name.split("-"), pins)
        print(f"Python {name}: {outcomes[name]}", flush=True)
    return 1 if any(one.startswith("failed") for one in outcomes.values()) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
