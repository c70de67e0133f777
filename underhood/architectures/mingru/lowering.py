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

from underhood.algebra.key_values import KeyValueForm
from underhood.architectures.gated_rnn.cell import GatedRNN
from underhood.architectures.mingru.cell import MinGRU
from underhood.architectures.stack.cell import Stack
from underhood.attention.linear import LinearAttention
from underhood.compiler.decays import logit
from underhood.compiler.envelope import Envelope, Typical, positive
from underhood.compiler.forms import rank_revealed
from underhood.compiler.linearise import Linearisation, best_scale, exponential
from underhood.compiler.products import GatedProducts, Products, copy_products, gated_products
from underhood.compiler.rounding import ELEMENTARY, WEIGHT, Arithmetic
from underhood.compiler.targets import Lowered, Way, register_target
from underhood.core.errors import NotConstructible, UnderhoodError
from underhood.layers.linear import Linear

GATE = {np.dtype(np.float64): 2.0**-36, np.dtype(np.float32): 2.0**-20}  # z at rest of a neuron that sums
LAG = {np.dtype(np.float64): 2.0**-23, np.dtype(np.float32): 2.0**-9}  # λ of a neuron that is one step late
OPEN = 1000.0  # z = 1 exactly
KEEP = 5.0  # units that a step of h ← (1 − z) h + p rounds where z is small: 1/(1 + e^g) a sum and a quotient, and h
NO_DECAY = "a gate that sums cannot decay, too"


def _layer(*groups: tuple[np.ndarray, np.ndarray]) -> MinGRU:
    """Neurons by their rows of the candidate and of the gate."""
    return MinGRU(np.concatenate([np.concatenate(rows) for rows in zip(*groups, strict=True)]), None, "linear")


def _held(rows: np.ndarray, constant: np.ndarray, keep: np.ndarray | float) -> tuple[np.ndarray, np.ndarray]:
    """Neurons F = keep · F + (1 − keep) rows·x; with keep = 0 they hand on."""
    keep = np.broadcast_to(np.asarray(keep, np.float64), len(rows))
    bias = np.where(keep == 0, OPEN, logit(1 - np.where(keep == 0, 0.5, keep)))
    return rows, np.multiply.outer(bias, constant)


def _sums(
    gates: np.ndarray, candidates: np.ndarray, constant: np.ndarray, rest: float, scheme: Linearisation
) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray]:
    """Neurons whose combination is Σ_s (gates·x_s)(candidates·x_s), for |gates·x| ≤ 1, and that combination."""
    count, copies = len(gates), scheme.copies
    rows = np.repeat(gates, copies, axis=0) * np.tile(scheme.nodes, count)[:, None] + logit(rest) * constant
    return (np.repeat(candidates, copies, axis=0), rows), np.kron(np.eye(count), scheme.weights)


def _scheme(order: int, envelope: Envelope) -> Linearisation:
    """Copies of a gate that sums."""
    rest = GATE[envelope.dtype]

    def error(scheme: Linearisation, rounding: Typical) -> float:
        rounding = rounding.around(float(logit(rest)))
        return scheme.truncation + (rounding.summing + 2 * rounding.step) * scheme.noise

    return best_scale(lambda scale: exponential(order, scale, rest), lambda scheme: error(scheme, envelope.typical))


def _opening(arithmetic: Arithmetic, terms: int) -> float:
    """Relative error of σ(b + u) h̃ where σ is small: that of its argument, of σ, and of a product."""
    bias = abs(float(logit(GATE[arithmetic.envelope.dtype])))
    return float(arithmetic.gamma(terms + WEIGHT)) * (bias + 1) + (ELEMENTARY + 2) * arithmetic.unit


def _keeping(arithmetic: Arithmetic) -> float:
    """Of a sum over the horizon, against all of its terms at their largest: u Σ s."""
    return float(arithmetic.gamma(KEEP * (arithmetic.envelope.horizon + 1) / 2))


def _gain(scheme: Linearisation, rest: float) -> float:
    """By how much relative errors of the gate's argument grow."""
    return float(np.abs(scheme.nodes) @ np.abs(scheme.weights)) * rest * np.exp(scheme.order * scheme.scale)


def _refuses(source: LinearAttention) -> str | None:
    return None if source.decay is None or np.all(np.asarray(source.decay) == 1) else NO_DECAY


