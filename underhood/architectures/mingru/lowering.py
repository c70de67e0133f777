"""Attention → minGRU in two layers, gated RNN → minGRU in three, in a limit; the candidate is linear.

With a small gate, z = σ(b ± ε f) ≈ σ(b)(1 ± ε f), a neuron adds up z h̃ and forgets nothing: a pair of neurons gives the
sum Σ_s f_s g_s of any two features. A product of this moment is such a sum, by Abel's summation by parts:

    A_t B_t = Σ_{s ≤ t} (ΔA_s B_s + A_{s-1} ΔB_s),     ΔA_s = A_s − A_{s-1}

The step in time is a layer's work, too: a neuron with the gate 1 − λ holds F_t = λ F_{t-1} + (1 − λ) A_t, for a small λ
nearly A_t, and ΔF = (A − F)(1 − λ)/λ, exactly.

    two layers      key-values S = Σ k v, x, and F of x;  Σ ΔF S, and Σ F_{s-1} k_s v_s, of which two factors are in the
                    gate, e^{ε(±f ± k)}, and one in the candidate
    three layers    sums P of the input gating;  P, and F of P for several λ, which give h with its decay and Δh;
                    both sums of Abel's

One layer cannot: what it keeps of the past does not change when the last two inputs are swapped (docs/theory.md).
"""

from __future__ import annotations

import itertools

import numpy as np

from underhood.architectures.gated_rnn.cell import GatedRNN
from underhood.architectures.mingru.cell import MinGRU
from underhood.architectures.stack.cell import Stack
from underhood.attention.linear import LinearAttention
from underhood.compiler.envelope import Envelope, Rounding, positive
from underhood.compiler.forms import rank_revealed
from underhood.compiler.linearise import Linearisation, best_scale, exponential
from underhood.compiler.lowered import Lowered
from underhood.compiler.products import GatedProducts, Products, copy_products, gated_products
from underhood.compiler.targets import register_target
from underhood.compiler.ways import to_gated_rnn
from underhood.core.errors import NotConstructible, UnderhoodError
from underhood.layers.linear import Linear

GATE = {np.dtype(np.float64): 2.0**-36, np.dtype(np.float32): 2.0**-20}  # z at rest of a neuron that sums
LAG = {np.dtype(np.float64): 2.0**-23, np.dtype(np.float32): 2.0**-9}  # λ of a neuron that is one step late
OPEN = 1000.0  # z = 1 exactly


def _logit(gate: np.ndarray | float) -> np.ndarray | np.floating:
    return np.log(gate) - np.log1p(-np.asarray(gate))


def _layer(*groups: tuple[np.ndarray, np.ndarray]) -> MinGRU:
    """Neurons by their rows of the candidate and of the gate."""
    return MinGRU(np.concatenate([np.concatenate(rows) for rows in zip(*groups, strict=True)]), None, "linear")


def _held(rows: np.ndarray, constant: np.ndarray, keep: np.ndarray | float) -> tuple[np.ndarray, np.ndarray]:
    """Neurons F = keep · F + (1 − keep) rows·x; with keep = 0 they hand on."""
    keep = np.broadcast_to(np.asarray(keep, np.float64), len(rows))
    bias = np.where(keep == 0, OPEN, _logit(1 - np.where(keep == 0, 0.5, keep)))
    return rows, np.multiply.outer(bias, constant)


def _sums(
    gates: np.ndarray, candidates: np.ndarray, constant: np.ndarray, rest: float, scheme: Linearisation
) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray]:
    """Neurons whose combination is Σ_s (gates·x_s)(candidates·x_s), for |gates·x| ≤ 1, and that combination."""
    count, copies = len(gates), scheme.copies
    rows = np.repeat(gates, copies, axis=0) * np.tile(scheme.nodes, count)[:, None] + _logit(rest) * constant
    return (np.repeat(candidates, copies, axis=0), rows), np.kron(np.eye(count), scheme.weights)


def _scheme(order: int, envelope: Envelope) -> tuple[Linearisation, float]:
    """Copies of a gate that sums, and what they may err by, relative to the sum of absolute values."""
    rest = GATE[envelope.dtype]

    def error(scheme: Linearisation, rounding: Rounding) -> float:
        rounding = rounding.around(float(_logit(rest)))
        return scheme.truncation + (rounding.summing + 2 * rounding.step) * rounding.grown(scheme)

    chosen = best_scale(lambda scale: exponential(order, scale, rest), lambda scheme: error(scheme, envelope.typical))
    return chosen, error(chosen, envelope.worst) + rest * envelope.horizon


