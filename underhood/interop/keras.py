"""Weights of Keras: .h5 and .keras files, by layer.

LSTM, GRU, SimpleRNN   kernel (d, gates · n), recurrent_kernel (n, gates · n), bias; a GRU with two rows of biases
                       resets after the recurrent product, one with a single row before it
CuDNNLSTM, CuDNNGRU    a kernel whose gates hold torch's matrices read row by row, and two biases in one vector
Dense, Embedding       kernel (d, n) and bias; embeddings (tokens, n)
"""

from __future__ import annotations

import io
import json
import os
import zipfile
from typing import Any

import numpy as np

from underhood.core.errors import UnderhoodError, one_line
from underhood.core.extras import require
from underhood.interop.recurrent import Found
from underhood.interop.tensors import Tensors, as_float, printable

MAGIC = b"\x89HDF\r\n\x1a\n"
WEIGHTS = "model.weights.h5"  # within a .keras archive
MOST_BYTES = 2**31  # that all arrays of a file may take
INNER = ("vars", "cell", "layers", "model_weights", "_layer_checkpoint_dependencies")  # folders that name no layer
CUDNN_BIASES = 2  # rows of biases: of the input and of the state


def read_keras(path: str | os.PathLike[str], content: bytes) -> tuple[list[Found], Tensors]:
    """Recurrent layers in the order of the file, and the other arrays under torch's names and layout."""
    config = {}
    if content.startswith(b"PK"):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            if archive.getinfo(WEIGHTS).file_size > MOST_BYTES:
                raise UnderhoodError(f"expected weights of at most {MOST_BYTES >> 20} MB in {path}")
            config = json.loads(archive.read("config.json")) if "config.json" in archive.namelist() else {}
            content = archive.read(WEIGHTS)
    arrays, attributes = _arrays(path, content)
    config = config or _json(attributes.get("model_config"))
    layers, left = [], {}
    for where, group in _groups(arrays).items():
        settings = _settings(config, where)
        if "recurrent_kernel" in group:
            layers.append(_recurrent(path, where, group, settings))
        else:
            left |= {f"{where}.{name}": array for name, array in _torch_layout(group).items()}
    return layers, left


def _arrays(path: Any, content: bytes) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    h5py = require("h5py", "networks", "reading Keras weights")
    arrays: dict[str, np.ndarray] = {}
    sizes = [0]

    def visit(name: str, item: Any) -> None:
        if not isinstance(item, h5py.Dataset):
            return
        if item.external is not None or item.is_virtual:
            raise UnderhoodError(f"{path}: {printable(name)} stands in another file")
        sizes[0] += item.nbytes
        if sizes[0] > MOST_BYTES:
            raise UnderhoodError(f"expected arrays of at most {MOST_BYTES >> 20} MB in {path}")
        if item.dtype.kind == "f":
            arrays[name] = as_float(f"{path}: {name}", item[()])

    try:
        with h5py.File(io.BytesIO(content), "r") as file:
            file.visititems(visit)
            return arrays, dict(file.attrs)
    except UnderhoodError:
        raise
    except Exception as error:
        raise UnderhoodError(f"{path} is no whole HDF5 file: {one_line(error)[:160]}") from None


def _groups(arrays: dict[str, np.ndarray]) -> dict[str, dict[str, np.ndarray]]:
    """Layer → name → array. Keras 3 numbers the variables of a layer, and calls its cell `cell`."""
    groups: dict[str, dict[str, np.ndarray]] = {}
    for name, array in arrays.items():
        path = name.split("/")
        if "optimizer" in path or "optimizer_weights" in path:
            continue
        *folders, last = path
        folders = [
            folder
            for folder in folders
            if folder not in ("vars", "cell", "layers", "model_weights", "_layer_checkpoint_dependencies")
        ]
        where = folders[0] if len(set(folders)) == 1 else ".".join(dict.fromkeys(folders))
        groups.setdefault(where, {})[last.partition(":")[0]] = array
    return {where: _named(group) for where, group in groups.items()}


