"""`uh.compile(softmax, to=…)`: kernel → stages → cast → measure; and the polynomial attention on the way.

    uh.polynomial_attention(softmax, input_bound=1, tolerance=1e-3)     the kernel as linear attention with features
    uh.compile(softmax, to="gla", input_bound=1, tolerance=1e-3)        gated layers and one memory that divides

The tolerance is for averages: |ŷ − y| over the largest output possible. The degree is the lowest that it allows.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from underhood.attention.features import FeatureAttention, PolynomialFeatures, multinomial
from underhood.attention.polynomials import certified_range
from underhood.attention.softmax import AbstractAttention, SoftmaxAttention
from underhood.compiler.averages import DIVIDERS, Averages, Divider, lower_average
from underhood.compiler.envelope import Envelope
from underhood.compiler.kernels import BEYOND, NO_SCORE, Kernel, TooMany, score_bound, softmax_kernels
from underhood.core.arrays import require_finite
from underhood.core.errors import NotConstructible, UnderhoodError
from underhood.core.memory import readable
from underhood.core.model import as_dtype

SOURCE = "docs/softmax.md"
TOLERANCE = {np.dtype(np.float64): 1e-3, np.dtype(np.float32): 1e-2}
SLACK = 10  # rounding may take the bound so far beyond the tolerance
MOST_BYTES = 2**30  # of weights
LONGEST_PROBE = 1000  # steps: all pairs of them are run in extended precision
SHORT, SHORT_STEPS = 128, 8  # further probes: averages of few steps err most
SEARCHES = 8  # halvings on the way to the largest input_bound that fits
COARSER = (10, 100, 1000)  # tolerances that are tried for a remedy, times the one asked for
SAME_WEIGHT = 1e-9  # of two weights that a polynomial of q·k would make equal

# Targets that no number of layers lets divide, and why.
POLYNOMIAL = (
    "its outputs are polynomials of the inputs, of a degree that its layers fix, and an average of values with weights "
    "that depend on the inputs is none, nor a limit of such polynomials"
)
CANNOT = dict.fromkeys(
    ("gated-rnn", "gated-rnn-compact", "gated-rnn-minimal", "lru", "lru-in-out", "lru-in-skip"), POLYNOMIAL
)


@dataclasses.dataclass(frozen=True)
class PolynomialAttention:
    """|ŷ − y| ≤ `error_bound` for every input within `input_bound` and sequences of any length, in exact arithmetic.

    **Attributes:**

    - `attention`: Linear attention with polynomial features, a `FeatureAttention`.
    - `features`: Number of features of the head with most.
    - `degree`: Degree of its polynomial.
    - `score_bound`: Largest |q·k| that the inputs can reach.
    - `epsilon`: Largest |κ/e^{q·k} − 1| of the kernel κ.
    - `error_bound`: Bound on |ŷ − y|.
    - `input_bound`: Inputs are within ± this.
    """

    attention: FeatureAttention
    features: int
    degree: int
    score_bound: float
    epsilon: float
    error_bound: float
    input_bound: float


def polynomial_attention(
    attention: SoftmaxAttention,
    *,
    input_bound: float | int = 4.0,
    tolerance: float = 1e-3,
    degree: int | None = None,
) -> PolynomialAttention:
    """Softmax attention with a polynomial kernel in place of e^{q·k}: a state of fixed size.

    **Arguments:**

    - `attention`: a `SoftmaxAttention` without a window.
    - `input_bound`: the inputs are within ± this.
    - `tolerance`: how far averages may move, over the largest value.
    - `degree`: of the polynomial; the lowest that the tolerance allows unless given.

    **Returns:**

    A `PolynomialAttention`: the model, and the bound.
    """
    if not isinstance(attention, SoftmaxAttention):
        raise UnderhoodError("expected a softmax attention", getattr(attention, "kind", type(attention).__name__))
    require_settings(attention, input_bound, tolerance)
    averages = _fitting(attention, float(input_bound), tolerance, lambda features: None, degree)
    return PolynomialAttention(
        averages.attention,
        averages.features,
        averages.degree,
        max(kernel.score_bound for kernel in averages.kernels),
        max(kernel.error for kernel in averages.kernels),
        float(np.max(averages.errors(input_bound))),
        float(input_bound),
    )


def require_settings(source: Any, input_bound: float | int, tolerance: float | None) -> None:
    """Bounds and weights that something can be promised for."""
    if not (np.isfinite(input_bound) and input_bound > 0):
        raise UnderhoodError("expected an input_bound above 0 and below infinity", input_bound)
    if tolerance is not None and not 0 < tolerance < np.inf:
        raise UnderhoodError("expected a tolerance above 0 and below infinity", tolerance)
    for path, leaf in jax.tree_util.tree_leaves_with_path(source):
        require_finite(jax.tree_util.keystr(path, simple=True, separator="."), leaf)


class CompiledAverage(NamedTuple):
    """A network, its layers, and the evidence, by the names of `CompileEvidence`."""

    model: Any
    layers: int
    evidence: dict[str, Any]


def compile_average(
    source: AbstractAttention, to: str, layers: int | None, envelope: Envelope, tolerance: float | None
) -> CompiledAverage:
    """Normalised attention as a network whose memory divides."""
    divider = _divider(to, layers)
    tolerance = TOLERANCE[envelope.dtype] if tolerance is None else tolerance
    require_settings(source, envelope.input_bound, tolerance)

    def too_large(features: int) -> str | None:
        size, d_value = _bytes(divider, source, features), source.d_out
        if size <= MOST_BYTES:
            return None
        numbers = divider.numbers(source.heads, features, d_value)
        return f"{features:,} features in each head, a state of {numbers:,} numbers and {readable(size)} of weights"

    averages = _fitting(source, envelope.input_bound, tolerance, too_large)
    needs = 1 + math.ceil((max(averages.degree, 1) - 1).bit_length() / 2)
    if layers not in (None, needs):
        reason = f"a gated layer makes products of four, degree {averages.degree} takes {needs - 1}, and one averages"
        raise NotConstructible(to, layers=layers, needs=needs, reason=reason, source=SOURCE)
    lowered = lower_average(divider, averages, envelope)
    if not lowered.relative_bound <= SLACK * tolerance:
        rule = f"expected an error bound within {SLACK} × the tolerance {tolerance:g} from {to}"
        got = f"{lowered.relative_bound:.2g} in {envelope.dtype} at horizon {envelope.horizon}"
        raise UnderhoodError(rule, got, "Use `dtype='float64'`, a shorter horizon, or a larger tolerance.")
    model = as_dtype(lowered.model, envelope.dtype)
    measured, largest, steps, probes = _measured(source, model, envelope)
    if not measured <= lowered.error_bound:
        rule = f"expected errors within the bound {lowered.error_bound:.3g} that was derived for {to}"
        raise UnderhoodError(rule, f"{measured:.3g}", "This is a defect of underhood: please report it.")
    evidence = {
        "max_abs_error": measured,
        "max_rel_error": measured / largest if largest > 0 else 0.0,
        "error_bound": lowered.error_bound,
        "tolerance": tolerance,
        "measured_steps": steps,
        "probes": probes,
    }
    return CompiledAverage(model, needs, evidence)


def _divider(to: str, layers: int | None) -> Divider:
    if to in CANNOT:
        raise NotConstructible(to, layers=layers or 1, needs=None, reason=CANNOT[to], source=SOURCE)
    if to not in DIVIDERS:
        known = ", ".join(f"'{name}'" for name in DIVIDERS)
        raise UnderhoodError(f"no construction of {to} from normalised attention", remedy=f"Use `to` of {known}.")
    return DIVIDERS[to]


def _bytes(divider: Divider, source: AbstractAttention, features: int) -> int:
    """Of the weights, about: three matrices of all signals, and what the state is made with."""
    signals = source.heads * (2 * features + source.d_out) + 1
    return 8 * (3 * signals * signals + 5 * divider.numbers(source.heads, features, source.d_out))


def _fitting(
    source: AbstractAttention,
    input_bound: float,
    tolerance: float,
    too_large: Callable[[int], str | None],
    degree: int | None = None,
) -> Averages:
    """The source with polynomial kernels; where they are too large, a refusal that names what fits."""
    if isinstance(source, FeatureAttention):
        averages, problem = _polynomial_averages(source, input_bound), None
    else:
        averages, problem = _softmax_averages(source, input_bound, tolerance, degree)
    if averages is not None:
        problem = too_large(averages.features)
        if problem is None:
            return averages
        reached = max(kernel.score_bound for kernel in averages.kernels)
        problem = f"{problem}, for degree {averages.degree} and scores up to {reached:.3g}"

    def fits(bound: float, tolerance: float) -> bool:
        found, problem = _softmax_averages(source, bound, tolerance, degree)
        return found is not None and problem is None and too_large(found.features) is None

    remedies = []
    if isinstance(source, SoftmaxAttention):
        coarser = next((factor for factor in COARSER if fits(input_bound, min(factor * tolerance, 1.0))), None)
        remedies += [f"a tolerance of {coarser * tolerance:.2g}"] if coarser and coarser * tolerance < 1 else []
        within, beyond = 0.0, input_bound
        for _ in range(SEARCHES):
            middle = (within + beyond) / 2
            within, beyond = (middle, beyond) if fits(middle, tolerance) else (within, middle)
        remedies += [f"an input_bound of {within:.3g}"] if within else []
    remedy = f"What fits: {', or '.join(remedies)}." if remedies else "Scale the keys or queries down."
    raise UnderhoodError(f"expected a state that fits at tolerance {tolerance:g}", problem, remedy)


def _softmax_averages(
    source: Any, input_bound: float, tolerance: float, degree: int | None
) -> tuple[Averages | None, str | None]:
    """The heads with polynomial kernels, or what stands in the way."""
    try:
        kernels = softmax_kernels(source, input_bound, tolerance, degree)
    except TooMany as refusal:
        return None, str(refusal)
    values = np.pad(np.asarray(source.w_value, np.float64), ((0, 0), (0, 0), (0, 1)))
    return Averages(tuple(kernels), values, _bias(source)), None


def _bias(source: Any) -> Float[np.ndarray, " d_v"]:
    return np.zeros(source.d_out) if source.bias is None else np.asarray(source.bias, np.float64)


def _polynomial_averages(source: FeatureAttention, input_bound: float) -> Averages:
    """Linear attention with polynomial features as it is, where its kernel is a positive polynomial of q·k."""
    if not isinstance(source.features, PolynomialFeatures) or not source.normalised:
        got = "no division" if not source.normalised else source.features.kind
        remedy = "Use `uh.PolynomialFeatures`, or compile the softmax attention itself."
        raise UnderhoodError("expected polynomial features with a normaliser", got, remedy)
    kernels = []
    for head in range(source.heads):
        keys, queries = (np.asarray(w, np.float64)[head] for w in (source.w_key, source.w_query))
        offset = (
            np.zeros(len(queries)) if source.bias_query is None else np.asarray(source.bias_query, np.float64)[head]
        )
        rows = np.concatenate([queries, offset[:, None]], axis=1), np.pad(keys, ((0, 0), (0, 1)))
        powers, weights = (
            np.asarray(one, np.float64)[head] for one in (source.features.powers, source.features.weights)
        )
        kernels.append(_given_kernel(*rows, powers[weights != 0].astype(int), weights[weights != 0], input_bound))
    values = np.pad(np.asarray(source.w_value, np.float64), ((0, 0), (0, 0), (0, 1)))
    return Averages(tuple(kernels), values, _bias(source))


def _given_kernel(
    queries: np.ndarray, keys: np.ndarray, powers: np.ndarray, weights: np.ndarray, input_bound: float
) -> Kernel:
    """Σ_α w_α k^α q^α = Σ_n A_n (Σ_i f_i k_i q_i)ⁿ but for terms left out, with its least value in the box."""
    degrees = powers.sum(axis=1)
    factors = np.array([_one_weight(weights[(degrees == 1) & (powers[:, i] == 1)]) for i in range(powers.shape[1])])
    most = [input_bound * np.abs(rows[:, :-1]).sum(axis=1) + np.abs(rows[:, -1]) for rows in (queries, keys)]
    size = most[0] * most[1] * np.abs(factors)
    terms = np.array([multinomial(alpha) for alpha in powers.tolist()]) * np.prod(factors**powers, axis=1)
    coefficients, left_out = np.zeros(int(degrees.max(initial=0)) + 1), 0.0
    for n in np.unique(degrees):
        here = (degrees == n) & (terms != 0)
        ratios = weights[here] / terms[here]
        if not here.any() or np.ptp(ratios) > SAME_WEIGHT * np.max(np.abs(ratios)) or not np.all(terms[degrees == n]):
            raise UnderhoodError(
                "expected polynomial features that make a polynomial of q·k", "others", "See uh.PolynomialFeatures.of."
            )
        coefficients[n] = ratios[0]
        there = float(np.sum(np.prod(size ** powers[here], axis=1) * [multinomial(a) for a in powers[here].tolist()]))
        left_out += abs(ratios[0]) * max(float(np.sum(size)) ** n - there, 0.0)
    bound = max(score_bound(factors[:, None] * queries, keys, input_bound) * (1 + BEYOND), NO_SCORE)
    lowest, highest = certified_range(coefficients, bound)
    least = (lowest - left_out) * (1 - BEYOND)
    if not least > BEYOND * highest:
        got = f"{least:.3g} at q·k within ±{bound:.3g}"
        raise UnderhoodError(
            "expected a kernel that stays positive", got, "Lower input_bound, or use a better polynomial."
        )
    scales = [np.exp2(np.ceil(np.log2(np.where(one > 0, one, 1.0)))) for one in most]
    scaled = queries / scales[0][:, None], keys / scales[1][:, None]
    raised = weights * np.prod((scales[0] * scales[1]) ** powers, axis=1)
    return Kernel(*scaled, powers, raised, int(degrees.max(initial=0)), bound, 0.0, least)


def _one_weight(weights: np.ndarray) -> float:
    return float(weights[0]) if len(weights) == 1 else 0.0


def _measured(source: Any, model: Any, envelope: Envelope, seed: int = 0) -> tuple[float, float, int, int]:
    """The largest error and output on probes, how long they are, and how many."""
    random, r = np.random.default_rng(seed), envelope.input_bound
    length = min(envelope.horizon, LONGEST_PROBE)
    corner, shape = r * random.choice([-1.0, 1.0], (1, source.d)), (length, source.d)
    turning = (-1.0) ** np.arange(length)[:, None]
    long = [random.uniform(-r, r, shape), r * random.choice([-1.0, 1.0], shape), corner * turning]
    long.append(np.tile(corner * random.uniform(0.9, 1.0, source.d), (length, 1)))
    steps = min(length, SHORT_STEPS)
    short = r * random.choice([-1.0, 1.0], (SHORT, steps, source.d))
    short[: SHORT // 2] *= random.uniform(0, 1, (SHORT // 2, 1, 1))
    with jax.enable_x64(True):
        outputs = [
            *np.asarray(jax.vmap(model)(np.asarray(short, model.dtype))),
            *(np.asarray(model(xs)) for xs in long),
        ]
    worst = largest = 0.0
    for xs, ys in zip([*short, *long], outputs, strict=True):
        expected = _extended(source, xs)
        error = float(np.max(np.abs(ys - expected)))
        worst = max(worst, error if np.isfinite(error) else np.inf)
        largest = max(largest, float(np.max(np.abs(expected))))
    return worst, largest, length, len(outputs)


def _extended(source: Any, xs: Float[np.ndarray, "t d"]) -> np.ndarray:
    """The source's outputs in NumPy's longest float."""
    xs, total = xs.astype(np.longdouble), np.zeros((len(xs), source.d_out), np.longdouble)
    past = np.tri(len(xs), dtype=bool)
    for head in range(source.heads):
        v, k, q = (xs @ np.asarray(w, np.longdouble)[head].T for w in (source.w_value, source.w_key, source.w_query))
        q = q if source.bias_query is None else q + np.asarray(source.bias_query, np.longdouble)[head]
        if isinstance(source, SoftmaxAttention):
            scores = np.where(past, np.longdouble(source.scale) * q @ k.T, -np.inf)
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        else:
            powers, heights = (
                np.asarray(one, np.longdouble)[head] for one in (source.features.powers, source.features.weights)
            )
            of_queries, of_keys = (np.prod(one[:, None] ** powers[None], axis=2) for one in (q, k))
            weights = np.where(past, (of_queries * heights) @ of_keys.T, 0)
        total += (weights / weights.sum(axis=1, keepdims=True)) @ v
    return total if source.bias is None else total + np.asarray(source.bias, np.longdouble)
