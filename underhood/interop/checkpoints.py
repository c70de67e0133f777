"""`uh.from_pretrained(folder, layer=3)`: one mixer of a local checkpoint folder in transformers' format.

Read are config.json and those tensors of the safetensors files that belong to the layer. No code of the folder runs,
nothing is unpickled, and torch and transformers are not needed.
"""

from __future__ import annotations

import contextlib
import operator
import os
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, SupportsIndex

import ml_dtypes
import numpy as np
import safetensors

from underhood.core.atomic import special_file
from underhood.core.errors import UnderhoodError
from underhood.interop.bridges import Bridge
from underhood.interop.config import CONFIG, bridge_for, json_object, read_config, read_layer
from underhood.interop.readers import read_file
from underhood.interop.tensors import Tensors, as_float, printable

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLED, PICKLED_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
FLOAT8 = {"F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2}
LONGEST_NAME = 200  # of a file


def from_pretrained(folder: str | os.PathLike[str], layer: SupportsIndex = 0) -> Any:
    """The mixer of one layer of a local checkpoint folder, as a cell of this package.

    Read are config.json and the tensors of this one layer, in safetensors or as torch.save wrote them, in shards or
    not. No code of the folder runs, and nothing is downloaded.

    **Arguments:**

    - `folder`: a checkpoint in transformers' format, or in mamba_ssm's own.
    - `layer`: which layer, from 0 on.

    **Returns:**

    The cell, in float32 (narrower floats widen exactly), or in float64 where it is stored so. What config.json says
    of the layer agrees with its tensors; an `UnderhoodError` names what does not.
    """
    folder = checkpoint_folder(folder)
    config = read_config(folder / CONFIG)
    bridge = bridge_for(folder / CONFIG, config)
    number = _layer(layer, config.get("num_hidden_layers", config.get("n_layer")), folder)
    tensors = _layer_tensors(folder, bridge, number)
    try:
        return read_layer(bridge, tensors, config, folder / CONFIG, number)
    except UnderhoodError as error:
        if error.rule.startswith(str(folder / CONFIG)):
            raise
        what = f"layer {number} of {folder} is no {bridge.name}: {error.rule}"
        raise UnderhoodError(what, error.got, error.remedy) from None


def checkpoint_folder(folder: Any) -> Path:
    try:
        path = Path(folder)
    except TypeError:
        raise UnderhoodError("expected the path of a checkpoint's folder", type(folder).__name__) from None
    if special_file(path) != "a folder":
        raise UnderhoodError(f"no such folder: {path}", remedy="Give a checkpoint's folder, not a file or a name.")
    return path


def _layer(layer: Any, layers: Any, folder: Path) -> int:
    if not isinstance(layers, int) or isinstance(layers, bool):
        raise UnderhoodError(f"{folder / CONFIG}: expected a whole number num_hidden_layers", repr(layers))
    if layers < 1:
        raise UnderhoodError(f"{folder} has no layers: num_hidden_layers is {layers}")
    try:
        number = -1 if isinstance(layer, bool) else operator.index(layer)
    except TypeError:
        number = -1
    if not 0 <= number < layers:
        raise UnderhoodError(f"expected a layer from 0 to {layers - 1}", repr(layer))
    return number


def _layer_tensors(folder: Path, bridge: Bridge, layer: int) -> Tensors:
    """The layer's tensors, each read from its own shard, under the names that the layer itself has for them."""
    places = places_of(folder)
    # A base model (MambaModel) has no "backbone." before its layers.
    prefixes = [one for prefix in bridge.prefixes for one in (prefix, prefix.partition(".")[2])]
    layers: dict[int, dict[str, str]] = {}
    for prefix in prefixes:
        layers = _by_layer(places, prefix) | layers
    names = layers.get(layer, {})
    if bridge.mark not in names:
        others = [number for number in sorted(layers) if bridge.mark in layers[number]]
        if not others:
            tensor = bridge.prefixes[0].format(layer=layer) + bridge.mark
            raise UnderhoodError(f"no layer of {folder} is a {bridge.name}: no tensor {tensor}")
        remedy = f"These are: {', '.join(map(str, others[:8]))}{' and others' * (len(others) > 8)}."
        raise UnderhoodError(f"layer {layer} of {folder} is no {bridge.name}", remedy=remedy)
    found: Tensors = {}
    for file in dict.fromkeys(places[name] for name in names.values()):
        wanted = {short: name for short, name in names.items() if places[name] == file}
        found |= read_named(folder / file, wanted)
    return {name: as_float(names[name], tensor) for name, tensor in found.items()}


def _by_layer(places: dict[str, str], prefix: str) -> dict[int, dict[str, str]]:
    """Layer → name within the layer → whole name, of the tensors under the prefix."""
    start, _, rest = prefix.partition("{layer}")
    pattern = re.compile(rf"{re.escape(start)}(0|[1-9][0-9]{{0,8}}){re.escape(rest)}(.+)")
    layers: dict[int, dict[str, str]] = {}
    for match in filter(None, map(pattern.fullmatch, places)):
        layers.setdefault(int(match[1]), {})[match[2]] = match[0]
    return layers


def places_of(folder: Path) -> dict[str, str]:
    """Tensor → the file beside config.json that has it."""
    if _is_file(folder / WHOLE):
        with open_tensors(folder / WHOLE) as file:
            return dict.fromkeys(file.keys(), WHOLE)
    if _is_file(folder / PICKLED) and not _is_file(folder / INDEX):
        return dict.fromkeys(read_file(folder / PICKLED).tensors, PICKLED)
    index = next((folder / name for name in (INDEX, PICKLED_INDEX) if _is_file(folder / name)), None)
    if index is None:
        raise UnderhoodError(f"no {WHOLE} and no {INDEX} in {folder}", remedy="Save the model with safetensors.")
    places = json_object(index).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(file, str) for file in places.values()):
        raise UnderhoodError(f"{index}: expected a weight_map from tensors to files", type(places).__name__)
    for file in places.values():
        if Path(file).name != file or len(file) > LONGEST_NAME:  # a path could lead out of the folder
            raise UnderhoodError(f"{index}: expected the name of a file beside it", file[:LONGEST_NAME])
    return places


