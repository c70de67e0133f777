"""torch both ways: `from_torch` reads a module by its parts, `to_torch` makes one, `export` writes and checks it."""

from __future__ import annotations

import collections
import io
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
from underhood.interop.attention_weights import softmax_from
from underhood.interop.bridges import BRIDGES, UNSUPPORTED, Bridge, bridge_of, public_form, qualified_name
from underhood.interop.checked import Checked, check
from underhood.interop.own_names import candidates
from underhood.interop.read import as_stack, from_state_dict, recurrent_cells
from underhood.interop.torch_names import to_program, to_state_dict
from underhood.interop.torch_parts import (
    Part,
    as_callable,
    parts_of,
    public_bridge,
    recurrent_layer,
    state_dict_of,
)
from underhood.layers.linear import Linear

MODULE = "underhood_torch.py"  # the name of torch_modules.py beside an export
PICKLED = (".pt", ".pth", ".bin")  # suffixes of what torch.load reads
SINGLE, DOUBLE = 1e-4, 1e-6  # how far a module may be from its model, over the largest output
BLACK_BOX = "uh.probe(module, d=...) reads it as a black box; uh.from_pretrained(folder, layer) a layer of a folder."


def to_torch(model: AbstractModel) -> Any:
    """A model of this package as a torch.nn.Module, in the dtype of its weights.

    **Arguments:**

    - `model`: any model of this package.

    **Returns:**

    Torch's own LSTM, GRU or RNN, the public class of a cell that has one (transformers' MambaMixer, say) where its
    package is installed, a stack of these, or else a `Program` of torch operations. Modules take one sequence (t, d)
    or a batch (b, t, d).
    """
    torch = require("torch", "torch", "a torch module")
    if not isinstance(model, AbstractModel):
        raise UnderhoodError("expected a model of underhood", type(model).__name__)
    if isinstance(model, Stack) and all(map(public_form, model.cells)):
        return to_module(model)
    description, tensors = to_state_dict(model)
    return _module(description, tensors).to({4: torch.float32, 8: torch.float64}[model.dtype.itemsize])


def from_torch(module: Any) -> AbstractModel:
    """A torch module as a model of this package, where the model computes what the module does.

    The module is read by its parts, in the order in which they run: torch's own LSTM, GRU and RNN and the public
    layers of transformers, xlstm and others that a cell of ours matches, between torch.nn.Linear or after an
    torch.nn.Embedding, whose model reads one-hot rows. Attribute names don't matter. What `to_torch` and exports give
    is read, too, and any module with the parameters of docs/format.md that computes what they say.

    **Arguments:**

    - `module`: a torch.nn.Module with its weights, in evaluation mode.

    **Returns:**

    The model, in the module's dtype. Its outputs on random sequences were compared with the module's. An
    `UnderhoodError` says what is in the way where there is no such model.
    """
    torch = require("torch", "torch", "a torch module")
    if not isinstance(module, torch.nn.Module):
        remedy = (
            "Give the instance, not the class." if isinstance(module, type) else "Weights in a file: underhood import."
        )
        raise UnderhoodError("expected a torch.nn.Module", type(module).__name__, remedy)
    if any(parameter.is_meta for parameter in module.parameters()):
        raise UnderhoodError("this module is on the meta device, without weights", remedy="Load its weights first.")
    if hasattr(module, "program"):  # our own class: what it computes is written in it
        return from_tensors(module.underhood["ours"], state_dict_of(module), type(module).__name__)
    if type(module) is torch.nn.MultiheadAttention:  # of each step to itself and those before, as a causal mask has it
        return softmax_from(state_dict_of(module), module.num_heads)
    if public_bridge(module) is not None:
        return from_module(module)
    model = _by_names(module)
    return _by_parts(module) if model is None else model


def _by_names(module: Any) -> AbstractModel | None:
    """A module whose parameters have the names of our own files, and that computes what they say."""
    try:
        tensors = state_dict_of(module)
    except UnderhoodError:
        return None
    for kind in candidates(tensors):
        try:
            model = from_state_dict(tensors, kind, getattr(module, "underhood", {}))
            # A module may do more with its weights than their names say: only its outputs can tell.
            tolerance = SINGLE if model.dtype.itemsize == 4 else DOUBLE
            if check(model, as_callable(module), tolerance, widen=False).verified:
                return model
        except (UnderhoodError, RuntimeError, TypeError, ValueError, IndexError):
            continue
    return None


