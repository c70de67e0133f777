"""Pages of the reference, out of the code: commands from their dataclasses, calls and classes from their signatures and
docstrings, architectures and kinds of files from the registries.

python docs/reference.py        # writes commands.md, python.md and architectures.md to docs/reference
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
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def write(folder: Path) -> None:
    """The pages, rewritten only where they changed, so that a second build has nothing to do."""
    folder.mkdir(exist_ok=True)
    pages = {"commands.md": commands_page(), "python.md": python_page(), "architectures.md": architectures_page()}
    for name, text in pages.items():
        path = folder / name
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def commands_page() -> str:
    from underhood.cli import ANSWER_IS_NO, BAD_INPUT, COMMANDS, DONE, INTERNAL_ERROR, INTERRUPTED, name_of

    parts = [
        "# Commands",
        "`underhood COMMAND --help` prints the same. With `--json`, stdout holds one JSON object, and remarks go to "
        f"stderr. Exit codes: {DONE} done; {ANSWER_IS_NO} it ran and the answer is no (not attention, not verified, no "
        f"known algorithm, a target missed); {BAD_INPUT} bad input or usage; {INTERNAL_ERROR} a bug in underhood; "
        f"{INTERRUPTED} stopped with Ctrl-C.",
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


def field_docs(owner: type) -> dict[str, str]:
    """The string under each field of a dataclass, those of its base classes in this package included."""
    told: dict[str, str] = {}
    for base in reversed(owner.__mro__):
        if not base.__module__.startswith("underhood"):
            continue
        (node,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        for field, text in itertools.pairwise(node.body):  # type: ignore[attr-defined]
            documented = isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and documented:
                told[field.target.id] = inspect.cleandoc(str(text.value.value))  # type: ignore[attr-defined]
    return told


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default is dataclasses.MISSING:
        return "required" if field.default_factory is dataclasses.MISSING else "see meaning"
    if field.default is None or field.default is False or field.default in ((), ""):
        return ""
    return f"`{field.default}`"


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|")


def python_page() -> str:
    """The exports, what every model can do, and what the pages import from deeper in."""
    import underhood as uh
    from underhood.core.model import AbstractModel

    exports = {name: (getattr(uh, name).__module__, name) for name in uh.__all__}
    told = {*exports, AbstractModel.__name__}
    deeper = {name: module for name, module in sorted(imported_by_pages(), key=_by_name) if name not in told}
    things = {name: _thing(*place) for name, place in sorted(exports.items(), key=_by_name)}
    parts = ["# Python", "`import underhood as uh`. Calls and classes are attributes of `uh`, imported on first use."]
    for kind, heading in {False: "## Calls", True: "## Classes"}.items():
        parts.append(heading)
        if kind:
            parts.append("### Every model\n\n" + _doc(AbstractModel))
            parts += _members(AbstractModel)
        parts += [_entry(name, f"uh.{name}", thing) for name, thing in things.items() if inspect.isclass(thing) == kind]
    if deeper:
        parts += ["## For extensions", "Names that the other pages import."]
        parts += [_entry(name, f"{module}.{name}", _thing(module, name)) for name, module in deeper.items()]
    return "\n\n".join(parts) + "\n"


def _by_name(entry: tuple[str, Any]) -> str:
    return entry[0].lower()


def imported_by_pages() -> set[tuple[str, str]]:
    """(name, module) of everything that a Python block of the docs imports from inside the package."""
    found = set()
    for page in [HERE.parent / "README.md", *HERE.glob("*.md")]:
        for code in BLOCK.findall(page.read_text()):
            for node in ast.walk(ast.parse(code)):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("underhood."):
                    found |= {(alias.name, str(node.module)) for alias in node.names}
    return found


def _thing(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


def _entry(name: str, call: str, thing: Any) -> str:
    parts = [f"### {name}"]
    if inspect.isclass(thing) or inspect.isroutine(thing):
        parts += [f"```python\n{call}{_signature(thing)}\n```", _doc(thing)]
    else:
        ours = type(thing).__module__.startswith("underhood")
        parts.append(f"`{call}`" + (f": {_cell(inspect.getdoc(type(thing)) or '')}" if ours else ""))
    if dataclasses.is_dataclass(thing):
        told = field_docs(thing)  # type: ignore[arg-type]
        fields = [field.name for field in dataclasses.fields(thing) if field.name in told]
        parts += [f"`.{field}`\n: {_indented(told[field])}" for field in fields]
    if inspect.isclass(thing):
        parts += _members(thing)
    return "\n\n".join(part for part in parts if part)


def _members(owner: type) -> list[str]:
    """Public methods and properties that the class itself defines; what all models share is told once."""
    found = (_member(owner, name, value) for name, value in inspect.getmembers_static(owner) if name in vars(owner))
    return [text for text in found if text]


def _member(owner: type, name: str, value: Any) -> str | None:
    function = getattr(value, "fget", None) or getattr(value, "__func__", value)
    ours = (getattr(function, "__module__", "") or "").startswith("underhood")
    told = inspect.getdoc(value)
    if name.startswith("_") or not callable(function) or inspect.isclass(function) or not ours or not told:
        return None
    if any(told == inspect.getdoc(getattr(base, name, None)) for base in owner.__mro__[1:]):
        return None  # overridden, and says the same
    arguments = "" if isinstance(value, property) else _signature(getattr(owner, name))
    return f"`.{name}{arguments}`\n: {_indented(told)}"


def _indented(text: str) -> str:
    return text.replace("\n", "\n  ")


def _doc(thing: Any) -> str:
    told = inspect.getdoc(thing) or ""
    inherited = inspect.isclass(thing) and told == inspect.getdoc(thing.__mro__[1])
    return "" if inherited or told.startswith(f"{thing.__name__}(") else told


def _signature(thing: Any) -> str:
    try:
        signature = inspect.signature(thing)
    except (TypeError, ValueError):
        return ""
    parameters = [
        one.replace(annotation=inspect.Parameter.empty) for one in signature.parameters.values() if one.name != "self"
    ]
    text = str(signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty))
    text = re.sub(r"<class '(?:numpy|jax\.numpy)\.(\w+)'>", r"np.\1", text)
    return re.sub(r"<[^<>]*(?:<[^<>]*>[^<>]*)*>", "...", text)  # a function or object as default has no text of its own


def architectures_page() -> str:
    """What there is to train, to compile to and to save."""
    from underhood.compiler.compile import TARGETS
    from underhood.core.model import ARCHITECTURES, KINDS

    parts = [
        "# Architectures and kinds",
        "From the registries; [your package](../extending.md) can add to them.",
    ]
    parts.append("## Architectures\n\nNames for `train`, `sweep` and `uh.make_model`.")
    lines = ["| name | in figures | layers | further sizes | second order |", "|---|---|---|---|---|"]
    for one in ARCHITECTURES.values():
        most = "any" if one.most_layers is None else f"at most {one.most_layers}"
        sizes = ", ".join(f"`{size}`" for size in one.sizes)
        lines.append(f"| `{one.name}` | {one.label} | {most} | {sizes} | {'yes' if one.second_order else 'no'} |")
    parts += ["\n".join(lines), "## Targets of compile\n\nThe fewest layers for each source."]
    sources = list(dict.fromkeys(source for target in TARGETS.values() for source, _ in target.ways))
    lines = ["| target | " + " | ".join(sources) + " | exact |", "|---|" + "---|" * (len(sources) + 1)]
    for target in TARGETS.values():
        fewest = [min((n for kind, n in target.ways if kind == source), default="–") for source in sources]
        lines.append(f"| `{target.name}` | " + " | ".join(map(str, fewest)) + f" | {'yes' if target.exact else 'no'} |")
    parts += [
        "\n".join(lines),
        "## Kinds of files\n\nThe header's `kind` and the fields ([shapes](../format.md)).",
    ]
    lines = ["| kind | fields |", "|---|---|"]
    lines += [f"| `{name}` | {', '.join(map(_field, dataclasses.fields(KINDS[name])))} |" for name in KINDS]
    return "\n\n".join([*parts, "\n".join(lines)]) + "\n"


def _field(field: dataclasses.Field[Any]) -> str:
    kinds = [kind for kind in field.metadata.get("kinds", ()) if kind != "sparse"]
    notes = kinds + ["optional"] * bool(field.metadata.get("optional"))
    return f"`{field.name}`" + (f" ({', '.join(notes)})" if notes else "")


if __name__ == "__main__":
    sys.path.insert(0, str(HERE.parent))
    write(HERE / "reference")