def read_named(path: Path, names: dict[str, str]) -> Tensors:
    if not _is_file(path):
        raise UnderhoodError(f"no such file: {path}", remedy=f"{INDEX} names it.")
    if path.suffix == ".bin":
        tensors = read_file(path).tensors
        missing = [name for name in names.values() if name not in tensors]
        if missing:
            raise UnderhoodError(f"{path}: no tensor {printable(missing[0])}", remedy=f"{PICKLED_INDEX} names it.")
        return {short: tensors[name] for short, name in names.items()}
    with open_tensors(path) as file:
        return {short: _tensor(path, file, name) for short, name in names.items()}


def _tensor(path: Path, file: Any, name: str) -> Any:
    """A tensor of the file; the library has no NumPy form of float8, so its bytes are read here."""
    dtype = FLOAT8.get(file.get_slice(name).get_dtype())
    if dtype is None:
        return file.get_tensor(name)
    with path.open("rb") as raw:
        (length,) = struct.unpack("<Q", raw.read(8))
        entry = json.loads(raw.read(length))[name]
        start, end = entry["data_offsets"]
        raw.seek(8 + length + start)
        return np.frombuffer(raw.read(end - start), dtype).reshape(entry["shape"])


@contextlib.contextmanager
def open_tensors(path: Path) -> Iterator[Any]:
    try:
        with safetensors.safe_open(path, framework="np") as file:
            yield file
    except (safetensors.SafetensorError, OSError, ValueError, TypeError) as error:
        raise UnderhoodError(f"{path}: no whole safetensors file with the layer's tensors: {error}") from None


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a folder that is closed to us
        return False
