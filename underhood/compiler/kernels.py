"""A polynomial kernel in place of e^{q·k}: as few monomials as the scores that inputs within ±r can reach allow.

    e^z ≈ p(z), |p(z)/e^z − 1| ≤ ε for |z| ≤ B;      p(q·k) = Σ_α w_α k^α q^α,  w_α = a_|α| |α|!/α!

B is the largest score of a box, convex in the query: at its corners. What is small is left out: a monomial
changes the kernel by |w_α| K^α Q^α at most, where |k_i| ≤ K_i and |q_i| ≤ Q_i. All that is left out changes it by D,
which adds D e^B to ε. Averages with weights off by a factor in [1 − ε, 1 + ε] differ by at most

    2 (1 − √(1 − ε²))/ε · max|v| = (ε + ε³/4 + …) max|v|                    (docs/softmax.md has the proof)

The coordinates of keys and queries are those of the source or of the singular values of W_KᵀW_Q, whichever takes fewer
monomials, and scaled by powers of two to lie within ±1.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from underhood.algebra.subspaces import numerical_rank
from underhood.attention.features import feature_count, multinomial
from underhood.attention.polynomials import MOST_BOUND, MOST_DEGREE, Polynomial, exponential
from underhood.attention.softmax import SoftmaxAttention
from underhood.core.errors import UnderhoodError

MOST_CORNERS = 2**14  # of the inputs, up to which the largest score is exact
BEYOND = 1e-9  # scores may exceed their bound by so much of it: rounding
FURTHER = 4  # degrees above the lowest that are looked at: fewer monomials may do where ε leaves them more room
STEP = 8  # the size below which monomials are left out falls by this until enough are kept
ROUNDING = 1e-13  # of sums of terms
ROOM = 0.999  # of ε for the polynomial alone
MOST_TERMS = 100_000  # that are looked at
NO_SCORE = 2.0**-40  # scores of a head without keys or queries

Rows = Float[np.ndarray, "r inputs"]


class TooMany(UnderhoodError):
    """Scores that no polynomial follows, or features that no state holds."""


@dataclasses.dataclass(frozen=True)
class Kernel:
    """Σ_α w_α k^α q^α, k and q rows over (x, 1) within ±1."""

    queries: Rows
    keys: Rows
    powers: Int[np.ndarray, "m r"]
    weights: Float[np.ndarray, " m"]
    degree: int
    score_bound: float
    """B: |q·k| within the box."""
    error: float
    """ε: how far the kernel may be from e^{q·k}, as a part of it; 0 where the kernel is what is wanted."""
    least: float
    """The kernel is at least this, in the box."""

    @property
    def features(self) -> int:
        """Number of monomials."""
        return len(self.weights)


def average_error(error: float) -> float:
    """How far an average of numbers within ±1 may move where weights are off by factors in [1 − ε, 1 + ε]."""
    return 2.0 if error >= 1 else 2 * math.tan(math.asin(error) / 2)


def kernel_error(average: float) -> float:
    """Its inverse: the ε at which averages of numbers within ±1 differ by no more than this."""
    return math.sin(2 * math.atan(min(average, 2.0) / 2))


def score_bound(queries: Rows, keys: Rows, input_bound: float) -> float:
    """max |(Q x̃)·(K x̃′)| for x and x′ within ±r; keys have no constant, since softmax does not see one.

    For a given query, r Σ_j |Σ_i K_ij q_i|; a convex function of the query's x, at the corners. Where these are too
    many: no more than the sum of the sizes of all products, and than what the norms allow.
    """
    forms = keys[:, :-1].T @ queries
    d = forms.shape[0]
    if 2 ** (d - 1) <= MOST_CORNERS:
        signs = np.array(list(itertools.product((1.0, -1.0), repeat=d)))
        inputs = np.concatenate([input_bound * signs, np.ones((len(signs), 1))], axis=1)
        return float(input_bound * np.max(np.abs(inputs @ forms.T).sum(axis=1)))
    fixed = input_bound * float(np.sum(np.abs(forms[:, -1])))
    apart = input_bound**2 * float(np.sum(np.abs(forms[:, :-1])))
    joint = input_bound**2 * d * float(np.linalg.norm(forms[:, :-1], ord=2))
    return fixed + min(apart, joint)


def softmax_kernels(
    source: SoftmaxAttention, input_bound: float, average: float, degree: int | None = None
) -> list[Kernel]:
    """A kernel for each head, so that averages of numbers within ±1 differ by no more than `average`."""
    if source.window is not None:
        rule = "expected attention to all steps: no finite sum forgets a step after a window"
        raise UnderhoodError(rule, f"a window of {source.window}", "Leave the window out.")
    return [_softmax_kernel(source, head, input_bound, average, degree) for head in range(source.heads)]


def _softmax_kernel(
    source: SoftmaxAttention, head: int, input_bound: float, average: float, degree: int | None
) -> Kernel:
    forms = np.concatenate([source.key_query[head], source.key_offset[head][:, None]], axis=1)
    bound = score_bound(forms, np.eye(len(forms), len(forms) + 1), input_bound)
    bound = max(bound * (1 + BEYOND), NO_SCORE)
    wanted = kernel_error(average)
    choices = (
        _fewest(_scaled(*pair, input_bound), bound, wanted, degree) for pair in _coordinates(source, head, forms)
    )
    return min(choices, key=lambda kernel: kernel.features)


def _coordinates(source: SoftmaxAttention, head: int, forms: np.ndarray) -> list[tuple[Rows, Rows]]:
    """Queries and keys as the source has them, and along the singular values of what they make together."""
    left, sizes, right = np.linalg.svd(forms, full_matrices=False)
    rank = max(numerical_rank(sizes, forms.shape), 1)
    root = np.sqrt(sizes[:rank, None])
    pairs = [(root * right[:rank], np.pad(root * left[:, :rank].T, ((0, 0), (0, 1))))]
    if rank >= source.d_key:
        offset = np.zeros(source.d_key) if source.bias_query is None else np.asarray(source.bias_query)[head]
        queries = source.scale * np.concatenate([np.asarray(source.w_query)[head], offset[:, None]], axis=1)
        pairs.append((queries, np.pad(np.asarray(source.w_key)[head], ((0, 0), (0, 1)))))
    return [(np.asarray(queries, np.float64), np.asarray(keys, np.float64)) for queries, keys in pairs]


class _Scaled(NamedTuple):
    """Rows within ±1, by powers of two; what their products are then multiplied with, and how large these can be."""

    queries: Rows
    keys: Rows
    factors: Float[np.ndarray, " r"]
    size: Float[np.ndarray, " r"]


def _scaled(queries: Rows, keys: Rows, input_bound: float) -> _Scaled:
    most = [input_bound * np.abs(rows[:, :-1]).sum(axis=1) + np.abs(rows[:, -1]) for rows in (queries, keys)]
    scales = [np.exp2(np.ceil(np.log2(np.where(each > 0, each * (1 + BEYOND), 1.0)))) for each in most]
    asked, kept = (rows / scale[:, None] for rows, scale in zip((queries, keys), scales, strict=True))
    return _Scaled(asked, kept, scales[0] * scales[1], most[0] * most[1])


def _fewest(rows: _Scaled, bound: float, error: float, degree: int | None) -> Kernel:
    """The degree, at or a little above the lowest that is near enough, with the fewest monomials."""
    if bound > MOST_BOUND:
        raise TooMany(f"scores up to {bound:.3g}, which no polynomial of degree {MOST_DEGREE} follows")
    if degree is None:
        lowest = next((n for n in range(MOST_DEGREE + 1) if exponential(n, bound).error < ROOM * error), None)
        if lowest is None:
            raise TooMany(f"scores up to {bound:.3g}, which no polynomial of degree {MOST_DEGREE} follows so closely")
        degrees = range(lowest, min(lowest + FURTHER, MOST_DEGREE + 1))
    else:
        degrees = range(degree, degree + 1)
    best = None
    for n in degrees:
        polynomial = exponential(n, bound)
        room = error - polynomial.error if degree is None else (1 - ROOM) * polynomial.error
        allowed = room * math.exp(-bound)
        powers, left_out = largest_terms(polynomial, rows.size, allowed, None if best is None else best.features)
        if powers is None:
            continue
        best = _kernel(rows, polynomial, powers, left_out)
    if best is None:
        count = feature_count(len(rows.size), degrees[0])
        raise TooMany(f"{count:,} features in a head, for degree {degrees[0]} and scores up to {bound:.3g}")
    return best


def _kernel(rows: _Scaled, polynomial: Polynomial, powers: np.ndarray, left_out: float) -> Kernel:
    heights = [polynomial.coefficients[sum(alpha)] * multinomial(alpha) for alpha in powers.tolist()]
    weights = np.array(heights) * np.prod(rows.factors**powers, axis=1)
    error = polynomial.error + left_out * math.exp(polynomial.bound)
    least = max((1 - error) * math.exp(-polynomial.bound), 0.0)
    return Kernel(rows.queries, rows.keys, powers, weights, polynomial.degree, polynomial.bound, error, least)


def largest_terms(
    polynomial: Polynomial, size: Float[np.ndarray, " r"], allowed: float, fewer_than: int | None = None
) -> tuple[np.ndarray | None, float]:
    """As few α as it takes for the others to add up to no more than `allowed`, and what they add up to.

    A term is |a_n| n!/α! s^α, and all terms of a degree add up to |a_n| (Σ s)ⁿ. None where there are too many.
    """
    total, least = polynomial.absolute(float(np.sum(size))), allowed
    order = np.argsort(-size, kind="stable")
    while True:
        found = _terms_above(polynomial, size[order], least)
        if found is None:
            return None, 0.0
        powers, values = found
        descending = np.argsort(-values, kind="stable")
        left_out = np.maximum(total - np.cumsum(values[descending]), 0.0) + ROUNDING * total
        enough = np.flatnonzero(left_out <= max(allowed, 2 * ROUNDING * total))
        if enough.size:
            break
        least /= STEP
    kept = descending[: enough[0] + 1]
    if fewer_than is not None and len(kept) >= fewer_than:
        return None, 0.0
    alphas = np.zeros((len(kept), len(size)), int)
    alphas[:, order] = powers[kept]
    by_degree = np.lexsort((*alphas.T[::-1], alphas.sum(axis=1)))
    return alphas[by_degree], float(left_out[enough[0]])


def _terms_above(
    polynomial: Polynomial, size: Float[np.ndarray, " r"], least: float
) -> tuple[np.ndarray, np.ndarray] | None:
    """All α whose terms are at least so large, one coordinate after the other; None where there are too many.

    With s^α/α! of the coordinates so far and the sum R of those to come, no term of degree j is above
    |a_j| j! s^α/α! R^{j−|α|}/(j − |α|)!.
    """
    degree = polynomial.degree
    factorials = np.array([math.factorial(n) for n in range(degree + 1)], float)
    heights = np.abs(polynomial.coefficients) * factorials
    powers, used, values = np.zeros((1, 0), int), np.zeros(1, int), np.ones(1)
    for index, one in enumerate(size):
        rest = float(np.sum(size[index + 1 :]))
        tails = rest ** np.arange(degree + 1.0) / factorials
        # reachable[u]: the largest factor that a product of degree u can still get.
        reachable = np.array([np.max(heights[u:] * tails[: degree + 1 - u]) for u in range(degree + 1)])
        grown = []
        for power in range(degree + 1):
            value, total = values * one**power / factorials[power], used + power
            there = total <= degree
            there[there] = value[there] * reachable[total[there]] >= least
            if not there.any():
                continue
            grown.append((np.pad(powers[there], ((0, 0), (0, 1)), constant_values=power), total[there], value[there]))
        if not grown or sum(len(each[1]) for each in grown) > MOST_TERMS:
            return None if grown else (np.zeros((0, len(size)), int), np.zeros(0))
        powers, used, values = (np.concatenate(parts) for parts in zip(*grown, strict=True))
    return powers, values * heights[used]
