"""Every file imports only from rooms below its own: the import graph, file by file, drawn from the source."""

import ast
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "underhood"
# From the bottom up. Files of one room may import one another, but not in a circle.
ROOMS = (
    r"core/.*",
    r"algebra/.*",
    r"layers/.*",
    r"attention/.*",
    r"architectures/\w+/cell\.py",
    r"architectures/\w+/kernel\w*\.py",
    r"compiler/.*",
    r"architectures/\w+/lowering\w*\.py",
    r"training/tasks/.*",
    r"decompiler/.*",
    r"explain/.*",
    r"training/(?!tasks/).*",
    r"sweeps/.*",
    r"interop/.*",
    r"architectures/\w+/bridge\.py",
    r"language/.*",
    r"pages/.*",
    r"studies/.*",
    r"testing\.py",
    r"commands/.*",
    r"(cli|__main__)\.py",
)
LISTS = ("__init__.py",)  # the docstring of a room, or the names it hands on


def level(name):
    """Which room a file, "core/errors.py", is in."""
    return next((index for index, room in enumerate(ROOMS) if re.fullmatch(room, name)), None)


def imported(source, package):
    """Files of the package that this source imports, wherever in it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "underhood":
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.startswith("underhood.")]
        else:
            continue
        for name in names:
            path = package / (name.partition(".")[2].replace(".", "/") + ".py")
            if path.is_file():
                yield path.relative_to(package).as_posix()


def edges(package=PACKAGE):
    """(file, file that it imports)."""
    files = [path for path in sorted(package.rglob("*.py")) if path.name not in LISTS]
    named = [(path.relative_to(package).as_posix(), path.read_text(encoding="utf-8")) for path in files]
    return {(name, other) for name, source in named for other in imported(source, package)}


def upwards(edges):
    return {(name, other) for name, other in edges if level(other) > level(name)}


def circular(edges):
    """Files that import themselves through others: what is left when files that nothing left imports are taken away."""
    left = set(edges)
    while left:
        importers, imports = {name for name, _ in left}, {other for _, other in left}
        inner = {(name, other) for name, other in left if name in imports and other in importers}
        if inner == left:
            return left
        left = inner
    return set()


def test_every_file_has_a_room():
    files = {path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py") if path.name not in LISTS}
    assert {name for name in files if level(name) is None} == set()


def test_imports_go_down():
    assert upwards(edges()) == set()


def test_no_file_imports_itself_through_others():
    assert circular(edges()) == set()


def test_rooms_hand_nothing_on():
    """A room's `__init__.py` is its docstring, so that importing a file imports what that file needs and no more."""
    lists = [path for path in PACKAGE.rglob("__init__.py") if path.parent != PACKAGE]
    handed = {
        f"{path.parent.name}: {name}"
        for path in lists
        for name in imported(path.read_text(), PACKAGE)
        if name != "core/extras.py"  # names a missing library before a file needs it
    }
    assert handed == set()


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("architectures/lstm/cell.py", "from underhood.architectures.lstm.lowering import to_lstm"),
        ("core/atomic.py", "import underhood.training.runs"),
        (
            "core/errors.py",
            "def late():\n    from underhood.core.model import KINDS\n    import underhood.pages.page\n",
        ),
        ("explain/maps.py", "from underhood.studies import artifact"),
    ],
)
def test_an_edge_upwards_is_noticed(name, line, tmp_path):
    """Negative control."""
    for path in PACKAGE.rglob("*.py"):
        copy = tmp_path / path.relative_to(PACKAGE)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.touch()
    (tmp_path / name).write_text(line)
    assert upwards(edges(tmp_path)) != set()


def test_a_circle_is_noticed():
    assert circular({("a", "b"), ("b", "c"), ("c", "a"), ("c", "d"), ("e", "a")}) == {
        ("a", "b"),
        ("b", "c"),
        ("c", "a"),
    }
