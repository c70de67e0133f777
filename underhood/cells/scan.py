"""h_t = λ ⊙ h_{t-1} + u_t, three ways, and the choice among them by length.

All give the same values up to rounding. Measured on two cores (benchmarks/scans.py, n = 100, batch 64):
at t = 32 the unrolled loop is fastest, forward and backward; the associative scan does log t times the work,
which two cores do not win back at any length, and is there for machines that can.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Inexact

from underhood.registry import Registry

Kernel = Callable[
    [Inexact[Array, " n"], Inexact[Array, "t n"], Inexact[Array, " n"]],
    Inexact[Array, "t n"],
]
SCANS: Registry[Kernel] = Registry("scan")

UNROLL = 32  # the paper's sequence length: one block, so the loop disappears


def diagonal_scan(
    lambda_: Inexact[Array, " n"],
    inputs: Inexact[Array, "t n"],
    state: Inexact[Array, " n"],
    method: str | None = None,
) -> Inexact[Array, "t n"]:
    """The states h_1 … h_t of h_t = λ ⊙ h_{t-1} + u_t, from h_0 = `state`; `method` by length unless named."""
    return SCANS[method or fastest_scan(len(inputs))](lambda_, inputs, state)


def fastest_scan(length: int) -> str:
    """What was fastest at this length, without a look at the hardware beyond its kind."""
    on_cpu = jax.default_backend() == "cpu"
    return "unrolled" if on_cpu or length <= UNROLL else "associative"


@SCANS.register("sequential")
def sequential(lambda_, inputs, state):
    """Step by step: the reference."""
    return _loop(lambda_, inputs, state, unroll=1)


@SCANS.register("unrolled")
def unrolled(lambda_, inputs, state):
    """Step by step in blocks of `UNROLL` steps that the compiler fuses."""
    return _loop(lambda_, inputs, state, unroll=min(UNROLL, len(inputs)))


@SCANS.register("associative")
def associative(lambda_, inputs, state):
    """(a, u)·(a', u') = (a a', a' u + u') is associative: log t rounds instead of t steps."""
    inputs = inputs.at[0].add(lambda_ * state)
    factors = jnp.broadcast_to(lambda_[None], inputs.shape)

    def combine(earlier, later):
        return earlier[0] * later[0], later[0] * earlier[1] + later[1]

    return jax.lax.associative_scan(combine, (factors, inputs))[1]


def _loop(lambda_, inputs, state, unroll: int):
    def body(state, current):
        state = lambda_ * state + current
        return state, state

    return jax.lax.scan(body, state, inputs, unroll=unroll)[1]
