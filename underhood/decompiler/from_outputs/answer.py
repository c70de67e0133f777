"""A candidate on fresh sequences: how near it comes, and what the answer to the user is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from underhood.algebra.heads import Heads, fewest_heads, head_tensor, key_and_query
from underhood.algebra.quadratic import Array
from underhood.algebra.statistics import r_squared_interval
from underhood.attention.linear import LinearAttention
from underhood.decompiler.from_outputs.instant import instant_heads, tokens_needed
from underhood.decompiler.from_outputs.regression import DenseAttention
from underhood.decompiler.from_outputs.search import Candidate, FactoredAttention, Sampled, Settings
from underhood.decompiler.from_weights.polynomial import Polynomial, distance, of_attention
from underhood.decompiler.result import DECAYED, NOT, Evidence, Found, Scores

PIECE = 64  # sequences at a time
MOST_POLYNOMIAL = 16  # inputs up to which all monomials of degree 4 are written out
TOKENS = 512  # where more would be too many, for heads of decay 0


@dataclass(frozen=True)
class Fit:
    """How near a candidate comes on fresh sequences."""

    r2: float
    interval: tuple[float, float]
    """By bootstrap: whole sequences are resampled, since the steps of one are not independent."""
    error: float
    """√(1 − R²), without its rounding."""
    errors: Float[Array, " d_out"]
    """The same of each output; infinite for a constant that is missed."""

    @property
    def width(self) -> float:
        return self.interval[1] - self.interval[0]

    @classmethod
    def of(cls, candidate: Candidate, held: Sampled, random: np.random.Generator) -> Fit:
        ys, piece = held[1], PIECE
        predicted = np.concatenate([candidate(held[0][i : i + piece]) for i in range(0, len(ys), piece)])
        r2, interval = r_squared_interval(ys, predicted, random)
        errors = np.sum((ys - predicted) ** 2, axis=(0, 1))
        spread = np.sum((ys - ys.mean(axis=(0, 1))) ** 2, axis=(0, 1))
        each = np.where(errors == 0, 0.0, np.sqrt(errors / spread))
        return cls(r2, interval, float(np.sqrt(errors.sum() / spread.sum())), each)


def found_of(
    candidate: Candidate,
    verdict: str,
    fit: Fit,
    settings: Settings,
    against: LinearAttention | None,
) -> Found:
    share = 1e-12 if verdict == NOT else min(max(1e-8, 30 * fit.error), 0.1)
    groups = _heads(candidate, share, settings.seed, search=verdict != NOT)
    values = np.concatenate([group.values for group in groups])
    key_query = np.concatenate([group.key_query for group in groups])
    decays = np.repeat(candidate.decays, [group.count for group in groups])
    tensor = polynomial = None
    if values.shape[2] <= MOST_POLYNOMIAL:
        dense = isinstance(candidate, DenseAttention)
        tensor = candidate.tensors.sum(axis=0) if dense else head_tensor(values, key_query)
        polynomial = of_attention(tensor)
    evidence = Evidence(fit.r2, fit.interval, fit.error, settings.tolerance, tensor=tensor, polynomial=polynomial)
    return Found(
        verdict,
        reason(verdict, fit, settings, [], len(values), candidate.decays),
        LinearAttention(values, *key_and_query(key_query), decays if verdict == DECAYED else None),
        Scores(polynomial_distance=_gap(polynomial, against)),
        evidence=evidence,
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
    xs = np.random.default_rng(seed).standard_normal((tokens_needed(tensor.shape[1]) or TOKENS, tensor.shape[1]))
    ys = np.einsum("oabc,na,nb,nc->no", tensor, xs, xs, xs, optimize=True)
    return instant_heads(xs, ys, share, seed) or fewest_heads(tensor, share, seed=seed, search=False)


def _gap(polynomial: Polynomial | None, against: LinearAttention | None) -> float | None:
    if polynomial is None or against is None:
        return None
    teacher = head_tensor(np.asarray(against.w_value, np.float64), against.key_query)
    return distance(polynomial, of_attention(teacher))


def reason(
    verdict: str,
    fit: Fit,
    settings: Settings,
    diagnosis: list[dict[str, Any]],
    heads: int,
    decays: tuple[float, ...],
) -> str:
    if verdict == NOT:
        return _why_not(fit, settings, diagnosis)
    count = "one head" if heads == 1 else f"{heads} heads, of which the sum is identifiable and the split is not"
    fades = f", decay {', '.join(f'{decay:.6g}' for decay in decays)}" if verdict == DECAYED else ""
    share = "rounding" if fit.error < 1e-15 else f"{fit.error:.1e}"
    return f"linear attention explains all but {share} of the output on fresh sequences; {count}{fades}"


def _why_not(fit: Fit, settings: Settings, diagnosis: list[dict[str, Any]]) -> str:
    """The error where it says something, then what the output is made of."""
    worst, tolerance = int(np.argmax(fit.errors)), f"tolerance {settings.tolerance:.0e}"
    if diagnosis and fit.error <= settings.tolerance and fit.errors[worst] <= settings.tolerance:
        return f"{diagnosis[0]['meaning']}; apart from that, attention explains all but {fit.error:.1e} of the output"
    if fit.r2 <= 0:
        text = f"the best linear attention comes no nearer to the output than its mean does ({tolerance})"
    elif fit.error <= settings.tolerance:
        of = f"output {worst + 1} of {len(fit.errors)}"
        share = f"{min(fit.errors[worst], 1.0):.1e} of {of}"
        text = f"the best linear attention misses {share} on fresh sequences ({tolerance})"
    else:
        text = f"the best linear attention misses {fit.error:.1e} of the output on fresh sequences ({tolerance})"
    return f"{text}; {diagnosis[0]['meaning']}" if diagnosis else text
