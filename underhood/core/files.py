"""`save` and `load`: safetensors with a JSON header, never pickle; docs/format.md tells other programs how."""

from __future__ import annotations

import dataclasses
import json
import os
import struct
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import ml_dtypes
import numpy as np
import safetensors
import safetensors.numpy

from underhood.core.arrays import require_finite
from underhood.core.atomic import read_bytes, write_atomically
from underhood.core.errors import UnderhoodError
from underhood.core.model import CELL, KINDS, AbstractModel

FORMAT = "underhood/1"

_DTYPES = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
    "I32": np.int32,
    "I64": np.int64,
}

LEAST_LIMIT, PROPORTION = 1024, 8  # the compiler's own sparse networks have fewer neurons than their files numbers

# A structure is {"kind": …, static field: value, part: structure, …}; arrays go without saying.
Structure = dict[str, Any]


def model_kinds() -> tuple[str, ...]:
    """Kinds that stand for a whole model."""
    return tuple(kind for kind in KINDS if issubclass(KINDS[kind], AbstractModel))


def save(model: Any, path: str | os.PathLike[str], provenance: dict[str, Any] | None = None) -> Path:
    """Write a model to a file, whole or not at all (docs/format.md).

    **Arguments:**

    - `model`: a model of this package.
    - `path`: the file; what was there before is replaced.
    - `provenance`: kept in the header as it is, plain JSON.

    **Returns:**

    The path.
    """
    return write_atomically(path, model_bytes(model, provenance))


def model_bytes(model: Any, provenance: dict[str, Any] | None = None) -> bytes:
    """The content of a model's file."""
    if not isinstance(model, AbstractModel) or KINDS[model.kind] is not type(model):
        known = f"One of {', '.join(model_kinds())}."
        raise UnderhoodError("expected a model of underhood to save", type(model).__name__, known)
    structure, tensors = to_tensors(model)
    for name, tensor in tensors.items():
        require_finite(name, tensor)
    header = {
        "format": FORMAT,
        "kind": model.kind,
        "sizes": json.dumps(sizes_of(model)),
        "structure": json.dumps(structure),
        "provenance": json.dumps(provenance or {}),
    }
    return tensor_bytes(tensors, header)


def tensor_bytes(tensors: dict[str, np.ndarray], metadata: dict[str, str]) -> bytes:
    """A safetensors file whose bytes depend on its content alone.

    The library writes metadata in the order of a hash table that differs from call to call; a header with sorted
    metadata makes files of the same network the same, which a resumed run promises.
    """
    content = safetensors.numpy.save(tensors, metadata=metadata)
    (length,) = struct.unpack("<Q", content[:8])
    entries = json.loads(content[8 : 8 + length])
    entries["__metadata__"] = dict(sorted(metadata.items()))
    header = json.dumps(dict(sorted(entries.items())), ensure_ascii=False, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header)) + header + content[8 + length :]


def load(path: str | os.PathLike[str]) -> Any:
    """Read a model; anything that is not exactly one is refused with a reason.

    **Arguments:**

    - `path`: a file that `save` or `underhood` wrote, or one made by hand after docs/format.md.

    **Returns:**

    The model, in the dtype of its file.
    """
    return load_with_header(path)[0]


def load_with_header(path: str | os.PathLike[str]) -> tuple[Any, dict[str, str]]:
    """The model and the header it came with."""
    header, tensors = read_tensors(path)
    if header.get("format") != FORMAT:
        got = header.get("format", "none")
        raise UnderhoodError(f"{path}: expected format {FORMAT} in the header", got, "See docs/format.md.")
    kind = header.get("kind", "")
    if kind not in model_kinds():
        raise UnderhoodError(f"{path}: unknown kind {kind!r}", remedy=f"Known: {', '.join(model_kinds())}.")
    structure = _parse_json(path, header, "structure")
    if structure.get("kind", kind) != kind:
        raise UnderhoodError(f"{path}: header and structure name two kinds: {kind} and {structure['kind']}")
    for name, tensor in tensors.items():
        require_finite(f"{path}: {name}", tensor)
    model = from_tensors({**structure, "kind": kind}, tensors, str(path))
    _require_proportionate(path, model, sum(tensor.size for tensor in tensors.values()))
    return model, header


