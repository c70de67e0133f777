"""The house in numbers: how large the package is, how it is divided, and how far one has to walk to understand a call.

    python -m benchmarks.house                     # this checkout
    python -m benchmarks.house --root ../older     # another one, read with its own interpreter for the walk

Source is read, not imported, except for the walk and the documented calls, which run in a child of that checkout.
"""

from __future__ import annotations

import argparse
import ast
import collections
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# What a newcomer asks to see: package files in which code runs during one call, imports aside.
WALKS = {
    'uh.compile(attention, to="lstm")': "uh.compile(attention, to='lstm')",
    'uh.compile(attention, to="mamba")': "uh.compile(attention, to='mamba')",
    "uh.decompile": "uh.decompile(network)",
    "uh.probe": "uh.probe(attention, d=2)",
    "uh.attention_map": "uh.attention_map(network, np.zeros((4, 2)) + 0.5)",
    "underhood reproduce table1": "main(['reproduce', 'table1', '--out', folder, '--json'])",
}
WALK = """
import contextlib, io, os, sys, tempfile, threading
import numpy as np
import underhood as uh
from underhood.cli import main

attention = uh.random_attention(2, seed=0)
network = uh.compile(attention, to="gated-rnn").model
folder, package, seen = tempfile.mkdtemp(), os.path.dirname(uh.__file__), set()

def watch(frame, event, argument):
    name = frame.f_code.co_filename
    if event == "call" and name.startswith(package) and frame.f_code.co_name != "<module>":
        seen.add(name)

code = compile(sys.argv[1], "call", "eval")
if "reproduce" not in sys.argv[1]:
    eval(code)  # registries fill once: what they load is not on the way
threading.setprofile(watch)
sys.setprofile(watch)
with contextlib.redirect_stdout(io.StringIO()):
    eval(code)
sys.setprofile(None)
print(len(seen))
"""
DOCUMENTED = """
import inspect, json
import underhood as uh

def signature(thing):
    try:
        return [name for name in inspect.signature(thing).parameters if name not in ("self", "cls")]
    except (TypeError, ValueError):
        return []

calls = {}
for name in uh.__all__:
    thing = getattr(uh, name)
    if not callable(thing) or inspect.ismodule(thing):
        continue
    calls[name] = thing
    if inspect.isclass(thing) and thing.__module__.startswith("underhood"):
        for attribute, raw in inspect.getmembers_static(thing):
            plain = isinstance(raw, (staticmethod, classmethod)) or inspect.isfunction(raw)
            if not attribute.startswith("_") and plain:
                method = getattr(thing, attribute)
                if getattr(method, "__module__", "").startswith("underhood"):
                    calls[f"{name}.{attribute}"] = method
bare = []
for name, thing in calls.items():
    text, wanted = inspect.getdoc(thing) or "", signature(thing)
    if inspect.isclass(thing):
        continue  # fields are documented one by one, below each
    if not text or (wanted and "**Arguments:**" not in text) or "**Returns:**" not in text:
        bare.append(name)
print(json.dumps({"calls": len(calls), "bare": bare}))
"""


def sources(root: Path, *folders: str) -> dict[Path, ast.Module]:
    """Every Python file of these folders, parsed."""
    paths = sorted(path for folder in folders for path in (root / folder).rglob("*.py"))
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in paths}


def code_lines(path: Path, tree: ast.Module) -> int:
    """Lines with code: neither blank, comment nor docstring."""
    text = path.read_text(encoding="utf-8").splitlines()
    strings = {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    written = (line.strip() for number, line in enumerate(text, 1) if number not in strings)
    return sum(bool(line) and not line.startswith("#") for line in written)


def function_lengths(trees: dict[Path, ast.Module]) -> list[int]:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, functions)]
    return [(node.end_lineno or node.lineno) - node.lineno + 1 for node in nodes]


