"""What decompile and probe return: the answer first, then what it rests on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from underhood.attention.linear import LinearAttention
from underhood.cells.gated_rnn import GatedRNN
from underhood.errors import UnderhoodError
from underhood.identify.certify import Certificate
from underhood.identify.in_context import InContext, read_in_context
from underhood.identify.merge import MergedKernel
from underhood.identify.neurons import Neurons
from underhood.identify.polynomial import Polynomial

LINEAR, DECAYED, NOT = "linear-attention", "decayed-attention", "not-attention"


@dataclass(frozen=True)
class Scores:
    """Table 1: each zero for a perfect match; None where there is nothing to compare."""

    kv_score: float | None = None
    q_score: float | None = None
    polynomial_distance: float | None = None


@dataclass(frozen=True)
class Found:
    """Is it attention, and which?

    With several heads their sum is identifiable, the split into heads is not; of keys and queries only
    W_KᵀW_Q is.
    """

    verdict: str
    reason: str
    attention: LinearAttention | None  # the nearest one found where the verdict is no, if any
    heads: int | None
    scores: Scores
    r2: float
    r2_interval: tuple[float, float] | None = None
    certificate: Certificate | None = None
    hidden_before: int | None = None
    hidden_after: int | None = None
    pre_readout_before: int | None = None
    pre_readout_after: int | None = None
    reduced: GatedRNN | None = None  # the smallest network found, in the block order of Figure 2.A
    reduced_change: float | None = None  # its relative distance from the network, on random sequences
    tensor: np.ndarray | None = None  # T_i[a,b,c] of docs/theory.md, summed over decays
    deviation: float | None = None  # relative size of what attention does not have
    tolerance: float | None = None
    rest: dict[str, float] = field(default_factory=dict)  # the same by class of terms
    neurons: Neurons | None = None
    kernels: tuple[MergedKernel, ...] = ()
    polynomial: Polynomial | None = None

    @property
    def is_attention(self) -> bool:
        return self.verdict != NOT

    @property
    def decay(self) -> tuple[float, ...] | None:
        """The decay of each head; None for the paper's attention, which has none."""
        if self.attention is None or self.attention.decay is None:
            return None
        return tuple(float(one) for one in np.asarray(self.attention.decay))

    def in_context(self, d_x: int, d_y: int, observations: int) -> InContext:
        """Table 2: the gradient step of a network trained on in-context regression with T observations."""
        if self.polynomial is None:
            raise UnderhoodError("the in-context reading needs the network's polynomial", "none")
        return read_in_context(self.polynomial, d_x, d_y, observations)

    def as_data(self) -> dict[str, Any]:
        """The keys of the contract."""
        return {
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
