"""Named tensors from files of other programs: safetensors, torch's .pt, numpy's .npz; never code from a pickle."""

from __future__ import annotations

import io
import json
import lzma
import os
import struct
import tokenize
import warnings
import zipfile
import zlib
from typing import Any

from underhood.core.atomic import read_bytes
from underhood.core.errors import UnderhoodError, one_line
from underhood.core.extras import require
from underhood.core.files import read_tensors
from underhood.core.sequences import read_npy
from underhood.interop.tensors import Tensors, as_float, torch_array

# torch writes zip archives, and wrote bare pickles before; a pickle of protocol 2 or later opens with 0x80.
ZIP, PICKLE = b"PK\x03\x04", b"\x80"
# What broken archives and arrays make zipfile, zlib, lzma and numpy raise.
BROKEN = (
    *(ValueError, TypeError, OSError, EOFError, KeyError, RuntimeError, NotImplementedError, OverflowError),
    *(SyntaxError, tokenize.TokenError, struct.error, zlib.error, lzma.LZMAError, RecursionError, MemoryError),
)
LEAST_LIMIT, PROPORTION = 2**28, 20  # bytes that any archive may unpack to, and how much larger it may grow beyond
WRAPPERS = ("state_dict", "model_state_dict")  # what checkpoints call the weights


def read_state_dict(path: str | os.PathLike[str], part: str = "") -> tuple[Tensors, dict[str, Any]]:
    """Tensors in float32 or float64, row by row in memory, and what an export of ours said of them.

    `part` names the entry of a checkpoint that holds them, where torch saved more than a state dict.
    """
    content = read_bytes(path)
    description: dict[str, Any] = {}
    if content.startswith(ZIP) and _is_npz(path, content):
        tensors: dict[str, Any] = _read_npz(path, content)
    elif content.startswith((ZIP, PICKLE)) and not _is_safetensors(content):
        tensors = _read_torch(path, content, part)
    else:
        header, tensors = read_tensors(path)
        description = _description(path, header)
    return {name: as_float(f"{path}: {name}", tensor) for name, tensor in tensors.items()}, description


def _is_safetensors(content: bytes) -> bool:
    """A length that fits, then JSON. Lengths of 1,152 and others begin with the bytes that a pickle begins with."""
    return content[8:9] == b"{" and int.from_bytes(content[:8], "little") <= len(content) - 8


def _is_npz(path: str | os.PathLike[str], content: bytes) -> bool:
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            names = archive.namelist()
            unpacked = sum(member.file_size for member in archive.infolist())
    except (zipfile.BadZipFile, *BROKEN) as error:
        raise UnderhoodError(f"{path} is damaged: {error}") from None
    most = _most_bytes(content)
    if unpacked > most:
        raise UnderhoodError(f"expected {path} to unpack to at most {most >> 20} MB", f"{unpacked >> 20} MB")
    return bool(names) and all(name.endswith(".npy") for name in names)


def _read_npz(path: str | os.PathLike[str], content: bytes) -> dict[str, Any]:
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            return {name.removesuffix(".npy"): read_npy(archive.read(name)) for name in archive.namelist()}
    except (zipfile.BadZipFile, *BROKEN) as error:
        raise UnderhoodError(f"cannot read arrays of numbers from {path}: {error}") from None


def _most_bytes(content: bytes) -> int:
    """What an archive may unpack to: numbers do not shrink much; a file that grows a thousandfold is a trap."""
    return max(LEAST_LIMIT, PROPORTION * len(content))


def _read_torch(path: str | os.PathLike[str], content: bytes, part: str) -> dict[str, Any]:
    torch = require("torch", "torch", "reading a .pt file")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch remarks on odd pickles before it refuses them
            # Given here, the argument wins over the environment variable that would switch it off.
            loaded = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:
        # torch names the forbidden global at the end of pages of advice, which includes how to run the file.
        what = one_line(error).partition("WeightsUnpickler error: ")[2].partition("Please")[0] or type(error).__name__
        remedy = "Save model.state_dict() and nothing else, best as safetensors. Nothing in the file was run."
        raise UnderhoodError(f"{path} holds more than tensors: {what[:200]}", remedy=remedy) from None
    loaded = _named_tensors(path, loaded, part)
    most, sizes = _most_bytes(content), {name: tensor.numel() * tensor.itemsize for name, tensor in loaded.items()}
    if sum(sizes.values()) > most:  # a tensor may be a view that repeats one number without end
        got = f"{sum(sizes.values()) >> 20} MB"
        raise UnderhoodError(f"expected at most {most >> 20} MB of tensors in {path}", got)
    return {name: torch_array(f"{path}: {name}", tensor) for name, tensor in loaded.items()}


def _named_tensors(path: str | os.PathLike[str], loaded: Any, part: str) -> dict[str, Any]:
    """The state dict within a checkpoint: all of it, the entry that `part` leads to, or one with a usual name."""
    from torch import is_tensor

    for wrapper in WRAPPERS:
        if isinstance(loaded, dict) and isinstance(loaded.get(wrapper), dict):
            loaded = loaded[wrapper]
    prefix = ""
    for name in part.split("."):
        if isinstance(loaded, dict) and isinstance(loaded.get(name), dict):
            loaded, prefix = loaded[name], f"{prefix}{name}."
    if not isinstance(loaded, dict) or not loaded:
        raise UnderhoodError(f"expected a state dict in {path}", type(loaded).__name__, "Save model.state_dict().")
    wrong = [str(name) for name, value in loaded.items() if not (isinstance(name, str) and is_tensor(value))]
    if not wrong:
        return {prefix + name: tensor for name, tensor in loaded.items()}
    inside = [name for name, value in loaded.items() if isinstance(value, dict) and any(map(is_tensor, value.values()))]
    remedy = (
        f"Choose the entry with the weights: `part={prefix + inside[0]!r}`." if inside else "Save model.state_dict()."
    )
    raise UnderhoodError(f"expected named tensors in {path}", f"entries {', '.join(wrong[:8])}", remedy)


def _description(path: str | os.PathLike[str], header: dict[str, str]) -> dict[str, Any]:
    try:
        value = json.loads(header.get("underhood", "{}"))
    except (ValueError, RecursionError) as error:
        raise UnderhoodError(f"{path}: header entry underhood is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise UnderhoodError(f"{path}: expected header entry underhood to be a JSON object", type(value).__name__)
    return value
