"""y(t) = Σ_heads Σ_{s≤t} decay^{t-s} (W_V x_s)(x_sᵀ M x_t): the attention that a callable computes, if any.

Candidates come from few questions: a linear regression where d is small (`closed_form`), chosen inputs where it is not
(`chosen`, `factors`, `compressed`). Fresh random sequences tell whether one of them is right, whatever it came from.
Where none is, the nearest attention without decay is the answer, and how near it is.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Float

from underhood.algebra.heads import Heads, fewest_heads, head_tensor, key_and_query
from underhood.algebra.quadratic import Array
from underhood.algebra.statistics import r_squared, r_squared_interval
from underhood.attention.linear import LinearAttention
from underhood.core.errors import UnderhoodError
from underhood.core.memory import require_memory
from underhood.core.threads import threads_for
from underhood.decompiler.from_outputs.closed_form import DenseAttention, features, least_squares, unknowns
from underhood.decompiler.from_outputs.diagnosis import diagnose
from underhood.decompiler.from_outputs.functions import Batched, as_numpy_function
from underhood.decompiler.from_outputs.instant import instant_heads, tokens_needed
from underhood.decompiler.from_outputs.nearest import nearest_heads
from underhood.decompiler.from_outputs.questions import ChosenInputs
from underhood.decompiler.from_outputs.search import (
    CHECKED,
    SMALL,
    Candidate,
    FactoredAttention,
    Sampled,
    Search,
    Settings,
    Watch,
)
from underhood.decompiler.from_weights.polynomial import Polynomial, distance, of_attention
from underhood.decompiler.result import DECAYED, LINEAR, NOT, Evidence, Found, Scores

LENGTH = 32  # Section 3.1
INPUT_BOUND = 4.0  # N(0, 1) clipped here: compiled LSTM, GRU and LRU networks keep their promise within a bound
TOLERANCE = 1e-4  # relative root mean square error on fresh sequences: R² ≥ 1 − 1e-8
# Fresh sequences are added until the 95 % interval of R² is this narrow on either side: outputs grow with t, so
# that few sequences weigh much, and 512 of them leave 0.008 open on a trained LSTM.
HELD_OUT, MOST_HELD_OUT, HALF_WIDTH = 512, 8192, 0.0025
SHORTEST = 3  # steps: of two, no decay can be told from a factor
EARNED = 3  # by how much one decay more, beyond two, must bring the error down
PIECE = 64  # sequences at a time
MOST_POLYNOMIAL = 16  # inputs up to which all monomials of degree 4 are written out
MAX_HEADS = 2  # of the nearest attention to what is none


@np.errstate(all="ignore")  # outputs that are not finite are refused
def probe(
    function: Any,
    d: int,
    *,
    against: LinearAttention | None = None,
    seed: int = 0,
    length: int = LENGTH,
    input_bound: float = INPUT_BOUND,
    tolerance: float = TOLERANCE,
    max_heads: int = MAX_HEADS,
    batched: bool | None = None,
    watch: Watch | None = None,
) -> Found:
    """The linear attention nearest to `function`, a map from (t, d) to (t, d_out), and how near that is.

    `batched` says whether the function takes (b, t, d) as well; unless given, that is tried out. `max_heads` limits the
    nearest attention where the function is none and has more than 8 inputs.
    """
    _check_settings(d, length, seed, tolerance, input_bound, max_heads)
    settings = Settings(d, length, input_bound, tolerance, max_heads, seed, watch or (lambda what, share: None))
    with threads_for(d):
        return _probe(as_numpy_function(function, d, batched=batched), settings, against)


def _probe(call: Batched, settings: Settings, against: LinearAttention | None) -> Found:
    random = np.random.default_rng(settings.seed)
    d, length, input_bound, tolerance = settings.d, settings.length, settings.input_bound, settings.tolerance

    def draw(count: int) -> Sampled:
        xs = np.clip(random.standard_normal((count, length, d)), -input_bound, input_bound)
        return xs, call(xs)

    held = draw(HELD_OUT)
    if against is not None:
        against = check_against(against, d, held[1].shape[-1])
    if not np.any(held[1] != held[1][:1, :1]):
        raise UnderhoodError("expected a function that varies with its input", "the same output for every sequence")
    chosen = ChosenInputs(call, d, length=length, input_bound=input_bound, random=random)
    search = Search(settings, draw, chosen, held)
    verdict, candidate, r2, interval = NOT, None, 0.0, (0.0, 0.0)
    for candidate in search.candidates():
        if _is_far(candidate, held, tolerance):
            continue
        r2, interval = _test(candidate, held, random)
        # Many exponentials come near to any way of fading: each beyond two has to earn its place.
        if 1 - r2 <= (tolerance / EARNED ** max(0, len(candidate.decays) - 2)) ** 2:
            verdict = LINEAR if candidate.decays == (1.0,) else DECAYED
            break
    assert candidate is not None
    if verdict == NOT:
        r2, interval = _test(candidate, held, random)
    while verdict == NOT and interval[1] - interval[0] > 2 * HALF_WIDTH and len(held[0]) < MOST_HELD_OUT:
        more = draw(len(held[0]))
        held = np.concatenate([held[0], more[0]]), np.concatenate([held[1], more[1]])
        r2, interval = _test(candidate, held, random)
    found = _found(candidate, verdict, r2, interval, tolerance, against, settings.seed)
    if verdict != NOT:
        return found
    settings.watch("what it is instead", 1.0)
    return replace(found, diagnosis=diagnose(call, d, length, input_bound, settings.seed))


def closeness(function: Any, xs: Float[Array, "b t d"], *, last: bool = False) -> float:
    """R² of the best linear attention on sequences of your own, at every step or at the last one only.

    It is fitted on the first half of them and tested on the second. A network that is asked about one distribution
    of inputs, as in-context regression is, may be attention there and nowhere else.
    """
    d = xs.shape[-1]
    call, at = as_numpy_function(function, d), slice(-1 if last else 0, None)
    ys, half = call(xs)[:, at], len(xs) // 2
    if d <= SMALL:
        rows = features(xs, 1.0)[:, at]
        weights = least_squares(rows[:half].reshape(-1, rows.shape[2]), ys[:half].reshape(-1, ys.shape[2]))
        predicted = rows[half:] @ weights
    else:
        start = np.random.default_rng(0).standard_normal((1, d, d)) / np.sqrt(d)
        heads = nearest_heads(xs[:half], ys[:half], start)
        predicted = FactoredAttention((1.0,), (heads,))(xs[half:])[:, at]
    return r_squared(ys[half:], predicted)


def check_against(against: Any, d: int, d_out: int) -> LinearAttention:
    """The teacher, with the sizes of the network.

    Eq. 4's attention gives the whole element (x, y), zeros and then the prediction; a network that gives the prediction
    alone is compared with its last outputs.
    """
    if not isinstance(against, LinearAttention):
        raise UnderhoodError("expected a linear attention to compare with", getattr(against, "kind", against))
    first = against.d_out - d_out
    if against.d == d and first > 0 and not np.any(np.asarray(against.w_value)[:, :first]):
        values = np.asarray(against.w_value)[:, first:]
        return LinearAttention(values, against.w_key, against.w_query, against.decay)
    if (against.d, against.d_out) != (d, d_out):
        raise UnderhoodError(
            f"expected an attention with {d} inputs and {d_out} outputs to compare with, as the network has",
            f"{against.d} and {against.d_out}",
        )
    return against


def _check_settings(d: int, length: int, seed: int, tolerance: float, input_bound: float, max_heads: int) -> None:
    for name, size, least in (("d", d, 1), ("length", length, SHORTEST), ("max_heads", max_heads, 1)):
        if size < least:
            raise UnderhoodError(f"expected {name} of {least} or more", size)
    numbers = 4 * d * (HELD_OUT * length + d) + (HELD_OUT * length * unknowns(d) if d <= SMALL else 0)
    require_memory(8 * numbers, f"{HELD_OUT} sequences of {length} steps with {d} inputs")
    if seed < 0:
        raise UnderhoodError("expected a seed of 0 or more", seed, "Use `seed=0`.")
    if not 0 < tolerance < 1:
        raise UnderhoodError("expected a tolerance between 0 and 1", tolerance)
    if not 0 < input_bound < np.inf:
        raise UnderhoodError("expected an input_bound above 0 and below infinity", input_bound)


def _is_far(candidate: Candidate, held: Sampled, tolerance: float) -> bool:
    """Ten tolerances off on the first sequences: a candidate of many heads takes seconds to run on all of them."""
    xs, ys = (one[:CHECKED] for one in held)
    return bool(np.linalg.norm(ys - candidate(xs)) > 10 * tolerance * np.linalg.norm(ys - ys.mean(axis=(0, 1))))


def _test(candidate: Candidate, held: Sampled, random: np.random.Generator) -> tuple[float, tuple[float, float]]:
    """R² on fresh sequences, and its 95 % interval by bootstrap."""
    predicted = np.concatenate([candidate(held[0][i : i + PIECE]) for i in range(0, len(held[0]), PIECE)])
    return r_squared_interval(held[1], predicted, random)


def _found(
    candidate: Candidate,
    verdict: str,
    r2: float,
    interval: tuple[float, float],
    tolerance: float,
    against: LinearAttention | None,
    seed: int,
) -> Found:
    error = float(np.sqrt(max(1 - r2, 0.0)))
    share = 1e-12 if verdict == NOT else min(max(1e-8, 30 * error), 0.1)
    groups = _heads(candidate, share, seed, search=verdict != NOT)
    values = np.concatenate([one.values for one in groups])
    key_query = np.concatenate([one.key_query for one in groups])
    decays = np.repeat(candidate.decays, [one.count for one in groups])
    tensor = polynomial = None
    if values.shape[2] <= MOST_POLYNOMIAL:
        dense = isinstance(candidate, DenseAttention)
        tensor = candidate.tensors.sum(axis=0) if dense else head_tensor(values, key_query)
        polynomial = of_attention(tensor)
    return Found(
        verdict,
        _reason(verdict, error, tolerance, len(values), candidate.decays),
        LinearAttention(values, *key_and_query(key_query), decays if verdict == DECAYED else None),
        Scores(polynomial_distance=_gap(polynomial, against)),
        evidence=Evidence(r2, interval, error, tolerance, tensor=tensor, polynomial=polynomial),
    )


def _heads(candidate: Candidate, share: float, seed: int, *, search: bool) -> tuple[Heads, ...]:
    if isinstance(candidate, FactoredAttention):
        return candidate.search(share) if search and candidate.search else candidate.groups
    return tuple(
        _instant(tensor, share, seed)
        if search and decay == 0
        else fewest_heads(tensor, share, seed=seed, search=search)
        for decay, tensor in zip(candidate.decays, candidate.tensors, strict=True)
    )


def _instant(tensor: Float[Array, "d_out d d d"], share: float, seed: int) -> Heads:
    """Heads of decay 0: T is known only as far as T[x, x, x] shows it, and a search would look for the wrong thing."""
    xs = np.random.default_rng(seed).standard_normal((tokens_needed(tensor.shape[1]) or HELD_OUT, tensor.shape[1]))
    ys = np.einsum("oabc,na,nb,nc->no", tensor, xs, xs, xs, optimize=True)
    return instant_heads(xs, ys, share, seed) or fewest_heads(tensor, share, seed=seed, search=False)


def _gap(polynomial: Polynomial | None, against: LinearAttention | None) -> float | None:
    if polynomial is None or against is None:
        return None
    teacher = head_tensor(np.asarray(against.w_value, np.float64), against.key_query)
    return distance(polynomial, of_attention(teacher))


def _reason(verdict: str, error: float, tolerance: float, heads: int, decays: tuple[float, ...]) -> str:
    if verdict == NOT:
        share = f"{error:.1e} of the output on fresh sequences (tolerance {tolerance:.0e})"
        return f"the best linear attention misses {share}"
    count = "one head" if heads == 1 else f"{heads} heads, of which the sum is identifiable and the split is not"
    fades = f", decay {', '.join(f'{one:.6g}' for one in decays)}" if verdict == DECAYED else ""
    return f"linear attention explains all but {error:.1e} of the output on fresh sequences; {count}{fades}"