def to_tensors(model: Any) -> tuple[Structure, dict[str, np.ndarray]]:
    """The structure of `model` and its arrays by their dotted names."""
    tensors: dict[str, np.ndarray] = {}
    return _describe(model, "", tensors), tensors


def from_tensors(structure: Structure, tensors: dict[str, np.ndarray], source: str) -> Any:
    """The model that `structure` describes, out of exactly these tensors; errors name the `source`."""
    kind, left = structure["kind"], dict(tensors)
    try:
        model = _build(structure, "", left)
    except UnderhoodError as error:
        raise UnderhoodError(f"{source}: {error.rule}", error.got, error.remedy) from None
    except (TypeError, ValueError, AttributeError, IndexError, KeyError, RecursionError, OverflowError) as error:
        raise UnderhoodError(f"{source}: the header does not describe a {kind}: {error}") from None
    if left:
        raise UnderhoodError(f"{source}: unknown tensors for a {kind}: {', '.join(sorted(left))}")
    return model


def sizes_of(model: AbstractModel) -> dict[str, Any]:
    """What a reader of the header wants to know without opening the body."""
    names = ("d", "d_out", "d_key", "heads", "hidden", "pre_readout", "layers", "parameters")
    sizes = {name: getattr(model, name) for name in names if hasattr(model, name)}
    return {**sizes, "dtype": str(model.dtype)}


def read_tensors(path: str | os.PathLike[str]) -> tuple[dict[str, str], dict[str, np.ndarray]]:
    """Header metadata and arrays of any safetensors file."""
    return tensors_in(read_bytes(path), path)


def tensors_in(content: bytes, path: str | os.PathLike[str]) -> tuple[dict[str, str], dict[str, np.ndarray]]:
    """The same out of its content; the library checks every offset against the size."""
    try:
        entries = safetensors.deserialize(content)
    except safetensors.SafetensorError as error:
        raise UnderhoodError(
            f"{path} is not a whole safetensors file: {error}", remedy=_remedy(path, content)
        ) from None
    (length,) = struct.unpack("<Q", content[:8])
    try:
        metadata = json.loads(content[8 : 8 + length]).get("__metadata__") or {}
    except (ValueError, RecursionError) as error:
        raise UnderhoodError(f"{path} is not a whole safetensors file: {error}") from None
    tensors = {}
    for name, entry in entries:
        if entry["dtype"] not in _DTYPES:
            known = ", ".join(_DTYPES)
            raise UnderhoodError(f"{path}: expected one of the dtypes {known} for {name}", entry["dtype"])
        flat = np.frombuffer(entry["data"], _DTYPES[entry["dtype"]])
        try:
            tensors[name] = flat.reshape(entry["shape"])
        except ValueError as error:  # 65 axes, or sides beside a 0 that no memory could have
            raise UnderhoodError(f"{path}: {name} has an impossible shape: {error}") from None
    return metadata, tensors


def _remedy(path: str | os.PathLike[str], content: bytes) -> str:
    """Weights of torch and NumPy come in through `import`: zip archives, and bare pickles of an older torch."""
    if content.startswith((b"PK\x03\x04", b"\x80")):
        return f"Import it first: underhood import {path} --kind lstm (or another) --out FILE."
    return ""


