"""`uh.decompile`, `uh.probe` and `uh.in_context` on what others made: torch modules, and ONNX files by their path."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from underhood.architectures.gated_rnn.cell import GatedRNN
from underhood.attention.linear import LinearAttention
from underhood.core.costs import estimate_cost
from underhood.core.errors import UnderhoodError
from underhood.core.model import AbstractModel
from underhood.core.threads import threads_for
from underhood.decompiler import decompile as weights
from underhood.decompiler.from_outputs import probe as blackbox
from underhood.decompiler.from_outputs.functions import require_instance
from underhood.decompiler.result import Found
from underhood.explain import in_context as algorithms


def decompile_cost(model: Any, d: int | None = None) -> str | None:
    """What `decompile` or, of a callable with d inputs, `probe` will take, where that is known and much."""
    if isinstance(model, GatedRNN):
        # A network of the fewest neurons has d(d + 3)/2; one with more is as much work as that of a larger d.
        what = f"decompiling {model.hidden} neurons with d = {model.d}"
        return estimate_cost("decompile", max(model.d, (2 * model.hidden) ** 0.5), what)
    d = getattr(model, "d", None) if d is None else d
    return estimate_cost("probe", d, f"probing d = {d}") if isinstance(d, int) and d > 0 else None


def decompile(
    model: Any,
    *,
    against: LinearAttention | None = None,
    tolerance: float | None = None,
    input_bound: float = weights.INPUT_BOUND,
    horizon: int = weights.HORIZON,
    fine_tune: bool = False,
    seed: int = 0,
) -> Found:
    """Which linear attention does this network implement, if any?

    `model` is a model of this package, a torch module, or the path of an ONNX file. A gated RNN of Eq. 2 is read from
    its weights and gets a certificate for inputs within ±`input_bound`, up to `horizon` steps; so is a torch module
    whose weights and outputs are those of such a network. Everything else is probed as a black box.

    `against`: an attention to compare with. `tolerance`: the share of the output that may be something other than
    attention (by default 1e-8 for exact weights, 1e-3 for trained ones). `fine_tune`: refit the
    readout of the smallest network. `seed`: of the random inputs.
    """
    require_instance(model)
    if _is_torch(model):
        from underhood.interop.torch import from_torch

        with contextlib.suppress(UnderhoodError):  # a module of another sort can still be probed
            model = from_torch(model)
    if not _is_torch(model) and not is_onnx(model):
        options = {"tolerance": tolerance, "input_bound": input_bound, "horizon": horizon, "fine_tune": fine_tune}
        with threads_for(getattr(model, "d", 0)):
            return weights.decompile(model, against=against, seed=seed, **options)
    function, d = as_function(model)
    if d is None:
        raise UnderhoodError(
            f"cannot tell the input size of {type(model).__name__}", remedy="Use uh.probe(module, d=...)."
        )
    tolerance = blackbox.TOLERANCE if tolerance is None else tolerance
    found = blackbox.probe(function, d, against=against, seed=seed, tolerance=tolerance)
    return dataclasses.replace(found, reason=f"{found.reason}; it was read as a black box, without a certificate")


def probe(
    function: Any,
    d: int | None = None,
    *,
    against: LinearAttention | None = None,
    seed: int = 0,
    length: int = blackbox.LENGTH,
    input_bound: float = blackbox.INPUT_BOUND,
    tolerance: float = blackbox.TOLERANCE,
    max_heads: int = blackbox.MAX_HEADS,
    batched: bool | None = None,
    watch: blackbox.Watch | None = None,
) -> Found:
    """The linear attention nearest to any callable (t, d) → (t, d_out), and how near it is.

    `function` may be a NumPy, torch or jax function, a torch module, a model of this package, or the path of an ONNX
    file. `d` is the input size; modules, models and files mostly tell it themselves. It is asked about random sequences
    of `length` steps with inputs within ±`input_bound`; it is called attention where the error on fresh ones is below
    `tolerance`, relative. `against`: an attention to compare with. `seed`: of the sequences. `max_heads`: of the
    nearest attention, where the answer is no and d is above 8. `batched`: whether the function takes (b, t, d), if
    known. `watch`: called with what is being done and the share of it that is.
    """
    if _is_torch(function) or is_onnx(function):
        function, found = as_function(function)
        d = found if d is None else d
    elif isinstance(function, AbstractModel):
        d = function.d if d is None else d
    if d is None:
        raise UnderhoodError("cannot tell the input size", remedy="Give `d`.")
    options = {"length": length, "input_bound": input_bound, "tolerance": tolerance, "max_heads": max_heads}
    return blackbox.probe(function, d, against=against, seed=seed, batched=batched, watch=watch, **options)


def in_context(
    network: Any,
    d_x: int = 3,
    d_y: int = 3,
    observations: int = 12,
    inputs: str = "uniform",
    *,
    seed: int = 0,
    batched: bool | None = None,
) -> algorithms.Algorithm:
    """Which algorithm does a network run in context to predict y at a new x?

    `network` is a model of this package, a callable (t, d_x + d_y) → (t, d_out) of NumPy, torch or jax, a torch module,
    or the path of an ONNX file. It reads (x_1, y_1) … (x_T, y_T), (x, 0) with `observations` examples, whose `inputs`
    are uniform, on the sphere or normal, of variance 1; it predicts with the last d_y outputs of the last step. `seed`:
    of the tasks. `batched`: whether a callable takes (b, t, d), if known.
    """
    if _is_torch(network) or is_onnx(network):
        network, _ = as_function(network)
    return algorithms.in_context(network, d_x, d_y, observations, inputs, seed=seed, batched=batched)


def closeness(function: Any, xs: np.ndarray, *, last: bool = False) -> float:
    """R² of the best linear attention on sequences (b, t, d) of your own; `last`: at their last step only.

    It is fitted on the first half of them and tested on the second.
    """
    if _is_torch(function) or is_onnx(function):
        function, _ = as_function(function)
    return blackbox.closeness(function, xs, last=last)


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
