"""Folders import only from the layers below them: the import graph, drawn from the source."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "underhood"
# From the bottom up; what shares a line may import from one another, but not in a circle.
LAYERS = (
    ("errors",),
    ("registry", "arrays", "extras", "memory", "costs"),
    ("dispatch",),
    ("model", "algebra"),
    ("attention", "cells"),
    ("storage",),
    ("construct", "data", "fit", "identify"),
    ("sweep", "interop"),
    ("report", "testing"),
    ("commands",),
    ("cli", "__main__"),
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def imports(source, name):
    """Modules of the package that this source imports, wherever in it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "underhood":
            parts = node.module.split(".")
            found = [parts[1]] if len(parts) > 1 else [alias.name for alias in node.names]
        elif isinstance(node, ast.Import):
            found = [one.name.split(".")[1] for one in node.names if one.name.startswith("underhood.")]
        else:
            continue
        yield from (one for one in found if one != name and one in LEVEL)


def edges(package=PACKAGE):
    """(folder, folder that it imports from)."""
    found = set()
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).parts
        name = parts[0] if len(parts) > 1 else path.stem
        if name != "__init__":  # the list of exports imports everything, on use
            found |= {(name, other) for other in imports(path.read_text(encoding="utf-8"), name)}
    return found


def wrong(edges):
    """Edges upwards, and both ways between neighbours."""
    upwards = {(one, other) for one, other in edges if LEVEL[other] > LEVEL[one]}
    return upwards | {(one, other) for one, other in edges if (other, one) in edges}


def test_every_module_has_a_layer():
    names = {path.stem if path.is_file() else path.name for path in PACKAGE.iterdir()}
    assert names - {"__init__", "__pycache__", "py"} == set(LEVEL)


def test_imports_go_down():
    assert wrong(edges()) == set()


@pytest.mark.parametrize(
    ("folder", "line"),
    [
        ("cells", "from underhood.interop.torch import export"),
        ("storage", "import underhood.fit.runs"),
        ("errors", "def late():\n    from underhood import model\n"),
    ],
)
def test_an_edge_upwards_is_noticed(folder, line, tmp_path):
    """Negative control."""
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "new.py").write_text(line)
    assert wrong(edges(tmp_path)) != set()


def test_a_circle_among_neighbours_is_noticed():
    assert wrong({("fit", "data"), ("data", "fit")}) != set()
