"""`write_report`: the results as one page to look at, made from the JSON that reproduce wrote; nothing is run again."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import underhood
from underhood.core.atomic import read_bytes, write_atomically
from underhood.core.errors import UnderhoodError
from underhood.decompiler.result import DECAYED, LINEAR
from underhood.pages.drawing import seeds_of, text_of
from underhood.pages.page import render
from underhood.pages.svg import chart_svg, panel_svg, points_of, series_look
from underhood.studies.artifact import ARTIFACTS, BUDGETS, place

Record = dict[str, Any]
ROW = {"name", "here", "met"}
REMEDY = "Make them with: underhood reproduce"
NETWORK_ROWS = (
    ("heads", "heads"),
    ("kv_score", "KV score"),
    ("q_score", "Q score"),
    ("polynomial_distance", "polynomial distance"),
    ("r2", "R² on fresh sequences"),
)


# Figures that take hours come with the package, from a run that was kept.
KEPT = (Path(__file__).parent / "kept", Path(__file__).parents[2] / "results" / "overnight")


def write_report(results: Path, out: Path, *, kept: bool = False) -> Path:
    """Read the records under `results` and write the page to `out`; with `kept`, beside figures that take hours."""
    records = load_records(results)
    return write_atomically(out, report_html(records + kept_records(records) if kept else records).encode())


def kept_records(records: list[Record]) -> list[Record]:
    """The sweeps' figures of the overnight budget, where these records have none of that budget or a larger one."""
    swept = [name for name in ARTIFACTS if ARTIFACTS[name].swept]
    made = {record["artifact"] for record in records if budget_place(record["budget"]) >= budget_place("overnight")}
    found = []
    for name in sorted(set(swept) - made, key=place):
        path = next((folder / f"{name}.json" for folder in KEPT if (folder / f"{name}.json").is_file()), None)
        if path is not None and (record := _read(path)) is not None:
            found.append({**record, "kept": True})
    return found


def load_records(results: Path) -> list[Record]:
    """Every record below `results`, a folder of budgets or one budget's; other JSON files are passed over."""
    if not results.is_dir():
        raise UnderhoodError(f"no such folder: {results}", remedy=REMEDY)
    paths = sorted(path for path in [*results.glob("*.json"), *results.glob("*/*.json")] if path.is_file())
    records = [record for path in paths if (record := _read(path)) is not None]
    if not records:
        raise UnderhoodError(f"no results of underhood reproduce in {results}", remedy=REMEDY)
    return sorted(records, key=lambda record: (place(record["artifact"]), budget_place(record["budget"])))


def _read(path: Path) -> Record | None:
    try:
        record = json.loads(read_bytes(path))
    except (ValueError, RecursionError) as error:
        raise UnderhoodError(f"{path} is not JSON: {error}", remedy="Make it again, or remove it.") from None
    if not isinstance(record, dict) or not isinstance(record.get("rows"), list) or "artifact" not in record:
        return None
    for index, row in enumerate(record["rows"]):
        if not isinstance(row, dict) or not row.keys() >= ROW:
            got = ", ".join(row)[:60] or "nothing" if isinstance(row, dict) else type(row).__name__
            rule = f"expected name, here and met in rows[{index}] of {path}"
            raise UnderhoodError(rule, got, "Make it again, or remove it.")
    picture = path.with_suffix(".png")
    named = {"artifact": str(record["artifact"]), "budget": str(record.get("budget", ""))}
    return {**record, **named, "picture": picture if picture.is_file() else None}


def budget_place(budget: str) -> tuple[int, str]:
    """From the smallest to the largest; unknown ones after them, by name."""
    return (BUDGETS.index(budget) if budget in BUDGETS else len(BUDGETS)), budget


def report_html(records: list[Record]) -> str:
    """The page as text."""
    try:
        return _report_html(records)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        remedy = "Make them again with: underhood reproduce"
        raise UnderhoodError(f"cannot read these results: {error}", remedy=remedy) from error


def _report_html(records: list[Record]) -> str:
    budgets = sorted({record["budget"] for record in records if not record.get("kept")}, key=budget_place)
    names = sorted({record["artifact"] for record in records}, key=place)
    groups = [_group(name, [record for record in records if record["artifact"] == name]) for name in names]
    rows = [row for record in records for row in record["rows"]]
    asked = [row for row in rows if met_of(row) is not None]
    return render(
        "report.html",
        ("page.js",),
        title="underhood: paper against here",
        version=underhood.__version__,
        budgets=budgets,
        groups=groups,
        networks=[network for record in records for network in _networks(record)],
        met=sum(met_of(row) is True for row in asked),
        asked=len(asked),
        total=len(rows),
        provenance=[_provenance(record) for record in records],
    )


def _words(name: str) -> tuple[str, str, str]:
    """Label, title and text of an artifact; its name alone where this version does not make it."""
    if name not in ARTIFACTS:
        return name, "", ""
    recipe = ARTIFACTS[name]
    return recipe.label, recipe.title, recipe.tells


