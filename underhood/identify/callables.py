"""Any callable (t, d) → (t, d_out) as a function from NumPy to NumPy: torch modules, jax, numpy, cells."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from underhood.arrays import precision_of
from underhood.errors import UnderhoodError, one_line
from underhood.identify.forms import Array
from underhood.model import AbstractModel

PIECE = 256
LARGEST = 1e130  # a sum of squares of these is still a number


def as_numpy_function(function: Any, d: int) -> Callable[[Array], Array]:
    """A function of a batch (b, t, d), checked at each call: outputs (t, d_out), finite numbers."""
    if not callable(function):
        raise UnderhoodError("probe takes a callable from (t, d) to (t, d_out)", type(function).__name__)
    if isinstance(function, AbstractModel):
        if function.d != d:
            raise UnderhoodError(f"this model has {function.d} inputs", f"d={d}")
        return lambda batch: _checked_outputs(_batched(function, batch))
    convert = _converter(function)

    def one(xs: Array) -> Array:
        try:
            ys = _as_array(function(convert(xs)))
        except UnderhoodError:
            raise
        except Exception as error:
            raise UnderhoodError(
                f"the function to probe takes a sequence of shape (t, {d})",
                f"{type(error).__name__}: {one_line(error)}",
                "Check --d, or wrap it: lambda xs: ...",
            ) from error
        if ys.ndim != 2 or len(ys) != len(xs):
            raise UnderhoodError("the function to probe maps (t, d) to (t, d_out)", f"{xs.shape} mapped to {ys.shape}")
        return ys

    return lambda batch: _checked_outputs(np.stack([one(xs) for xs in batch]))


def _checked_outputs(ys: Array) -> Array:
    if not ys.size:
        raise UnderhoodError("a function to probe has one output or more", f"outputs of shape {ys.shape[1:]}")
    if not np.isfinite(ys).all():
        raise UnderhoodError("the outputs of a function to probe are finite", "NaN or infinite outputs")
    largest = float(np.abs(ys).max())
    if largest > LARGEST or 0 < largest < 1 / LARGEST:
        rule = f"the outputs of a function to probe lie between {1 / LARGEST:g} and {LARGEST:g} in size"
        raise UnderhoodError(rule, f"up to {largest:.3g}", "Probe it times a constant.")
    return ys


def _batched(model: AbstractModel, batch: Array) -> Array:
    """Models of this package take a batch at once, in pieces of one size, so that jax compiles once."""
    pieces = -(-len(batch) // PIECE)
    padded = np.zeros((pieces * PIECE, *batch.shape[1:]))
    padded[: len(batch)] = batch
    with precision_of(model):
        outputs = [_vmapped(model, jnp.asarray(one, model.dtype)) for one in np.split(padded, pieces)]
        return np.concatenate([np.asarray(one, np.float64) for one in outputs])[: len(batch)]


@eqx.filter_jit
def _vmapped(model: AbstractModel, batch: Any) -> Any:
    return jax.vmap(model)(batch)


def _converter(function: Any) -> Callable[[Array], Any]:
    """A torch module wants tensors of its own dtype on its own device; everything else takes NumPy."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(function, torch.nn.Module):
        return lambda xs: xs
    parameter = next(function.parameters(), None)
    dtype = parameter.dtype if parameter is not None else torch.float64
    device = parameter.device if parameter is not None else "cpu"
    return lambda xs: torch.as_tensor(xs, dtype=dtype, device=device)


def _as_array(ys: Any) -> Array:
    """The outputs, without the state that torch's recurrent layers return beside them."""
    outputs: Any = ys
    if isinstance(ys, tuple | list) and len(ys) > 0 and len(np.shape(outputs[0])) == 2:
        outputs = outputs[0]
    if hasattr(outputs, "detach"):
        outputs = outputs.detach().cpu().numpy()
    return np.asarray(outputs, np.float64)


def import_callable(name: str) -> Callable[[Any], Any]:
    """`package.module:callable`, imported as `python -m` would find it: from the current folder too."""
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise UnderhoodError("a callable is named package.module:callable", repr(name))
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        value: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            value = getattr(value, part)
    except (Exception, SystemExit) as error:
        raise UnderhoodError(
            f"{name} can be imported", f"{type(error).__name__}: {one_line(error)}", "Run it from its folder."
        ) from error
    if not callable(value):
        raise UnderhoodError(f"{name} is callable", type(value).__name__)
    return value
