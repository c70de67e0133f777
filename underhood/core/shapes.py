"""Sizes that agree: `w_key: Float[Array, "heads d_key d"]` is checked against every other field that names heads or d.

A field says its dimensions in its annotation; a matrix that may be sparse says them in `tensor("rows columns",
sparse=True)`, and a part in `part("projection", rows="2*inner", columns="d")`. A name stands for one size throughout a
module: the first field that has it alone decides it, whole-number settings before all others, and every other field
and every product or sum must agree. A name in a product that no field has alone is an attribute of the module.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import operator
import re
import typing
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from underhood.core.errors import UnderhoodError

_ANNOTATED = re.compile(r"""\[\s*Array\s*,\s*["']([^"']*)["']\s*\]""")
_NAME = re.compile(r"[A-Za-z]\w*")
_OPERATORS: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}

Dimensions = tuple[str, ...]


class Known(NamedTuple):
    """A size, and the field that decided it."""

    size: int
    source: str


class Claim(NamedTuple):
    """A dimension of a field, "2*inner" say, is `size` long; `wanted` and `got` are for a message."""

    field: str
    name: str
    size: int
    wanted: str
    got: str

    @property
    def is_plain(self) -> bool:
        return _NAME.fullmatch(self.name) is not None


def check_shapes(module: Any) -> dict[str, int]:
    """The sizes of a module by their names, once they agree.

    **Arguments:**

    - `module`: a part or a model, whose fields are made by `tensor` and `part`.

    **Returns:**

    Name → size. Raises `UnderhoodError` where two fields disagree, with the field, what was expected, and the fields
    that it follows from.
    """
    known = {name: Known(size, name) for name, size in _settings(module)}
    claims = [claim for field in dataclasses.fields(module) for claim in _claims(module, field)]
    for claim in claims:
        if claim.size == 0 and claim.name not in {*known, *module.may_be_empty}:
            raise UnderhoodError(f"expected {claim.field} of {claim.wanted}, each 1 or more", claim.got)
        if claim.is_plain:
            known.setdefault(claim.name, Known(claim.size, claim.field))
    for claim in claims:
        used = _used(module, claim.name, known)
        if used is not None and _evaluated(claim.name, used) != claim.size:
            raise _mismatch(claim, used, known)
    return {name: size for name, (size, _) in known.items()}


def _settings(module: Any) -> Iterator[tuple[str, int]]:
    for field in dataclasses.fields(module):
        value = getattr(module, field.name)
        if field.metadata.get("static") and type(value) is int:
            yield field.name, value


def _claims(module: Any, field: dataclasses.Field[Any]) -> Iterator[Claim]:
    """Of one field: of a part its sizes by name, of an array its axes."""
    value, wanted = getattr(module, field.name), field.metadata.get("sizes") or {}
    if value is not None:
        for name, dimension in wanted.items():
            size = getattr(value, name, None)
            size = check_shapes(value)[name] if size is None else size
            yield Claim(field.name, dimension, size, name, f"{size} {name}")
    choices = dimensions_of(type(module), field.name)
    if not choices or value is None or not hasattr(value, "shape"):
        return
    shape, shown = np.shape(value), " or ".join(f"({', '.join(map(_shown, names))})" for names in choices)
    fitting = next((dimensions for dimensions in choices if len(dimensions) == len(shape)), None)
    if fitting is None:
        raise UnderhoodError(f"expected {field.name} of shape {shown}", f"shape {shape}")
    for dimension, size in zip(fitting, shape, strict=True):
        yield Claim(field.name, dimension, size, f"shape {shown}", f"shape {shape}")


@functools.cache
def dimensions_of(module: type, name: str) -> tuple[Dimensions, ...]:
    """The dimensions that a field of arrays may have; none for other fields, and where the annotation leaves them open.

    **Arguments:**

    - `module`: the class.
    - `name`: of the field.

    **Returns:**

    A tuple of names for each alternative of the annotation.
    """
    (field,) = (field for field in dataclasses.fields(module) if field.name == name)
    if "optional" not in field.metadata or "sizes" in field.metadata:
        return ()  # made neither by `tensor` nor with a shape
    shape = field.metadata.get("shape")
    texts = [shape] if shape else [text for part in _alternatives(field.type) for text in part]
    choices = tuple(tuple(text.split()) for text in texts)
    return choices if all(_is_known(word) for words in choices for word in words) else ()


def _alternatives(annotation: Any) -> Iterator[list[str]]:
    """Shapes in an annotation, which is text unless its module evaluates annotations."""
    if isinstance(annotation, str):
        yield _ANNOTATED.findall(annotation)
    elif hasattr(annotation, "dim_str"):
        yield [annotation.dim_str]
    else:
        for choice in typing.get_args(annotation):
            yield from _alternatives(choice)


def _is_known(word: str) -> bool:
    """Not jaxtyping's `...`, `*t`, `#n` and such, which leave a size open."""
    try:
        tree = ast.parse(word, mode="eval")
    except SyntaxError:
        return False
    nodes = (ast.Expression, ast.Name, ast.Load, ast.Constant, ast.BinOp, *_OPERATORS)
    return all(isinstance(node, nodes) for node in ast.walk(tree))


def _used(module: Any, dimension: str, known: dict[str, Known]) -> dict[str, int] | None:
    """The names in a dimension with their sizes; None where one has none, as a setting that is no whole number."""
    sizes = {}
    for name in _NAME.findall(dimension):
        size = known[name].size if name in known else getattr(module, name, None)
        if type(size) is not int:
            return None
        sizes[name] = size
    return sizes


def _evaluated(dimension: str, sizes: dict[str, int]) -> int | None:
    try:
        return _value_of(ast.parse(dimension, mode="eval").body, sizes)
    except ZeroDivisionError:
        return None


def _value_of(node: ast.AST, sizes: dict[str, int]) -> int:
    if isinstance(node, ast.BinOp):
        return _OPERATORS[type(node.op)](_value_of(node.left, sizes), _value_of(node.right, sizes))
    return sizes[node.id] if isinstance(node, ast.Name) else ast.literal_eval(node)


def _mismatch(claim: Claim, used: dict[str, int], known: dict[str, Known]) -> UnderhoodError:
    by_source: dict[str, list[str]] = {}
    for name, size in used.items():
        source = known[name].source if name in known else ""
        by_source.setdefault("" if source in ("", name, claim.field) else f" as in {source}", []).append(
            f"{name} = {size}"
        )
    sizes = ", ".join(" and ".join(names) + source for source, names in by_source.items())
    if claim.wanted.startswith("shape"):
        return UnderhoodError(f"expected {claim.field} of {claim.wanted}{sizes and f' with {sizes}'}", claim.got)
    product = "" if claim.is_plain else f"{_shown(claim.name)}, "
    rule = f"expected {claim.field} with {_evaluated(claim.name, used)} {claim.wanted} ({product}{sizes})"
    return UnderhoodError(rule, claim.got)


def _shown(dimension: str) -> str:
    return dimension.replace("//", " / ").replace("*", " × ").replace("+", " + ")
