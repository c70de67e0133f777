"""Shape glossary, and the one rule of precision: a model computes in the dtype of its weights.

    t  time            d    input             n  hidden neurons         h    attention heads
    b  batch           d_o  output            m  pre-readout neurons    d_k  keys, queries
    (one sequence is (t, d); a batch is made outside, with jax.vmap)    d_v  values

jax computes in float32 unless a global switch is set, and would silently truncate the float64 weights of a
compiled network. So weights keep the dtype they came with (`as_weight`), and every model enters
`precision_of(self)` around its own computation: float64 where its weights are float64, at no cost elsewhere.
"""

from __future__ import annotations

import contextlib
import warnings
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from underhood.core.errors import NotFinite, UnderhoodError

DType = np.dtype | type | str  # np.float64, "float32", jnp.float32


def as_weight(value: Any) -> Any:
    """A float array of jax's in the dtype that `value` has; float16 and bfloat16 widen to float32."""
    if hasattr(value, "detach"):  # a torch tensor
        narrow = value.is_floating_point() and value.element_size() < 4  # NumPy has no bfloat16
        value = (value.detach().float() if narrow else value.detach()).cpu().numpy()
    if value is None or isinstance(value, jax.core.Tracer) or not _is_plain_array(value):
        return value  # a traced weight, a sparse matrix, or a placeholder of a jax transformation
    require_real("weights", value)
    dtype = np.dtype(value.dtype) if hasattr(value, "dtype") else np.asarray(value).dtype
    if dtype not in (np.float32, np.float64):
        dtype = np.dtype(np.float32 if dtype.itemsize <= 2 and dtype.kind not in "iub" else np.float64)
    with jax.enable_x64(True):
        return jnp.asarray(value, dtype)


def _is_plain_array(value: Any) -> bool:
    return isinstance(value, jax.Array | np.ndarray | np.generic | list | tuple | float | int)


def dtype_of(tree: Any) -> np.dtype:
    """The widest dtype among the weights of `tree`."""
    dtypes = [leaf.dtype for leaf in jax.tree.leaves(tree) if hasattr(leaf, "dtype")]
    floats = [np.dtype(dtype) for dtype in dtypes if jnp.issubdtype(dtype, np.floating)]
    return max(floats, key=lambda dtype: dtype.itemsize, default=np.dtype(np.float32))


def precision_of(tree: Any) -> contextlib.AbstractContextManager[Any]:
    """Within it, jax computes in the dtype of the weights of `tree`, whatever its global switch says."""
    return precision(dtype_of(tree))


_AS_IT_IS = contextlib.nullcontext()


def precision(dtype: np.dtype) -> contextlib.AbstractContextManager[Any]:
    wide = dtype.itemsize == 8
    return _AS_IT_IS if wide == bool(jax.config.read("jax_enable_x64")) else jax.enable_x64(wide)


def like_input(result: Any, given: Any) -> Any:
    """NumPy in, NumPy out: outside `precision_of`, arithmetic on a float64 jax array would truncate it."""
    # The quick question about each comes first: whether something is jax's own array takes Python a while to say.
    concrete = not isinstance(result, jax.core.Tracer) and isinstance(result, jax.Array)
    plain = isinstance(given, np.ndarray) or not isinstance(given, jax.Array)
    return np.asarray(result) if concrete and plain else result


_ROUNDED = (
    "a model with float64 weights is called with float32 inputs inside a function that jax compiles: float64 inputs "
    "were rounded on the way in. Compile and call that function within `with jax.enable_x64(True):`, or call the model "
    "as it is, which is compiled already."
)


def _enters_as_float32(xs: Any) -> bool:
    """Is it an argument of a compiled function, which jax has rounded? `jax.vmap` alone hands arrays on as they are."""
    while isinstance(xs, jax.core.Tracer) and isinstance(getattr(xs, "val", None), jax.core.Tracer):
        xs = xs.val
    return type(xs).__name__ == "DynamicJaxprTracer" and xs.dtype == np.float32


