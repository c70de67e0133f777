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
    """Within it, jax computes in the dtype of the weights of `tree`."""
    return precision(dtype_of(tree))


_AS_IT_IS = contextlib.nullcontext()


def precision(dtype: np.dtype) -> contextlib.AbstractContextManager[Any]:
    if dtype.itemsize == 8 and not jax.config.read("jax_enable_x64"):
        return jax.enable_x64(True)
    return _AS_IT_IS


def like_input(result: Any, given: Any) -> Any:
    """NumPy in, NumPy out: outside `precision_of`, arithmetic on a float64 jax array would truncate it."""
    # The quick question about each comes first: whether something is jax's own array takes Python a while to say.
    concrete = not isinstance(result, jax.core.Tracer) and isinstance(result, jax.Array)
    plain = isinstance(given, np.ndarray) or not isinstance(given, jax.Array)
    return np.asarray(result) if concrete and plain else result


def as_sequence(xs: Any, d: int, dtype: np.dtype) -> Float[Array, "t d"]:
    """One sequence of inputs in the model's dtype, or an error that says how to hand over a batch."""
    require_real("inputs", xs)
    shape = np.shape(xs)
    if len(shape) != 2 or shape[1] != d or shape[0] == 0:
        remedy = "For a batch use jax.vmap(model)." if len(shape) == 3 else "Give one row a time step."
        raise UnderhoodError(f"expected one sequence of shape (t, {d}), t ≥ 1", f"shape {shape}", remedy)
    if isinstance(xs, jax.Array):
        return jnp.asarray(xs, dtype)
    # One NaN would spread over all later outputs. Arrays of jax's own are not looked into: that would wait for them.
    array = np.asarray(xs, dtype)
    if bad := array.size - int(np.count_nonzero(np.isfinite(array))):
        remedy = "Fill in what is missing, or leave its steps out."
        raise UnderhoodError("expected finite inputs", f"{bad} NaN or infinite of {array.size}", remedy)
    return jnp.asarray(array)


def as_input(x: Any, d: int, dtype: np.dtype) -> Float[Array | np.ndarray, " d"]:
    """One input vector in the model's dtype; NumPy's arrays stay such, which a compiled function takes in faster."""
    if isinstance(x, np.ndarray) and x.dtype == dtype and x.shape == (d,):
        return x  # what a stream gives; the checks below take as long as a tenth of a step
    require_real("inputs", x)
    if np.shape(x) != (d,):
        raise UnderhoodError(f"expected one input of shape ({d},)", f"shape {np.shape(x)}")
    if not isinstance(x, jax.Array):
        return np.asarray(x, dtype)
    return x if x.dtype == dtype else jnp.asarray(x, dtype)


def require_real(what: str, value: Any) -> None:
    """Refuse complex numbers, of which a conversion would keep the real part."""
    if np.iscomplexobj(value):
        raise UnderhoodError(f"expected real {what}", "complex numbers", "Use the real part.")


def require_finite(name: str, value: Any) -> None:
    """Refuse NaN and infinite weights: no analysis or construction means anything with them."""
    array = np.asarray(value)
    if not np.all(np.isfinite(array)):
        bad = int(np.size(array) - np.count_nonzero(np.isfinite(array)))
        raise NotFinite(f"expected finite weights in {name}", f"{bad} NaN or infinite of {array.size}")
