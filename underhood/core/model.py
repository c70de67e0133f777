"""The contract that every model keeps: initial_state, step, scan and the call on a whole sequence agree.

What the package knows about an architecture is written in its class, in `architectures/<name>/cell.py`: the fields say
which weights may be missing, which are recurrent, and which parts have a structure of their own. Files, optimisers,
torch, ONNX and pages follow from that.
"""

from __future__ import annotations

import dataclasses
import zlib
from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from underhood.core import dispatch
from underhood.core.arrays import (
    DType,
    as_input,
    as_sequence,
    as_state,
    as_weight,
    dtype_of,
    like_input,
    precision,
    precision_of,
    require_finite,
)
from underhood.core.display import Displayed, Summary
from underhood.core.errors import UnderhoodError
from underhood.core.registry import Registry
from underhood.core.shapes import check_shapes

State = Any  # each cell's own: an array or a tuple of arrays

# kind → class, of models and of the parts they are made of; a class with a `kind` enters by being defined.
KINDS: Registry[type[Part]] = Registry("kind", "underhood.attention.*", "underhood.architectures.*.cell")
CELL = "cell"  # in the kinds of a field: any model that a stack may hold


def tensor(
    shape: str = "", *, optional: bool = False, recurrent: bool = False, sparse: bool = False, **options: Any
) -> Any:
    """A field that holds an array; its sizes must agree with the other fields' (`core/shapes.py`).

    **Arguments:**

    - `shape`: the dimensions, where the annotation does not say them: "rows columns".
    - `optional`: whether None is allowed.
    - `recurrent`: whether it is λ, or what λ is made of, which weight decay leaves alone.
    - `sparse`: whether a `SparseMatrix` is allowed.
    - `options`: of `equinox.field`.

    **Returns:**

    A field of a dataclass.
    """
    kinds = ("sparse",) if sparse else ()
    metadata = {"optional": optional, "recurrent": recurrent, "kinds": kinds, "shape": shape}
    return eqx.field(**{"converter": as_weight, "metadata": metadata, **options})


def part(kind: str, *, optional: bool = False, default: Any = dataclasses.MISSING, **sizes: str) -> Any:
    """A field that holds a module.

    **Arguments:**

    - `kind`: of the module; with the kind `CELL`, the field holds a tuple of models.
    - `optional`: whether None is allowed.
    - `default`: of the field.
    - `sizes`: what the module's own sizes are here: `part("projection", rows="2*inner", columns="d")`.

    **Returns:**

    A field of a dataclass.
    """
    metadata = {"optional": optional, "kinds": (kind,), "implied": None if kind == CELL else kind, "sizes": sizes}
    given = {} if default is dataclasses.MISSING else {"default": default}
    return eqx.field(metadata=metadata, **given)


if TYPE_CHECKING:

    class _Module:
        """eqx.Module for the type checker: its fields convert what they are given, so that a constructor takes any."""

        __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

        def __init__(self, *arguments: Any, **fields: Any) -> None: ...

else:
    _Module = eqx.Module


