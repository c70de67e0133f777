"""α[t, s] = q_t · (A_t ⋯ A_{s+1}) k_s, s < t: the scores of a matrix memory, a tile of the map at a time.

With a decay, α of the steps after a moment m and before it is a product of two matrices, (q_t e^{Σ_{m≤r≤t} log a_r}) ·
(k_s e^{Σ_{s<r<m} log a_r}): no exponent is positive, and nothing is divided. A sequence is halved until few steps are
left. With rank one beside the decay, the memory's own scan has the identity for values.
"""

from __future__ import annotations

import functools
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Inexact

from underhood.layers.memory import Signals, memory_scan

LEAF = 32  # steps that are done one after another
TILE = 2**21  # bytes

Done = TypeVar("Done")
Signal = Inexact[np.ndarray, "_ h _"]  # as many keys as there are, or 1
Sums = tuple[Signal, Signal]
Make = Callable[[], Inexact[np.ndarray, "n rows columns"]]
Tile = tuple[slice, slice, Make]  # rows, columns, and what makes the numbers, on the thread that wants them


def score_tiles(signals: Signals, *, width: int = 1) -> Iterator[Tile]:
    """The tiles of all pairs s < t; `width` numbers for each score fit in `TILE`."""
    q, k, log_decay = (np.asarray(one) for one in (signals.q, signals.k, signals.log_decay))
    most = TILE // (width * q.shape[1] * np.result_type(q, k, log_decay).itemsize)
    if signals.left is not None:
        yield from _columns(signals, most)
    else:
        yield from _halved(q, k, log_decay if log_decay.ndim == 3 else log_decay[:, :, None], 0, len(q), most)


def _columns(signals: Signals, most: int) -> Iterator[Tile]:
    """The memory's own scan, with the identity as values."""
    length, heads = signals.q.shape[:2]
    count = min(length, max(1, most // length))
    for start in range(0, length, count):
        stop = min(start + count, length)
        values = jnp.eye(length, count, -start, dtype=signals.q.dtype)[:, None]
        scores = remember(signals._replace(v=jnp.broadcast_to(values, (length, heads, count))))
        tile = np.array(scores.transpose(1, 0, 2)[:, start:, : stop - start])
        tile[:, np.arange(stop - start), np.arange(stop - start)] = 0
        yield slice(start, length), slice(start, stop), functools.partial(np.asarray, tile)


def in_parallel(work: Callable[..., Done], tasks: Iterable[tuple[Any, ...]]) -> Iterator[Done]:
    """work(*task) of each task in turn, on as many threads as there are cores; tasks are drawn as they are needed."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with ThreadPoolExecutor(cores) as pool:
        waiting: deque[Future[Done]] = deque()
        for task in tasks:
            waiting.append(pool.submit(work, *task))
            if len(waiting) > cores:
                yield waiting.popleft().result()
        yield from (one.result() for one in waiting)


@jax.jit
def remember(signals: Signals) -> Inexact[Array, "t h v"]:
    """The memory's outputs from an empty one."""
    sizes = (*signals.q.shape[1:], signals.v.shape[2])
    return memory_scan(jnp.zeros(sizes, jnp.result_type(*signals[:4])), signals)[0]


def _halved(q: Signal, k: Signal, log_decay: Signal, start: int, stop: int, most: int) -> Generator[Tile, None, Sums]:
    """Yields tiles; returns Σ_{start≤r≤t} log a_r and Σ_{s<r<stop} log a_r, of which longer stretches make theirs."""
    if stop - start <= LEAF:
        own = log_decay[start:stop]
        here = slice(start, stop)
        yield here, here, functools.partial(_leaf, q[here], k[here], own)
        return np.cumsum(own, axis=0), np.concatenate([np.cumsum(own[:0:-1], axis=0)[::-1], np.zeros_like(own[:1])])
    middle = (start + stop) // 2
    first, before = yield from _halved(q, k, log_decay, start, middle, most)
    after, last = yield from _halved(q, k, log_decay, middle, stop, most)
    asked = np.ascontiguousarray((q[middle:stop] * np.exp(after)).swapaxes(0, 1))
    written = np.ascontiguousarray((k[start:middle] * np.exp(before)).transpose(1, 2, 0))
    count = max(1, most // (middle - start))
    for row in range(0, stop - middle, count):
        rows = slice(middle + row, min(middle + row + count, stop))
        yield rows, slice(start, middle), functools.partial(np.matmul, asked[:, row : row + count], written)
    return np.concatenate([first, first[-1] + after]), np.concatenate([before + after[-1], last])


def _leaf(q: Signal, k: Signal, log_decay: Signal) -> Inexact[np.ndarray, "h t t"]:
    scores = np.zeros((q.shape[1], len(q), len(q)), np.result_type(q, k, log_decay))
    sums = np.zeros(np.broadcast_shapes(k.shape, log_decay.shape), log_decay.dtype)
    for t in range(1, len(q)):
        sums[:t] += log_decay[t]
        scores[:, t, :t] = np.sum(q[t] * k[:t] * np.exp(sums[:t]), axis=2).T
    return scores