def _named(group: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Names for the numbered variables of Keras 3, by their shapes."""
    if not all(name.isdigit() for name in group):
        return group
    found = [group[name] for name in sorted(group, key=int)]
    shapes = [array.ndim for array in found]
    if shapes[:2] == [2, 2] and found[0].shape[1] == found[1].shape[1]:
        return dict(zip(("kernel", "recurrent_kernel", "bias"), found, strict=False))
    if shapes == [2]:
        return {"embeddings": found[0]}
    return dict(zip(("kernel", "bias"), found, strict=False)) if shapes == [2, 1] else group


def _torch_layout(group: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    turned = {"weight": group["kernel"].T} if "kernel" in group else {}
    return {**turned, **{name: array for name, array in group.items() if name != "kernel"}}


def _recurrent(path: Any, where: str, group: dict[str, np.ndarray], settings: dict[str, Any]) -> Found:
    kernel, recurrent, bias = group["kernel"], group["recurrent_kernel"], group.get("bias")
    if kernel.ndim != 2 or recurrent.ndim != 2 or kernel.shape[1] != recurrent.shape[1] or not len(recurrent):
        got = f"{kernel.shape} and {recurrent.shape}"
        raise UnderhoodError(f"{path}: expected kernels (d, gates · n) and (n, gates · n) in {printable(where)}", got)
    hidden = len(recurrent)
    gates = kernel.shape[1] // hidden
    _require_defaults(path, where, settings, gates)
    names = {name: f"{where}/{name}" for name in group}
    rows = gates * hidden
    if bias is not None and bias.shape == (CUDNN_BIASES * rows,) and gates > 1:  # CuDNN
        weight = np.concatenate([gate.T.reshape(gate.shape, order="F").T for gate in np.split(kernel, gates, axis=1)])
        turned = np.concatenate(np.split(recurrent, gates, axis=1))
        return Found(where, 0, weight, turned, *np.split(bias, 2), program="keras", names=names)
    options: dict[str, Any] = {"reset_after": bias is not None and bias.ndim == CUDNN_BIASES} if gates == 3 else {}
    if bias is None and gates == 3:
        options = {"reset_after": bool(settings.get("reset_after", True))}
    if gates == 1 and settings.get("activation") == "relu":
        options = {"activation": "relu"}
    biases = [None, None] if bias is None else list(bias) if bias.ndim == CUDNN_BIASES else [bias, None]
    return Found(where, 0, kernel.T, recurrent.T, *biases, program="keras", names=names, options=options)


def _require_defaults(path: Any, where: str, settings: dict[str, Any], gates: int) -> None:
    """What a configuration beside the weights says of the layer, where it is not what our cells compute."""
    allowed = {
        "activation": ("tanh", "relu") if gates == 1 else ("tanh",),
        "recurrent_activation": ("sigmoid",),
        "go_backwards": (False,),
        "unit_forget_bias": (True, False),
    }
    for name, values in allowed.items():
        if name in settings and settings[name] not in values:
            rule = f"{path}: expected {name} {' or '.join(map(str, values))} of {printable(where)}"
            raise UnderhoodError(rule, settings[name])


def _settings(config: dict[str, Any], where: str) -> dict[str, Any]:
    """The configuration of a layer by its name, wherever it stands."""
    name = where.rpartition(".")[2]
    pending: list[Any] = [config]
    while pending:
        entry = pending.pop()
        if isinstance(entry, dict):
            inner = entry.get("config")
            if isinstance(inner, dict) and inner.get("name") == name and entry.get("class_name") != "Functional":
                return inner
            pending += entry.values()
        elif isinstance(entry, list):
            pending += entry
    return {}


def _json(text: Any) -> dict[str, Any]:
    try:
        value = json.loads(text) if text is not None else {}
    except (ValueError, RecursionError, TypeError):
        return {}
    return value if isinstance(value, dict) else {}