def _by_parts(module: Any) -> AbstractModel:
    """embedding → cells → readout, from the parts that run; what is in the way is named."""
    parts, title = parts_of(module), type(module).__name__
    chain = " → ".join(part.title for part in parts[:8]) + (" → …" if len(parts) > 8 else "")
    signal: list[Any] = []
    for part in parts:
        signal += _cells(part, title)
    if all(isinstance(one, Linear) for one in signal):
        known = ", ".join(f"torch.nn.{name}" for name in ("LSTM", "GRU", "RNN"))
        rule = f"{title} has no recurrent layer that underhood knows: {chain or 'no parts'}"
        raise UnderhoodError(rule, remedy=f"Known: {known}, {', '.join(b.name for b in BRIDGES.values())}. {BLACK_BOX}")
    model = as_stack(signal, getattr(module, "underhood", {}).get("ours", {}))
    # Public layers compute parts of a step in float32, whatever the dtype of their weights.
    narrow = model.dtype.itemsize == 4 or any(public_bridge(part.module) is not None for part in parts)
    checked, tolerance = None, SINGLE if narrow else DOUBLE
    for function in _ways(module, parts[0]):
        try:
            checked = check(model, function, tolerance, widen=False, one_hot=_embeds(parts[0]))
        except (RuntimeError, TypeError, ValueError, IndexError, AssertionError, UnderhoodError):
            continue
        if checked.verified:
            return model
    error = "it does not run on one sequence (t, d)" if checked is None else f"error {checked.max_rel_error:.1e}"
    rule = f"no model of underhood computes what this {title} does: {chain} in this order is something else ({error})"
    remedy = "Pass its recurrent part alone, without what its forward adds (activations, skips, the last step only)."
    raise UnderhoodError(rule, remedy=f"{remedy} Or: {BLACK_BOX}")


def _cells(part: Part, title: str) -> list[Any]:
    """A part as linear maps and cells of ours."""
    module, name = part.module, type(part.module).__name__
    if public_bridge(module) is not None:
        return [from_module(module)]
    if recurrent_layer(module) is not None:
        return recurrent_cells(part.title, state_dict_of(module), _options(part))
    if name == "Linear":
        tensors = state_dict_of(module)
        weight = tensors["weight"]
        return [Linear(weight, tensors.get("bias", np.zeros(len(weight), weight.dtype)))]
    if name == "Embedding" and module.max_norm is None:
        weight = state_dict_of(module)["weight"].T
        return [Linear(weight, np.zeros(len(weight), weight.dtype))]
    _, _, family = type(module).__module__.rpartition("modeling_")
    reason = f", for {UNSUPPORTED[family]}" if family in UNSUPPORTED else ""
    rule = f"no model of underhood computes what this {title} does: {part.title} has no counterpart{reason}"
    raise UnderhoodError(rule, remedy=BLACK_BOX)


def _options(part: Part) -> dict[str, Any]:
    """What the tensors of torch's own layers do not tell."""
    module = part.module
    if getattr(module, "proj_size", 0):
        what = f"{part.title} projects its outputs (proj_size={module.proj_size}), which no cell of ours does"
        raise UnderhoodError(what)
    layer = recurrent_layer(module)
    assert layer is not None
    return layer.options(module)


def _ways(module: Any, first: Part) -> list[Callable[[np.ndarray], np.ndarray]]:
    """A module as a map of one sequence: as it stands, on a batch of one, on tokens, or a cell in a loop."""
    torch = require("torch", "torch", "running a torch module")
    if _embeds(first):

        def tokens(xs: np.ndarray) -> Any:
            return torch.from_numpy(np.argmax(xs, axis=1))

        return [lambda xs: _output(module(tokens(xs))), lambda xs: _output(module(tokens(xs)[None]))[0]]
    plain = as_callable(module)
    if first.module is module and type(module).__name__.endswith("Cell"):
        return [lambda xs: _looped(torch, module, xs)]
    like = next(module.parameters())

    def batched(xs: np.ndarray) -> np.ndarray:
        return _output(module(torch.as_tensor(xs, dtype=like.dtype, device=like.device)[None]))[0]

    return [plain, batched]


def _output(ys: Any) -> np.ndarray:
    ys = ys[0] if isinstance(ys, tuple | list) else ys
    return ys.detach().cpu().double().numpy()


