"""Which batched forward pass a model gets: its kernel, or `jax.vmap` of its own scan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jaxtyping import Array, Float

from underhood.model import AbstractModel

# A kernel maps (model, xs (b, t, d), last) to the outputs (b, t, d_out), or (b, d_out) of the last step; it
# returns None for a model it does not cover, such as one with sparse weights.
Kernel = Callable[[Any, Float[Array, "b t d"], bool], Float[Array, "b *t d_o"] | None]
KERNELS: dict[type, Kernel] = {}


def kernel_for(kind: type) -> Callable[[Kernel], Kernel]:
    """Decorator: the kernel of one class of models."""

    def register(kernel: Kernel) -> Kernel:
        KERNELS[kind] = kernel
        return kernel

    return register


def reference(model: AbstractModel, xs: Float[Array, "b t d"], last: bool = False) -> Float[Array, "b *t d_o"]:
    """The model's own scan, one sequence at a time."""
    ys = jax.vmap(lambda x: model._scan(x, model._initial_state())[0])(xs)
    return ys[:, -1] if last else ys


def forward(model: AbstractModel, xs: Float[Array, "b t d"], last: bool = False) -> Float[Array, "b *t d_o"]:
    """The outputs of a batch, at every step or at the last one only."""
    kernel = KERNELS.get(type(model))
    outputs = kernel(model, xs, last) if kernel is not None else None
    return reference(model, xs, last) if outputs is None else outputs
