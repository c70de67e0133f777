"""f(x) twice, f of changed futures, f(c·x), f against eight regressions: what a function is, if it is no attention.

`what` is one of these names, which stay as they are:

    random              not a function of its input: dropout, noise, or a state that is kept between calls
    looks-ahead         outputs depend on later inputs
    limited-precision   attention, up to rounding that is coarser than the tolerance
    linear-recurrence   linear in the inputs: a recurrence or convolution without products
    constant-output     attention plus a constant
    linear-term         attention plus a linear function of the input of the step, such as a residual connection
    strictly-causal     attention over the inputs before the step's own
    constant-inputs     attention with biases in query, key or value
    several-decays      attention whose memory fades at many rates
    softmax             averages of values, with positive weights that add up to one
    delta-rule          a memory that takes back what it held under a key before it writes
    degree              another power of the input than the third
    none-of-these       none of the above

Tests run in a random subspace of the inputs, so that their cost does not depend on d: what an attention with any of
these defects does to a subspace is again such an attention.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from underhood.algebra.quadratic import Array
from underhood.algebra.statistics import r_squared
from underhood.core.errors import UnderhoodError
from underhood.decompiler.from_outputs.closed_form import fit_dense
from underhood.decompiler.from_outputs.functions import Batched
from underhood.decompiler.from_outputs.suspects import SUSPECTS, attention, explained, looks_ahead
from underhood.decompiler.from_outputs.update_rules import delta_rule_r2, is_average, softmax_r2

DIMENSIONS = 3  # of the subspace
LENGTH, FITTED, HELD = 16, 256, 64
EXPLAINS = 0.99  # least R² of an explanation,
CLOSES = 0.1  # which leaves at most this share of what attention misses
AS_GOOD = 10.0  # ratio of misses up to which the simpler of two explanations is the better one
ROUGH = 0.3  # change of what attention misses, relative, under a change of the input that is next to none
NUDGES = (1e-6, 1e-4, 2e-3)  # relative: beyond rounding to float32, bfloat16 and float16

MEANINGS = {
    "random": (
        "the same input gives different outputs: dropout, noise, or a state kept between calls",
        "Call .eval() on the module, or fix its seed and reset its state.",
    ),
    "looks-ahead": ("outputs depend on later inputs: attention here is causal", "Add a causal mask."),
    "limited-precision": (
        "attention, up to rounding to few digits",
        "Probe it in float64, or with a larger tolerance.",
    ),
    "linear-recurrence": (
        "linear in its inputs: a recurrence or convolution without products",
        "Look at the recurrence itself: nothing here multiplies two inputs.",
    ),
    "constant-output": ("attention plus a constant output", "Subtract the output on zeros, or drop the output's bias."),
    "linear-term": (
        "attention plus a linear term of the current input, such as a residual connection",
        "Probe it without the residual connection.",
    ),
    "strictly-causal": (
        "attention over the inputs before the current one",
        "Let each step attend to itself too.",
    ),
    "constant-inputs": (
        "attention with constant inputs (biases) in query, key or value",
        "Append 1 to x: probe it as a function of [x, 1].",
    ),
    "several-decays": (
        "attention whose memory fades at several rates",
        "Probe one head at a time, or decompile the weights, which finds the decay of each head.",
    ),
    "softmax": (
        "softmax attention: weights are positive and add up to one",
        "Probe the layer without the normalisation, if it has such a mode.",
    ),
    "delta-rule": (
        "the delta rule: a write first takes back what its key held",
        "Ask `underhood in-context` which rule it is.",
    ),
    "degree": (
        "not of degree three, as attention is",
        "Look for what attention multiplies: value, key and query.",
    ),
    "none-of-these": (
        "none of the explanations that underhood knows",
        "Look at R²: close to 1 is a small defect, far from 1 another algorithm.",
    ),
}


@dataclass(frozen=True)
class Suspicion:
    """One explanation, with the share of the output that it explains."""

    what: str
    r2: float | None
    detail: str = ""
    certain: bool = False  # by a property that nothing else has, however much the fit explains

    def as_data(self) -> dict[str, Any]:
        meaning, remedy = MEANINGS[self.what]
        return {"what": self.what, "r2": self.r2, "remedy": remedy, "meaning": meaning + self.detail}


@np.errstate(all="ignore")  # what is not finite explains nothing
def diagnose(call: Batched, d: int, length: int, input_bound: float, seed: int) -> list[dict[str, Any]]:
    """What a function of batches that is no attention is instead, the likeliest first: `what`, `r2` and `remedy`."""
    random = np.random.default_rng(seed)
    basis = np.linalg.qr(random.standard_normal((d, min(d, DIMENSIONS))))[0].T
    patient = _Patient(lambda batch: call(batch @ basis), len(basis), min(length, LENGTH), input_bound, random)
    return [one.as_data() for one in patient.suspicions()]


@dataclass(frozen=True)
class _Patient:
    call: Batched
    d: int
    length: int
    input_bound: float
    random: np.random.Generator

    def draw(self, count: int) -> tuple[Array, Array]:
        xs = self.random.standard_normal((count, self.length, self.d))
        xs /= np.maximum(np.linalg.norm(xs, axis=2, keepdims=True) / self.input_bound, 1)
        return xs, self.call(xs)

    def suspicions(self) -> list[Suspicion]:
        fit, held = self.draw(FITTED), self.draw(HELD)
        again = self.call(held[0])
        if not np.allclose(again, held[1], rtol=0, atol=1e-5 * np.abs(held[1]).max()):
            # Half of the squared difference is the variance of the noise.
            noise = 0.5 * np.sum((again - held[1]) ** 2)
            return [Suspicion("random", float(1 - noise / np.sum((held[1] - held[1].mean(axis=(0, 1))) ** 2)))]
        plain = explained(attention, fit, held)
        if self._looks_ahead(held):
            return [Suspicion("looks-ahead", explained(looks_ahead, fit, held))]
        if plain > EXPLAINS and self._is_rough(fit, held):
            return [Suspicion("limited-precision", plain, f": about {np.sqrt(1 - plain):.0e} of the output")]
        found = [Suspicion(what, explained(suspect, fit, held)) for what, suspect in SUSPECTS.items()]
        found += self._update_rules(held) + self._degree(held)
        found = [one for one in found if one.certain or _explains(one.r2 or 0.0, plain)]
        return _ranked(found) or [Suspicion("none-of-these", None)]

    def _looks_ahead(self, held: tuple[Array, Array]) -> bool:
        xs, ys = held
        half = self.length // 2
        changed = np.concatenate([xs[:, :half], self.random.standard_normal(xs[:, half:].shape)], axis=1)
        return not np.allclose(self.call(changed)[:, :half], ys[:, :half], rtol=0, atol=1e-4 * np.abs(ys).max())

    def _is_rough(self, fit: tuple[Array, Array], held: tuple[Array, Array]) -> bool:
        """Whether what attention misses is another under a change of the input that is next to none: rounding is."""
        xs, ys = held
        missed = _missed(fit, xs, ys)
        for nudge in NUDGES:
            nearby = xs * (1 + nudge * self.random.standard_normal(xs.shape))
            change = np.linalg.norm(_missed(fit, nearby, self.call(nearby)) - missed)
            if change > ROUGH * np.linalg.norm(missed):
                return True
        return False

    def _update_rules(self, held: tuple[Array, Array]) -> list[Suspicion]:
        found = []
        try:
            if is_average(self.call, self.d, self.length, self.random) > 1 - 1e-6 and not self._degree(held):
                found.append(Suspicion("softmax", softmax_r2(self.call, held, self.random), certain=True))
            found.append(Suspicion("delta-rule", delta_rule_r2(self.call, self.d, self.length // 2, self.random)))
        except (UnderhoodError, np.linalg.LinAlgError):
            pass  # zeros may be no input of its, nor products a fit
        return found

    def _degree(self, held: tuple[Array, Array]) -> list[Suspicion]:
        """f(x) = c^-k f(c·x) for c = ½ and ¼, with one k that is not three."""
        xs, ys = held
        half, quarter = self.call(xs / 2), self.call(xs / 4)
        degree = float(np.log2(np.linalg.norm(ys) / np.linalg.norm(quarter))) / 2
        if not np.isfinite(degree) or abs(degree - 3) < 0.05:
            return []
        degree = round(degree) if abs(degree - round(degree)) < 0.02 else degree
        r2 = r_squared(np.concatenate([ys, ys]), np.concatenate([half * 2.0**degree, quarter * 4.0**degree]))
        return [Suspicion("degree", r2, f": f(c·x) grows as c^{degree:.3g}")] if r2 >= EXPLAINS else []


def _missed(fit: tuple[Array, Array], xs: Array, ys: Array) -> Array:
    return ys - fit_dense(*fit, (1.0,))(xs)


def _explains(r2: float, plain: float) -> bool:
    return r2 >= EXPLAINS and 1 - r2 <= CLOSES * (1 - plain)


def _ranked(found: list[Suspicion]) -> list[Suspicion]:
    """By what they leave open; those as good as the best in their own order, the simplest first."""
    misses = {one.what: max(1 - (one.r2 or 0.0), 1e-12) for one in found}
    best = min(misses.values(), default=0.0)
    return sorted(found, key=lambda one: misses[one.what] if misses[one.what] > AS_GOOD * best else best)
