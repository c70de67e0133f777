"""Any callable (t, d) → (t, d_out) as a function from NumPy to NumPy: torch modules, jax, numpy, cells."""

from __future__ import annotations

import importlib
import inspect
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from underhood.algebra.quadratic import Array
from underhood.core.arrays import precision_of
from underhood.core.errors import UnderhoodError, one_line
from underhood.core.model import AbstractModel

Batched = Callable[[Float[Array, "b t d"]], Float[Array, "b t d_out"]]

PIECE = 256  # sequences at a time: jax compiles once for each number of them
FILLED, MOST_FILLED = 32, 1 << 20  # steps, and numbers up to which filling up costs less than compiling again
LARGEST = 1e130  # a sum of squares of these is still a number
SAME = 1e-4  # relative, between a sequence in a batch and alone: float16 and below rounds worse, and goes one by one
STOPPED = (Exception, SystemExit)  # what a callable may end with; Ctrl-C is the user's own


def as_numpy_function(function: Any, d: int, *, batched: bool | None = None) -> Batched:
    """A function of a batch (b, t, d), checked at each call: outputs (t, d_out), finite numbers.

    The callable gets a copy of its inputs, which it may change. One that takes batches itself is asked for many
    sequences at once. Whether it does is tried out unless `batched` says so: three sequences in a batch must give what
    they give one by one.
    """
    require_instance(function)
    if not callable(function):
        raise UnderhoodError("expected a callable from (t, d) to (t, d_out)", type(function).__name__)
    if isinstance(function, AbstractModel):
        if function.d != d:
            raise UnderhoodError(f"expected d={function.d}, the inputs of this model", f"d={d}", "Leave d out.")
        return lambda batch: _checked_outputs(_run_model(function, batch))
    foreign = _Foreign(function, d)
    run: Batched | None = None if batched is None else foreign.together if batched else foreign.one_by_one

    def call(batch: Array) -> Array:
        nonlocal run
        run = run or foreign.best_way(batch.shape[1])
        return _checked_outputs(run(batch))

    return call


def require_instance(function: Any) -> None:
    """Refuse a class, which is callable, too, and has what its instances have by name."""
    if inspect.isclass(function):
        name = function.__name__
        raise UnderhoodError(f"expected a function or an instance, not the class {name}", remedy=f"Use {name}(...).")


class _Foreign:
    """A callable of somebody else's: NumPy, jax or torch, one sequence or many."""

    def __init__(self, function: Any, d: int) -> None:
        self.function, self.d = function, d
        self.converters = _converters(function)

    def one_by_one(self, batch: Array) -> Array:
        return np.stack([self._run(xs, f"(t, {self.d})") for xs in batch])

    def together(self, batch: Array) -> Array:
        return _in_pieces(lambda part: self._run(part, f"(b, t, {self.d})"), batch)

    def best_way(self, length: int) -> Batched:
        """Batches where they give the same as single sequences do, or where single sequences fail.

        Tried at the length that is asked for: a callable may take no other.
        """
        batch = np.random.default_rng(0).standard_normal((3, length, self.d))
        try:
            alone, way = self.one_by_one(batch), self.one_by_one
        except UnderhoodError as error:
            alone = self._tried(lambda: np.concatenate([self.together(xs[None]) for xs in batch]))
            if alone is None:
                raise error
            way = self.together
        many = self._tried(lambda: self.together(batch))
        if many is not None and many.shape == alone.shape and _same(many, alone):
            return self.together
        if way == self.together:
            raise UnderhoodError(
                "expected outputs that do not depend on the other sequences of a batch",
                remedy="Wrap it: lambda xs: function(xs[None])[0].",
            )
        return way

    def _tried(self, run: Callable[[], Array]) -> Array | None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                return run()
        except STOPPED:
            return None

    def _run(self, xs: Array, shape: str) -> Array:
        """The first kind of array that the callable takes, and takes from then on."""
        first: BaseException | None = None
        for convert in self.converters:
            try:
                outputs = self.function(convert(xs))
            except STOPPED as error:
                first = first or error
                continue
            self.converters = (convert,)
            return _as_outputs(outputs, xs.shape)
        assert first is not None
        raise UnderhoodError(
            f"the function to probe failed on inputs of shape {shape}: {type(first).__name__}: {one_line(first)}",
            remedy=f"Check that d={self.d}, or wrap it: lambda xs: function(xs).",
        ) from first


