"""h_t = a_t ⊙ h_{t-1} + b_t: a diagonal recurrence whose factors follow the input.

The core of Mamba, RG-LRU and minGRU. As in `scan.py`, a loop that is wholly unrolled is fastest at the paper's
length, the plain loop beyond it, and the associative scan on machines with the cores for it.
"""

from __future__ import annotations

import jax
from jaxtyping import Array, Float

from underhood.cells.scan import UNROLL, fastest_scan


def selective_scan(
    factors: Float[Array, t * n], inputs: Float[Array, t * n], state: Float[Array, "*n"], method: str | None = None
) -> Float[Array, t * n]:
    """The states h_1 … h_t from h_0 = `state`; the fastest way unless named."""
    method = method or fastest_scan(len(inputs))
    if method == "associative":
        return _associative(factors, inputs, state)

    def body(state: Array, current: tuple[Array, Array]) -> tuple[Array, Array]:
        state = current[0] * state + current[1]
        return state, state

    unroll = min(UNROLL, len(inputs)) if method == "unrolled" else 1
    return jax.lax.scan(body, state, (factors, inputs), unroll=unroll)[1]


def _associative(factors: Array, inputs: Array, state: Array) -> Array:
    """(a, b)·(a', b') = (a a', a' b + b') is associative: log t rounds instead of t steps."""

    def combine(earlier: tuple[Array, Array], later: tuple[Array, Array]) -> tuple[Array, Array]:
        return earlier[0] * later[0], later[0] * earlier[1] + later[1]

    return jax.lax.associative_scan(combine, (factors, inputs.at[0].add(factors[0] * state)))[1]
