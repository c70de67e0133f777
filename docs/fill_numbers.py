"""Numbers in the README and the docs come from files under results/: this fills them in, and a test compares.

    python docs/fill_numbers.py            # rewrite the numbers that differ   (make numbers)
    python docs/fill_numbers.py --check    # exit 1 where a page and the results have drifted apart

In running text, numbers.toml names a phrase of the page, with {} where a number stands, and the source of the number:
FILE | KEY / KEY / … | FORMAT. Keys are those of objects, places or names of list entries. A table stands between
`<!-- numbers: NAME -->` and `<!-- end numbers -->`; TABLES, below, has the names.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
PHRASES = Path(__file__).with_name("numbers.toml")
REGION = re.compile(r"(<!-- numbers: (.*?) -->)(.*?)(<!-- end numbers -->)", re.DOTALL)
NUMBER = r"(.{1,60}?)"  # what stands for one in a page; a correlation comes with its interval

# (artifact, row, what the README calls it), of those that are made in every way; the report page has all rows.
# A row that no budget has, and a budget that has none of them, are left out.
ROWS = (
    ("table1", "loss, held out", "Table 1: loss of the student"),
    ("table1", "KV score", "key-values from memory neurons, 1 − R²"),
    ("table1", "Q score", "queries from forget neurons, 1 − R²"),
    ("table1", "polynomial distance", "distance of the polynomials"),
    ("table1", "hidden neurons left", "hidden neurons needed"),
    ("table1", "pre-readout neurons left", "pre-readout neurons needed"),
    ("table2", "coefficient of x_1² y_1", "Table 2: coefficient of x₁² y₁; the optimal step has 0.0676"),
    ("table2", "residual norm", "norm of all other terms"),
)


def pages(root: Path = ROOT) -> list[Path]:
    return [root / "README.md", *sorted((root / "docs").glob("*.md"))]


def phrases(page: Path, root: Path = ROOT) -> dict[str, list[str]]:
    """Phrase → sources of the numbers in it, for one page."""
    known = tomllib.loads(PHRASES.read_text()).get(page.relative_to(root).as_posix(), {})
    return {phrase: [sources] if isinstance(sources, str) else sources for phrase, sources in known.items()}


def filled(text: str, results: Path, known: dict[str, list[str]] | None = None) -> str:
    """The page with its tables and the numbers of `known` phrases made from `results`."""
    text = REGION.sub(lambda found: f"{found[1]}\n\n{TABLES[found[2].strip()](results)}\n\n{found[4]}", text)
    for phrase, sources in (known or {}).items():
        text = _filled_phrase(text, phrase, [_number(source, results) for source in sources])
    return text


def _filled_phrase(text: str, phrase: str, numbers: list[str]) -> str:
    words = re.escape(phrase).replace(r"\{\}", NUMBER).replace(r"\ ", r"\s+")
    found = list(re.finditer(words + r"(?!\w)", text, re.DOTALL))  # the last number as a whole
    if len(found) != 1 or len(numbers) != phrase.count("{}"):
        problem = f"found {len(found)} times" if len(found) != 1 else f"takes {phrase.count('{}')} numbers"
        raise KeyError(f"{PHRASES.name}: {phrase!r} is {problem} in the page: edit it as the page is edited")
    for place in reversed(range(len(numbers))):
        start, end = found[0].span(place + 1)
        text = text[:start] + numbers[place] + text[end:]
    return text


def _number(source: str, results: Path) -> str:
    file, keys, form = (part.strip() for part in source.split("|"))
    value = json.loads((results.parent / file).read_text())
    for key in keys.split(" / "):
        value = _entry(value, key, source)
    return _text(value) if form == "text" else format(value, form)


def _entry(value: Any, key: str, what: str) -> Any:
    if isinstance(value, list):
        named = [one for one in value if isinstance(one, dict) and one.get("name") == key]
        if not named and not key.lstrip("-").isdigit():
            raise KeyError(f"{what}: no entry {key!r}")
        return named[0] if named else value[int(key)]
    return value[key]


def paper_against_here(results: Path) -> str:
    from underhood.studies.artifact import BUDGETS

    records = {
        (path.stem, budget): json.loads(path.read_text())
        for budget in BUDGETS
        for path in sorted((results / budget).glob("*.json"))
    }
    made = {artifact for artifact, _, _ in ROWS}
    budgets = [budget for budget in BUDGETS if any((artifact, budget) in records for artifact in made)]
    lines = [
        "| | paper | " + " | ".join(f"here, {budget}" for budget in budgets) + " |",
        "|---|---|" + "---|" * len(budgets),
    ]
    for artifact, name, label in ROWS:
        found = {
            budget: row
            for budget in budgets
            for row in records.get((artifact, budget), {}).get("rows", [])
            if row["name"] == name
        }
        if found:
            paper = _text(next(iter(found.values()))["paper"])
            cells = [_cell(found[budget]) if budget in found else "" for budget in budgets]
            lines.append(f"| {label} | {paper} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(row: dict[str, Any]) -> str:
    return _text(row["here"]) + (" ✗" if row["met"] is False else "")


def _text(value: Any) -> str:
    from underhood.pages.drawing import text_of

    return text_of(value)


def picture(results: Path) -> str:
    """Figure 2, what the student learned, where it has been made; otherwise Figure 1, what it should learn."""
    if (results / "quick" / "figure2.png").exists():
        return "![The weights of a network that learned attention from sequences alone](results/quick/figure2.png)"
    return "![Linear self-attention, written as a gated RNN](results/quick/figure1.png)"


def torture(results: Path) -> str:
    """One line for each kind of damage; a remark while there is no file."""
    path = results / "torture.json"
    if not path.exists():
        return "Not measured in this version."
    record = json.loads(path.read_text())
    lines = ["| | tried | survived | lost | |", "|---|---|---|---|---|"]
    for row in [*record["rows"], {**record, "name": "**all**"}]:
        counts = " | ".join(f"{row[key]:,}" for key in ("tried", "survived", "lost"))
        lines.append(f"| {row['name']} | {counts} | {row.get('skipped') or row.get('detail', '')} |")
    return "\n".join(lines)


def in_context(results: Path) -> str:
    """Known algorithms, false names and closed forms; a remark while there is no file."""
    path = results / "bench" / "in_context.json"
    if not path.exists():
        return "Not measured in this version: `python -m benchmarks.in_context`."
    lines = ["| | here | asked | |", "|---|---|---|---|"]
    for row in json.loads(path.read_text())["rows"]:
        lines.append(f"| {row['name']} | {row['here']:.3g} | {row['at_least']:g} | {row['detail']} |")
    return "\n".join(lines)


START = "from the compiled weights, off by 1 %: loss"


def _algorithm(told: dict[str, Any], inputs: str) -> str:
    """The name in bold where it was found, the nearest one elsewhere; R², and in how many seeds."""
    name, nearest, r2, seeds = (
        told[f"regression, {inputs}, {what}"]
        for what in ("algorithm", "nearest algorithm", "R² of it", "seeds that find an algorithm")
    )
    return f"{nearest}, {r2:.2f}" if name == "none" else f"**{name}**, {r2:.3f}, {seeds} seeds"


PREDICTS_NOTHING = 0.5  # the loss of a network that always says 0: above it, a run has diverged


def _ended(loss: float | None) -> float | str | None:
    return "diverged" if loss is not None and loss > PREDICTS_NOTHING else loss


def discovery(results: Path) -> str:
    """One line for each architecture; a remark while there is no file."""
    path = results / "laptop" / "discovery.json"
    if not path.exists():
        return "Not run in this version: `underhood reproduce discovery --budget laptop`."
    named: dict[str, dict[str, Any]] = {}
    for row in json.loads(path.read_text())["rows"]:
        label, what = row["name"].split(": ", 1)
        named.setdefault(label, {})[what] = row["here"]
    columns = {
        "layers for attention": lambda told: told["represents attention"],
        "R² of attention, teacher-student": lambda told: told["teacher-student, R² of the nearest attention"],
        "loss, uniform": lambda told: told["regression, uniform, loss"],
        "algorithm": lambda told: _algorithm(told, "uniform"),
        "loss, sphere": lambda told: told["regression, sphere, loss"],
        "algorithm ": lambda told: _algorithm(told, "sphere"),
        "compiled weights, off by 1 %": lambda told: told.get(f"{START} before training"),
        "trained from there": lambda told: _ended(told.get(f"{START} after training")),
        "loss, recall": lambda told: told["recall, loss"],
    }
    lines = ["| | " + " | ".join(columns) + " |", "|---|" + "---|" * len(columns)]
    for label, told in named.items():
        cells = [cell(told) for cell in columns.values()]
        shown = (f"{one:.3g}" if isinstance(one, float) else "–" if one is None else str(one) for one in cells)
        lines.append(f"| {label} | " + " | ".join(shown) + " |")
    return "\n".join(lines)


def growth(results: Path) -> str:
    """What a training step costs, one size at a time."""
    lines = ["| | d | n | t | ms per step |", "|---|---|---|---|---|"]
    for one in json.loads((results / "bench" / "scale.json").read_text())["growth"]:
        lines.append(f"| {one['axis']} grows | {one['d']} | {one['n']} | {one['t']} | {one['ms']:.2g} |")
    return "\n".join(lines)


def sizes(results: Path) -> str:
    """What was asked for, and what each command takes at that size."""
    record = json.loads((results / "bench" / "sizes.json").read_text())
    limits = {f"{row['name']} {row['d']}": row["limit"] for row in record["rows"] if row["limit"]}
    lines = ["| | seconds | GB | asked: s, GB | error | met |", "|---|---|---|---|---|---|"]
    for one in record["summary"]:
        limit = limits.get(one["name"])
        if limit:
            name, d = one["name"].rsplit(" ", 1)
            asked, met = f"{limit['seconds']:g}, {limit['gigabytes']:g}", f"{one['met']} of {one['of']}"
            error = "" if one["error"] is None else _text(one["error"])
            seconds = format(one["most_seconds"], ".0f" if one["most_seconds"] >= 10 else ".2g")
            times = f"{seconds} | {one['gigabytes']:.2g}"
            lines.append(f"| {name}, d = {d} | {times} | {asked} | {error} | {met} |")
    return "\n".join(lines)


def exponents(results: Path) -> str:
    """seconds ~ d^a and gigabytes ~ d^b, for the larger sizes."""
    record = json.loads((results / "bench" / "sizes.json").read_text())
    lines = ["| | fitted to d = | time grows as | memory as |", "|---|---|---|---|"]
    for name, fit in record["growth"].items():
        if fit and name != "streaming":
            powers = " | ".join(f"d^{fit[key]['exponent']:.1f}" for key in ("seconds", "gigabytes"))
            lines.append(f"| {name} | {fit['from']} to {fit['to']} | {powers} |")
    return "\n".join(lines)


def decays(results: Path) -> str:
    """What several weight decays leave of a student."""
    head = "| decay | held-out loss | hidden neurons | pre-readout neurons | polynomial distance |"
    lines = [head, "|---|---|---|---|---|"]
    for one in json.loads((results / "bench" / "decays.json").read_text())["students"]:
        left = f"{one['hidden']} | {one['pre_readout']} | {_text(one['polynomial_distance'])}"
        lines.append(f"| {one['weight_decay']:g} | {_text(one['held_out_loss'])} | {left} |")
    return "\n".join(lines)


def transformers_layers(results: Path, *, works: bool) -> str:
    """Model types of transformers whose layers become cells, and those that don't."""
    every = json.loads((results / "bench" / "transformers.json").read_text())["rows"]
    rows = [row for row in every if row["works"] == works]
    if works:
        lines = [f"| {row['model_type']} | {row['cell'].removesuffix('-cell')} | {row['error']:.1e} |" for row in rows]
        return "\n".join(["| model type | cell | error |", "|---|---|---|", *lines])
    lines = [f"| {row['model_type']} | {row['reason']} |" for row in rows]
    return "\n".join(["| model type | what differs |", "|---|---|", *lines])


