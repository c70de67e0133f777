"""A sequence (t, d) of a user's own, from .npy or .csv, and the names of its steps."""

from __future__ import annotations

import io
import math
import os
import struct
import tokenize
from pathlib import Path

import numpy as np

from underhood.core.arrays import require_real
from underhood.core.atomic import read_bytes
from underhood.core.errors import UnderhoodError

LONGEST = 40  # letters of a line that a message quotes


def read_sequence(path: str | os.PathLike[str], d: int) -> np.ndarray:
    """Finite numbers of shape (t, d): .npy as NumPy saves it, never a pickle, or a line of a .csv for each step."""
    content = read_bytes(path)
    xs = _from_csv(path, content) if Path(path).suffix.lower() == ".csv" else _from_npy(path, content)
    if xs.ndim != 2 or xs.shape[1] != d or not len(xs):
        remedy = "A batch is (b, t, d): choose one of its sequences." if xs.ndim == 3 else ""
        raise UnderhoodError(f"expected a sequence of shape (t, {d}) in {path}", f"shape {xs.shape}", remedy)
    if not np.isfinite(xs).all():
        raise UnderhoodError(f"NaN or infinite numbers in {path}")
    return xs


def _from_npy(path: str | os.PathLike[str], content: bytes) -> np.ndarray:
    try:
        xs = read_npy(content)
        if not np.iscomplexobj(xs):
            return np.asarray(xs, np.float64)
    except (ValueError, TypeError, OverflowError, SyntaxError, tokenize.TokenError, struct.error) as error:
        raise UnderhoodError(f"cannot read numbers from {path}: {error}", remedy="Give .npy or .csv.") from None
    require_real(f"numbers in {path}", xs)
    return xs


def _from_csv(path: str | os.PathLike[str], content: bytes) -> np.ndarray:
    """Empty lines, and what follows #, are passed over."""
    remedy = "Give UTF-8 text: numbers separated by commas, one step a line, no header."
    try:
        lines = content.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise UnderhoodError(f"cannot read numbers from {path}: {error}", remedy=remedy) from None
    rows: list[list[float]] = []
    for number, line in enumerate(lines, 1):
        cells = line.partition("#")[0].strip()
        if not cells:
            continue
        try:
            row = [float(cell) for cell in cells.replace("_", "?").split(",")]  # 1_000 is a number to Python alone
        except ValueError:
            shown = cells if len(cells) <= LONGEST else cells[:LONGEST] + "…"
            raise UnderhoodError(f"expected numbers in line {number} of {path}", repr(shown), remedy) from None
        if rows and len(row) != len(rows[0]):
            raise UnderhoodError(f"expected {len(rows[0])} numbers in line {number} of {path}", len(row), remedy)
        rows.append(row)
    return np.array(rows, np.float64)


def read_npy(content: bytes) -> np.ndarray:
    """One array; its header names a size, which must be that of the bytes that follow before it is believed."""
    file = io.BytesIO(content)
    version = np.lib.format.read_magic(file)
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}.get(version)
    if read is None:
        raise ValueError(f"an array of the version {version}")
    shape, fortran, dtype = read(file)
    if dtype.hasobject:
        raise ValueError("Python objects, not numbers")
    wanted = math.prod(shape) * dtype.itemsize
    if any(type(side) is not int or side < 0 for side in shape) or wanted != len(content) - file.tell():
        raise ValueError(f"shape {shape} of {dtype}, and {len(content) - file.tell()} bytes")
    flat = np.frombuffer(content, dtype, offset=file.tell()) if wanted else np.zeros(0, dtype)
    return flat.reshape(shape[::-1]).T if fortran else flat.reshape(shape)


def read_tokens(path: str | os.PathLike[str]) -> list[str]:
    """A token a line, in UTF-8."""
    try:
        text = read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UnderhoodError(f"cannot read tokens from {path}: {error}", remedy="Give UTF-8 text.") from None
    lines = text.replace("\r\n", "\n").split("\n")
    return lines[:-1] if lines[-1] == "" else lines
