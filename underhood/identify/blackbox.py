"""y(t) = Σ_heads Σ_{s≤t} decay^{t-s} (W_V x_s)(x_sᵀ M x_t): the attention that a callable computes, if any.

Candidates come from few questions: a linear regression where d is small (`closed_form`), chosen inputs where it is not
(`chosen`, `factors`, `compressed`). Fresh random sequences tell whether one of them is right, whatever it came from.
Where none is, the nearest attention without decay is the answer, and how near it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from underhood.attention.linear import LinearAttention
from underhood.errors import UnderhoodError
from underhood.identify.callables import as_numpy_function
from underhood.identify.chosen import ChosenInputs
from underhood.identify.closed_form import DenseAttention, features, fit_dense, least_squares, unknowns
from underhood.identify.compressed import compress
from underhood.identify.factors import factored
from underhood.identify.forms import Array
from underhood.identify.found import DECAYED, LINEAR, NOT, Evidence, Found, Scores
from underhood.identify.nearest import attend, nearest_heads
from underhood.identify.polynomial import Polynomial, distance, of_attention
from underhood.identify.recover import Heads, head_tensor, key_and_query, recover_heads

LENGTH = 32  # Section 3.1
INPUT_BOUND = 4.0  # N(0, 1) clipped here: compiled LSTM, GRU and LRU networks keep their promise within a bound
TOLERANCE = 1e-4  # relative root mean square error on fresh sequences: R² ≥ 1 − 1e-8
# Fresh sequences are added until the 95 % interval of R² is this narrow on either side: outputs grow with t, so
# that few sequences weigh much, and 512 of them leave 0.008 open on a trained LSTM.
HELD_OUT, MOST_HELD_OUT, HALF_WIDTH = 512, 8192, 0.0025
CHECKED = 64  # of them, to choose between candidates
SMALL = 8  # inputs up to which the regression on d²(d + 1)/2 features is the faster way
MOST_POLYNOMIAL = 16  # inputs up to which all monomials of degree 4 are written out
MAX_HEADS = 2  # of the nearest attention to what is none
ROWS = 6  # equations for each unknown of the regression
TOKENS = 64  # tokens for each unknown of one output of a head, where the nearest attention is sought by descent
NOISE = (1e-10, 1e-7, 1e-5)  # levels under which decays are told from rounding

Sampled = tuple[Float[Array, "b t d"], Float[Array, "b t d_out"]]
Watch = Callable[[str, float], None]


@dataclass(frozen=True)
class FactoredAttention:
    """Heads, each decay's own."""

    decays: tuple[float, ...]
    groups: tuple[Heads, ...]
    search: Callable[[float], tuple[Heads, ...]] | None = None  # fewer heads, for a tolerance

    def __call__(self, xs: Float[Array, "b t d"]) -> Float[Array, "b t d_out"]:
        counts = [one.count for one in self.groups]
        values, key_query = (
            np.concatenate([getattr(one, name) for one in self.groups]) for name in ("values", "key_query")
        )
        return attend(values, key_query, np.repeat(self.decays, counts), xs)


Candidate = DenseAttention | FactoredAttention


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
    call = as_numpy_function(function, d, batched=batched)
    random = np.random.default_rng(seed)
    watch = watch or (lambda what, share: None)

    def draw(count: int) -> Sampled:
        xs = np.clip(random.standard_normal((count, length, d)), -input_bound, input_bound)
        return xs, call(xs)

    held = draw(HELD_OUT)
    if against is not None:
        check_against(against, d, held[1].shape[-1])
    if not np.any(held[1] != held[1][:1, :1]):
        raise UnderhoodError("expected a function that varies with its input", "the same output for every sequence")
    chosen = ChosenInputs(call, d, length=length, input_bound=input_bound, random=random)
    task = _Task(draw, chosen, held, tolerance, max_heads, seed, watch)
    verdict, candidate = NOT, None
    for candidate in task.candidates():
        r2, interval = _test(candidate, held, random)
        if 1 - r2 <= tolerance**2:
            verdict = LINEAR if candidate.decays == (1.0,) else DECAYED
            break
    assert candidate is not None
    while verdict == NOT and interval[1] - interval[0] > 2 * HALF_WIDTH and len(held[0]) < MOST_HELD_OUT:
        more = draw(len(held[0]))
        held = np.concatenate([held[0], more[0]]), np.concatenate([held[1], more[1]])
        r2, interval = _test(candidate, held, random)
    return _found(candidate, verdict, r2, interval, tolerance, against, seed)