def as_sequence(xs: Any, d: int, dtype: np.dtype) -> Float[Array, "t d"]:
    """One sequence of inputs in the model's dtype, or an error that says how to hand over a batch."""
    require_real("inputs", xs)
    shape = np.shape(xs)
    if len(shape) != 2 or shape[1] != d or shape[0] == 0:
        remedy = "For a batch use jax.vmap(model)." if len(shape) == 3 else "Pass one row per time step."
        raise UnderhoodError(f"expected one sequence of shape (t, {d}), t ≥ 1", f"shape {shape}", remedy)
    if isinstance(xs, jax.Array):
        if dtype == np.float64 and _enters_as_float32(xs):
            warnings.warn(_ROUNDED, RuntimeWarning, stacklevel=4)
        return jnp.asarray(xs, dtype)
    # One NaN would spread over all later outputs. Arrays of jax's own are not looked into: that would wait for them.
    array = np.asarray(xs, dtype)
    if bad := array.size - int(np.count_nonzero(np.isfinite(array))):
        remedy = "Fill in what is missing, or leave its steps out."
        raise UnderhoodError("expected finite inputs", f"{bad} NaN or infinite of {array.size}", remedy)
    return jnp.asarray(array)


def as_input(x: Any, d: int, dtype: np.dtype) -> Float[Array | np.ndarray, " d"]:
    """One input vector in the model's dtype; NumPy's arrays stay such, which a compiled function takes in faster."""
    if type(x) is np.ndarray and x.dtype == dtype and x.shape == (d,):
        return x  # what a stream gives; the checks below take as long as a tenth of a step
    require_real("inputs", x)
    if np.shape(x) != (d,):
        raise UnderhoodError(f"expected one input of shape ({d},)", f"shape {np.shape(x)}")
    if not isinstance(x, jax.Array):
        return np.asarray(x, dtype)
    return x if x.dtype == dtype else jnp.asarray(x, dtype)


def require_real(what: str, value: Any) -> None:
    """Refuse what is no array of real numbers, and would silently be taken for one.

    **Arguments:**

    - `what`: for the message: "inputs".
    - `value`: an array, or what NumPy makes one of.
    """
    if isinstance(value, jax.Array) and not jnp.iscomplexobj(value):
        return
    if np.iscomplexobj(value):
        raise UnderhoodError(f"expected real {what}", "complex numbers", "Use the real part.")
    if isinstance(value, np.ma.MaskedArray):
        if np.ma.is_masked(value):
            hidden = f"{int(np.ma.count_masked(value))} masked of {value.size}"
            raise UnderhoodError(f"expected {what} without a mask", hidden, "Fill in what is masked, or leave it out.")
        return
    dtype = getattr(value, "dtype", None)
    if not isinstance(dtype, np.dtype):
        dtype = np.asarray(value).dtype if isinstance(value, list | tuple) else None
    bfloat16 = dtype is not None and dtype.kind == "V" and jnp.issubdtype(dtype, np.floating)
    if dtype is not None and dtype.kind in "MmSUV" and not bfloat16:
        raise UnderhoodError(f"expected numbers as {what}", f"the dtype {dtype}", "Convert them first.")


def as_state(state: Any) -> Any:
    """A state with arrays of NumPy's in the byte order of this machine, which compiled functions take for granted."""
    if all(not isinstance(leaf, np.ndarray) or _is_native(leaf) for leaf in jax.tree.leaves(state)):
        return state
    return jax.tree.map(_native, state)


def _is_native(leaf: np.ndarray) -> bool:
    return type(leaf) is np.ndarray and leaf.dtype.isnative and leaf.dtype.kind in "biuf"


def _native(leaf: Any) -> Any:
    if not isinstance(leaf, np.ndarray) or _is_native(leaf):
        return leaf
    require_real("a state", leaf)
    return np.asarray(leaf, leaf.dtype.newbyteorder("="))


def require_finite(name: str, value: Any) -> None:
    """Refuse NaN and infinite weights: no analysis or construction means anything with them."""
    array = np.asarray(value)
    if not np.all(np.isfinite(array)):
        bad = int(np.size(array) - np.count_nonzero(np.isfinite(array)))
        raise NotFinite(f"expected finite weights in {name}", f"{bad} NaN or infinite of {array.size}")
