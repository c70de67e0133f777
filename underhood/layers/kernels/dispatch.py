"""Which batched forward pass a model gets: its kernel, or `jax.vmap` of its own scan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from underhood.core.model import AbstractModel
from underhood.core.registry import import_all
from underhood.layers.kernels.columns import columns
from underhood.layers.linear import Linear

HOME = "underhood.architectures.*.kernel"

# A kernel maps (model, xs (b, t, d), last) to the outputs (b, t, d_out), or (b, d_out) of the last step; it
# returns None for a model it does not cover, such as one with sparse weights.
Kernel = Callable[[Any, Float[Array, "b t d"], bool], Float[Array, "b *t d_o"] | None]
KERNELS: dict[type, Kernel] = {}

# (model, steps) to how many sequences a kernel takes at once while its arrays stay in a core's own cache; None, or no
# entry: a batch as it comes.
AtOnce = Callable[[Any, int], int | None]
AT_ONCE: dict[type, AtOnce] = {}

# A cell of a stack takes features first: (cell, embedding, xs (d, t, b), last) to (d_out, t, b). Where `last`, no step
# but the last is read, and a kernel may return that one alone. The cell reads embedding(xs), or xs where embedding is
# None. The kernel returns None for a cell that it does not cover.
CellKernel = Callable[[Any, Linear | None, Float[Array, "d t b"], bool], Float[Array, "d_o s b"] | None]
CELL_KERNELS: dict[type, CellKernel] = {}


def kernel_for(kind: type, at_once: AtOnce | None = None) -> Callable[[Kernel], Kernel]:
    """Decorator: the kernel of one class of models."""

    def register(kernel: Kernel) -> Kernel:
        KERNELS[kind] = kernel
        if at_once is not None:
            AT_ONCE[kind] = at_once
        return kernel

    return register


def cell_kernel_for(kind: type) -> Callable[[CellKernel], CellKernel]:
    """Decorator: the kernel of one class of cells, in a stack or on its own."""

    def register(kernel: CellKernel) -> CellKernel:
        def alone(cell: Any, xs: Float[Array, "b t d"], last: bool) -> Float[Array, "b *t d_o"] | None:
            ys = kernel(cell, None, xs.transpose(2, 1, 0), last)
            if ys is None:
                return None
            return ys[:, -1].T if last else ys.transpose(2, 1, 0)

        KERNELS[kind], CELL_KERNELS[kind] = alone, kernel
        return kernel

    return register


def is_dense(weight: Any) -> bool:
    """A plain array, rather than a sparse matrix or none at all, as compiled networks may have."""
    return isinstance(weight, jax.Array)


def reference(model: AbstractModel, xs: Float[Array, "b t d"], last: bool = False) -> Float[Array, "b *t d_o"]:
    """The model's own scan, one sequence at a time."""
    ys = jax.vmap(lambda x: model._scan(x, model._initial_state())[0])(xs)
    return ys[:, -1] if last else ys


def forward(model: AbstractModel, xs: Float[Array, "b t d"], last: bool = False) -> Float[Array, "b *t d_o"]:
    """The outputs of a batch, at every step or at the last one only."""
    import_all(HOME)
    kernel = KERNELS.get(type(model))
    outputs = kernel(model, xs, last) if kernel is not None else None
    return reference(model, xs, last) if outputs is None else outputs


def parts_of(model: AbstractModel, batch: int, steps: int) -> int:
    """Into how many equal parts a batch is best cut, to be worked on in turn; 1 where they would be small."""
    import_all(HOME)
    rule = AT_ONCE.get(type(model))
    at_once = (rule(model, steps) if rule else None) or batch
    parts = next(parts for parts in range(1, batch + 1) if batch % parts == 0 and batch <= parts * at_once)
    return parts if 2 * (batch // parts) >= at_once else 1


def affine(weight: Float[Array, "k d"], bias: Float[Array, " k"], xs: Float[Array, "d *t b"]) -> Float[Array, "k *t b"]:
    """W x + b, features first, as one product of (W, b) with (x, 1).

    Not for the forward pass, where an addition is as good: the gradient of a bias that is added is a sum over time and
    batch, for which the compiler's library took 4.4 ms at (32, 64, 256), where the product takes 0.1 ms.
    """
    flat = xs.reshape(xs.shape[0], -1)
    extended = jnp.concatenate([flat, jnp.ones((1, flat.shape[1]), xs.dtype)])
    return columns(jnp.concatenate([weight, bias[:, None]], axis=1), extended).reshape(-1, *xs.shape[1:])


def projected(
    u: Float[Array, "k e"], b: Float[Array, " k"], embedding: Linear | None, xs: Float[Array, "d t b"]
) -> Float[Array, "k t b"]:
    """U (E x + e) + b of all steps in one product.

    U E and U e + b come first, as they are small: with d = 4 inputs and 64 neurons that halves the work of an
    LSTM's training step, since neither the embedded sequence nor its gradient is ever made.
    """
    if embedding is None:
        return affine(u, b, xs)
    return affine(columns(u, embedding.weight), u @ embedding.bias + b, xs)
