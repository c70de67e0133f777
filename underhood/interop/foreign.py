"""Converters of torch modules, and of ONNX files by their path; their libraries are imported when one turns up."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from underhood.core.foreign import CONVERTERS, Converter
from underhood.core.model import AbstractModel


def is_onnx(network: Any) -> bool:
    """A path of a file with the suffix .onnx."""
    return isinstance(network, str | os.PathLike) and Path(network).suffix == ".onnx"


def is_torch(network: Any) -> bool:
    """A torch.nn.Module."""
    torch = sys.modules.get("torch")  # who has a module has imported torch
    return torch is not None and isinstance(network, torch.nn.Module)


def _onnx_function(path: Any) -> Callable[[Any], Any]:
    from underhood.interop.onnx import as_callable

    return as_callable(path)


def _onnx_size(path: Any) -> int | None:
    from underhood.interop.onnx import input_size

    return input_size(path)


def _torch_function(module: Any) -> Callable[[Any], Any]:
    from underhood.interop.torch import as_callable

    return as_callable(module)


def _torch_size(module: Any) -> int | None:
    """What its first layer with a size of inputs reads."""
    sizes = (getattr(part, "in_features", getattr(part, "input_size", None)) for part in module.modules())
    return next((size for size in sizes if isinstance(size, int)), None)


def _torch_model(module: Any) -> AbstractModel:
    from underhood.interop.torch import from_torch

    return from_torch(module)


CONVERTERS.register("onnx")(Converter(is_onnx, _onnx_function, _onnx_size))
CONVERTERS.register("torch")(Converter(is_torch, _torch_function, _torch_size, _torch_model))