def _looped(torch: Any, cell: Any, xs: np.ndarray) -> np.ndarray:
    like, state, ys = next(cell.parameters()), None, []
    for x in torch.as_tensor(xs, dtype=like.dtype, device=like.device):
        state = cell(x, state)
        ys.append(state[0] if isinstance(state, tuple) else state)
    return _output(torch.stack(ys))


def _embeds(part: Part) -> bool:
    return type(part.module).__name__ == "Embedding"


def from_module(module: Any) -> Any:
    """A public torch module as a cell of ours, in its dtype."""
    found = public_bridge(module)
    if found is None:
        name = qualified_name(module)
        raise UnderhoodError(f"no bridge for the torch class {name}", remedy=f"Known: {', '.join(BRIDGES)}.")
    return found.read(state_dict_of(module), found.describe(module))


def to_module(model: Any, public: str | None = None) -> Any:
    """A cell of ours as the public torch module, or a stack of such cells as a torch.nn.Module of them.

    `public` names the class where several compute the same; the first one that holds the cell otherwise.
    """
    if not isinstance(model, Stack):
        return _public_module(_chosen(model, public), model)
    from underhood.interop.torch_stack import TorchStack

    bridges = [_chosen(cell, public) for cell in model.cells]
    layers = [(_public_module(one, cell), one.run) for one, cell in zip(bridges, model.cells, strict=True)]
    return TorchStack(model, layers)


def _chosen(cell: Any, public: str | None) -> Bridge:
    form = public_form(cell) if public is None else None
    return bridge_of(cell, public) if form is None else form[0]


def _public_module(chosen: Bridge, cell: Any) -> Any:
    torch = require("torch", "torch", "a torch module")
    settings, tensors = chosen.write(cell)
    module = chosen.build(settings)
    # Before the weights go in: a cast of theirs afterwards would round what float64 holds.
    module = module.to({4: torch.float32, 8: torch.float64}[cell.dtype.itemsize])
    given = {name: torch.from_numpy(np.array(tensor)) for name, tensor in tensors.items()}
    module.load_state_dict(given, strict=True)
    return module.eval()


def _module(description: dict[str, Any], tensors: dict[str, np.ndarray]) -> Any:
    import torch

    from underhood.interop.torch_modules import build

    # In float64, where widened weights are exact: casting down is left to the caller.
    public = "settings" in description
    module = BRIDGES[description["class"]].build(description["settings"]) if public else build(description)
    module = module.double()
    module.underhood = {"ours": description["ours"]}  # what the tensors do not tell, for the way back
    module.load_state_dict({name: torch.from_numpy(np.array(tensor)) for name, tensor in tensors.items()}, strict=True)
    return module.eval()


def export(model: Any, path: str | os.PathLike[str]) -> dict[str, Any]:
    """Write a state dict that loads with strict=True, and the module for it where torch has none.

    As safetensors, or as torch.save writes it where the path ends in .pt, .pth or .bin.
    """
    torch = require("torch", "torch", "export to torch")
    path = Path(path)
    description, tensors = to_state_dict(model)
    checked = _checked(model, description, tensors)
    if "settings" in description and not checked.verified:
        # Public layers compute parts of a step in float32, which some compiled networks do not survive.
        description, tensors = to_program(model)
        checked = _checked(model, description, tensors)
    is_program = description["class"] == "Program"
    beside = _write_module(path.parent / MODULE) if is_program else None
    # safetensors writes the buffer as it lies in memory, whatever its strides say.
    contiguous = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    if path.suffix in PICKLED:
        write_atomically(path, _pickled(torch, contiguous, description))
    else:
        write_atomically(path, tensor_bytes(contiguous, {"format": "pt", "underhood": json.dumps(description)}))
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


def _pickled(torch: Any, tensors: dict[str, np.ndarray], description: dict[str, Any]) -> bytes:
    """What torch.save writes of a state dict; its `_metadata`, which torch keeps there, says what a header would."""
    state = collections.OrderedDict((name, torch.from_numpy(tensor.copy())) for name, tensor in tensors.items())
    said = {"": {"version": 1}, "underhood": {"description": json.dumps(description)}}
    state._metadata = collections.OrderedDict(said)  # type: ignore[attr-defined]
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


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
    name = description["class"]
    if name == "Recurrent":
        cell = description["cell"]
        return f"embedding: torch.nn.Linear, {cell.lower()}: torch.nn.{cell}, readout: torch.nn.Linear"
    if "settings" in description:
        return name
    return f"{MODULE}: {name}" if name == "Program" else f"torch.nn.{name}"