def _same(first: Array, second: Array) -> bool:
    return bool(np.linalg.norm(first - second) <= SAME * np.linalg.norm(second))


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


def _in_pieces(run: Callable[[Array], Array], batch: Array, least: int = 1) -> Array:
    """Pieces of one size, a power of two, so that few sizes are compiled; the last sequence fills up the last one."""
    size = min(PIECE, max(least, 1 << max(0, len(batch) - 1).bit_length()))
    padded = np.concatenate([batch, np.repeat(batch[-1:], -len(batch) % size, axis=0)])
    return np.concatenate([run(part) for part in np.split(padded, len(padded) // size)])[: len(batch)]


def _run_model(model: AbstractModel, batch: Array) -> Array:
    """Models of this package are causal: short sequences are filled up with zeros, and all have one compiled shape."""
    length = batch.shape[1]
    if narrow := PIECE * FILLED * model.d <= MOST_FILLED:
        batch = np.pad(batch, ((0, 0), (0, max(0, FILLED - length)), (0, 0)))

    def run(part: Array) -> Array:
        with precision_of(model):
            return np.asarray(_vmapped(model, jnp.asarray(part, model.dtype)), np.float64)

    return _in_pieces(run, batch, PIECE if narrow else 1)[:, :length]


@eqx.filter_jit
def _vmapped(model: AbstractModel, batch: Any) -> Any:
    return jax.vmap(model)(batch)


def _converters(function: Any) -> tuple[Callable[[Array], Any], ...]:
    """A torch module wants tensors of its own dtype on its own device; other callables take NumPy, or else tensors.

    Each hands over a copy.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return (np.copy,)
    if not isinstance(function, torch.nn.Module):
        return (np.copy, *(lambda xs, dtype=dtype: torch.tensor(xs, dtype=dtype) for dtype in _dtypes(torch)))
    parameter = next(function.parameters(), None)
    dtype = parameter.dtype if parameter is not None else torch.float64
    device = parameter.device if parameter is not None else "cpu"
    return (lambda xs: torch.tensor(xs, dtype=dtype, device=device),)


def _dtypes(torch: Any) -> tuple[Any, ...]:
    return torch.float32, torch.float64


def _as_outputs(ys: Any, shape: tuple[int, ...]) -> Array:
    """The outputs, without the state that torch's recurrent layers return beside them."""
    outputs: Any = ys
    if isinstance(ys, tuple | list) and len(ys) > 0 and len(np.shape(outputs[0])) == len(shape):
        outputs = outputs[0]
    if hasattr(outputs, "detach"):
        outputs = outputs.detach().cpu()
        outputs = (outputs if outputs.is_complex() else outputs.double()).numpy()
    if np.iscomplexobj(outputs):
        raise UnderhoodError("expected real outputs", "complex numbers", "Probe a part: lambda xs: function(xs).real.")
    try:
        array = np.array(outputs, np.float64)  # a copy: a callable may use its buffer again
    except (TypeError, ValueError) as error:
        raise UnderhoodError("expected one array of outputs", f"{type(ys).__name__}: {one_line(error)}") from error
    if array.ndim != len(shape) or array.shape[:-1] != shape[:-1]:
        wanted = "(t, d) to (t, d_out)" if len(shape) == 2 else "(b, t, d) to (b, t, d_out)"
        raise UnderhoodError(f"expected a function that maps {wanted}", f"{shape} mapped to {array.shape}")
    return array


def parse_name(name: str) -> tuple[str, str]:
    """Module and attribute of `package.module:callable`; nothing is imported yet."""
    module, _, attribute = name.partition(":")
    if module.endswith(".py"):
        dotted = module.removesuffix(".py").removeprefix("./").replace("/", ".")
        remedy = f"Use {dotted}:{attribute or 'callable'}."
        raise UnderhoodError("expected the name of a module, not of its file", module, remedy)
    if not module or not attribute:
        is_file = Path(name).is_file()
        remedy = f"For a network in a file: underhood decompile {name}." if is_file else ""
        raise UnderhoodError("expected a name such as package.module:callable", repr(name), remedy)
    return module, attribute


def import_callable(name: str) -> Callable[[Any], Any]:
    """`package.module:callable`, imported as `python -m` would find it: from the current folder too."""
    module_name, attribute = parse_name(name)
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
        raise UnderhoodError(f"expected {name} to be callable", type(value).__name__)
    return value
