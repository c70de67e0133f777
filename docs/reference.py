"""Pages of the reference, out of the code: each command from its dataclass, each call from its signature and docstring.

python docs/reference.py        # writes docs/reference/commands.md and docs/reference/python.md
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import itertools
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent

# Calls that hand their settings on: where these are told.
SETTINGS = {
    "decompile": ("underhood.identify.decompile", "decompile"),
    "probe": ("underhood.identify.blackbox", "probe"),
}


def write(folder: Path) -> None:
    """Both pages, rewritten only where they changed, so that a second build has nothing to do."""
    folder.mkdir(exist_ok=True)
    for name, text in {"commands.md": commands_page(), "python.md": python_page()}.items():
        path = folder / name
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def commands_page() -> str:
    from underhood.cli import COMMANDS, name_of

    parts = [
        "# Commands",
        "`underhood COMMAND --help` prints the same. With `--json`, one JSON object on stdout; remarks go to stderr. "
        "Exit codes: 0 done; 1 it ran and the answer is no (not attention, not verified, a row not met); 2 bad input.",
    ]
    for command in COMMANDS:
        parts += [f"## underhood {name_of(command)}", inspect.getdoc(command) or "", _options(command)]
    return "\n\n".join(parts) + "\n"


def _options(command: type) -> str:
    told = field_docs(command)
    lines = ["| option | default | meaning |", "|---|---|---|"]
    for field in dataclasses.fields(command):
        positional = "Positional" in str(field.type)
        name = field.name.upper() if positional else f"--{field.name.replace('_', '-')}"
        lines.append(f"| `{name}` | {_default(field)} | {_cell(told.get(field.name, ''))} |")
    return "\n".join(lines)


def field_docs(command: type) -> dict[str, str]:
    """The string under each field of a dataclass, its base classes included."""
    told: dict[str, str] = {}
    for base in reversed(command.__mro__[:-1]):
        (body,) = [node.body for node in ast.parse(textwrap.dedent(inspect.getsource(base))).body]  # type: ignore[attr-defined]
        for field, text in itertools.pairwise(body):
            documented = isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and documented:
                told[field.target.id] = inspect.cleandoc(str(text.value.value))  # type: ignore[attr-defined]
    return told


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default is dataclasses.MISSING:
        return "required" if field.default_factory is dataclasses.MISSING else "as it says"
    if field.default is None or field.default == () or field.default is False:
        return ""
    return f"`{field.default}`"


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|")


def python_page() -> str:
    import underhood as uh

    parts = ["# Python", "`import underhood as uh`. Everything below is an attribute of `uh`, imported on first use."]
    # Not getattr(uh, name): the folder underhood.fit stands in the way of the function of that name.
    modules = {name: importlib.import_module(f"underhood.{module}") for name, module in uh._EXPORTS.items()}
    things = {name: getattr(module, name) for name, module in sorted(modules.items(), key=lambda one: one[0].lower())}
    for kind, heading in {False: "## Calls", True: "## Classes"}.items():
        parts.append(heading)
        parts += [_entry(name, thing) for name, thing in things.items() if inspect.isclass(thing) == kind]
    return "\n\n".join(parts) + "\n"


def _entry(name: str, thing: Any) -> str:
    module, inner = SETTINGS.get(name, (None, None))
    settings = getattr(importlib.import_module(module), inner) if module else None
    parts = [f"### {name}", _code(name, settings or thing), _doc(settings) if settings else "", _doc(thing)]
    if inspect.isclass(thing):
        for member, value in inspect.getmembers_static(thing):
            found = _member(thing, member, value)
            if found:
                parts.append(found)
    return "\n\n".join(part for part in parts if part)


def _member(owner: type, name: str, value: Any) -> str | None:
    """Public methods and properties that have something to say and are ours."""
    function = getattr(value, "fget", None) or getattr(value, "__func__", value)
    if (
        name.startswith("_")
        or not callable(function)
        or not (getattr(function, "__module__", "") or "").startswith("underhood")
    ):
        return None
    told = inspect.getdoc(value)
    if not told or inspect.isclass(function):
        return None
    if isinstance(value, property):
        return f"`.{name}`\n: {_indented(told)}"
    return f"`.{name}{_signature(getattr(owner, name))}`\n: {_indented(told)}"


def _indented(text: str) -> str:
    return text.replace("\n", "\n  ")


def _doc(thing: Any) -> str:
    told = inspect.getdoc(thing) or ""
    inherited = inspect.isclass(thing) and told == inspect.getdoc(thing.__mro__[1])
    return "" if inherited or told.startswith(f"{thing.__name__}(") else told


def _code(name: str, thing: Any) -> str:
    return f"```python\nuh.{name}{_signature(thing)}\n```"


def _signature(thing: Any) -> str:
    try:
        signature = inspect.signature(thing)
    except (TypeError, ValueError):
        return ""
    parameters = [
        one.replace(annotation=inspect.Parameter.empty) for one in signature.parameters.values() if one.name != "self"
    ]
    text = str(signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty))
    return re.sub(r"<class '(?:numpy|jax\.numpy)\.(\w+)'>", r"np.\1", text)


if __name__ == "__main__":
    sys.path.insert(0, str(HERE.parent))
    write(HERE / "reference")
