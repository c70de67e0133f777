"""Weights out of files of other programs: safetensors, .pt, .npz, Keras, ONNX; never code from a pickle."""

from __future__ import annotations

import dataclasses
import io
import json
import lzma
import os
import struct
import tokenize
import warnings
import zipfile
import zlib
from pathlib import Path
from typing import Any

from underhood.core.atomic import read_bytes
from underhood.core.errors import UnderhoodError, one_line
from underhood.core.extras import require
from underhood.core.files import read_tensors
from underhood.core.sequences import read_npy
from underhood.interop.keras import MAGIC as HDF5
from underhood.interop.keras import read_keras
from underhood.interop.onnx_weights import read_onnx
from underhood.interop.recurrent import Found
from underhood.interop.tensors import Tensors, as_float, printable, torch_array, unwrapped

# torch writes zip archives, and wrote bare pickles before; a pickle of protocol 2 or later opens with 0x80.
ZIP, PICKLE, GGUF = b"PK\x03\x04", b"\x80", b"GGUF"
# What broken archives and arrays make zipfile, zlib, lzma and numpy raise.
BROKEN = (
    *(ValueError, TypeError, OSError, EOFError, KeyError, RuntimeError, NotImplementedError, OverflowError),
    *(SyntaxError, tokenize.TokenError, struct.error, zlib.error, lzma.LZMAError, RecursionError, MemoryError),
)
LEAST_LIMIT, PROPORTION = 2**26, 20  # bytes that any archive may unpack to, and how much larger it may grow beyond
WRAPPERS = ("state_dict", "model_state_dict")  # what checkpoints call the weights


@dataclasses.dataclass
class Source:
    """What a file holds: named tensors, what an export of ours said of them, and layers that the format names."""

    tensors: Tensors
    description: dict[str, Any] = dataclasses.field(default_factory=dict)
    chains: list[list[Found]] = dataclasses.field(default_factory=list)
    """Recurrent layers, each feeding the next."""
    ordered: bool = False
    """Whether the chains follow from the file, or from the order of its layers alone."""


def read_file(path: str | os.PathLike[str], part: str = "", *, guess: bool = False) -> Source:
    """Tensors in float32 or float64, row by row in memory, from any file that holds some.

    `part` names the entry of a checkpoint that holds them, where torch saved more than a state dict; with `guess`, the
    only such entry need not be named.
    """
    content = read_bytes(path)
    if content.startswith(HDF5) or (content.startswith(ZIP) and _is_keras(path, content)):
        layers, left = read_keras(path, content)
        return Source(left, chains=[[layer] for layer in layers])
    if content.startswith(GGUF):
        remedy = "Take the safetensors checkpoint that it was made from, or write its tensors with `gguf` and np.savez."
        raise UnderhoodError(f"{path} is a GGUF file, whose blocks are quantised", remedy=remedy)
    if Path(path).suffix == ".onnx" or _is_onnx(content):
        return Source({}, chains=read_onnx(path, content), ordered=True)
    tensors, description = _named(path, content, part, guess)
    wide = {name: as_float(f"{path}: {printable(name)}", tensor) for name, tensor in unwrapped(tensors).items()}
    return Source(wide, description)


def read_state_dict(path: str | os.PathLike[str], part: str = "") -> tuple[Tensors, dict[str, Any]]:
    """The named tensors of a file, and what an export of ours said of them."""
    source = read_file(path, part)
    return source.tensors, source.description


def _named(path: Any, content: bytes, part: str, guess: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    if content.startswith(ZIP) and _is_npz(path, content):
        return _read_npz(path, content), {}
    if content.startswith((ZIP, PICKLE)) and not _is_safetensors(content):
        return _read_torch(path, content, part, guess)
    header, tensors = read_tensors(path)
    return tensors, _description(path, header)


def _is_onnx(content: bytes) -> bool:
    """A protocol buffer with the version in field 1, then the producer or the graph."""
    return content[:1] == b"\x08" and content[2:3] in (b"\x12", b"\x3a") and content[8:9] != b"{"


def _is_keras(path: Any, content: bytes) -> bool:
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            return "model.weights.h5" in archive.namelist()
    except (zipfile.BadZipFile, *BROKEN):
        return False


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


def _read_torch(path: Any, content: bytes, part: str, guess: bool) -> tuple[dict[str, Any], dict[str, Any]]:
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
    said = getattr(loaded, "_metadata", None)
    told = said.get("underhood", {}).get("description") if isinstance(said, dict) else None
    description = _description(path, {"underhood": told}) if isinstance(told, str) else {}
    loaded = _named_tensors(path, loaded, part, guess)
    # Narrow floats widen to four bytes.
    sizes = {name: tensor.numel() * max(4, tensor.itemsize) for name, tensor in loaded.items()}
    most = 2 * _most_bytes(content)
    if sum(sizes.values()) > most:  # a tensor may be a view that repeats one number without end
        got = f"{sum(sizes.values()) >> 20} MB"
        raise UnderhoodError(f"expected at most {most >> 20} MB of tensors in {path}", got)
    return {name: torch_array(f"{path}: {printable(name)}", tensor) for name, tensor in loaded.items()}, description


def _named_tensors(path: Any, loaded: Any, part: str, guess: bool) -> dict[str, Any]:
    """The state dict within a checkpoint: all of it, the entry that `part` leads to, or the only one with tensors."""
    from torch import is_tensor

    for wrapper in WRAPPERS:
        if isinstance(loaded, dict) and isinstance(loaded.get(wrapper), dict):
            loaded = loaded[wrapper]
    prefix = ""
    for name in part.partition(",")[0].split("."):
        if isinstance(loaded, dict) and isinstance(loaded.get(name), dict):
            loaded, prefix = loaded[name], f"{prefix}{name}."
    if not isinstance(loaded, dict) or not loaded:
        raise UnderhoodError(f"expected a state dict in {path}", type(loaded).__name__, "Save model.state_dict().")
    wrong = [str(name) for name, value in loaded.items() if not (isinstance(name, str) and is_tensor(value))]
    if not wrong:
        return {prefix + name: tensor for name, tensor in loaded.items()}
    inside = [
        name
        for name, value in loaded.items()
        if isinstance(value, dict) and value and all(is_tensor(one) for one in value.values())
    ]
    if guess and len(inside) == 1 and not any(is_tensor(value) for value in loaded.values()):
        return dict(loaded[inside[0]])
    remedy = "Save model.state_dict()."
    if inside:
        remedy = f"Choose the entry with the weights: `part={prefix + str(inside[0])!r}`."
    got = ", ".join(printable(name) for name in wrong[:8])
    raise UnderhoodError(f"expected named tensors in {path}", f"entries {got}", remedy)


def _description(path: str | os.PathLike[str], header: dict[str, str]) -> dict[str, Any]:
    try:
        value = json.loads(header.get("underhood", "{}"))
    except (ValueError, RecursionError) as error:
        raise UnderhoodError(f"{path}: header entry underhood is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise UnderhoodError(f"{path}: expected header entry underhood to be a JSON object", type(value).__name__)
    return value
