"""Eq. 2 as arrays: h_t = λ ⊙ h_{t-1} + (W_m x̃) ⊙ (W_x x̃);  y_t = D [(L h_t) ⊙ (R h_t)], in NumPy.

What the compiler writes, the solver checks, `disguise` changes and the decompiler reads. The forward pass is here once:
the compiler, the solver and `disguise` have the two branches of a neuron, the decompiler has its quadratic form.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Float, Inexact

from underhood.algebra.quadratic import Array, append_one, decayed_sums, product_forms

R = TypeVar("R", bound="Recurrence")


@dataclass(frozen=True)
class Recurrence:
    """h_t = λ ⊙ h_{t-1} + g_in(x̃_t);  y_t = D [(L h_t) ⊙ (R h_t)]; `driven` is g_in."""

    lambda_: Inexact[Array, " n"]
    left: Inexact[Array, "m n"]
    right: Inexact[Array, "m n"]
    readout: Float[Array, "d_out m"]

    @property
    def hidden(self) -> int:
        return len(self.lambda_)

    @property
    def pre_readout(self) -> int:
        return len(self.left)

    @property
    def d_out(self) -> int:
        return len(self.readout)

    def driven(self, xs: Float[Array, "... t d"]) -> Inexact[Array, "... t n"]:
        """g_in(x̃_t)."""
        raise NotImplementedError

    def states(self, xs: Float[Array, "... t d"]) -> Inexact[Array, "... t n"]:
        """h_t, from h_0 = 0."""
        return decayed_sums(self.driven(xs), self.lambda_)

    def __call__(self, xs: Float[Array, "... t d"]) -> Float[Array, "... t d_out"]:
        return self.read(self.states(xs))

    def read(self, states: Inexact[Array, "... n"]) -> Float[Array, "... d_out"]:
        """D [(L h) ⊙ (R h)]."""
        return np.real(((states @ self.left.T) * (states @ self.right.T)) @ self.readout.T)

    def keep(self: R, hidden: Array, rows: Array | None = None) -> R:
        """The same with only some of its hidden and pre-readout neurons."""
        rows = np.arange(self.pre_readout) if rows is None else rows
        changed: dict[str, Any] = {
            "lambda_": self.lambda_[hidden],
            "left": self.left[np.ix_(rows, hidden)],
            "right": self.right[np.ix_(rows, hidden)],
            "readout": self.readout[:, rows],
        }
        inputs = {name: getattr(self, name)[hidden] for name in self._inputs}
        return dataclasses.replace(self, **changed, **inputs)

    _inputs = ()  # names of the arrays of g_in, a row per neuron


@dataclass(frozen=True, kw_only=True)
class GatedArrays(Recurrence):
    """g_in(x̃) = (W_m x̃) ⊙ (W_x x̃)."""

    w_m: Float[Array, "n d1"]
    w_x: Float[Array, "n d1"]

    _inputs = ("w_m", "w_x")

    @property
    def d(self) -> int:
        return self.w_m.shape[1] - 1

    @property
    def forms(self) -> Float[Array, "n p"]:
        """The quadratic form in x̃ of each neuron."""
        return product_forms(self.w_m, self.w_x)

    def driven(self, xs: Float[Array, "... t d"]) -> Float[Array, "... t n"]:
        inputs = append_one(xs)
        return (inputs @ self.w_m.T) * (inputs @ self.w_x.T)
