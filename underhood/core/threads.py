"""Threads for the size at hand: matrices of some hundred rows lose more by a second thread than they gain.

Measured on two cores at d = 8: 31 s of processor time with as many threads as cores, 1.6 s with one.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

WIDE = 128  # inputs from which matrix products are worth a second thread


@contextlib.contextmanager
def threads_for(size: int) -> Iterator[None]:
    """One thread in BLAS, OpenMP and torch for sizes below 128; what the user has set otherwise."""
    if size >= WIDE:
        yield
        return
    from threadpoolctl import threadpool_limits

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


def usable_cores() -> int:
    """Cores that this process may use: its affinity, or fewer by NPROC, which sizes the compiler's thread pool."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    asked = os.environ.get("NPROC", "")
    return min(allowed, int(asked)) if asked.isdigit() and int(asked) > 0 else allowed


def offer_two_devices() -> None:
    """Let the two halves of a batch be worked on at once (training/population.py); too late once jax has started.

    jax counts the CPU as one device unless told otherwise before its first computation.
    """
    import jax

    if usable_cores() >= 2:
        with contextlib.suppress(RuntimeError):
            jax.config.update("jax_num_cpu_devices", 2)
