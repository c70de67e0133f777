"""Megabytes that `pip install underhood` brings, and each extra on top of it; results/bench/install.json."""

from __future__ import annotations

import importlib.metadata
import tomllib
from collections.abc import Iterable
from pathlib import Path

from packaging.requirements import Requirement

from benchmarks.measure import row, show, store

LARGE = ("jaxlib", "scipy", "numpy", "jax")


def megabytes(requirements: Iterable[str]) -> dict[str, float]:
    """The files of each distribution that these need, themselves among them, without compiled bytecode."""
    sizes: dict[str, float] = {}
    waiting = [Requirement(one) for one in requirements]
    while waiting:
        wanted = waiting.pop()
        name = wanted.name.lower().replace("_", "-")
        if name in sizes or not (wanted.marker is None or wanted.marker.evaluate({"extra": ""})):
            continue
        found = importlib.metadata.distribution(wanted.name)
        files = [Path(str(file.locate())) for file in found.files or () if file.suffix != ".pyc"]
        sizes[name] = sum(file.stat().st_size for file in files if file.exists()) / 1e6
        waiting += [Requirement(one) for one in found.requires or ()]
    return sizes


def main() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    base = megabytes(project["dependencies"])
    rows = [row("base", round(sum(base.values())), unit="MB", detail=f"{len(base)} distributions")]
    rows.append(row("jax, scipy, numpy", round(sum(base[name] for name in LARGE)), unit="MB", detail="of the base"))
    for extra in ("report", "sweep"):
        more = megabytes([*project["dependencies"], *project["optional-dependencies"][extra]])
        added = sum(size for name, size in more.items() if name not in base)
        rows.append(row(extra, round(added), unit="MB", detail=", ".join(sorted(more.keys() - base.keys()))))
    show("install", rows)
    store("install", rows)


if __name__ == "__main__":
    main()
