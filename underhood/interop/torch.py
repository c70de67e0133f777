"""torch both ways: `export` writes a state dict and checks it, `as_callable` runs a module on NumPy arrays."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from underhood.architectures.stack.cell import Stack
from underhood.core.arrays import require_finite
from underhood.core.atomic import write_atomically
from underhood.core.errors import UnderhoodError
from underhood.core.extras import require
from underhood.core.files import from_tensors, tensor_bytes
from underhood.core.model import AbstractModel
from underhood.interop import bridges
from underhood.interop.checked import Checked, check
from underhood.interop.state_dict import as_float, torch_array
from underhood.interop.torch_import import candidates, from_state_dict
from underhood.interop.torch_names import to_program, to_state_dict

MODULE = "underhood_torch.py"  # the name of torch_modules.py beside an export
PLAIN = ("LSTM", "GRU", "Recurrent")  # these load into torch's own classes


def export(model: Any, path: str | os.PathLike[str]) -> dict[str, Any]:
    """Write a state dict (safetensors) that loads with strict=True, and the module for it where torch has none."""
    require("torch", "torch", "export to torch")
    path = Path(path)
    description, tensors = to_state_dict(model)
    checked = _checked(model, description, tensors)
    if "settings" in description and not checked.verified:
        # Public layers compute parts of a step in float32, which some compiled networks do not survive.
        description, tensors = to_program(model)
        checked = _checked(model, description, tensors)
    plain = description["class"] in PLAIN or "settings" in description
    beside = None if plain else _write_module(path.parent / MODULE)
    # safetensors writes the buffer as it lies in memory, whatever its strides say.
    contiguous = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    header = {"format": "pt", "underhood": json.dumps(description)}
    write_atomically(path, tensor_bytes(contiguous, header))
    return {
        "kind": model.kind,
        "to": "torch",
        "loads_into": _loads_into(description),
        "dtype": str(model.dtype),
        "parameters": sum(tensor.size for tensor in tensors.values()),
        **checked.report,
        "out": str(path),
        "module": None if beside is None else str(beside),
    }


def _checked(model: AbstractModel, description: dict[str, Any], tensors: dict[str, np.ndarray]) -> Checked:
    for name, tensor in tensors.items():
        require_finite(name, tensor)
    return check(model, as_callable(_module(description, tensors).double()))


def to_torch(model: AbstractModel) -> Any:
    """The model as a torch.nn.Module in the dtype of its weights.

    Torch's own LSTM or GRU, the public class of a cell that has one (transformers' MambaMixer, say) where its package
    is installed, a stack of these, or else a `Program` of torch operations.
    """
    torch = require("torch", "torch", "a torch module")
    if not isinstance(model, AbstractModel):
        raise UnderhoodError("expected a model of underhood", type(model).__name__)
    if isinstance(model, Stack) and all(map(bridges.public_form, model.cells)):
        return bridges.to_module(model)
    description, tensors = to_state_dict(model)
    return _module(description, tensors).to({4: torch.float32, 8: torch.float64}[model.dtype.itemsize])


def from_torch(module: Any) -> AbstractModel:
    """The torch module as a model of this package, where its weights make one and its outputs are that model's.

    Knows torch.nn.LSTM and GRU, alone or between two torch.nn.Linear, the public layers of transformers, xlstm and
    others that a cell of ours matches, what `to_torch` and exports give, and any module with the parameters of
    docs/format.md that computes what they say.
    """
    torch = require("torch", "torch", "a torch module")
    if not isinstance(module, torch.nn.Module):
        remedy = (
            "Give the instance, not the class." if isinstance(module, type) else "Weights in a file: underhood import."
        )
        raise UnderhoodError("expected a torch.nn.Module", type(module).__name__, remedy)
    if any(parameter.is_meta for parameter in module.parameters()):
        raise UnderhoodError("this module is on the meta device, without weights", remedy="Load its weights first.")
    if hasattr(module, "as_stack"):  # a stack of public layers
        return module.as_stack()
    if bridges.qualified_name(module) in bridges.BRIDGES:
        return bridges.from_module(module)
    tensors = state_dict_of(module)
    description = getattr(module, "underhood", {})
    if hasattr(module, "program"):  # our own class: what it computes is written in it
        return from_tensors(description["ours"], tensors, type(module).__name__)
    for kind in candidates(tensors):
        try:
            model = from_state_dict(tensors, kind, description)
            # A module may do more with its weights than their names say: only its outputs can tell.
            checked = check(model, as_callable(module), 1e-4 if model.dtype.itemsize == 4 else 1e-6, widen=False)
        except (UnderhoodError, RuntimeError, TypeError, ValueError, IndexError):
            continue
        if checked.verified:
            return model
    raise UnderhoodError(
        f"no model of underhood computes what this {type(module).__name__} does",
        remedy="uh.probe(module, d=...) reads it as a black box.",
    )


def as_callable(module: Any) -> Callable[[np.ndarray], np.ndarray]:
    """One sequence (t, d) → (t, d_out), NumPy in and out, in the module's dtype, on its device, without gradients.

    A module that returns a tuple, as torch.nn.LSTM does, is taken by its first entry.
    """
    torch = require("torch", "torch", "running a torch module")
    if not isinstance(module, torch.nn.Module):
        raise UnderhoodError("expected a torch.nn.Module", type(module).__name__)
    weight = next((tensor for tensor in module.parameters() if tensor.is_floating_point()), None)
    kind = {} if weight is None else {"dtype": weight.dtype, "device": weight.device}
    public = bridges.BRIDGES.get(bridges.qualified_name(module))

    def run(xs: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            given = torch.as_tensor(np.ascontiguousarray(xs), **kind)
            ys = module(given) if public is None else public.run(module, given[None])[0]
        ys = ys[0] if isinstance(ys, tuple | list) else ys
        return torch_array("the module's output", ys).astype(np.float64)

    return run


def state_dict_of(module: Any) -> dict[str, np.ndarray]:
    """The module's weights in NumPy, as `read_state_dict` gives those of a file."""
    tensors = {name: torch_array(name, tensor) for name, tensor in module.state_dict().items()}
    return {name: as_float(name, tensor) for name, tensor in tensors.items()}


