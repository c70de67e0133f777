"""Matrices that cells apply to vectors: plain arrays, or sparse ones that act alike."""

from __future__ import annotations

import functools
import math
import operator
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from underhood.core.arrays import DType, as_weight
from underhood.core.errors import UnderhoodError
from underhood.core.model import Part, part, tensor
from underhood.layers.draws import normal
from underhood.layers.held import constant

MOST_DENSE = 2**29  # bytes: a file of a few lines can ask for any size
MOST_COPIES = 5  # that linearise a gate: one more than orders

Matrix = Any  # Float[Array, "rows columns"] or SparseMatrix


def apply(matrix: Matrix, x: Float[Array, "*t columns"]) -> Float[Array, "*t rows"]:
    """W x, for one vector or for the rows of a sequence."""
    return matrix.apply(x) if isinstance(matrix, SparseMatrix) else x @ matrix.T


def dense(matrix: Matrix) -> np.ndarray:
    """The matrix as a NumPy array, whatever its form."""
    return matrix.dense() if isinstance(matrix, SparseMatrix) else np.asarray(matrix)


class Block(Part):
    """The paper's repeat(B, n): rows of B, each `repeats` times, the whole `tiles` times; or the transpose of that.

    It reads the columns from `start` on. Without `base`, B is the identity of size `width`; a vector is a diagonal. A
    product costs what B costs and a copy, never the size of the matrix that is written down.
    """

    kind: ClassVar[str] = "block"

    base: Float[Array, "rows width"] | Float[Array, " width"] | None = tensor(optional=True)
    start: int = eqx.field(static=True)
    width: int = eqx.field(static=True)
    repeats: int = eqx.field(static=True, default=1)
    tiles: int = eqx.field(static=True, default=1)
    transposed: bool = eqx.field(static=True, default=False)

    def _check(self) -> None:
        for name in ("start", "width", "repeats", "tiles"):
            value, least = getattr(self, name), 0 if name == "start" else 1
            if not isinstance(value, int) or value < least:
                raise UnderhoodError(f"expected a whole number of {least} or more as a block's {name}", repr(value))

    @property
    def pattern(self) -> tuple[int, int, int]:
        return self.tiles, self.width if self.base is None else self.base.shape[0], self.repeats

    @property
    def rows(self) -> int:
        return self.width if self.transposed else math.prod(self.pattern)

    @property
    def stop(self) -> int:
        """The first column that it does not read."""
        return self.start + (math.prod(self.pattern) if self.transposed else self.width)

    def apply(self, x: Float[Array, "*t columns"]) -> Float[Array, "*t rows"]:
        x = jax.lax.slice_in_dim(x, self.start, self.stop, axis=-1)
        if self.transposed:
            return self._through(self._summed(x))
        x = self._through(x)
        spread = jnp.broadcast_to(x[..., None, :, None], (*x.shape[:-1], *self.pattern))
        return spread.reshape(*x.shape[:-1], self.rows)

    def _through(self, x: Float[Array, "*t columns"]) -> Float[Array, "*t rows"]:
        """B x, or Bᵀ x."""
        if self.base is None:
            return x
        if self.base.ndim == 1:
            return x * jax.lax.expand_dims(self.base, range(x.ndim - 1))
        return x @ (self.base if self.transposed else self.base.T)

    def _summed(self, x: Float[Array, "*t columns"]) -> Float[Array, "*t rows"]:
        """Over tiles, then over repeats. Few tiles may be copies that cancel, and in one sum XLA would round before."""
        tiles, *one = self.pattern
        if 1 < tiles <= MOST_COPIES:
            x, tiles = functools.reduce(operator.add, jnp.split(x, tiles, axis=-1)), 1
        return x.reshape(*x.shape[:-1], tiles, *one).sum(axis=(-3, -1))

    def dense(self) -> np.ndarray:
        base = np.eye(self.width) if self.base is None else np.asarray(self.base)
        matrix = np.tile(np.repeat(np.diag(base) if base.ndim == 1 else base, self.repeats, axis=0), (self.tiles, 1))
        return matrix.T if self.transposed else matrix


class SparseMatrix(Part):
    """Blocks above one another: all that the gatings of Figure 1 are, at O(d²) a product where dense takes O(d⁴)."""

    kind: ClassVar[str] = "sparse"

    blocks: tuple[Block, ...] = part("block")
    columns: int = eqx.field(static=True)

    @classmethod
    def zeros(cls, rows: int, columns: int) -> SparseMatrix:
        """One 0, as many times as there are rows."""
        return cls((Block(np.zeros((1, 1)), 0, 1, repeats=rows),), columns)

    def _check(self) -> None:
        if not self.blocks:
            raise UnderhoodError("expected one block or more in a sparse matrix", "none")
        for block in self.blocks:
            if block.stop > self.columns:
                raise UnderhoodError(f"expected blocks within the {self.columns} columns", f"up to {block.stop}")

    @property
    def shape(self) -> tuple[int, int]:
        return sum(block.rows for block in self.blocks), self.columns

    def apply(self, x: Float[Array, "*t columns"]) -> Float[Array, "*t rows"]:
        return jnp.concatenate([block.apply(x) for block in self.blocks], axis=-1)

    def dense(self) -> np.ndarray:
        if 8 * math.prod(self.shape) > MOST_DENSE:
            got = f"{self.shape[0]} × {self.shape[1]} entries"
            rule = f"expected a sparse matrix of at most {MOST_DENSE >> 20} MB when written out"
            raise UnderhoodError(rule, got, "Use a smaller form of the network.")
        matrix, row = np.zeros(self.shape), 0
        for block in self.blocks:
            matrix[row : row + block.rows, block.start : block.stop] = block.dense()
            row += block.rows
        return matrix


def densified(model: Any) -> Any:
    """The same model without sparse matrices."""

    def is_sparse(leaf: Any) -> bool:
        return isinstance(leaf, SparseMatrix)

    def plain(leaf: Any) -> Any:
        return as_weight(leaf.dense().astype(model.dtype)) if is_sparse(leaf) else leaf

    return jax.tree.map(plain, model, is_leaf=is_sparse)


class Linear(Part):
    """y = W x + b: the embedding and the readout of a stack."""

    kind: ClassVar[str] = "linear"

    weight: Matrix = tensor("rows columns", sparse=True)
    bias: Float[Array, " rows"] = tensor()

    @classmethod
    def random(cls, columns: int, rows: int, *, key: Array, dtype: DType = jnp.float32) -> Linear:
        """Normal weights of variance 1/columns (Flax's default for a dense layer) and no bias."""
        return cls(lecun_normal(key, (rows, columns), dtype), jnp.zeros(rows, dtype))

    def __call__(self, x: Float[Array, "*t columns"]) -> Float[Array, "*t rows"]:
        return apply(self.weight, x) + constant(jax.lax.expand_dims(self.bias, range(x.ndim - 1)))


def lecun_normal(key: Array, shape: tuple[int, ...], dtype: DType) -> Array:
    """Normal entries of variance 1/columns."""
    return normal(key, shape, dtype, scale=float(1 / np.asarray(np.sqrt(shape[-1]), dtype)))
