"""The contract that every model keeps: initial_state, step, scan and the call on a whole sequence agree."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float

from underhood.arrays import as_input, as_sequence, dtype_of, like_input, precision_of
from underhood.errors import UnderhoodError
from underhood.registry import Registry

State = Any  # each cell's own: an array or a tuple of arrays

# name → function(d, d_out, hidden, layers, key, dtype) that makes a randomly initialised model.
ARCHITECTURES: Registry[Callable[..., AbstractModel]] = Registry("model")


class AbstractModel(eqx.Module):
    """A causal map from one sequence (t, d) to (t, d_out), with a state that can be carried over.

    Subclasses write `_initial_state`, `_step` and, where there is a faster way than step by step, `_scan`;
    the public calls add what all models share: checked shapes, the weights' precision, and compilation.
    """

    kind: ClassVar[str]

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

    @property
    def dtype(self) -> np.dtype:
        """The dtype that the model computes in: that of its weights."""
        return dtype_of(self)

    @property
    def parameters(self) -> int:
        """How many numbers the weights are."""
        return sum(np.size(leaf) for leaf in jax.tree.leaves(self) if eqx.is_inexact_array(leaf))

    def initial_state(self) -> State:
        """The state before the first input: all zeros."""
        with precision_of(self):
            return self._initial_state()

    def step(self, state: State, x: Any) -> tuple[State, Any]:
        """One input (d,) → the next state and the output (d_out,)."""
        with precision_of(self):
            state, y = _jitted(type(self)._step, self, state, as_input(x, self.d, self.dtype))
            return state, like_input(y, x)

    def scan(self, xs: Any, state: State | None = None) -> tuple[Any, State]:
        """A sequence (t, d) from `state` on → the outputs (t, d_out) and the state after them."""
        with precision_of(self):
            state = self._initial_state() if state is None else state
            ys, state = _jitted(type(self)._scan, self, as_sequence(xs, self.d, self.dtype), state)
            return like_input(ys, xs), state

    def __call__(self, xs: Any) -> Any:
        """A sequence (t, d) → the outputs (t, d_out); for a batch, `jax.vmap(model)`."""
        return self.scan(xs)[0]

    def _public(self, function: Callable[..., Array], xs: Any) -> Any:
        """Another way to map a sequence, given the same treatment as the call."""
        with precision_of(self):
            return like_input(_jitted(function, self, as_sequence(xs, self.d, self.dtype)), xs)


@eqx.filter_jit
def _jitted(method: Callable[..., Any], model: AbstractModel, *arguments: Any) -> Any:
    # One compiled program for each method, structure and shape: an eager lax.scan would compile at each call.
    return method(model, *arguments)


def as_dtype(model: Any, dtype: Any) -> Any:
    """The same model with its weights in another precision."""
    with jax.enable_x64(True):
        return jax.tree.map(
            lambda leaf: leaf.astype(dtype) if eqx.is_inexact_array(leaf) else leaf,
            model,
        )


def make_model(
    name: str,
    d: int,
    *,
    hidden: int,
    d_out: int | None = None,
    layers: int = 1,
    seed: int = 0,
    dtype: Any = np.float32,
) -> AbstractModel:
    """A randomly initialised model of the registry: `make_model("lstm", 4, hidden=64)`."""
    import underhood.cells  # noqa: F401  (fills the registry)

    for what, size in {
        "d": d,
        "hidden": hidden,
        "layers": layers,
        "d_out": d if d_out is None else d_out,
    }.items():
        if size < 1:
            raise UnderhoodError(f"{what} is a whole number from 1 on", size)
    make = ARCHITECTURES[name]
    with jax.enable_x64(np.dtype(dtype) == np.float64 or jax.config.read("jax_enable_x64")):
        key = jax.random.key(seed)
        return make(d, d_out=d if d_out is None else d_out, hidden=hidden, layers=layers, key=key, dtype=dtype)