def _group(name: str, records: list[Record]) -> dict[str, Any]:
    """One artifact with what each budget has of it, side by side."""
    records = sorted(records, key=lambda record: budget_place(record["budget"]))
    label, title, tells = _words(name)
    rows: dict[str, dict[str, Any]] = {}
    for record in records:
        for row in record["rows"]:
            key = str(row.get("name", ""))
            merged = rows.setdefault(key, {"name": key, "paper": row.get("paper"), "here": {}})
            cell = {"text": text_of(row.get("here")), "seeds": seeds_of(row), "met": met_of(row)}
            merged["here"][record["budget"]] = cell | {"target": str(row.get("target"))}
    ticks = [cell["met"] for row in rows.values() for cell in row["here"].values() if cell["met"] is not None]
    for row in rows.values():
        row["missed"] = any(cell["met"] is False for cell in row["here"].values())
        row["paper"] = None if row["paper"] is None else text_of(row["paper"])
    drawn = [drawn for record in records if (drawn := _drawn(record)) is not None]
    return {
        "slug": re.sub(r"[^a-z0-9]+", "-", name.lower()) or "artifact",
        "label": label,
        "title": title,
        "tells": tells,
        "budgets": [record["budget"] for record in records],
        "rows": list(rows.values()),
        "met": sum(ticks),
        "asked": len(ticks),
        "drawn": drawn,
    }


def met_of(row: dict[str, Any]) -> bool | None:
    """Whether a row of a record meets its target; None where it has none."""
    return None if row.get("target") is None else row.get("met") is True


def _drawn(record: Record) -> dict[str, Any] | None:
    """Charts and matrices of one record; None where it has neither."""
    charts = [_chart(chart) for chart in record.get("charts") or [] if chart.get("curves")]
    panels = [panel for panel in record.get("panels") or [] if panel.get("values")]
    picture = None if charts or panels or record["artifact"].startswith("table") else _picture(record)
    if not charts and not panels and picture is None:
        return None
    return {
        "heading": _made_in(record),
        "kept": bool(record.get("kept")),
        "charts": charts,
        "lines": [_line(line) for line in _lines_of(panels)],
        "picture": picture,
    }


def _made_in(record: Record) -> str:
    commit = str((record.get("provenance") or {}).get("commit") or "")[:10]
    kept = f", kept with the package, made at commit {commit}" if record.get("kept") else ""
    return f"budget: {record['budget']}{kept}"


def _picture(record: Record) -> dict[str, str] | None:
    """A figure that is no chart of ours, as it is: its PNG as text."""
    path = record.get("picture")
    if path is None:
        return None
    label, title, _ = _words(record["artifact"])
    return {"source": f"data:image/png;base64,{base64.b64encode(read_bytes(path)).decode()}", "alt": title or label}


def _lines_of(panels: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Matrices that belong together share a line: a network's up to its readout D, single ones, families."""
    lines: list[list[dict[str, Any]]] = []
    before = "D"
    for panel in panels:
        name = str(panel.get("name", ""))
        if before == "D" or (", " in name) != (", " in before):  # families of panels have a comma
            lines.append([])
        lines[-1].append(panel)
        before = name
    return lines


def _line(panels: list[dict[str, Any]]) -> dict[str, Any]:
    drawn = [{"name": str(panel.get("name", "")), "svg": panel_svg(panel)} for panel in panels]
    return {"panels": drawn, "columns": sum(len(panel["values"][0]) for panel in panels)}


def _chart(chart: dict[str, Any]) -> dict[str, Any]:
    name, x, y = (str(chart.get(key, "")) for key in ("name", "x_label", "y_label"))
    curves = [
        {
            "name": str(curve.get("name", "")),
            "look": series_look(curve, index),
            "points": [[text_of(value) for value in point] for point in points_of(curve)],
        }
        for index, curve in enumerate(chart["curves"])
    ]
    drawn = chart_svg(chart, f"{name}: {y} against {x}; arrow keys read its points")
    joined = bool(chart.get("joined", True))
    return {"name": name, "svg": drawn, "curves": curves, "x": x, "y": y, "joined": joined}


def _networks(record: Record) -> list[dict[str, Any]]:
    """What the decompiler said of each network: the verdict, what it rests on, and the bound."""
    return [_network(record, network) for network in record.get("networks") or [] if isinstance(network, dict)]


def _network(record: Record, network: dict[str, Any]) -> dict[str, Any]:
    facts = [(label, text_of(network[key])) for key, label in NETWORK_ROWS if network.get(key) is not None]
    for key, label in (("hidden", "hidden neurons"), ("pre_readout", "pre-readout neurons")):
        before, after = network.get(f"{key}_before"), network.get(f"{key}_after")
        if before is not None:
            facts.append((label, text_of(before) if after is None else f"{before} → {after}"))
    bound = network.get("certificate") or {}
    certificate = None
    if bound.get("max_abs_error") is not None:
        scope = f"for every input within ±{text_of(bound.get('input_bound'))} and up to {bound.get('horizon')} steps"
        certificate = {"error": text_of(bound["max_abs_error"]), "scope": scope}
    verdict = str(network.get("verdict", "no verdict"))
    return {
        "name": str(network.get("name") or _words(record["artifact"])[0]),
        "budget": record["budget"],
        "verdict": verdict,
        "yes": verdict in (LINEAR, DECAYED),
        "reason": str(network.get("reason") or ""),
        "facts": facts,
        "certificate": certificate,
    }


def _provenance(record: Record) -> dict[str, Any]:
    made: dict[str, Any] = record.get("provenance") or {}
    settings = {str(key): _short(value) for key, value in (made.get("settings") or {}).items()}
    return {
        "label": _words(record["artifact"])[0],
        "budget": record["budget"],
        "commit": str(made.get("commit") or "–"),
        "seeds": _short(made.get("seeds") or []),
        "seconds": made.get("wall_seconds") and f"{text_of(made['wall_seconds'])} s",
        "settings": settings,
        "versions": {str(key): str(value) for key, value in (made.get("versions") or {}).items()},
    }


def _short(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(_short(one) for one in value) or "–"
    return text_of(value)
