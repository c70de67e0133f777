"""Threads for the size at hand: matrices of some hundred rows lose more by a second thread than they gain.

Measured on two cores at d = 8: 31 s of processor time with as many threads as cores, 1.6 s with one.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from threadpoolctl import threadpool_limits

WIDE = 128  # inputs from which matrix products are worth a second thread


@contextlib.contextmanager
def threads_for(size: int) -> Iterator[None]:
    """One thread in BLAS, OpenMP and torch for sizes below 128; what the user has set otherwise."""
    if size >= WIDE:
        yield
        return
    torch = sys.modules.get("torch")
    before = torch.get_num_threads() if torch is not None else 0
    with threadpool_limits(limits=1):
        if torch is not None:
            torch.set_num_threads(1)
        try:
            yield
        finally:
            if torch is not None:
                torch.set_num_threads(before)