def attention_to_mingru(form: KeyValueForm, envelope: Envelope, order: int) -> Lowered:
    """Two layers: y_t = q_t·S_t = Σ Δq_s S_s + Σ q_{s-1} k_s v_s."""
    rest, lag = GATE[envelope.dtype], LAG[envelope.dtype]
    if np.any(form.decay != 1):
        raise NotConstructible("mingru", layers=2, needs=3, reason=NO_DECAY, source="docs/theory.md")
    d, scheme = form.d, _scheme(order, envelope)
    asked = form.asks @ form.queries
    keys, queries = positive(envelope.linear(form.keys)), positive(envelope.linear(asked))
    fixed, plain = np.eye(d + 1)[-1], np.eye(d, d + 1)
    gates, values = (np.pad(rows, ((0, 0), (0, 1))) for rows in (form.keys / keys[:, None], form.values))
    pairs, combine = _sums(gates, values, fixed, rest, scheme)
    first = _layer(pairs, _held(plain, fixed, 0.0), _held(fixed[None], fixed, 0.0), _held(plain, fixed, lag))
    # What the second layer reads of the first.
    sums, now, constant, late = np.split(np.eye(first.hidden), np.cumsum([len(pairs[0]), d, 1]))
    memory, step = keys[:, None] * combine @ sums, (1 - lag) / lag * (now - late)
    asks = asked / queries[:, None]
    moving, moving_out = _sums(asks @ step / 2, memory, constant[0], rest, scheme)
    scale = _cubic_scale(envelope, d)
    cubic, cubic_out = _cubic(
        asks @ (late - step), form.keys / keys[:, None] @ now, form.values @ now, constant[0], scale, rest
    )
    second = _layer(moving, cubic)
    columns = np.hstack([2 * moving_out, keys[:, None] * cubic_out]) * queries[:, None]
    model = _stack(d, (first, second), form.readout @ columns)
    per_step = np.abs(form.readout) @ (envelope.linear(form.values) * keys * queries)
    terms = int(np.max(np.count_nonzero(form.readout @ columns, axis=1), initial=1))
    relative = _attention_error(Arithmetic(envelope), scheme, scale, d, terms)
    bounds = per_step * envelope.horizon
    underflow = 64 * Arithmetic(envelope).least * (d + 1) / (rest * scale**2 * scheme.scale**2) * envelope.horizon
    lost = underflow * (np.abs(form.readout) @ (keys * queries + queries + 1))
    return Lowered(model, relative * bounds + lost, bounds)


def _attention_error(arithmetic: Arithmetic, scheme: Linearisation, scale: float, d: int, terms: int) -> float:
    """Against the largest Σ_s |v_s k_s q_t|, part by part; S grows as s does, so that Σ |Δq_s| |S_s| is up to T of it.

    moving   T + 1 times what a sum of products errs by, and T times what a row that reads S rounds. What is wrong with
             S adds up in steps e_s, and Σ Δq_s e_s = q_T e_T − Σ q_{s-1} Δe_s is twice that. T/2 times what Δq errs by,
             a difference over λ
    cubic    the same of a mixed difference, which amplifies by 1/ε²
    late     |F − x| ≤ 2 λ r
    """
    envelope = arithmetic.envelope
    steps, rest, lag = float(envelope.horizon), GATE[envelope.dtype], LAG[envelope.dtype]
    limit, gain = scheme.leaking(rest, steps / 2).truncation, _gain(scheme, rest)
    keeping, grown = _keeping(arithmetic), scheme.amplification
    adding = float(arithmetic.gamma(terms + WEIGHT))
    states = limit + grown * (_opening(arithmetic, d + 1) + keeping)
    states += float(arithmetic.gamma(d + WEIGHT)) + 2 * arithmetic.cast
    row = grown * float(arithmetic.gamma(scheme.copies + WEIGHT))
    # x − F, of 1/λ: rows of it are products of matrices over x and F, and F itself takes a step of rounding.
    difference = (2 * float(arithmetic.gamma(2 * d + WEIGHT)) + (ELEMENTARY + 4) * arithmetic.unit) / lag
    moving = (steps + 1) * (limit + grown * (_opening(arithmetic, 1) + keeping + adding))
    moving += 2 * states + steps * row + (steps / 2 + 1) * gain * (difference + arithmetic.cast)
    mixed = np.exp(2 * scale) / scale**2
    cubic = scale**2 / 2 + 4 * rest / scale + 16 * steps * rest * np.exp(4 * scale)
    cubic += mixed * (_opening(arithmetic, 1) + keeping + adding + scale * (difference + arithmetic.gamma(d + WEIGHT)))
    cubic += difference + 3 * arithmetic.cast + float(arithmetic.gamma(d + WEIGHT))
    return float(np.expm1(moving + cubic + 2 * lag))


def _cubic_scale(envelope: Envelope, d: int) -> float:
    """ε that balances its square with typical rounding, by 1/ε², and that of rows over x and F, 2 d terms, by 1/λε."""
    rounding = envelope.typical.around(float(logit(GATE[envelope.dtype])))
    late = np.sqrt(2 * d) * rounding.unit / LAG[envelope.dtype]

    def error(scale: float) -> float:
        return scale**2 / 2 + (rounding.summing + 2 * rounding.step) / scale**2 + late / scale

    return min((2.0**-power for power in range(2, 30)), key=error)


def _cubic(
    first: np.ndarray, other: np.ndarray, candidates: np.ndarray, constant: np.ndarray, scale: float, rest: float
) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray]:
    """Σ_s (first·x)(other·x)(candidates·x): sinh(ε f) sinh(ε g)/ε² out of e^{ε(±f ± g)}."""
    signs = np.array(list(itertools.product((1.0, -1.0), repeat=2)))
    rows = scale * (signs[:, :1, None] * first[None] + signs[:, 1:, None] * other[None]).transpose(1, 0, 2)
    gates = rows.reshape(-1, first.shape[1]) + logit(rest) * constant
    weights = np.prod(signs, axis=1) / (4 * scale**2 * rest)
    return (np.repeat(candidates, 4, axis=0), gates), np.kron(np.eye(len(first)), weights)


