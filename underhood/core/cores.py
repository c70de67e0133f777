"""Two devices for two cores: jax counts the CPU as one unless told otherwise before its first computation."""

from __future__ import annotations

import contextlib
import os

import jax


def cores() -> int:
    """Cores that this process may use: its affinity, or fewer by NPROC, which sizes the compiler's thread pool."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    asked = os.environ.get("NPROC", "")
    return min(allowed, int(asked)) if asked.isdigit() and int(asked) > 0 else allowed


def offer_two_devices() -> None:
    """Let the two halves of a batch be worked on at once (fit/population.py); too late once jax has started."""
    if cores() >= 2:
        with contextlib.suppress(RuntimeError):
            jax.config.update("jax_num_cpu_devices", 2)