class Part(Displayed, _Module):
    """Weights with a kind: what can be saved, loaded and pickled in the dtype that it has."""

    kind: ClassVar[str]
    aliases: ClassVar[dict[str, tuple[str, Callable[[np.ndarray], np.ndarray]]]] = {}
    """Other names that a file written by hand may use: alias → (field, how to make it)."""
    may_be_empty: ClassVar[tuple[str, ...]] = ()
    """Dimensions that may have the size 0."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "kind" in cls.__dict__:
            KINDS.register(cls.kind)(cls)

    def __check_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, jax.Array) and not isinstance(value, jax.core.Tracer):
                require_finite(field.name, value)
        check_shapes(self)
        self._check()

    def _summary(self) -> Summary:
        shapes = {field.name: _shown(getattr(self, field.name)) for field in dataclasses.fields(self)}
        return Summary(type(self).__name__, shapes)

    def _check(self) -> None:
        """Refuse, with an `UnderhoodError`, what shapes cannot tell: settings, and sizes that depend on them."""

    def __getstate__(self) -> dict[str, Any]:
        # jax would restore its float64 arrays as float32.
        return {name: np.asarray(v) if isinstance(v, jax.Array) else v for name, v in vars(self).items()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            object.__setattr__(self, name, as_weight(value) if isinstance(value, np.ndarray) else value)


def _shown(value: Any) -> str | None:
    """An array by its sizes, a part by its kind, a setting as it is."""
    if hasattr(value, "shape"):
        return "×".join(map(str, value.shape)) or "a number"
    if isinstance(value, Part):
        return value.title if isinstance(value, AbstractModel) else value.kind
    if isinstance(value, tuple):
        return ", ".join(str(_shown(entry)) for entry in value)
    return None if value is None else str(value)


class AbstractModel(Part):
    """A causal map from one sequence (t, d) to (t, d_out), with a state that can be carried over.

    Subclasses write `_initial_state`, `_step` and, where there is a faster way than step by step, `_scan`;
    the public calls add what all models share: checked shapes, the weights' precision, and compilation.
    torch, ONNX and the explorer run `_step`, so that it is best made of real arithmetic.
    """

    name: ClassVar[str] = ""
    """What a page calls it; its kind unless given."""
    state_names: ClassVar[tuple[str, ...]] = ()
    """What the arrays of its state are called; by their shapes unless given."""
    is_marked: ClassVar[bool] = False
    """Whether `_scan` marks what a frozen map holds (layers/held.py)."""
    default_map: ClassVar[str] = ""
    """The kind of attention map by default; the first of exact and frozen that it has unless given."""

    def _summary(self) -> Summary:
        shapes = {field.name: _shown(getattr(self, field.name)) for field in dataclasses.fields(self)}
        hidden = getattr(self, "hidden", None)  # attention has none
        neurons = "" if hidden is None else f", {hidden} hidden neurons"
        sizes = f"{self.d} inputs, {self.d_out} outputs{neurons}, {self.parameters:,} parameters"
        return Summary(f"{self.title}: {sizes}, {self.dtype}", shapes)

    @property
    def title(self) -> str:
        return self.name or self.kind.removesuffix("-cell")

    @property
    @abstractmethod
    def d(self) -> int:
        """Input size."""

    @property
    @abstractmethod
    def d_out(self) -> int:
        """Output size."""

    @abstractmethod
    def _initial_state(self) -> State: ...

    @abstractmethod
    def _step(self, state: Any, x: Any) -> tuple[Any, Any]: ...

    def _scan(self, xs: Float[Array, "t d"], state: Any) -> tuple[Float[Array, "t d_o"], Any]:
        def body(carried: State, x: Array) -> tuple[State, Array]:
            return self._step(carried, x)

        state, ys = jax.lax.scan(body, state, xs)
        return ys, state

    def display_state(self, state: Any) -> Array:
        """What a page shows of the state: all of it, unless a cell knows better.

        **Arguments:**

        - `state`: a state, as `step` and `scan` carry it.

        **Returns:**

        A vector of numbers.
        """
        return jax.numpy.concatenate([leaf.reshape(-1) for leaf in jax.tree.leaves(state)])

    def display_extras(self, state: Any, x: Any) -> dict[str, Any]:
        """Further arrays for a page to show; none, unless a cell has some.

        **Arguments:**

        - `state`: the state that the input led to.
        - `x`: the input `(d,)`.

        **Returns:**

        Arrays by the name that the page gives them.
        """
        return {}

    def disguise_weights(self, signal: Any, random: np.random.Generator) -> tuple[AbstractModel, Any]:
        """Other weights with the same function of a changed input; cells without it cannot be disguised.

        **Arguments:**

        - `signal`: how the input was changed, a `Signal` of `layers/gauge.py`.
        - `random`: what the choices are drawn from.

        **Returns:**

        The changed cell, and how its output changed, a `Signal` again.
        """
        raise UnderhoodError(
            f"disguise cannot hide the weights of a {self.kind}", remedy="Its class has no method disguise_weights."
        )

    def propagate_contributions(self, x: Any) -> Any:
        """How the contributions of earlier steps pass through with the gates held at their values.

        **Arguments:**

        - `x`: the contributions to the input, as `Shares` (`layers/shares.py`).

        **Returns:**

        The contributions to the output, as `Shares`; None where a cell does not say, which maps then do without.
        """
        return None

    @property
    def dtype(self) -> np.dtype:
        """The dtype that the model computes in: that of its weights."""
        return dtype_of(self)

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return sum(np.size(leaf) for leaf in jax.tree.leaves(self) if eqx.is_inexact_array(leaf))

    def initial_state(self) -> State:
        """The state before the first input: all zeros."""
        with precision_of(self):
            return jax.tree.map(jnp.asarray, self._initial_state())

    @dispatch.unwrapped
    def step(self, state: State, x: Any) -> tuple[State, Any]:
        """One input (d,) → the next state and the output (d_out,)."""
        kept = dispatch.prepared(self)
        if kept is None:
            with precision_of(self):
                state, y = dispatch.jitted(_step_of, self, as_state(state), as_input(x, self.d, self.dtype))
                return state, like_input(y, x)
        with precision(kept.dtype):
            state, y = kept.call(_step_of, as_state(state), as_input(x, kept.d, kept.dtype))
            return state, like_input(y, x)

    def scan(self, xs: Any, state: State | None = None) -> tuple[Any, State]:
        """A sequence (t, d) from `state` on → the outputs (t, d_out) and the state after them."""
        start = () if state is None else (as_state(state),)
        with precision_of(self):
            ys, state = dispatch.call(_scan_of, self, as_sequence(xs, self.d, self.dtype), *start)
            return like_input(ys, xs), state

    def __call__(self, xs: Any) -> Any:
        """A sequence (t, d) → the outputs (t, d_out); for a batch, `jax.vmap(model)`."""
        return self.scan(xs)[0]

    def __hash__(self) -> int:
        # jax.jit asks for one, and would say no more than that an array has none.
        wide = " within `with jax.enable_x64(True):`, as its weights are float64" if self.dtype == np.float64 else ""
        raise TypeError(
            "a model has no hash, which jax.jit asks for. Call it as it is, it is compiled already; "
            f"to compile a function of yours around it, use eqx.filter_jit(function){wide}."
        )

    def _public(self, function: Callable[..., Array], xs: Any) -> Any:
        """Another way to map a sequence, given the same treatment as the call."""
        with precision_of(self):
            return like_input(dispatch.jitted(function, self, as_sequence(xs, self.d, self.dtype)), xs)


def _step_of(model: AbstractModel, state: Any, x: Any) -> tuple[Any, Any]:
    return model._step(state, x)


def _scan_of(model: AbstractModel, xs: Float[Array, "t d"], *state: Any) -> tuple[Float[Array, "t d_o"], Any]:
    return model._scan(xs, *(state or (model._initial_state(),)))


def as_dtype(model: Any, dtype: DType) -> Any:
    """The same model with its weights in another precision."""
    with jax.enable_x64(True):
        return jax.tree.map(
            lambda leaf: leaf.astype(dtype) if eqx.is_inexact_array(leaf) else leaf,
            model,
        )


# Told apart by most readers, on white and in greyscale with the dashes of layers: for architectures that choose none.
PALETTE = ("#1b7837", "#762a83", "#b35806", "#01665e", "#8c510a", "#c51b7d", "#4d4d4d", "#35978f")


@dataclasses.dataclass(frozen=True)
class Architecture:
    """A trainable model of the registry, and what commands, sweeps and figures need to know of it."""

    name: str
    """What the user types."""
    make: Callable[..., AbstractModel]
    """(d, *, d_out, hidden, layers, key, dtype), and further `sizes`, to a randomly initialised model."""
    label: str
    """Its name in figures and pages."""
    colour: str
    """The one colour that it has everywhere."""
    most_layers: int | None = None
    """None: any number."""
    sizes: tuple[str, ...] = ()
    """Further sizes that may be chosen, such as pre_readout."""
    second_order: bool = False
    """Whether the second-order solver trains it."""


ARCHITECTURES: Registry[Architecture] = Registry("model", "underhood.architectures.*.cell")


def architecture(
    name: str, *, label: str | None = None, colour: str | None = None, **settings: Any
) -> Callable[[Callable[..., AbstractModel]], Callable[..., AbstractModel]]:
    """Decorator: register the function that makes a model under the name that users type."""

    def register(make: Callable[..., AbstractModel]) -> Callable[..., AbstractModel]:
        chosen = colour or PALETTE[zlib.crc32(name.encode()) % len(PALETTE)]
        ARCHITECTURES.register(name)(Architecture(name, make, label or name, chosen, **settings))
        return make

    return register


def make_model(
    name: str,
    d: int,
    *,
    hidden: int,
    d_out: int | None = None,
    layers: int = 1,
    pre_readout: int | None = None,
    seed: int = 0,
    dtype: DType = np.float32,
) -> AbstractModel:
    """A randomly initialised model of the registry: `make_model("lstm", 4, hidden=64)`.

    **Arguments:**

    - `name`: an architecture; an unknown one lists them all.
    - `d`: size of an input.
    - `hidden`: neurons of each layer.
    - `d_out`: size of an output; `d` unless given.
    - `layers`: how many, where an architecture can be stacked.
    - `pre_readout`: neurons of a gated RNN's output gating; as many as hidden ones unless given.
    - `seed`: of the weights.
    - `dtype`: of the weights, and so of all that is computed with them.

    **Returns:**

    The model.
    """
    chosen = ARCHITECTURES[name]
    d_out = d if d_out is None else d_out
    sizes = {} if pre_readout is None else {"pre_readout": pre_readout}
    for what, size in {"d": d, "hidden": hidden, "layers": layers, "d_out": d_out, **sizes}.items():
        if isinstance(size, bool) or not isinstance(size, int | np.integer):
            raise UnderhoodError(f"expected {what} to be a whole number", repr(size))
        if size < 1:
            raise UnderhoodError(f"expected {what} of 1 or more", size)
        if size >= 2**31:
            raise UnderhoodError(f"expected {what} below 2³¹", f"a number of {int(size).bit_length()} bits")
    if chosen.most_layers is not None and layers > chosen.most_layers:
        rule = f"expected at most {chosen.most_layers} layer{'s' * (chosen.most_layers > 1)} for {name}"
        raise UnderhoodError(rule, layers)
    for what in sizes.keys() - set(chosen.sizes):
        raise UnderhoodError(f"{name} has no size {what} to choose", remedy="Leave it out.")
    with jax.enable_x64(np.dtype(dtype) == np.float64):
        key = jax.random.key(seed)
        return chosen.make(d, d_out=d_out, hidden=hidden, layers=layers, key=key, dtype=dtype, **sizes)