def _stack(d: int, layers: tuple[MinGRU, ...], readout: np.ndarray) -> Stack:
    embedding = Linear(np.eye(d + 1, d), np.eye(d + 1)[-1])
    return Stack(embedding, layers, Linear(readout, np.zeros(len(readout))))


def to_mingru(source: GatedRNN, envelope: Envelope, order: int) -> Lowered:
    """Three layers: P = Σ (a·x̃)(b·x̃);  h and Δh of its decayed sums;  Σ Δ(c·h)(e·h) + Σ (c·h)_{s-1} Δ(e·h)."""
    whole, rest, lag = gated_products(source, envelope), GATE[envelope.dtype], LAG[envelope.dtype]
    lambda_, linear = whole.lambda_, whole.inputs.linear
    if np.any((lambda_ == 0) & ~linear):
        raise UnderhoodError("expected neurons that forget at once to be linear in x for minGRU", "one that is not")
    scheme = _scheme(order, envelope)
    d, hidden, fixed = whole.d, len(lambda_), np.eye(whole.d + 1)[-1]
    copies = copy_products(whole.inputs, scheme, resting_gate=rest)
    sums = (copies.values, copies.gates + logit(rest) * fixed)
    first = _layer(sums, _held(np.eye(d + 1), fixed, 0.0))
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
    relative = _gated_error(whole, Arithmetic(envelope), scheme, int(np.max(np.count_nonzero(readout, axis=1))))
    return Lowered(_stack(d, (first, second, third), readout), relative * whole.output_bounds, whole.output_bounds)


def _gated_error(whole: GatedProducts, arithmetic: Arithmetic, scheme: Linearisation, terms: int) -> float:
    """Against the largest products of two states, part by part.

    P = Σ p, up to T of the largest p, errs by a part of each p, by what each step rounds of the sum, and by what a row
    that reads its copies rounds. h = (P − F)/λ is a difference of such sums: λ^s-weighted errors of the steps, and
    1/min(λ, |λ − λ₀|) times those of rows. Its moves Δh are differences over λ₀: 1/λ₀ times what rows and F round.
    """
    envelope, lambda_ = arithmetic.envelope, whole.lambda_
    rest, lag, unit = GATE[envelope.dtype], LAG[envelope.dtype], arithmetic.unit
    horizon, steps = float(envelope.horizon), envelope.steps(lambda_)
    limit, grown = scheme.leaking(rest, horizon / 2).truncation, scheme.amplification
    part = limit + grown * _opening(arithmetic, whole.d + 1) + 3 * arithmetic.cast
    part += float(arithmetic.gamma(whole.d + WEIGHT))
    between = (lambda_ > 0) & (lambda_ < 1)
    largest = whole.inputs.bounds * np.where(lambda_ == 0, 1.0, horizon)  # of P
    near = np.where(between, np.minimum(np.abs(lambda_), np.abs(lambda_ - lag)), 1.0)
    step = np.where(lambda_ == 0, 0.0, KEEP * unit * grown)
    row = np.where(lambda_ == 0, 1.0, grown) * float(arithmetic.gamma(scheme.copies + WEIGHT))
    held = (ELEMENTARY + 4) * unit * (1 + np.where(between, steps, 1.0))  # F, and those of λ
    local = float(arithmetic.gamma(8)) + held
    wrong = part * whole.state_bounds + step * largest * steps + (2 * row + local) * largest / near
    wrong = wrong + np.where(between, arithmetic.decaying(lambda_), 0.0) * whole.state_bounds
    moved = np.where(lambda_ == 1, 1 / horizon, 2.0) * whole.state_bounds
    moving = part * moved + (2 * step + 4 * row + local / lag) * largest * 2 / near
    sides = [
        tuple(np.abs(rows) @ size / positive(bounds) for size in (wrong, moving))
        for rows, bounds in _sides(whole.outputs)
    ]
    travel, gain = _travel(whole, envelope), _gain(scheme, rest)
    states, moves = (np.max(sides[0][i] + sides[1][i], initial=0.0) for i in range(2))
    summed = limit + grown * (_opening(arithmetic, 1) + _keeping(arithmetic) + float(arithmetic.gamma(terms + WEIGHT)))
    late = 4 * lag * _amplified(whole, np.where(between, 1 / near, 1.0))
    total = gain * (horizon * moves + travel * states) + (2 + travel) * summed + late
    return float(np.expm1(total))


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


register_target(
    "mingru",
    attention={
        2: Way(attention_to_mingru, rank_revealed, refuses=_refuses),
        3: Way(to_mingru, rank_revealed, gated=True),
    },
    gated={3: Way(to_mingru)},
    tolerances={1: 1e-5},
    why_not_fewer="what one layer keeps of the past does not change when the last two inputs are swapped",
    source="docs/theory.md",
    paper=(None, None),
)
