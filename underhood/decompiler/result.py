"""What decompile and probe return: the answer first, then what it rests on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from underhood.architectures.gated_rnn.cell import GatedRNN
from underhood.attention.linear import LinearAttention
from underhood.core.display import Displayed, Summary
from underhood.core.errors import UnderhoodError
from underhood.decompiler.from_weights.certificate import Certificate
from underhood.decompiler.from_weights.neurons import Neurons
from underhood.decompiler.from_weights.polynomial import GradientTerms, Polynomial, gradient_terms
from underhood.decompiler.from_weights.smallest import Smallest

LINEAR, DECAYED, NOT = "linear-attention", "decayed-attention", "not-attention"


@dataclass(frozen=True)
class Scores:
    """Table 1: each zero for a perfect match; None where there is nothing to compare."""

    kv_score: float | None = None
    """1 − R² of the teacher's key-values from the memory neurons."""
    q_score: float | None = None
    """1 − R² of its queries from the forget neurons."""
    polynomial_distance: float | None = None
    """Distance of the coefficients of all monomials of degree ≤ 4."""


@dataclass(frozen=True)
class Evidence:
    """What an answer rests on; None where a network, or the way it was read, does not have it."""

    r2: float
    """Share of the outputs that the attention explains, on fresh sequences."""
    r2_interval: tuple[float, float] | None = None
    """Its 95 % interval, where outputs were sampled."""
    deviation: float | None = None
    """Relative size of what attention does not have: of weights, in the output that has most of it."""
    tolerance: float | None = None
    """Largest deviation that counts as attention."""
    rest: dict[str, float] = field(default_factory=dict)
    """The deviation by class of terms."""
    tensor: np.ndarray | None = None
    """T_i[a,b,c] of docs/theory.md, summed over decays; None beyond sizes at which it is worth writing out."""
    polynomial: Polynomial | None = None
    """The function on sequences of length one; None beyond the same sizes."""
    neurons: Neurons | None = None
    """The hidden neurons as they came."""
    smallest: Smallest | None = None
    """The smallest network found with the same function."""
    hidden_before: int | None = None
    """Hidden neurons as they came, then in the smallest network found."""
    hidden_after: int | None = None
    pre_readout_before: int | None = None
    """Pre-readout neurons, likewise."""
    pre_readout_after: int | None = None
    r2_on_inputs: float | None = None
    """R² of the best attention for sequences of the user's own, on the second half of them."""


@dataclass(frozen=True, repr=False)
class Found(Displayed):
    """Is it attention, and which?

    Only the sum of several heads is identifiable, and of keys and queries only W_KᵀW_Q.
    """

    verdict: str
    """linear-attention, decayed-attention or not-attention."""
    reason: str
    """Why, in one line."""
    attention: LinearAttention | None
    """The attention; where the verdict is no, the nearest one found, if any."""
    scores: Scores
    """Table 1 against the teacher, or against what was found."""
    certificate: Certificate | None = None
    """Bound on the distance to the network, where its weights can be read."""
    diagnosis: list[dict[str, Any]] = field(default_factory=list)
    """Where the verdict is no: what it is instead, the likeliest first, each with `what`, `r2` and `remedy`."""
    function: Any = None
    """Where the verdict is no and the diagnosis names a function that was fitted, that function: softmax attention."""
    evidence: Evidence = field(kw_only=True)
    """What the answer rests on."""

    def _summary(self) -> Summary:
        heads = None if self.heads is None else f"{self.heads} head{'s' * (self.heads > 1)}"
        bound = self.certificate
        promised = (
            None if bound is None else f"{bound.max_abs_error:.2g} for |x| ≤ {bound.input_bound:g}, t ≤ {bound.horizon}"
        )
        facts = {
            "why": self.reason,
            "R²": f"1 − {1 - self.r2:.2g}" if 0 < 1 - self.r2 < 1e-3 else float(self.r2),
            "decay": self.decay,
            "error at most": promised,
            "instead": ", ".join(str(entry["what"]) for entry in self.diagnosis[:3]) or None,
        }
        return Summary(self.verdict if heads is None else f"{self.verdict}, {heads}", facts)

    @property
    def is_attention(self) -> bool:
        return self.verdict != NOT

    @property
    def heads(self) -> int | None:
        """How many heads it takes; None where the verdict is no."""
        return self.attention.heads if self.is_attention and self.attention is not None else None

    @property
    def decay(self) -> tuple[float, ...] | None:
        """The decay of each head; None for the paper's attention, which has none."""
        if self.attention is None or self.attention.decay is None:
            return None
        return tuple(float(one) for one in np.asarray(self.attention.decay))

    @property
    def r2(self) -> float:
        """Share of the outputs that the attention explains, on fresh sequences."""
        return self.evidence.r2

    @property
    def r2_interval(self) -> tuple[float, float] | None:
        """Its 95 % interval, where outputs were sampled."""
        return self.evidence.r2_interval

    @property
    def reduced(self) -> GatedRNN | None:
        """The smallest network found with the same function, in the block order of Figure 2.A."""
        return None if self.evidence.smallest is None else self.evidence.smallest.network

    @property
    def reduced_change(self) -> float | None:
        """Its relative distance from the network, on random sequences."""
        return None if self.evidence.smallest is None else self.evidence.smallest.change

    @property
    def hidden_before(self) -> int | None:
        """Hidden neurons as they came."""
        return self.evidence.hidden_before

    @property
    def hidden_after(self) -> int | None:
        """Hidden neurons of the smallest network found."""
        return self.evidence.hidden_after

    @property
    def pre_readout_before(self) -> int | None:
        """Pre-readout neurons as they came."""
        return self.evidence.pre_readout_before

    @property
    def pre_readout_after(self) -> int | None:
        """Pre-readout neurons of the smallest network found."""
        return self.evidence.pre_readout_after

    def in_context(self, d_x: int, d_y: int, observations: int) -> GradientTerms:
        """Table 2: the gradient step of a network trained on in-context regression.

        **Arguments:**

        - `d_x`, `d_y`: the sizes of x and y, which the network reads side by side.
        - `observations`: T, the examples in a sequence.

        **Returns:**

        The coefficients of x_i² y_1 in the first prediction, what else it has, and the best step's coefficient.
        """
        if self.evidence.polynomial is None:
            raise UnderhoodError("no polynomial to read in context", remedy="Decompile a gated RNN of a smaller d.")
        return gradient_terms(self.evidence.polynomial, d_x, d_y, observations)

    def as_data(self) -> dict[str, Any]:
        """The keys of the contract."""
        data = {
            "verdict": self.verdict,
            "reason": self.reason,
            "heads": self.heads,
            "kv_score": self.scores.kv_score,
            "q_score": self.scores.q_score,
            "polynomial_distance": self.scores.polynomial_distance,
            "r2": self.r2,
            "hidden_before": self.hidden_before,
            "hidden_after": self.hidden_after,
            "pre_readout_before": self.pre_readout_before,
            "pre_readout_after": self.pre_readout_after,
            "certificate": None if self.certificate is None else self.certificate.as_data(),
        }
        if self.evidence.r2_on_inputs is not None:
            data["r2_on_inputs"] = self.evidence.r2_on_inputs
        return data if self.is_attention else {**data, "diagnosis": self.diagnosis}
