"""What every construction of an LRU is made of: cells on the real axis, a stack around them, scales of the copies.

γ is 1, and λ real: B, C and D have no imaginary part.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from underhood.architectures.gated_rnn.cell import Gating, nu_of
from underhood.architectures.lru.cell import LRU, Form
from underhood.architectures.stack.cell import Stack
from underhood.compiler.envelope import Envelope, Rounding
from underhood.compiler.linearise import Linearisation, best_scale, centred
from underhood.layers.linear import Linear, Matrix, SparseMatrix

NO_PHASE = -1000.0  # θ = exp(−1000) = 0: the real axis


def layers_of(form: Form, *, b: Matrix, lambda_: np.ndarray, c: Matrix, into: Gating, out: Gating) -> list[LRU]:
    """One layer with both gatings; two of the usual LRU, where the GLU of the first is the input gating."""
    if form != "out":
        return [cell(form, b=b, lambda_=lambda_, c=c, out=out, into=into)]
    carry = np.eye(into.w_m.shape[1])
    first = cell("out", b=carry, lambda_=np.zeros(len(carry)), c=carry, out=into)
    return [first, cell("out", b=b, lambda_=lambda_, c=c, out=out)]


def cell(form: Form, *, b: Matrix, lambda_: np.ndarray, c: Matrix, out: Gating, into: Gating | None = None) -> LRU:
    n = len(lambda_)
    zeros = SparseMatrix.zeros if isinstance(b, SparseMatrix) else lambda *shape: np.zeros(shape)
    return LRU(
        nu_log=nu_of(np.asarray(lambda_, np.float64)),
        theta_log=np.full(n, NO_PHASE),
        gamma_log=np.zeros(n),
        b_real=b,
        b_imag=zeros(*b.shape),
        c_real=c,
        c_imag=zeros(*c.shape),
        skip=zeros(c.shape[0], b.shape[1]),
        output_gating=out,
        input_gating=into,
        form=form,
    )


def stack(d: int, cells: list[LRU], readout: Matrix) -> Stack:
    """The embedding appends the constant 1 that the networks of Eq. 2 read."""
    embedding = Linear(np.eye(d + 1, d), np.append(np.zeros(d), 1.0))
    return Stack(embedding, tuple(cells), Linear(readout, np.zeros(readout.shape[0])))


def input_error(scheme: Linearisation, rounding: Rounding) -> float:
    """Copies cancel before they are summed."""
    return rounding.step * rounding.grown(scheme) + rounding.summing


def output_error(scheme: Linearisation, rounding: Rounding) -> float:
    return rounding.step * rounding.grown(scheme)


def balanced(
    envelope: Envelope, order: int, error: Callable[[Linearisation, Rounding], float]
) -> tuple[Linearisation, float]:
    """The scale that balances truncation with typical rounding, and the worst rounding at that scale."""
    scheme = best_scale(
        lambda scale: centred(order, scale), lambda scheme: scheme.truncation + error(scheme, envelope.typical)
    )
    return scheme, error(scheme, envelope.worst)


def joint(before: Linearisation, after: Linearisation) -> float:
    """(1 + ρ)(1 + ρ') − 1: a product of two linearised branches."""
    return before.truncation + after.truncation + before.truncation * after.truncation
