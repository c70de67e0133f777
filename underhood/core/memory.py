"""Sizes are checked against the machine's memory before anything is allocated: need ≤ what is free.

A guess on the low side is enough: it is there to refuse what cannot work, in one line, before the machine swaps.
"""

from __future__ import annotations

import math
import os
import re
import resource
from pathlib import Path

from underhood.core.errors import UnderhoodError

_CGROUP = Path("/sys/fs/cgroup")  # limit of a container
_MEMINFO = Path("/proc/meminfo")


class NotEnoughMemory(UnderhoodError):
    """Sizes that this machine has no room for."""


def require_memory(need: int | float, what: str, remedy: str = "Choose smaller sizes.") -> None:
    """Refuse `what` if it needs more bytes than there are: `require_memory(8 * n * n, "20000 hidden neurons")`."""
    free = available_memory()
    if need > free:
        shown = f"it needs at least {readable(need)}, and {readable(free)} are free"
        raise NotEnoughMemory(f"not enough memory for {what}: {shown}", remedy=remedy)


def available_memory() -> float:
    """Bytes that this process can still take: the machine's, its container's or its own limit, whichever is least."""
    limits = [_free_of_machine(), _free_of_container()]
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY:
        limits.append(float(soft))
    return min(limits)


def _free_of_machine() -> float:
    try:
        found = re.search(r"MemAvailable:\s+(\d+) kB", _MEMINFO.read_text())
        if found:
            return 1024.0 * int(found[1])
    except OSError:  # not Linux
        pass
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def _free_of_container() -> float:
    try:
        limit, used = ((_CGROUP / name).read_text().strip() for name in ("memory.max", "memory.current"))
        return float("inf") if limit == "max" else float(limit) - float(used)
    except (OSError, ValueError):
        return float("inf")


def readable(size: int | float) -> str:
    size = min(size, 10**300)  # beyond it, a whole number is no float
    units = ("bytes", "kB", "MB", "GB", "TB", "PB")
    thousands = min(int(math.log(max(size, 1), 1000)), len(units) - 1)
    return f"{size / 1000**thousands:.3g} {units[thousands]}"
