"""Associative recall: … k_1 v_1 … k_4 v_4 … k_i → v_i, with silence between the pairs.

A token is a row of a table of N(0, 1) numbers that does not change; the network gives a score for each token, and the
loss is the cross-entropy −log softmax(scores)[v_i] in nats. What a network knows shows in it: log(V/2) is that the
answer is a value, log(pairs) that it is one of those shown, and 0 which.
"""

from __future__ import annotations

import math
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Scalar

from underhood.core.arrays import DType
from underhood.core.errors import UnderhoodError
from underhood.core.memory import require_memory
from underhood.training.tasks.task import TASKS, AbstractTask, Batch, SecondOrder

SILENCE = 0  # the token; keys follow it, and the upper half of the vocabulary are values


class AssociativeRecall(AbstractTask):
    """`pairs` of a key and a value at random places, then one of the keys, at the last of `length` tokens."""

    name: ClassVar[str] = "associative-recall"
    last_only: ClassVar[bool] = True
    width: ClassVar[int] = 64
    second_order: ClassVar[SecondOrder | None] = None  # which solves for a sum of squares

    vocabulary: int = 256
    length: int = 64
    pairs: int = 4
    embedding: int = 32

    def __check_init__(self) -> None:
        least = {"pairs": 1, "embedding": 1, "vocabulary": 2 * self.pairs + 2, "length": 2 * self.pairs + 1}
        for name, size in least.items():
            if getattr(self, name) < size:
                raise UnderhoodError(f"expected {name} of {size} or more", getattr(self, name))

    @property
    def d(self) -> int:
        return self.embedding

    @property
    def d_out(self) -> int:
        return self.vocabulary

    @property
    def steps(self) -> int:
        return self.length

    def tokens(self, key: Array, size: int) -> tuple[Array, Array]:
        """Token numbers (size, length), and the answers (size,)."""
        for_keys, for_values, for_places, for_query = jax.random.split(key, 4)
        first_value, places = self.vocabulary // 2, (self.length - 1) // 2
        keys = 1 + _distinct(for_keys, size, first_value - 1, self.pairs)
        values = jax.random.randint(for_values, keys.shape, first_value, self.vocabulary)
        at = 2 * _distinct(for_places, size, places, self.pairs)
        asked, row = jax.random.randint(for_query, (size,), 0, self.pairs), jnp.arange(size)
        tokens = jnp.full((size, self.length), SILENCE)
        tokens = tokens.at[row[:, None], at].set(keys).at[row[:, None], at + 1].set(values)
        return tokens.at[:, -1].set(keys[row, asked]), values[row, asked]

    def batch(self, key: Array, size: int, *, validation: bool = False, dtype: DType = jnp.float32) -> Batch:
        """Training and validation sequences have one distribution here."""
        require_memory(8 * self.vocabulary * self.embedding, f"a table of {self.vocabulary} tokens")
        tokens, answers = self.tokens(key, size)
        table = np.random.default_rng(0).standard_normal((self.vocabulary, self.embedding))
        return jnp.asarray(table, dtype)[tokens], jax.nn.one_hot(answers, self.vocabulary, dtype=dtype)

    def loss(self, outputs: Float[Array, "b v"], wanted: Float[Array, "b v"]) -> Scalar:
        return -jnp.mean(jnp.sum(wanted * jax.nn.log_softmax(outputs), axis=-1))

    def ladder(self) -> dict[str, float]:
        """What it costs to know nothing, what a value is, and which values were shown."""
        known = {"a token": self.vocabulary, "a value": self.vocabulary - self.vocabulary // 2, "one shown": self.pairs}
        return {what: math.log(count) for what, count in known.items()}


def _distinct(key: Array, size: int, of: int, count: int) -> Array:
    """`count` different numbers below `of`, for each of `size` sequences."""
    return jax.lax.top_k(jax.random.uniform(key, (size, of)), count)[1]


TASKS.register(AssociativeRecall.name)(AssociativeRecall)