def attention_to_mingru(source: LinearAttention, envelope: Envelope, order: int) -> Lowered:
    """Two layers: y_t = q_t·S_t = Σ Δq_s S_s + Σ q_{s-1} k_s v_s."""
    form, rest, lag = rank_revealed(source), GATE[envelope.dtype], LAG[envelope.dtype]
    if np.any(form.decay != 1):
        reason = "a gate that sums cannot decay, too"
        raise NotConstructible("mingru", layers=2, needs=3, reason=reason, source="docs/theory.md")
    d, products = form.d, form.products
    asked = form.asks @ form.queries
    keys, queries = positive(envelope.linear(form.keys)), positive(envelope.linear(asked))
    scheme, error = _scheme(order, envelope)
    one = np.eye(d + 1)[-1]
    plain = np.eye(d, d + 1)
    gates, values = (np.pad(rows, ((0, 0), (0, 1))) for rows in (form.keys / keys[:, None], form.values))
    pairs, combine = _sums(gates, values, one, rest, scheme)
    first = _layer(pairs, _held(plain, one, 0.0), _held(one[None], one, 0.0), _held(plain, one, lag))
    # What the second layer reads of the first.
    sums, now, constant, late = np.split(np.eye(first.hidden), np.cumsum([len(pairs[0]), d, 1]))
    memory, step = keys[:, None] * combine @ sums, (1 - lag) / lag * (now - late)
    asks = asked / queries[:, None]
    moving, moving_out = _sums(asks @ step / 2, memory, constant[0], rest, scheme)
    cubic, cubic_out, cubic_error = _cubic(
        asks @ (late - step), form.keys / keys[:, None] @ now, form.values @ now, constant[0], envelope
    )
    second = _layer(moving, cubic)
    columns = np.hstack([2 * moving_out, keys[:, None] * cubic_out]) * queries[:, None]
    model = _stack(d, (first, second), form.readout @ columns)
    bounds = np.abs(form.readout) @ (envelope.linear(form.values) * keys * queries) * envelope.horizon
    late_error = 2 * lag + 2 * envelope.horizon * envelope.roundoff / lag
    # Σ |Δq_s| |S_s| is at most T of the largest outputs, because S grows as s does.
    relative = (1 + envelope.horizon) * error + cubic_error + late_error + envelope.dot(products)
    return Lowered(model, relative, bounds)


def _cubic(
    one: np.ndarray, other: np.ndarray, candidates: np.ndarray, constant: np.ndarray, envelope: Envelope
) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray, float]:
    """Σ_s (one·x)(other·x)(candidates·x): sinh(ε f) sinh(ε g)/ε² out of e^{ε(±f ± g)}, and its error."""
    rest = GATE[envelope.dtype]

    def error(scale: float, rounding: Rounding) -> float:
        rounding = rounding.around(float(_logit(rest)))
        return scale**2 / 2 + (rounding.summing + 2 * rounding.step) / scale**2

    scale = min((2.0**-power for power in range(2, 30)), key=lambda scale: error(scale, envelope.typical))
    signs = np.array(list(itertools.product((1.0, -1.0), repeat=2)))
    rows = scale * (signs[:, :1, None] * one[None] + signs[:, 1:, None] * other[None]).transpose(1, 0, 2)
    gates = rows.reshape(-1, one.shape[1]) + _logit(rest) * constant
    weights = np.prod(signs, axis=1) / (4 * scale**2 * rest)
    out = np.kron(np.eye(len(one)), weights)
    return (np.repeat(candidates, 4, axis=0), gates), out, error(scale, envelope.worst)


def _stack(d: int, layers: tuple[MinGRU, ...], readout: np.ndarray) -> Stack:
    embedding = Linear(np.eye(d + 1, d), np.eye(d + 1)[-1])
    return Stack(embedding, layers, Linear(readout, np.zeros(len(readout))))