def _module(description: dict[str, Any], tensors: dict[str, np.ndarray]) -> Any:
    import torch

    from underhood.interop.torch_modules import build

    # In float64, where widened weights are exact: casting down is left to the caller.
    public = "settings" in description
    module = bridges.BRIDGES[description["class"]].build(description["settings"]) if public else build(description)
    module = module.double()
    module.underhood = {"ours": description["ours"]}  # what the tensors do not tell, for the way back
    module.load_state_dict({name: torch.from_numpy(np.array(tensor)) for name, tensor in tensors.items()}, strict=True)
    return module.eval()


def modules_source() -> str:
    """torch_modules.py as text: an export puts it beside the weights, for programs without this package."""
    return resources.files("underhood.interop").joinpath("torch_modules.py").read_text("utf-8")


def _write_module(path: Path) -> Path:
    source = modules_source()
    if path.exists():
        first = source.splitlines()[0].encode()
        if not path.is_file() or not path.read_bytes().startswith(first):
            raise UnderhoodError(
                f"{path} is another file, in the place of the torch module", remedy="Choose another folder."
            )
    return write_atomically(path, source.encode())


def _loads_into(description: dict[str, Any]) -> str:
    if description["class"] == "Recurrent":
        name = description["cell"]
        return f"embedding: torch.nn.Linear, {name.lower()}: torch.nn.{name}, readout: torch.nn.Linear"
    if "settings" in description:
        return description["class"]
    return f"torch.nn.{description['class']}" if description["class"] in PLAIN else f"{MODULE}: {description['class']}"


__all__ = ["MODULE", "Checked", "as_callable", "export", "from_torch", "state_dict_of", "to_torch"]
