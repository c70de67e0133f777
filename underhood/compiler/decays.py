"""b with σ(b) = p, and A with exp(−e^A) = λ: weights from which a network makes a gate or a decay, exact at 0 and 1."""

from __future__ import annotations

from typing import Any

import numpy as np

CLOSED = -2000.0  # σ and exp are exactly 0 there, and σ(−CLOSED) is exactly 1
LEAST, MOST = 1e-300, 1 - 2.0**-53  # what is neither 0 nor 1


def logit(share: Any) -> np.ndarray:
    """b with σ(b) = share."""
    share = np.asarray(share, np.float64)
    inner = np.clip(share, LEAST, MOST)
    return np.where(share == 0, CLOSED, np.where(share == 1, -CLOSED, np.log(inner) - np.log1p(-inner)))


def root_logit(decay: Any, root: float) -> np.ndarray:
    """b with σ(b)^{1/root} = decay."""
    decay = np.asarray(decay, np.float64)
    logarithm = root * np.log(np.clip(decay, LEAST, MOST))
    inner = logarithm - np.log(-np.expm1(logarithm))
    return np.where(decay == 1, -CLOSED, np.where(decay == 0, root * CLOSED, inner))


def log_rate(decay: Any, step: float = 1.0) -> np.ndarray:
    """A with exp(−e^A · step) = decay."""
    decay = np.asarray(decay, np.float64)
    inner = np.clip(decay, LEAST, MOST)
    return np.where(decay == 1, CLOSED, np.log(np.where(decay == 0, -CLOSED, -np.log(inner)) / step))
