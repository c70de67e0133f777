"""Any callable (t, d) → (t, d_out) as a function from NumPy to NumPy: torch modules, jax, numpy, cells."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from underhood.arrays import precision_of
from underhood.errors import UnderhoodError, one_line
from underhood.identify.forms import Array
from underhood.model import AbstractModel

Batched = Callable[[Float[Array, "b t d"]], Float[Array, "b t d_out"]]

PIECE = 256  # sequences at a time: jax compiles once for each number of them
LARGEST = 1e130  # a sum of squares of these is still a number
SAME = 1e-4  # relative, between a sequence in a batch and alone: float16 and below rounds worse, and goes one by one


def as_numpy_function(function: Any, d: int, *, batched: bool | None = None) -> Batched:
    """A function of a batch (b, t, d), checked at each call: outputs (t, d_out), finite numbers.

    A callable that takes batches itself is asked for many sequences at once. Whether it does is tried out unless
    `batched` says so: three sequences in a batch must give what they give one by one.
    """
    if not callable(function):
        raise UnderhoodError("expected a callable from (t, d) to (t, d_out)", type(function).__name__)
    if isinstance(function, AbstractModel):
        if function.d != d:
            raise UnderhoodError(f"expected d={function.d}, the inputs of this model", f"d={d}")
        return lambda batch: _checked_outputs(_in_pieces(lambda part: _run_model(function, part), batch))
    convert = _converter(function)

    def together(batch: Array) -> Array:
        ys = _as_array(function(convert(batch)), dimensions=3)
        if ys.ndim != 3 or ys.shape[:2] != batch.shape[:2]:
            raise UnderhoodError(
                "expected outputs (b, t, d_out) for a batch (b, t, d)", f"{ys.shape} for {batch.shape}"
            )
        return ys

    def one_by_one(batch: Array) -> Array:
        return np.stack([_run_one(function, convert, xs, d) for xs in batch])

    takes_batches = batched

    def call(batch: Array) -> Array:
        nonlocal takes_batches
        if takes_batches is None:
            takes_batches = _takes_batches(together, one_by_one, d)
        if not takes_batches:
            return _checked_outputs(one_by_one(batch))
        try:
            return _checked_outputs(_in_pieces(together, batch))
        except UnderhoodError:
            raise
        except Exception as error:
            raise _failed(error, f"(b, t, {d})") from error

    return call


def _run_one(function: Any, convert: Callable[[Array], Any], xs: Array, d: int) -> Array:
    try:
        ys = _as_array(function(convert(xs)))
    except UnderhoodError:
        raise
    except Exception as error:
        raise _failed(error, f"(t, {d})") from error
    if ys.ndim != 2 or len(ys) != len(xs):
        raise UnderhoodError("expected a function that maps (t, d) to (t, d_out)", f"{xs.shape} mapped to {ys.shape}")
    return ys


def _failed(error: BaseException, shape: str) -> UnderhoodError:
    return UnderhoodError(
        f"the function to probe failed on inputs of shape {shape}: {type(error).__name__}: {one_line(error)}",
        remedy="Check --d, or wrap it: lambda xs: ...",
    )


def _takes_batches(together: Batched, one_by_one: Batched, d: int) -> bool:
    batch = np.random.default_rng(0).standard_normal((3, 5, d))
    alone = one_by_one(batch)  # what is wrong with it is said here, for one sequence
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            ys = together(batch)
    except Exception:
        return False
    return ys.shape == alone.shape and bool(np.linalg.norm(ys - alone) <= SAME * np.linalg.norm(alone))


def _checked_outputs(ys: Array) -> Array:
    if not ys.size:
        raise UnderhoodError("expected one output or more", f"outputs of shape {ys.shape[1:]}")
    if not np.isfinite(ys).all():
        raise UnderhoodError("expected finite outputs", "NaN or infinite outputs")
    largest = float(np.abs(ys).max())
    if largest > LARGEST or 0 < largest < 1 / LARGEST:
        rule = f"expected outputs between {1 / LARGEST:g} and {LARGEST:g} in size"
        raise UnderhoodError(rule, f"up to {largest:.3g}", "Probe it times a constant.")
    return ys


def _in_pieces(run: Callable[[Array], Array], batch: Array) -> Array:
    """Pieces of one size, a power of two, so that few sizes are compiled; the last sequence fills up the last one."""
    size = min(PIECE, 1 << max(0, len(batch) - 1).bit_length())
    padded = np.concatenate([batch, np.repeat(batch[-1:], -len(batch) % size, axis=0)])
    return np.concatenate([run(part) for part in np.split(padded, len(padded) // size)])[: len(batch)]


def _run_model(model: AbstractModel, batch: Array) -> Array:
    with precision_of(model):
        return np.asarray(_vmapped(model, jnp.asarray(batch, model.dtype)), np.float64)


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


def _as_array(ys: Any, dimensions: int = 2) -> Array:
    """The outputs, without the state that torch's recurrent layers return beside them."""
    outputs: Any = ys
    if isinstance(ys, tuple | list) and len(ys) > 0 and len(np.shape(outputs[0])) == dimensions:
        outputs = outputs[0]
    if hasattr(outputs, "detach"):
        outputs = outputs.detach().cpu().numpy()
    return np.asarray(outputs, np.float64)


def import_callable(name: str) -> Callable[[Any], Any]:
    """`package.module:callable`, imported as `python -m` would find it: from the current folder too."""
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise UnderhoodError("expected a name such as package.module:callable", repr(name))
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        value: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            value = getattr(value, part)
    except (Exception, SystemExit) as error:
        raise UnderhoodError(
            f"cannot import {name}: {type(error).__name__}: {one_line(error)}", remedy="Run it from its folder."
        ) from error
    if not callable(value):
        raise UnderhoodError(f"{name} is not callable", type(value).__name__)
    return value
