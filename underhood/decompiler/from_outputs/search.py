"""Attentions that a function may compute, the simplest first, from few questions.

Where d is small, a linear regression for each set of decays (`regression`); where it is not, chosen inputs (`factors`,
`compressed`), and descent for the nearest attention to what is none (`nearest`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from underhood.algebra.heads import Heads
from underhood.algebra.quadratic import Array
from underhood.algebra.theta import compress, factored
from underhood.core.errors import UnderhoodError
from underhood.decompiler.from_outputs.instant import instant_heads, tokens_needed
from underhood.decompiler.from_outputs.nearest import attend, nearest_heads
from underhood.decompiler.from_outputs.questions import ChosenInputs
from underhood.decompiler.from_outputs.regression import MOST_ROWS, DenseAttention, fit_dense, unknowns
from underhood.decompiler.from_weights.reading import is_strictly_causal

CHECKED = 64  # of them, to choose between candidates
SMALL = 8  # inputs up to which the regression on d²(d + 1)/2 features is the faster way
MOST_SEQUENCES = 2048  # for the nearest attention to what is none
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
        if not self.groups:
            return np.zeros((*xs.shape[:2], 1))
        counts = [one.count for one in self.groups]
        values, key_query = (
            np.concatenate([getattr(one, name) for one in self.groups]) for name in ("values", "key_query")
        )
        return attend(values, key_query, np.repeat(self.decays, counts), xs)


Candidate = DenseAttention | FactoredAttention


@dataclass(frozen=True)
class Settings:
    d: int
    length: int
    input_bound: float
    tolerance: float
    max_heads: int
    seed: int
    watch: Watch
    distribution: str = "normal"
    pooling: str = "each"

    def drawn(self, random: np.random.Generator, count: int) -> Float[Array, "b t d"]:
        """Random sequences, as the settings say."""
        shape = (count, self.length, self.d)
        if self.distribution == "uniform":
            return random.uniform(-self.input_bound, self.input_bound, shape)
        return np.clip(random.standard_normal(shape), -self.input_bound, self.input_bound)


@dataclass(frozen=True)
class Search:
    settings: Settings
    draw: Callable[[int], Sampled]
    chosen: ChosenInputs
    held: Sampled

    @property
    def d(self) -> int:
        return self.chosen.d

    def candidates(self) -> Iterator[Candidate]:
        """Attentions to be tested, the simplest first; the last of them is the nearest one without decay."""
        return self._by_regression() if self.d <= SMALL else self._by_choice()

    def _by_regression(self) -> Iterator[Candidate]:
        most = min(MOST_SEQUENCES, MOST_ROWS // self.chosen.length)
        fit: Sampled | None = None
        for decays in self._decays():
            need = min(most, max(CHECKED, -(-ROWS * unknowns(self.d) * len(decays) // self.chosen.length)))
            if fit is None or len(fit[0]) < need:
                fit = self.draw(need)
            yield fit_dense(*fit, decays)
        yield fit_dense(*self.draw(most), (1.0,))

    def _by_choice(self) -> Iterator[Candidate]:
        known: dict[tuple[float, ...], list[FactoredAttention]] = {(): [FactoredAttention((), ())]}
        for decays in self._decays():
            if decays[-1] == 0.0:
                yield from self._with_instant(known[decays[:-1]])
            else:
                known[decays] = []
                for one in self._in_factors(decays):
                    known[decays].append(one)
                    yield one
        yield self._nearest()

    def _with_instant(self, others: list[FactoredAttention]) -> Iterator[FactoredAttention]:
        """The same beside heads of decay 0: what is left of sequences of one step, if it is a cubic form."""
        count = tokens_needed(self.d)
        if count is None:
            return
        xs = self.chosen.normal(count, 0.5)[:, None]
        try:
            ys, twice = self.chosen.call(xs), self.chosen.call(2 * xs[:CHECKED])
        except UnderhoodError:
            return  # it takes no sequences of one step
        if not np.allclose(twice, 8 * ys[:CHECKED], rtol=0, atol=1e-3 * np.abs(twice).max()):
            return
        for one in others:
            left = (ys - one(xs))[:, 0]
            heads = instant_heads(xs[:, 0], left, self.settings.tolerance, self.settings.seed)
            if heads is not None:
                yield FactoredAttention((*one.decays, 0.0), (*one.groups, heads))

    def _in_factors(self, decays: tuple[float, ...]) -> Iterator[FactoredAttention]:
        try:
            split = [
                FactoredAttention(decays, tuple(one)) for one in factored(self.chosen, decays, self.settings.watch)
            ]
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
                decays, groups, lambda share: tuple(one.heads(share, seed=self.settings.seed) for one in parts)
            )

    def _decays(self) -> Iterator[tuple[float, ...]]:
        yield (1.0,)
        try:
            found = dict.fromkeys(self.chosen.decays(noise) for noise in NOISE)
        except UnderhoodError:
            found = {}
        found = {decays: None for decays in found if decays not in ((), (1.0,))}
        yield from found
        if not is_strictly_causal(self.held[1], self.settings.tolerance):
            yield from ((*decays, 0.0) for decays in ((), *found, (1.0,)))

    def _error(self, candidate: Candidate) -> float:
        xs, ys = (one[:CHECKED] for one in self.held)
        return float(np.linalg.norm(ys - candidate(xs)))

    def _nearest(self) -> Candidate:
        """One head, then twice as many, as long as what is not seen gains by it."""
        d, d_out = self.d, self.held[1].shape[2]
        random, heads, best = np.random.default_rng(self.settings.seed), 1, None
        fit = None
        while heads <= self.settings.max_heads:
            need = -(-TOKENS * heads * d * (d + d_out) // (d_out * self.chosen.length))
            fit = self.draw(max(256, need)) if fit is None or len(fit[0]) < need else fit
            self.settings.watch(
                f"the nearest attention of {heads} head{'s' * (heads > 1)}", heads / (self.settings.max_heads + 1)
            )
            start = random.standard_normal((heads, d, d)) / np.sqrt(d)
            found = FactoredAttention((1.0,), (nearest_heads(*fit, start),))
            if best is not None and self._error(found) > 0.99 * self._error(best):
                break
            best, heads = found, 2 * heads
        assert best is not None
        return best
