"""Appendix A.1: gated RNN → LRU, In-Out in one layer, Out and In-Skip in two; attention → In-Skip in one.

The GLU σ(W_m x) ⊙ (W_x x) is a gating whose gate is linearised by copies; the linear map that follows it (B, or
the readout) combines them. λ is the source's, real; γ is set to 1.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from underhood.algebra.key_values import KeyValueForm
from underhood.cells import LRU, GatedRNN, Gating, Linear, Stack
from underhood.cells.gated_rnn import nu_of
from underhood.cells.lru import Form
from underhood.construct.envelope import Envelope, Rounding, positive
from underhood.construct.linearise import Linearisation, best_scale, centred
from underhood.construct.lowered import Lowered
from underhood.construct.products import Copies, Products, copy_products, gated_products
from underhood.construct.targets import register_target
from underhood.construct.ways import through_form, through_gated

NO_PHASE = -1000.0  # θ = exp(−1000) = 0: the real axis


def to_lru(source: GatedRNN, envelope: Envelope, order: int) -> Lowered:
    """Two layers: the GLU of the first is the input gating, that of the second the output gating."""
    return _lower(source, envelope, order, "out")


def to_lru_in_out(source: GatedRNN, envelope: Envelope, order: int) -> Lowered:
    """One layer: it has both gatings."""
    return _lower(source, envelope, order, "in-out")


def to_lru_in_skip(source: GatedRNN, envelope: Envelope, order: int) -> Lowered:
    """Two layers: the input gating of the second is the output gating; the gates that read x rest at ½."""
    return _lower(source, envelope, order, "in-skip")


def _lower(source: GatedRNN, envelope: Envelope, order: int, form: Form) -> Lowered:
    whole = gated_products(source, envelope)
    incoming, before, error_in = _input_copies(whole.inputs, envelope, order)
    outgoing, after, error_out = _output_copies(whole.outputs, envelope, order)
    n, m = len(whole.lambda_), len(whole.outputs.gates)
    glu_in, glu_out = Gating(incoming.gates, incoming.values), Gating(outgoing.gates, outgoing.values)
    scaling = 1.0
    if form == "in-out":
        cells = [_cell("in-out", b=incoming.combine, lambda_=whole.lambda_, c=np.eye(n), out=glu_out, into=glu_in)]
    elif form == "out":
        carry = np.eye(whole.d + 1)
        cells = [
            _cell("out", b=carry, lambda_=np.zeros(whole.d + 1), c=carry, out=glu_in),
            _cell("out", b=incoming.combine, lambda_=whole.lambda_, c=np.eye(n), out=glu_out),
        ]
    else:
        # Gates at rest give ½: the states arrive halved in the second layer, and the outputs halved once more.
        halves = Gating(2 * outgoing.gates, 2 * outgoing.values)
        rest = (np.zeros((n, whole.d + 1)), np.eye(n)), (np.zeros((m, n)), np.eye(m))
        cells = [
            _cell(
                "in-skip",
                b=incoming.combine,
                lambda_=whole.lambda_,
                c=np.eye(n),
                out=Gating(*rest[0]),
                into=glu_in,
            ),
            _cell(
                "in-skip",
                b=outgoing.combine,
                lambda_=np.zeros(m),
                c=np.eye(m),
                out=Gating(*rest[1]),
                into=halves,
            ),
        ]
        scaling = 2.0
    readout = scaling * (whole.readout if form == "in-skip" else whole.readout @ outgoing.combine)
    relative = _joint(before, after) + error_in + error_out + envelope.dot(n) + envelope.dot(m)
    return Lowered(_stack(whole.d, cells, readout), relative, whole.output_bounds)


def attention_to_lru_in_skip(form: KeyValueForm, envelope: Envelope, order: int) -> Lowered:
    """One layer: the gate that reads x makes the queries, and multiplies the key-values behind it."""
    constant = np.zeros((form.memory, 1))
    values, keys = np.hstack([form.values, constant]), np.hstack([form.keys, constant])
    asked = form.asks @ form.queries
    inputs = _plain_products(keys, values, envelope.linear(form.keys), envelope.linear(form.values))
    incoming, before, error_in = _input_copies(inputs, envelope, order)
    memory_bounds = inputs.bounds * envelope.steps(form.decay)
    read_bounds = np.abs(form.reads) @ memory_bounds
    outputs = _plain_products(
        np.hstack([asked, np.zeros((form.products, 1))]),
        np.eye(form.products),
        envelope.linear(asked),
        read_bounds,
    )
    outgoing, after, error_out = _output_copies(outputs, envelope, order)
    cell = _cell(
        "in-skip",
        b=incoming.combine,
        lambda_=form.decay,
        c=form.reads,
        out=Gating(outgoing.gates, outgoing.values),
        into=Gating(incoming.gates, incoming.values),
    )
    relative = _joint(before, after) + error_in + error_out + envelope.dot(form.memory) + envelope.dot(form.products)
    model = _stack(form.d, [cell], form.readout @ outgoing.combine)
    return Lowered(model, relative, np.abs(form.readout) @ outputs.bounds)


def _plain_products(
    gates: np.ndarray, values: np.ndarray, gate_bounds: np.ndarray, value_bounds: np.ndarray
) -> Products:
    none = np.zeros(len(gates))
    return Products(gates, values, positive(gate_bounds), value_bounds, none > 0, none)


def _input_copies(products: Products, envelope: Envelope, order: int) -> tuple[Copies, Linearisation, float]:
    """Copies cancel before they are summed."""

    def error(scheme: Linearisation, rounding: Rounding) -> float:
        return rounding.step * rounding.grown(scheme) + rounding.summing

    return _balanced(products, envelope, order, error)


def _output_copies(products: Products, envelope: Envelope, order: int) -> tuple[Copies, Linearisation, float]:
    def error(scheme: Linearisation, rounding: Rounding) -> float:
        return rounding.step * rounding.grown(scheme)

    return _balanced(products, envelope, order, error)


def _balanced(
    products: Products, envelope: Envelope, order: int, error: Callable[[Linearisation, Rounding], float]
) -> tuple[Copies, Linearisation, float]:
    """Copies at the scale that balances truncation with typical rounding, and the worst rounding at that scale."""
    scheme = best_scale(
        lambda scale: centred(order, scale), lambda scheme: scheme.truncation + error(scheme, envelope.typical)
    )
    return copy_products(products, scheme), scheme, error(scheme, envelope.worst)


def _joint(before: Linearisation, after: Linearisation) -> float:
    """(1 + ρ)(1 + ρ') − 1: a product of two linearised branches."""
    return before.truncation + after.truncation + before.truncation * after.truncation


def _cell(
    form: Form, *, b: np.ndarray, lambda_: np.ndarray, c: np.ndarray, out: Gating, into: Gating | None = None
) -> LRU:
    n = len(lambda_)
    return LRU(
        nu_log=nu_of(np.asarray(lambda_, np.float64)),
        theta_log=np.full(n, NO_PHASE),
        gamma_log=np.zeros(n),
        b_real=b,
        b_imag=np.zeros_like(b),
        c_real=c,
        c_imag=np.zeros_like(c),
        skip=np.zeros((len(c), b.shape[1])),
        output_gating=out,
        input_gating=into,
        form=form,
    )


def _stack(d: int, cells: list[LRU], readout: np.ndarray) -> Stack:
    """The embedding appends the constant 1 that the networks of Eq. 2 read."""
    embedding = Linear(np.eye(d + 1, d), np.append(np.zeros(d), 1.0))
    return Stack(embedding, tuple(cells), Linear(readout, np.zeros(len(readout))))


register_target(
    "lru",
    attention={2: through_gated(to_lru)},
    gated={2: to_lru},
    why_not_fewer="one layer has output gating only, and key-values need gating before the recurrence",
    paper=(2, 2),
)
register_target("lru-in-out", attention={1: through_gated(to_lru_in_out)}, gated={1: to_lru_in_out})
register_target(
    "lru-in-skip",
    attention={1: through_form(attention_to_lru_in_skip), 2: through_gated(to_lru_in_skip)},
    gated={2: to_lru_in_skip},
    why_not_fewer="the m branch of the output gating reads x, so two states cannot be multiplied in one layer",
    paper=(2, 1),
)
