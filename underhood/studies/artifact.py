"""An artifact of the paper: rows of numbers, a figure, and where they came from."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import platform
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import underhood
from underhood.core.atomic import make_folder, write_atomically
from underhood.core.errors import UnderhoodError
from underhood.core.registry import Registry
from underhood.pages.drawing import rendered
from underhood.studies.rows import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from underhood.pages.charts import Chart, Panel


BUDGETS = ("quick", "laptop", "overnight", "paper")


@dataclasses.dataclass(frozen=True)
class Artifact:
    """What a maker returns; `settings` are the choices that the numbers depend on."""

    name: str
    rows: list[Row]
    settings: dict[str, Any]
    figure: Figure | None = None
    seeds: tuple[int, ...] = ()
    charts: tuple[Chart, ...] = ()
    """The figure's curves, which the report page draws."""
    panels: tuple[Panel, ...] = ()
    """Its matrices of weights."""
    networks: tuple[dict[str, Any], ...] = ()
    """Networks that were decompiled for it: their name, and the keys of `underhood decompile --json`."""


# (budget, folder for long runs) → artifact; one that is made of a sweep takes `so_far=True`, too
Maker = Callable[..., Artifact]


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How to make an artifact, and what the report page says about it."""

    name: str
    make: Maker
    budgets: tuple[str, ...]
    """Those in which it can be made."""
    title: str = ""
    tells: str = ""
    """A paragraph above its charts."""
    swept: tuple[str, ...] = ()
    """Budgets in which it is made of a sweep, so that it can be drawn from the runs that have ended."""

    @property
    def label(self) -> str:
        """Table 1 for table1."""
        return re.sub(r"(?<=\D)(?=\d)", " ", self.name).capitalize()


ARTIFACTS: Registry[Recipe] = Registry("artifact", "underhood.studies.*")


def artifact(
    name: str, *budgets: str, title: str = "", tells: str = "", swept: tuple[str, ...] = ()
) -> Callable[[Maker], Maker]:
    """Decorator: the maker of an artifact, in all budgets unless some are named."""

    def register(make: Maker) -> Maker:
        ARTIFACTS.register(name)(Recipe(name, make, budgets or BUDGETS, title, tells, swept))
        return make

    return register


def place(name: str) -> tuple[int, str]:
    """Where an artifact comes in lists and pages: tables, then figures, then others, each by name."""
    sorts = ("table", "figure")
    return next((at for at, sort in enumerate(sorts) if name.startswith(sort)), len(sorts)), name


def covered(budget: str, *, so_far: bool = False) -> list[str]:
    """The artifacts that a budget makes; with `so_far`, those made of a sweep."""
    if budget not in BUDGETS:
        raise UnderhoodError(f"unknown budget {budget!r}", remedy=f"Known: {', '.join(BUDGETS)}.")
    recipes = [ARTIFACTS[name] for name in ARTIFACTS]
    made = [recipe for recipe in recipes if budget in (recipe.swept if so_far else recipe.budgets)]
    found = sorted((recipe.name for recipe in made), key=place)
    if not found:
        swept = {at for recipe in recipes for at in recipe.swept}
        known = " or ".join(at for at in BUDGETS if at in swept)
        raise UnderhoodError("expected a budget with figures that are made of sweeps", budget, f"Use `budget` {known}.")
    return found


def require_covered(name: str, budget: str, *, so_far: bool = False) -> None:
    """An artifact that is asked for by name exists, and in this budget."""
    if name not in ARTIFACTS:
        raise UnderhoodError(f"unknown artifact {name!r}", remedy=f"Known: {', '.join(sorted(ARTIFACTS, key=place))}.")
    if name not in covered(budget):
        budgets = ARTIFACTS[name].budgets
        raise UnderhoodError(
            f"expected the budget {' or '.join(budgets)} for {name}", budget, f"Use `budget={budgets[0]!r}`."
        )
    if so_far and name not in (swept := covered(budget, so_far=True)):
        raise UnderhoodError("expected an artifact that is made of a sweep", name, f"Known: {', '.join(swept)}.")


def make_artifact(name: str, budget: str, out: Path, *, so_far: bool = False) -> tuple[Artifact, dict[str, Any]]:
    """Make one artifact and write its JSON, PNG and PDF under `out`/`budget`; the JSON comes last.

    With `so_far`, of the runs that have ended: nothing is trained.
    """
    require_covered(name, budget, so_far=so_far)
    folder, began = out / budget, time.perf_counter()
    if not so_far:  # which reads this folder, and has nothing to draw where there is none
        make_folder(folder)  # before hours of training
    artifact = ARTIFACTS[name].make(budget, out / budget / "runs", **({"so_far": True} if so_far else {}))
    record = {
        "artifact": name,
        "budget": budget,
        "rows": [row.as_data() for row in artifact.rows],
        "charts": [dataclasses.asdict(chart) for chart in artifact.charts],
        "panels": [dataclasses.asdict(panel) for panel in artifact.panels],
        "networks": list(artifact.networks),
        "provenance": provenance(artifact, time.perf_counter() - began),
    }
    if artifact.figure is not None:
        for suffix in ("png", "pdf"):
            write_atomically(folder / f"{name}.{suffix}", rendered(artifact.figure, suffix))
    write_atomically(folder / f"{name}.json", (json.dumps(record, indent=1) + "\n").encode())
    return artifact, record


def provenance(artifact: Artifact, seconds: float) -> dict[str, Any]:
    """Settings, seeds, versions, commit and wall seconds."""
    packages = ("jax", "jaxlib", "equinox", "numpy")
    return {
        "settings": artifact.settings,
        "seeds": list(artifact.seeds),
        "versions": {
            "underhood": underhood.__version__,
            "python": platform.python_version(),
            **{package: importlib.metadata.version(package) for package in packages},
        },
        "commit": commit_of_source(),
        "wall_seconds": round(seconds, 3),
    }


def commit_of_source() -> str | None:
    """The commit of the source, "-dirty" where underhood/ was changed since; none outside a checkout."""
    package = Path(__file__).resolve().parents[1]
    if not (package.parent / ".git").exists():
        return None
    try:
        # Results are written into the same checkout: only changes of the source make a commit dirty.
        return _git(package, "rev-parse", "HEAD") + "-dirty" * bool(_git(package, "status", "--porcelain", "--", "."))
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *arguments: str) -> str:
    asked = ["git", "-C", str(folder), *arguments]
    return subprocess.run(asked, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
