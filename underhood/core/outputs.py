"""What a command may write over: nothing, an empty file, or a file of the kind that it writes itself.

    require_outputs((out, MODEL), (reduced, MODEL), inputs=(network, against), force=False)

comes before the work: an output that cannot be written, an input that would be lost or a thesis under the name of a
model is found within a second. `force` allows the last two. Folders, FIFOs and devices are refused with it, too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import struct
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import BinaryIO

from underhood.core.atomic import output_target, write_atomically
from underhood.core.errors import UnderhoodError

HEAD = 4096  # bytes that tell kinds apart
LONGEST_HEADER = 100_000_000  # safetensors' own limit
PNG_HEAD, SOFTWARE = b"\x89PNG\r\n\x1a\n", "underhood"  # what a picture names as its software
MAP = ("weights", "names", "kind", "completeness", "completeness_steps")  # arrays of an attention map; tokens, too


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of file: its `name` in messages, and how an earlier one is recognised."""

    name: str
    recognises: Callable[[BinaryIO], bool]


def _metadata(file: BinaryIO) -> dict[str, str]:
    """The metadata of a safetensors file; nothing for any other."""
    length = int.from_bytes(file.read(8), "little")
    header = file.read(length) if length <= LONGEST_HEADER else b""
    with contextlib.suppress(ValueError, RecursionError, AttributeError):
        return json.loads(header).get("__metadata__") or {}
    return {}


def _is_map(file: BinaryIO) -> bool:
    """An archive of the arrays that attend writes, and no others."""
    try:
        with zipfile.ZipFile(file) as archive:
            return {*archive.namelist()} - {"tokens.npy"} == {f"{name}.npy" for name in MAP}
    except (zipfile.BadZipFile, ValueError, OverflowError, NotImplementedError, struct.error):
        return False


def _is_export(file: BinaryIO) -> bool:
    """A state dict of ours: safetensors with our entry in the header, or a .pt whose pickle names us."""
    if "underhood" in _metadata(file):
        return True
    file.seek(0)
    try:
        with zipfile.ZipFile(file) as archive:
            pickles = [one for one in archive.infolist() if one.filename.endswith("data.pkl") and one.file_size < 2**24]
            return any(b"underhood" in archive.read(one) for one in pickles)
    except (zipfile.BadZipFile, ValueError, OverflowError, NotImplementedError, struct.error, RuntimeError):
        return False


def _is_picture(file: BinaryIO) -> bool:
    """A PNG that names its software before its pixels."""
    head = file.read(HEAD)
    at, found = len(PNG_HEAD), head.startswith(PNG_HEAD)
    while found and at + 8 <= len(head):
        length, kind = struct.unpack_from(">I4s", head, at)
        if kind == b"tEXt" and head[at + 8 : at + 8 + length] == b"Software\0" + SOFTWARE.encode():
            return True
        at += length + 12  # with its own length, kind and checksum
        found = kind != b"IDAT"
    return False


def _is_page(file: BinaryIO) -> bool:
    head = file.read(HEAD)
    return head.startswith(b"<!doctype html>") and b'<meta name="generator" content="underhood">' in head


def _is_onnx(file: BinaryIO) -> bool:
    """A protocol buffer with the version in field 1, then the producer's name in field 2."""
    head = file.read(3)
    return len(head) == 3 and (head[0], head[2]) == (0x08, 0x12)


MODEL = Kind("a model of underhood", lambda file: _metadata(file).get("format", "").startswith("underhood/"))
STATE_DICT = Kind("a torch export of underhood", _is_export)
PAGE = Kind("a page of underhood", _is_page)
ONNX = Kind("an ONNX graph", _is_onnx)
PDF = Kind("a PDF of underhood", lambda file: file.read(5) == b"%PDF-" and b"/Creator (underhood)" in file.read())
SVG = Kind("an SVG of underhood", lambda file: b"<dc:title>underhood</dc:title>" in file.read(HEAD))
NPZ = Kind("an attention map of underhood", _is_map)
PNG = Kind("a picture of underhood", _is_picture)


def require_outputs(
    *outputs: tuple[str | os.PathLike[str] | None, Kind],
    inputs: Iterable[str | os.PathLike[str] | None] = (),
    force: bool = False,
) -> None:
    """Refuse what writing these files would lose or could not do; `None` is an output or input that was not given."""
    targets: list[Path] = []
    for path, kind in outputs:
        if path is None:
            continue
        target = output_target(path)
        if not os.access(target.parent, os.W_OK | os.X_OK):
            raise UnderhoodError(f"cannot write to the folder {target.parent}: permission denied")
        if target in targets:
            raise UnderhoodError(f"two outputs have the same name: {path}", remedy="Choose two names.")
        targets.append(target)
        if not force:
            _require_replaceable(Path(path), target, kind, inputs)


def write_output(path: str | os.PathLike[str], content: bytes, kind: Kind, *, force: bool = False) -> Path:
    """Write a file of this kind, over nothing that is of another.

    **Arguments:**

    - `path`: the file.
    - `content`: its bytes.
    - `kind`: what they are.
    - `force`: whether a file of another kind may be lost.

    **Returns:**

    The path.
    """
    require_outputs((path, kind), force=force)
    return write_atomically(path, content)


def _require_replaceable(path: Path, target: Path, kind: Kind, inputs: Iterable[str | os.PathLike[str] | None]) -> None:
    if not target.exists():
        return
    remedy = "Choose another output, or add `force=True`."
    if any(given is not None and Path(given).exists() and target.samefile(given) for given in inputs):
        raise UnderhoodError(f"cannot write over the input {path}", remedy=remedy)
    if target.stat().st_size == 0:
        return
    try:
        with target.open("rb") as file:
            ours = kind.recognises(file)
    except OSError as error:
        raise UnderhoodError(f"cannot read {path}: {error.strerror or error}", remedy=remedy) from error
    if not ours:
        raise UnderhoodError(f"cannot write over {path}: it is not {kind.name}", remedy=remedy)
