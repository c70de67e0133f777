"""Batched forward passes for training, each with its own backward pass where that is faster.

Models are written for one sequence; `jax.vmap(model)` is the reference. A kernel here computes the same for a
whole batch in the layout that matrix products like, and must match the reference in value and gradient
(tests/fit/test_kernels.py runs over this registry).
"""

from underhood.fit.kernels import gated_rnn, gru, lru, lstm, stack
from underhood.fit.kernels.dispatch import KERNELS, forward, parts_of, reference

__all__ = ["KERNELS", "forward", "gated_rnn", "gru", "lru", "lstm", "parts_of", "reference", "stack"]
