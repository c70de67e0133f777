"""`make dist`: build sdist and wheel, check them, and use the wheel as a user would: in an empty environment.

    python -m benchmarks.dist                # build into dist/, check, install, run; results/bench/dist.json
    python -m benchmarks.dist --no-install   # build and check only

The wheel is built from the sdist, so that nothing is in it that the sdist lacks. The environment is outside the clone;
README's blocks run in it from top to bottom, and `underhood reproduce figure1`.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import zipfile
from pathlib import Path

from packaging.metadata import Metadata

from benchmarks.measure import row, show, store

ROOT = Path(__file__).resolve().parents[1]
FENCE = re.compile(r"^```(python|sh)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LARGEST_WHEEL, LARGEST_SDIST = 2.0, 10.0  # MB
EXTRAS = "report,sweep,torch"  # what README's examples use


def run(*command: str | Path, folder: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    command = tuple(map(str, command))
    done = subprocess.run(command, cwd=folder, env=clean | settings, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)[:200]} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done


def build(out: Path) -> tuple[Path, Path]:
    """(sdist, wheel), the wheel from the unpacked sdist."""
    out.mkdir(exist_ok=True)
    for old in [*out.glob("*.whl"), *out.glob("*.tar.gz")]:
        old.unlink()
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", out, folder=ROOT)
    (sdist,) = out.glob("*.tar.gz")
    with tempfile.TemporaryDirectory() as scratch:
        with tarfile.open(sdist) as archive:
            archive.extractall(scratch, filter="data")
        (source,) = Path(scratch).iterdir()
        run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", out, folder=source)
    (wheel,) = out.glob("*.whl")
    return sdist, wheel


def check(sdist: Path, wheel: Path) -> None:
    """Metadata that an index accepts; every file of the package in the wheel, and nothing beside it."""
    archive = zipfile.ZipFile(wheel)
    names = set(archive.namelist())
    (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
    with tarfile.open(sdist) as source:
        described = source.extractfile(f"{sdist.name.removesuffix('.tar.gz')}/PKG-INFO")
        assert described is not None
        for text in (archive.read(metadata), described.read()):
            Metadata.from_email(text, validate=True)
    tracked = run("git", "ls-files", "underhood", folder=ROOT).stdout.split()
    if missing := sorted(set(tracked) - names):
        raise SystemExit(f"the wheel lacks {', '.join(missing[:5])}")
    beside = [name for name in names if not re.match(r"underhood/|underhood-[^/]+\.dist-info/", name)]
    if beside:
        raise SystemExit(f"the wheel has files outside the package: {', '.join(sorted(beside)[:5])}")
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    if f"-{version}" not in wheel.name:
        raise SystemExit(f"expected version {version} in {wheel.name}")


def use(wheel: Path, folder: Path) -> dict[str, float]:
    """Seconds to install the wheel, to run README's blocks and to make Figure 1, in an environment of its own."""
    seconds, began = {}, time.perf_counter()
    run(sys.executable, "-m", "venv", folder / "env", folder=folder)
    python = folder / "env" / "bin" / "python"
    constraints = ("--constraint", ROOT / "constraints.txt")
    wanted = f"{wheel}[{EXTRAS}]"
    run(python, "-m", "pip", "install", "--quiet", "--no-compile", *constraints, wanted, folder=folder)
    seconds["install"], began = time.perf_counter() - began, time.perf_counter()
    where = run(python, "-c", "import underhood; print(underhood.__file__)", folder=folder).stdout
    if str(ROOT) in where:
        raise SystemExit(f"the environment imports the clone: {where}")
    for language, code in FENCE.findall((ROOT / "README.md").read_text()):
        if language == "python":
            run(python, "-c", code, folder=folder)
            continue
        for line in code.splitlines():
            words = shlex.split(line, comments=True)
            if words and words[0] == "underhood":  # the others are make targets of a clone
                run(python.parent / "underhood", *words[1:], folder=folder)
    seconds["README"], began = time.perf_counter() - began, time.perf_counter()
    run(python.parent / "underhood", "reproduce", "figure1", folder=folder)
    page = folder / "out" / "quick" / "report.html"
    if "Figure 5" not in page.read_text():
        raise SystemExit(f"{page} lacks the figures that come with the package")
    seconds["reproduce figure1"] = time.perf_counter() - began
    return seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--no-install", action="store_true")
    options = parser.parse_args()
    began = time.perf_counter()
    sdist, wheel = build(ROOT / "dist")
    built = time.perf_counter() - began
    check(sdist, wheel)
    sizes = {path.suffix: path.stat().st_size / 1e6 for path in (wheel, sdist)}
    rows = [row("wheel", round(sizes[".whl"], 2), unit="MB", detail=f"at most {LARGEST_WHEEL:g}")]
    rows.append(row("sdist", round(sizes[".gz"], 2), unit="MB", detail=f"at most {LARGEST_SDIST:g}"))
    rows.append(row("build", round(built, 1), unit="s"))
    if not options.no_install:
        with tempfile.TemporaryDirectory() as folder:
            rows += [row(name, round(taken, 1), unit="s") for name, taken in use(wheel, Path(folder)).items()]
    show("dist", rows)
    store("dist", rows)
    return int(sizes[".whl"] > LARGEST_WHEEL or sizes[".gz"] > LARGEST_SDIST)


if __name__ == "__main__":
    sys.exit(main())
