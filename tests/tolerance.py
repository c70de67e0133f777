"""One tolerance everywhere, derived from the dtype; relative to the largest entry of the reference."""

import numpy as np

RELATIVE = {np.dtype(np.float64): 1e-12, np.dtype(np.float32): 2e-4}


def error(actual, reference) -> float:
    """Largest absolute difference over the largest reference entry."""
    actual, reference = np.asarray(actual, np.float64), np.asarray(reference, np.float64)
    assert actual.shape == reference.shape, (actual.shape, reference.shape)
    return float(np.max(np.abs(actual - reference)) / max(np.max(np.abs(reference)), np.finfo(np.float64).tiny))


def share(gradient, largest) -> float:
    """How much of an error in a gradient counts, next to the largest of all weights.

    Where an invariance of the layer makes all gradients of a weight small, only rounding is left of them.
    """
    return min(1.0, float(np.max(np.abs(gradient))) / (1e-2 * largest))


def agree(actual, reference, dtype=np.float64) -> bool:
    return error(actual, reference) <= RELATIVE[np.dtype(dtype)]