@dataclass(frozen=True)
class _Task:
    draw: Callable[[int], Sampled]
    chosen: ChosenInputs
    held: Sampled
    tolerance: float
    max_heads: int
    seed: int
    watch: Watch

    @property
    def d(self) -> int:
        return self.chosen.d

    def candidates(self) -> Iterator[Candidate]:
        """Attentions to be tested, the simplest first; the last of them is the nearest one without decay."""
        return self._by_regression() if self.d <= SMALL else self._by_choice()

    def _by_regression(self) -> Iterator[Candidate]:
        most = max(2048, 4 * unknowns(self.d))
        fit: Sampled | None = None
        for decays in self._decays():
            need = min(most, max(CHECKED, -(-ROWS * unknowns(self.d) * len(decays) // self.chosen.length)))
            if fit is None or len(fit[0]) < need:
                fit = self.draw(need)
            yield fit_dense(*fit, decays)
        yield fit_dense(*self.draw(most), (1.0,))

    def _by_choice(self) -> Iterator[Candidate]:
        for decays in self._decays():
            if 0.0 in decays:
                continue  # what an input adds at its own step is no product of small matrices
            yield from self._in_factors(decays)
        yield self._nearest()

    def _in_factors(self, decays: tuple[float, ...]) -> Iterator[Candidate]:
        try:
            split = [FactoredAttention(decays, tuple(one)) for one in factored(self.chosen, decays, self.watch)]
            if split:
                errors = [self._error(one) for one in split]
                good = [one for one, error in zip(split, errors, strict=True) if error <= 3 * min(errors)]
                yield min(good, key=lambda one: sum(group.count for group in one.groups))
            parts = compress(self.chosen, decays, 1e-9)
        except UnderhoodError:
            return  # outputs are finite on random inputs, and not on these
        if parts:
            groups = tuple(one.heads(1e-9, search=False) for one in parts)
            yield FactoredAttention(
                decays, groups, lambda share: tuple(one.heads(share, seed=self.seed) for one in parts)
            )

    def _decays(self) -> Iterator[tuple[float, ...]]:
        yield (1.0,)
        try:
            found = dict.fromkeys(self.chosen.decays(noise) for noise in NOISE)
        except UnderhoodError:
            found = {}
        found = {decays: None for decays in found if decays not in ((), (1.0,))}
        yield from found
        yield from ((*decays, 0.0) for decays in ((1.0,), *found, ()))

    def _error(self, candidate: Candidate) -> float:
        xs, ys = (one[:CHECKED] for one in self.held)
        return float(np.linalg.norm(ys - candidate(xs)))

    def _nearest(self) -> Candidate:
        """One head, then twice as many, as long as what is not seen gains by it."""
        d, d_out = self.d, self.held[1].shape[2]
        random, heads, best = np.random.default_rng(self.seed), 1, None
        fit = None
        while heads <= self.max_heads:
            need = -(-TOKENS * heads * d * (d + d_out) // (d_out * self.chosen.length))
            fit = self.draw(max(256, need)) if fit is None or len(fit[0]) < need else fit
            self.watch(f"the nearest attention of {heads} head{'s' * (heads > 1)}", heads / (self.max_heads + 1))
            start = random.standard_normal((heads, d, d)) / np.sqrt(d)
            found = FactoredAttention((1.0,), (nearest_heads(*fit, start),))
            if best is not None and self._error(found) > 0.99 * self._error(best):
                break
            best, heads = found, 2 * heads
        assert best is not None
        return best


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
    spread = ys[half:] - ys[half:].mean(axis=(0, 1))
    return float(1.0 - np.sum((ys[half:] - predicted) ** 2) / max(np.sum(spread**2), np.finfo(float).tiny))


def check_against(against: Any, d: int, d_out: int) -> None:
    """The teacher has the sizes of the network."""
    if not isinstance(against, LinearAttention):
        raise UnderhoodError("expected a linear attention to compare with", getattr(against, "kind", against))
    if (against.d, against.d_out) != (d, d_out):
        raise UnderhoodError(
            f"expected an attention with {d} inputs and {d_out} outputs to compare with, as the network has",
            f"{against.d} and {against.d_out}",
        )


def _check_settings(d: int, length: int, seed: int, tolerance: float, input_bound: float, max_heads: int) -> None:
    for name, size in {"d": d, "length": length, "max_heads": max_heads}.items():
        if size < 1:
            raise UnderhoodError(f"expected {name} of 1 or more", size)
    if seed < 0:
        raise UnderhoodError("expected a seed of 0 or more", seed, "Use --seed 0.")
    if not 0 < tolerance < 1:
        raise UnderhoodError("expected a tolerance between 0 and 1", tolerance)
    if not 0 < input_bound < np.inf:
        raise UnderhoodError("expected a positive input_bound", input_bound)


def _test(candidate: Candidate, held: Sampled, random: np.random.Generator) -> tuple[float, tuple[float, float]]:
    """R² on fresh sequences, and its 95 % interval by bootstrap."""
    errors = np.sum((held[1] - candidate(held[0])) ** 2, axis=(1, 2))
    spread = np.sum((held[1] - held[1].mean(axis=(0, 1))) ** 2, axis=(1, 2))
    r2 = 1.0 - errors.sum() / spread.sum()
    # Whole sequences are resampled: the steps of one are not independent.
    draws = random.integers(len(errors), size=(400, len(errors)))
    resampled = 1.0 - errors[draws].sum(axis=1) / spread[draws].sum(axis=1)
    low, high = np.quantile(resampled, [0.025, 0.975])
    return float(r2), (float(low), float(high))


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
    return tuple(recover_heads(tensor, share, seed=seed, search=search) for tensor in candidate.tensors)


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
