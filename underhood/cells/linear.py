"""Matrices that cells apply to vectors: plain arrays, or sparse ones that act alike."""

from __future__ import annotations

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from underhood.arrays import ANY, as_weight, require_shape

Matrix = Any  # Float[Array, "rows columns"] or SparseMatrix


def apply(matrix: Matrix, x: Float[Array, "*t columns"]) -> Float[Array, "*t rows"]:
    """W x, for one vector or for the rows of a sequence."""
    return matrix.apply(x) if isinstance(matrix, SparseMatrix) else x @ matrix.T


def dense(matrix: Matrix) -> np.ndarray:
    """The matrix as a NumPy array, whatever its form."""
    return matrix.dense() if isinstance(matrix, SparseMatrix) else np.asarray(matrix)


class SparseMatrix(eqx.Module):
    """W = S B, with at most k entries in each row of S and a dense factor B, or none where W itself is sparse.

    S is held as `values` and `columns` of shape (rows, k), padded with zeros: a product gathers and sums along
    rows, which costs rows·k and never scatters. In the construction of Figure 1 the rows of W_V repeat, so that
    S picks one row of B = W_V for each neuron: d² + d² work where the dense matrix takes d³.
    """

    kind: ClassVar[str] = "sparse"

    values: Float[Array, "rows k"] = eqx.field(converter=as_weight)
    columns: Int[Array, "rows k"] = eqx.field(converter=lambda columns: jnp.asarray(columns, jnp.int32))
    width: int = eqx.field(static=True)  # columns of S
    factor: Float[Array, "width columns"] | None = eqx.field(converter=as_weight, default=None)

    @classmethod
    def from_dense(cls, matrix: np.ndarray, factor: np.ndarray | None = None) -> SparseMatrix:
        """S from its dense form, with `factor` as B."""
        matrix = np.asarray(matrix)
        most = max(1, int(np.count_nonzero(matrix, axis=1).max(initial=0)))
        # A stable sort by "is zero" brings the entries of each row to its front, in the order of columns.
        columns = np.argsort(matrix == 0, axis=1, kind="stable")[:, :most]
        values = np.take_along_axis(matrix, columns, axis=1)
        return cls(values, columns, matrix.shape[1], factor)

    def __check_init__(self) -> None:
        require_shape("values", self.values, (ANY, None), "(rows, k)")
        require_shape("columns", self.columns, np.shape(self.values), "as values has")
        if self.factor is not None:
            require_shape("factor", self.factor, (self.width, None), "(width, columns)")

    @property
    def shape(self) -> tuple[int, int]:
        return self.values.shape[0], self.width if self.factor is None else self.factor.shape[1]

    @property
    def ndim(self) -> int:
        return 2

    @property
    def dtype(self) -> np.dtype:
        return self.values.dtype

    def apply(self, x: Float[Array, "*t columns"]) -> Float[Array, "*t rows"]:
        if self.factor is not None:
            x = x @ self.factor.T
        # The indices come from a checked file or a construction: a clip would cost more than the gather.
        gathered = x.at[..., self.columns].get(mode="promise_in_bounds")
        return jnp.sum(jax.lax.expand_dims(self.values, range(x.ndim - 1)) * gathered, axis=-1)

    def dense(self) -> np.ndarray:
        values = np.asarray(self.values)
        sparse = np.zeros((len(values), self.width), values.dtype)
        np.add.at(sparse, (np.arange(len(values))[:, None], np.asarray(self.columns)), values)
        return sparse if self.factor is None else sparse @ np.asarray(self.factor)


class Linear(eqx.Module):
    """y = W x + b: the embedding and the readout of a stack."""

    kind: ClassVar[str] = "linear"

    weight: Float[Array, "rows columns"] = eqx.field(converter=as_weight)
    bias: Float[Array, " rows"] = eqx.field(converter=as_weight)

    def __check_init__(self) -> None:
        require_shape("weight", self.weight, (None, None), "(rows, columns)")
        require_shape("bias", self.bias, (self.weight.shape[0],), "(rows,)")

    @classmethod
    def random(cls, columns: int, rows: int, *, key: Array, dtype: Any = jnp.float32) -> Linear:
        """Normal weights of variance 1/columns (Flax's default for a dense layer) and no bias."""
        return cls(lecun_normal(key, (rows, columns), dtype), jnp.zeros(rows, dtype))

    def __call__(self, x: Float[Array, "*t columns"]) -> Float[Array, "*t rows"]:
        return apply(self.weight, x) + jax.lax.expand_dims(self.bias, range(x.ndim - 1))


def lecun_normal(key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
    """Normal entries of variance 1/columns."""
    return jax.random.normal(key, shape, dtype) / np.asarray(np.sqrt(shape[-1]), dtype)
