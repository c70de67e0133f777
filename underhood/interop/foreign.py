"""`uh.decompile` and `uh.probe` on what other frameworks made: torch modules, and ONNX files by their path."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from underhood.errors import UnderhoodError
from underhood.identify.blackbox import TOLERANCE
from underhood.identify.blackbox import probe as probe_callable
from underhood.identify.decompile import decompile as decompile_model
from underhood.identify.found import Found
from underhood.interop.checked import check
from underhood.interop.torch_import import from_state_dict


def decompile(model: Any, **settings: Any) -> Found:
    """Which linear attention does this network implement, if any? `identify.decompile` has the settings.

    A torch module whose weights make one of our networks, and whose outputs are that network's, is read as such: a
    gated RNN by the names of docs/format.md gets a certificate. Any other one, and an ONNX file, is a black box.
    """
    if not _is_torch(model) and not is_onnx(model):
        return decompile_model(model, **settings)
    ours = _ours(model) if _is_torch(model) else None
    if ours is not None:
        return decompile_model(ours, **settings)
    function, d = as_function(model)
    if d is None:
        remedy = "Use uh.probe(module, d=...)."
        raise UnderhoodError("the input size can be read off the network", type(model).__name__, remedy)
    known = {name: settings[name] for name in ("against", "seed") if name in settings}
    found = probe_callable(function, d=d, tolerance=settings.get("tolerance") or TOLERANCE, **known)
    note = "it was read as a black box, without a certificate"
    return dataclasses.replace(found, reason=f"{found.reason}; {note}")


def probe(function: Any, d: int | None = None, **settings: Any) -> Found:
    """The linear attention nearest to any callable; `identify.blackbox.probe` has the settings.

    Torch modules and ONNX files need no `d` where they tell it themselves.
    """
    if _is_torch(function) or is_onnx(function):
        function, found = as_function(function)
        d = found if d is None else d
    if d is None:
        raise UnderhoodError("probe needs the input size", "d=None", "Say uh.probe(function, d=...).")
    return probe_callable(function, d, **settings)


def as_function(network: Any) -> tuple[Callable[[Any], Any], int | None]:
    """A torch module or an ONNX file as a map of one NumPy sequence, and its input size, if it tells."""
    if is_onnx(network):
        from underhood.interop.onnx import as_callable, input_size

        return as_callable(network), input_size(network)
    from underhood.interop.torch import as_callable as as_torch_callable

    sizes = (getattr(part, "in_features", getattr(part, "input_size", None)) for part in network.modules())
    return as_torch_callable(network), next((size for size in sizes if isinstance(size, int)), None)


def is_onnx(network: Any) -> bool:
    """A path of a file with the suffix .onnx."""
    return isinstance(network, str | os.PathLike) and Path(network).suffix == ".onnx"


def _is_torch(network: Any) -> bool:
    torch = sys.modules.get("torch")  # who has a module has imported torch
    return torch is not None and isinstance(network, torch.nn.Module)


def _ours(module: Any) -> Any:
    """The same network as a model of ours, if its weights make one and it computes the same."""
    from underhood.interop.torch import as_callable, state_dict_of

    names = list(module.state_dict())
    kinds = ["gated-rnn-dense" if "recurrence" in names else "gated-rnn"] if "input_gating.w_m" in names else []
    kinds += ["lstm", "gru"] if any(name.endswith("weight_ih_l0") for name in names) else []
    for kind in kinds:
        try:
            model = from_state_dict(state_dict_of(module), kind)
            # A module may do more with its weights than their names say: only its outputs can tell.
            checked = check(model, as_callable(module), 1e-4 if model.dtype.itemsize == 4 else 1e-6, widen=False)
        except (UnderhoodError, RuntimeError, TypeError, ValueError, IndexError):
            continue
        if checked.verified:
            return model
    return None