def network_memory(results: Path) -> str:
    """How soon networks of public packages forget another past, and which part of the state carries it."""

    def carried(row: dict[str, Any]) -> str:
        ranked = sorted(row["parts"].items(), key=lambda item: -item[1])[:3]
        return ", ".join(f"{part} {share:.0%}" for part, share in ranked)

    def steps(count: int | None) -> str:
        return "more than 160" if count is None else str(count)

    rows = json.loads((results / "bench" / "network_memory.json").read_text())["rows"]
    lines = [f"| {row['name']} | {steps(row['tenth'])} | {steps(row['hundredth'])} | {carried(row)} |" for row in rows]
    head = ["| network | below a tenth | below a hundredth | carried by |", "|---|---|---|---|"]
    return "\n".join([*head, *lines])


TABLES = {
    "paper-against-here": paper_against_here,
    "picture": picture,
    "torture": torture,
    "in-context": in_context,
    "discovery": discovery,
    "growth": growth,
    "sizes": sizes,
    "exponents": exponents,
    "decays": decays,
    "transformers": lambda results: transformers_layers(results, works=True),
    "transformers, others": lambda results: transformers_layers(results, works=False),
    "network-memory": network_memory,
}


def main(arguments: list[str]) -> int:
    check, drifted, missing = "--check" in arguments, [], []
    for page in pages():
        text = page.read_text()
        try:
            new = filled(text, ROOT / "results", phrases(page))
        except FileNotFoundError as error:
            missing.append(f"{page.name} needs {Path(error.filename).relative_to(ROOT)}")
            continue
        if new != text:
            drifted.append(page.name)
            if not check:
                page.write_text(new)
    for line in missing:
        print(line)
    if drifted:
        print(", ".join(drifted), "have other numbers than results/" if check else "brought up to date")
    return 1 if missing or (drifted and check) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