def module_constants(trees: dict[Path, ast.Module]) -> int:
    """Names in capitals that a module assigns at its top."""
    count = 0
    for tree in trees.values():
        for node in tree.body:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target] if _annotated(node) else []
            names = [name for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]
            count += sum(name.id.isupper() for name in names)
    return count


def _annotated(node: ast.stmt) -> bool:
    return isinstance(node, ast.AnnAssign) and node.value is not None


def imports_of(path: Path, tree: ast.Module, package: Path) -> set[Path]:
    """Files of the package that this one imports, at its top or later."""
    wanted = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            wanted |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
        elif isinstance(node, ast.Import):
            wanted |= {alias.name for alias in node.names}
    files = (package.parent / Path(*name.split(".")).with_suffix(".py") for name in wanted)
    return {file for file in files if file.is_file() and package in file.parents and file != path}


def one_importer(root: Path, trees: dict[Path, ast.Module]) -> list[str]:
    """Modules that exactly one other file of the package imports; what a registry loads by its folder has none."""
    package = root / "underhood"
    importers = collections.Counter(file for path, tree in trees.items() for file in imports_of(path, tree, package))
    return sorted(file.relative_to(package).as_posix() for file, count in importers.items() if count == 1)


def any_parameters(trees: dict[Path, ast.Module]) -> int:
    """Parameters annotated `Any`, alone or in a union."""
    count = 0
    for tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.arg) and node.annotation is not None:
                names = (part.id for part in ast.walk(node.annotation) if isinstance(part, ast.Name))
                whole = isinstance(node.annotation, ast.Name | ast.BinOp)
                count += whole and "Any" in names
    return count


def assertions(trees: dict[Path, ast.Module]) -> int:
    """`assert`, `pytest.raises`, `pytest.warns` and NumPy's assertions."""
    count = 0
    for tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                count += node.func.attr in ("raises", "warns") or node.func.attr.startswith("assert_")
            count += isinstance(node, ast.Assert)
    return count


def child(root: Path, script: str, *arguments: str) -> str:
    python = root / ".venv" / "bin" / "python"
    command = [str(python if python.exists() else sys.executable), "-c", script, *arguments]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    return done.stdout.strip().splitlines()[-1] if done.returncode == 0 and done.stdout else ""


def measure(root: Path, *, walk: bool = True) -> dict[str, object]:
    """Every number of the house."""
    package, tests = sources(root, "underhood"), sources(root, "tests")
    lengths, lines = function_lengths(package), sum(len(path.read_text().splitlines()) for path in package)
    names = collections.Counter(path.name for path in package if path.name != "__init__.py")
    rooms = {"cell.py", "lowering.py", "kernel.py", "bridge.py"}  # one of each per architecture
    documented = json.loads(child(root, DOCUMENTED) or '{"calls": null, "bare": []}')
    numbers: dict[str, object] = {
        "lines": lines,
        "code lines": sum(code_lines(path, tree) for path, tree in package.items()),
        "files": len(package),
        "functions": len(lengths),
        "mean function length": round(sum(lengths) / len(lengths), 1),
        "module constants": module_constants(package),
        "file names that occur twice": sorted(name for name, n in names.items() if n > 1 and name not in rooms),
        "modules with one importer": one_importer(root, package),
        "public callables": documented["calls"],
        "public callables without documented arguments or returns": documented["bare"],
        "Any parameters": any_parameters(package),
        "assertions in tests": assertions(tests),
        "test files": len(tests),
    }
    if walk:
        walks = {name: child(root, WALK, call) for name, call in WALKS.items()}
        numbers["walk"] = {name: int(found) if found else None for name, found in walks.items()}
    return numbers


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=ROOT, help="checkout to measure")
    parser.add_argument("--no-walk", action="store_true", help="leave out the calls, which take a minute")
    parser.add_argument("--names", action="store_true", help="list names, not only their number")
    options = parser.parse_args()
    numbers = measure(options.root.resolve(), walk=not options.no_walk)
    for name, value in numbers.items():
        if isinstance(value, list) and not options.names:
            numbers[name] = len(value)
    print(json.dumps(numbers, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