def to_mingru(source: GatedRNN, envelope: Envelope, order: int) -> Lowered:
    """Three layers: P = Σ (a·x̃)(b·x̃);  h and Δh of its decayed sums;  Σ Δ(c·h)(e·h) + Σ (c·h)_{s-1} Δ(e·h)."""
    whole, rest, lag = gated_products(source, envelope), GATE[envelope.dtype], LAG[envelope.dtype]
    lambda_, linear = whole.lambda_, whole.inputs.linear
    if np.any((lambda_ == 0) & ~linear):
        raise UnderhoodError("expected neurons that forget at once to be linear in x for minGRU", "one that is not")
    scheme, error = _scheme(order, envelope)
    d, hidden, one = whole.d, len(lambda_), np.eye(whole.d + 1)[-1]
    copies = copy_products(whole.inputs, scheme, resting_gate=rest)
    sums = (copies.values, copies.gates + _logit(rest) * one)
    first = _layer(sums, _held(np.eye(d + 1), one, 0.0))
    # Of each neuron: what it sums, or, where it forgets at once, what it hands on.
    summed, now = np.split(np.eye(first.hidden), [len(copies.owner)])
    at_once = (whole.inputs.constants[:, None] * whole.inputs.values) @ now
    drive = np.where((lambda_ == 0)[:, None], at_once, copies.combine @ summed)
    inner = np.where((lambda_ == 0) | (lambda_ == 1), 0.5, lambda_)
    constant = now[-1]
    second = _layer(
        _held(drive, constant, 0.0),
        _held(drive, constant, lag),
        _held(drive, constant, inner),
        _held(constant[None], constant, 0.0),
    )
    given, late, decayed, constant = np.split(np.eye(second.hidden), [hidden, 2 * hidden, 3 * hidden])
    between = ((lambda_ > 0) & (lambda_ < 1))[:, None]
    inner = inner[:, None]
    # F with λ = lag of h = (P − F_λ)/λ is a combination of the two F's of P: partial fractions.
    states = np.where(between, (1 - lag) / (inner - lag) * (late - decayed), late)
    moves = (1 - lag) / lag * (np.where(between, (given - decayed) / inner, given) - states)
    out = whole.outputs
    small, large = (rows / positive(bounds)[:, None] for rows, bounds in _sides(out))
    rising, rising_out = _sums(small @ moves / 2, large @ states, constant[0], rest, scheme)
    passed, passed_out = _sums(small @ (states - moves), large @ moves, constant[0], rest, scheme)
    third = _layer(rising, passed)
    sizes = positive(out.gate_bounds) * positive(out.value_bounds)
    readout = (whole.readout * sizes) @ np.hstack([2 * rising_out, passed_out])
    late_error = 4 * lag + 4 * envelope.horizon * envelope.roundoff / lag
    summed_error = (2 + _travel(whole, envelope)) * error
    # h = (P − F)/λ is a small difference of large sums: what they err by counts 1/λ times, and twice that was measured.
    amplified = np.where(between, 3 / np.minimum(inner, np.abs(inner - lag)), 1.0)[:, 0]
    relative = _amplified(whole, amplified) * (summed_error + late_error)
    relative += envelope.dot(hidden) + envelope.dot(len(sizes))
    return Lowered(_stack(d, (first, second, third), readout), relative, whole.output_bounds)


def _sides(products: Products) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    return (products.gates, products.gate_bounds), (products.values, products.value_bounds)


def _amplified(whole: GatedProducts, factors: np.ndarray) -> float:
    """By how much errors of the states grow that count `factors` times, each as far as its state makes a product."""
    sides = [np.abs(rows) @ (whole.state_bounds * factors) / positive(bounds) for rows, bounds in _sides(whole.outputs)]
    return float(np.max(sides, initial=1.0))


def _travel(whole: GatedProducts, envelope: Envelope) -> float:
    """Σ_s (|ΔA_s B_s| + |A_{s-1} ΔB_s|) over the largest A B, for the worst product: perfect memories only grow."""
    memory = whole.lambda_ == 1
    rows, bounds = np.abs(whole.outputs.values), positive(whole.outputs.value_bounds)
    mean = rows @ (whole.state_bounds * np.where(memory, 0.5, 1.0)) / bounds
    moves = rows @ (whole.state_bounds * np.where(memory, 1 / envelope.horizon, 2.0)) / bounds
    return envelope.horizon * float(np.max(2 * np.minimum(mean, 1) + np.minimum(moves, 2), initial=0.0))


def _through_gated(source: LinearAttention, envelope: Envelope, order: int) -> Lowered:
    return to_mingru(to_gated_rnn(rank_revealed(source)), envelope, order)


register_target(
    "mingru",
    attention={2: attention_to_mingru, 3: _through_gated},
    gated={3: to_mingru},
    tolerances={1: 1e-5},
    why_not_fewer="what one layer keeps of the past does not change when the last two inputs are swapped",
    source="docs/theory.md",
    paper=(None, None),
)
