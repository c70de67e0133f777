"""W x + b in the ways that today's layers have it: with or without b, by blocks, or through a bottleneck."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jaxtyping import Array, Float

from underhood.core.arrays import DType
from underhood.core.errors import UnderhoodError
from underhood.core.model import Part, tensor
from underhood.layers.held import constant, factor
from underhood.layers.linear import lecun_normal
from underhood.layers.shares import Shares

Activation = Literal["tanh", "sigmoid", "none"]


class Projection(Part):
    """y = W x, or W x + b."""

    kind: ClassVar[str] = "projection"

    weight: Float[Array, "rows columns"] = tensor()
    bias: Float[Array, " rows"] | None = tensor(optional=True, default=None)

    @property
    def rows(self) -> int:
        return self.weight.shape[0]

    @property
    def columns(self) -> int:
        return self.weight.shape[1]

    @classmethod
    def random(
        cls,
        columns: int,
        rows: int,
        *,
        key: Array,
        bias: Float[Array, " rows"] | None = None,
        dtype: DType = jnp.float32,
    ) -> Projection:
        """Normal weights of variance 1/columns, and the bias as it is given."""
        return cls(lecun_normal(key, (rows, columns), dtype), bias)

    def __call__(self, x: Float[Array, "t columns"]) -> Float[Array, "t rows"]:
        return biased(x @ self.weight.T, self.bias)

    def __getitem__(self, rows: Any) -> Projection:
        """Some of its outputs."""
        return Projection(np.asarray(self.weight)[rows], None if self.bias is None else np.asarray(self.bias)[rows])

    def shared(self, x: Shares) -> Shares:
        return x.linear(self.weight, self.bias)


class Headwise(Part):
    """y = W x with W block-diagonal: `weight[i]` is the block of inputs and outputs i."""

    kind: ClassVar[str] = "headwise"

    weight: Float[Array, "blocks outputs inputs"] = tensor()
    bias: Float[Array, " blocks*outputs"] | None = tensor(optional=True, default=None)

    @property
    def rows(self) -> int:
        return self.weight.shape[0] * self.weight.shape[1]

    @property
    def columns(self) -> int:
        return self.weight.shape[0] * self.weight.shape[2]

    def shared(self, x: Shares) -> Shares:
        return x.linear(scipy.linalg.block_diag(*np.asarray(self.weight)), self.bias)

    def __call__(self, x: Float[Array, "t columns"]) -> Float[Array, "t rows"]:
        blocks = jnp.swapaxes(x.reshape(len(x), self.weight.shape[0], -1), 0, 1)
        products = blocks @ jnp.swapaxes(self.weight, 1, 2)
        return biased(jnp.swapaxes(products, 0, 1).reshape(len(x), -1), self.bias)

    def before(self, rows: Float[Array, "n rows"]) -> Float[Array, "n columns"]:
        """A W, for the rows A of another projection that reads this one's outputs."""
        blocks = rows.reshape(len(rows), self.weight.shape[0], -1)
        return jnp.einsum("nbo,boi->nbi", blocks, self.weight).reshape(len(rows), -1)


class LowRank(Part):
    """y = W₂ f(W₁ x) + b."""

    kind: ClassVar[str] = "low-rank"

    down: Float[Array, "rank columns"] = tensor()
    up: Float[Array, "rows rank"] = tensor()
    bias: Float[Array, " rows"] | None = tensor(optional=True, default=None)
    activation: Activation = eqx.field(static=True, default="none")

    def _check(self) -> None:
        if self.activation not in get_args(Activation):
            raise UnderhoodError("expected an activation tanh, sigmoid or none", repr(self.activation))

    @classmethod
    def random(
        cls,
        columns: int,
        rows: int,
        rank: int,
        *,
        key: Array,
        bias: Float[Array, " rows"] | None = None,
        activation: Activation = "none",
        dtype: DType = jnp.float32,
    ) -> LowRank:
        key_down, key_up = jax.random.split(key)
        down, up = lecun_normal(key_down, (rank, columns), dtype), lecun_normal(key_up, (rows, rank), dtype)
        return cls(down, up, bias, activation)

    @property
    def rows(self) -> int:
        return self.up.shape[0]

    @property
    def columns(self) -> int:
        return self.down.shape[1]

    def __call__(self, x: Float[Array, "t columns"]) -> Float[Array, "t rows"]:
        inner = x @ self.down.T
        if self.activation != "none":
            inner = factor(jnp.tanh if self.activation == "tanh" else jax.nn.sigmoid, inner)
        return biased(inner @ self.up.T, self.bias)


def biased(y: Float[Array, "t rows"], bias: Float[Array, " rows"] | None) -> Float[Array, "t rows"]:
    return y if bias is None else y + constant(bias[None])
