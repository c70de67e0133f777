"""y = constant + clock + linear in the inputs so far + attention + f(x_t) + rest: an output by its parts.

Shares are of the output's power, mean y², and add up to one. Each part is what it adds to those before it, measured on
sequences that it was not fitted to. The part of x_t alone needs no model: with another past and the same x_t, the
covariance of what is left over is the variance that x_t explains (a Sobol index).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from underhood.algebra.quadratic import Array
from underhood.decompiler.from_outputs.functions import Batched
from underhood.decompiler.from_outputs.regression import attention, least_squares, linear_recurrence

CONSTANT, CLOCK, LINEAR, ATTENTION, MEMORYLESS, REST = "constant", "clock", "linear", "attention", "memoryless", "rest"
WORDS = {
    CONSTANT: "constant",
    CLOCK: "a function of the step's number",
    LINEAR: "linear in the inputs so far",
    ATTENTION: "attention",
    MEMORYLESS: "a function of the current input",
    REST: "none of these",
}
LEAST_SHOWN = 1e-4


@dataclass(frozen=True)
class Parts:
    """Shares of an output's power by part; they add up to one."""

    shares: dict[str, float]
    r2: dict[str, float]
    """Share of the variance that a part, with those before it, explains."""

    def __str__(self) -> str:
        """The parts in words: what is constant, then what varies, the largest part first."""
        constant, varies = self.shares[CONSTANT], 1 - self.shares[CONSTANT]
        ordered = sorted((part for part in self.shares if part != CONSTANT), key=lambda part: -self.shares[part])
        parts = [(part, self.shares[part] / varies if varies > 0 else 0.0) for part in ordered]
        words = ", ".join(f"{100 * share:.3g} % {WORDS[part]}" for part, share in parts if share >= LEAST_SHOWN)
        if constant < LEAST_SHOWN:
            return f"of the output, {words}"
        return f"{100 * constant:.6g} % of the output is constant" + (f"; of what varies, {words}" if words else "")


def parts_of(call: Batched, fit: tuple[Array, Array], held: tuple[Array, Array], random: np.random.Generator) -> Parts:
    """The parts of a function's outputs, fitted on `fit` and measured on `held`."""
    (fit_xs, fit_ys), (xs, ys) = fit, held
    power = float(np.sum(ys**2)) or 1.0
    mean, clock = fit_ys.mean(axis=(0, 1)), fit_ys.mean(axis=0)
    fitted, left = fit_ys - clock, [ys, ys - mean, ys - clock]
    for count in (1, 2):
        rows, known = _features(fit_xs, count), _features(xs, count)
        weights = least_squares(rows.reshape(-1, rows.shape[2]), fitted.reshape(-1, fitted.shape[2]))
        left.append(ys - clock - known @ weights)

    def residual(batch: Array) -> Array:
        return call(batch) - clock - _features(batch, 2) @ weights

    powers = [float(np.sum(part**2)) / power for part in left]
    alone = float(np.sum(left[-1] * _with_another_past(residual, xs, random))) / power
    powers.append(powers[-1] - min(max(alone, 0.0), powers[-1]))
    names = (CONSTANT, CLOCK, LINEAR, ATTENTION, MEMORYLESS)
    shares = {name: max(before - after, 0.0) for name, before, after in zip(names, powers, powers[1:], strict=False)}
    shares[REST] = max(1 - sum(shares.values()), 0.0)
    total, varying = sum(shares.values()), max(powers[1], np.finfo(float).tiny)
    r2 = {name: 1 - after / varying for name, after in zip(names, powers[1:], strict=True)}
    return Parts({name: share / total for name, share in shares.items()}, r2)


def _features(xs: Float[Array, "b t d"], count: int) -> Float[Array, "b t p"]:
    """Of the linear part, and of attention beside it."""
    makers = (linear_recurrence, attention)[:count]
    return np.concatenate([xs[:, :, :0], *(make(xs) for make in makers)], axis=2)


def memoryless_r2(call: Batched, held: tuple[Array, Array], random: np.random.Generator) -> float:
    """Share of the variance that the input of the step alone explains."""
    xs, ys = held
    centred = ys - ys.mean(axis=0)
    beside = _with_another_past(call, xs, random) - ys.mean(axis=0)
    spread = float(np.sum(centred**2))
    # Half of the squared difference is what the past adds.
    return 1 - 0.5 * float(np.sum((centred - beside) ** 2)) / spread if spread else 0.0


def _with_another_past(call: Batched, xs: Float[Array, "b t d"], random: np.random.Generator) -> Array:
    """At each step t: the output for a past of another sequence, and x_t."""
    length = xs.shape[1]
    other = np.roll(xs, 1 + int(random.integers(len(xs) - 1)), axis=0)
    # One sequence for each step t, read there alone.
    batch = np.repeat(other[:, None], length, axis=1)
    steps = np.arange(length)
    batch[:, steps, steps] = xs[:, steps]
    ys = call(batch.reshape(-1, length, xs.shape[2])).reshape(len(xs), length, length, -1)
    return ys[:, steps, steps]
