"""What a function of the user's computes, in short: a run that is resumed must go on with the same one."""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import textwrap
import types
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np


def fingerprint_of(function: Callable[..., Any]) -> str:
    """A name and a checksum of a function: of its code, its defaults and what it closes over.

    **Arguments:**

    - `function`: a function, a method, a partial, or an object that can be called.

    **Returns:**

    The same text for the same function, in this process and in others; functions that it calls by a global name count
    by their names alone.
    """
    inner = function.func if isinstance(function, functools.partial) else function
    name = getattr(inner, "__qualname__", type(inner).__qualname__)
    return f"{name} {hashlib.sha256(chr(0).join(_parts(function)).encode()).hexdigest()[:16]}"


def _parts(value: Any) -> Iterator[str]:
    if isinstance(value, functools.partial):
        for each in (value.func, *value.args, *sorted(value.keywords.items())):
            yield from _parts(each)
    elif isinstance(value, types.MethodType):
        yield from _parts(value.__func__)
        yield from _parts(value.__self__)
    elif isinstance(value, types.FunctionType):
        yield _source(value)
        yield from _code(value.__code__)
        for cell in value.__closure__ or ():
            yield from _parts(cell.cell_contents)
        for each in (*(value.__defaults__ or ()), *sorted((value.__kwdefaults__ or {}).items())):
            yield from _parts(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _parts(each)
    elif isinstance(value, jax.Array | np.ndarray | np.generic):
        yield f"{np.shape(value)} {value.dtype} {hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()}"
    elif isinstance(value, int | float | complex | str | bytes | None):
        yield repr(value)
    else:
        yield f"{type(value).__module__}.{type(value).__qualname__}"
        leaves = jax.tree.leaves(value)
        if len(leaves) != 1 or leaves[0] is not value:
            yield from _parts(leaves)


def _source(function: types.FunctionType) -> str:
    """Without comments and layout; empty where there is none, as in a session."""
    try:
        return ast.dump(ast.parse(textwrap.dedent(inspect.getsource(function))))
    except (OSError, SyntaxError, TypeError, ValueError):
        return ""


def _code(code: types.CodeType) -> Iterator[str]:
    """Names and constants, which tell two lambdas of one line apart."""
    yield " ".join(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _code(constant)
        else:
            yield repr(sorted(map(repr, constant)) if isinstance(constant, frozenset) else constant)