def _parse_json(path: str | os.PathLike[str], header: dict[str, str], key: str) -> dict[str, Any]:
    try:
        value = json.loads(header.get(key, "{}"))
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits is a ValueError, too
        raise UnderhoodError(f"{path}: header entry {key} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise UnderhoodError(f"{path}: expected header entry {key} to be a JSON object", type(value).__name__)
    return value


def _require_proportionate(path: str | os.PathLike[str], model: Any, numbers: int) -> None:
    """A sparse matrix is a line of the header: one of 10¹² rows must be refused before anything is that long."""

    def is_sparse(leaf: Any) -> bool:
        return getattr(leaf, "kind", None) == "sparse"

    most = max(LEAST_LIMIT, PROPORTION * numbers)
    for leaf in jax.tree.leaves(model, is_leaf=is_sparse):
        if is_sparse(leaf) and max(leaf.shape) > most:
            rule = (
                f"{path}: expected a sparse matrix of at most {most} rows and columns, "
                f"{PROPORTION} for each number in the file"
            )
            raise UnderhoodError(rule, leaf.shape)


def _describe(module: Any, prefix: str, tensors: dict[str, np.ndarray]) -> Structure:
    """The structure of `module`; its arrays go into `tensors` under dotted names."""
    structure: Structure = {"kind": getattr(module, "kind", "")}
    for field in dataclasses.fields(module):
        value, name = getattr(module, field.name), prefix + field.name
        if value is None:
            structure[field.name] = None
        elif isinstance(value, tuple):
            parts = enumerate(value)
            structure[field.name] = [_describe(part, f"{name}.{index}.", tensors) for index, part in parts]
        elif isinstance(value, eqx.Module):
            structure[field.name] = _describe(value, f"{name}.", tensors)
        elif field.metadata.get("static"):
            if callable(value):
                raise UnderhoodError(f"{name} is a function of your own, which a file cannot hold")
            structure[field.name] = value
        else:
            # safetensors writes the buffer as it lies in memory, whatever its strides say.
            tensors[name] = np.ascontiguousarray(value)
    return structure


def _is_there(part: Any, said: bool, name: str, tensors: dict[str, np.ndarray]) -> bool:
    """A part that the structure names, or that tensors speak of where it goes without saying."""
    return part is not None and (said or any(other.startswith(f"{name}.") for other in tensors))


def _build(structure: Any, prefix: str, tensors: dict[str, np.ndarray], known: tuple[str, ...] | None = None) -> Any:
    """The inverse of `_describe`; takes what it uses out of `tensors`."""
    known = model_kinds() if known is None else known
    kind = structure.get("kind") if isinstance(structure, dict) else structure
    if not isinstance(kind, str) or kind not in known:
        what = f"unknown kind {kind!r} of {prefix.rstrip('.') or 'model'}"
        raise UnderhoodError(what, remedy=f"Known: {', '.join(known)}.")
    structure = structure if isinstance(structure, dict) else {}
    module, arguments = KINDS[kind], {}
    for alias, (field_name, convert) in module.aliases.items():
        if prefix + alias in tensors:
            tensors[prefix + field_name] = convert(tensors.pop(prefix + alias))
    for field in dataclasses.fields(module):
        name = prefix + field.name
        # Parts that are always of one kind may be left out of a structure written by hand.
        part = structure.get(field.name, field.metadata.get("implied"))
        kinds = _kinds_of(field)
        if name in tensors:
            arguments[field.name] = tensors.pop(name)
        elif isinstance(part, list) and kinds:
            entries = enumerate(part)
            arguments[field.name] = tuple(_build(entry, f"{name}.{index}.", tensors, kinds) for index, entry in entries)
        elif field.metadata.get("static"):
            if field.name in structure:
                arguments[field.name] = structure[field.name]
        elif field.name in structure and structure[field.name] is None and field.metadata.get("optional"):
            arguments[field.name] = None
        elif kinds and not isinstance(part, list) and _is_there(part, field.name in structure, name, tensors):
            arguments[field.name] = _build(part, f"{name}.", tensors, kinds)
        elif field.default is dataclasses.MISSING:
            raise UnderhoodError(f"a {kind} needs the tensor {name}, which is missing", remedy="See docs/format.md.")
    return module(**arguments)


def _kinds_of(field: dataclasses.Field[Any]) -> tuple[str, ...]:
    """Kinds that a field's parts may have; none for arrays and plain values."""
    kinds = field.metadata.get("kinds", ())
    return tuple(kind for kind in model_kinds() if kind != "stack") if kinds == (CELL,) else kinds
