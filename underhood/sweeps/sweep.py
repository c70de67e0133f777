"""A sweep from its specification to its results: expand, leave out what is done, group into jobs, run, write."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from underhood.core.errors import UnderhoodError
from underhood.sweeps.cluster import Tls, require_address, run_on_cluster
from underhood.sweeps.job import Result, jobs_of, work_of
from underhood.sweeps.local import run_here
from underhood.sweeps.spec import RunSpec, Sweep, parse, read_spec
from underhood.sweeps.store import SPEC, Store
from underhood.training.folder import differences

# Called with (runs that are done, runs of the sweep, record of the last) as each run ends.
Watcher = Callable[[int, int, dict[str, Any]], Any]


class Teller:
    """A line on stderr for each run that ends, with the time that is left at the pace so far."""

    def __init__(self) -> None:
        self.expects([])

    def expects(self, runs: Sequence[RunSpec]) -> None:
        """What is to be done: the widest come first, so that a count of runs would tell a multiple of what is left."""
        self._began, self._left = time.monotonic(), {run.id: work_of(run) for run in runs}
        self._work = sum(self._left.values())

    def __call__(self, done: int, total: int, record: dict[str, Any]) -> None:
        self._left.pop(record["id"], None)
        left, passed = sum(self._left.values()), time.monotonic() - self._began
        minutes = passed * left / (self._work - left) / 60 if left < self._work else 0.0
        loss = record.get("held_out_loss")
        shown = record.get("reason", "") if loss is None else f"loss {loss:.3e}, {record['seconds']:.0f} s"
        size = f"{record['model']} {record['layers']}×{record['hidden']} seed {record['seed']}"
        sys.stderr.write(f"{done}/{total} · {record['task']} · {size}: {shown} · {minutes:.0f} min left\n")


def run_sweep(
    spec: Sweep | str | Path | dict[str, Any],
    out: str | Path,
    *,
    scheduler: str | None = None,
    tls: Tls | None = None,
    workers: int | None = None,
    resume: bool = False,
    watch: Watcher | None = None,
    warn: Callable[[str], Any] | None = None,
) -> list[dict[str, Any]]:
    """Train all runs of a sweep, and return their records in the order of the specification.

    `spec`: a file, its content, or what `parse` made of it (docs/scale.md). `out`: the folder for results, which
    `resume` goes on from. `scheduler`: the address of a dask cluster, with `tls` where it asks for certificates;
    otherwise `workers` processes here, one a core unless given. `watch(done, total, record)` is called as each run
    ends (and, where it has that method, `watch.expects(runs)` before the first of those that are to be done),
    `warn(text)` where something was mended.
    """
    sweep, warn = spec if isinstance(spec, Sweep) else read_spec(spec), warn or (lambda text: None)
    runs = sweep.expanded()
    workers = (os.cpu_count() or 1) if workers is None else workers
    if workers < 1:
        raise UnderhoodError("expected workers of 1 or more", workers)
    if scheduler is not None:
        require_address(scheduler)
    store = Store(Path(out))

    def compare(before: Any) -> list[str]:
        return _different(parse(before, str(store.path / SPEC)), sweep)

    with store.opened(sweep.model_dump(), resume=resume, compare=compare):
        if store.torn:
            warn("the last line of the results was torn by a kill; its run is done again")
        left = [run for run in runs if run.id not in store.done]
        jobs = jobs_of(left, checkpoint_every=sweep.checkpoint_every, keep_models=sweep.keep_models)
        wanted = {run.id for run in runs}
        if (expects := getattr(watch, "expects", None)) is not None:
            expects(left)

        def done(results: list[Result]) -> None:
            for record, network in results:
                if network is not None:
                    store.keep(record["id"], network)
                store.add(record)
                if watch is not None:
                    watch(len(wanted & store.done.keys()), len(runs), record)

        if scheduler is None:
            run_here(jobs, store.path / "jobs", workers, done)
        else:
            run_on_cluster(jobs, scheduler, done, tls=tls, warn=warn)
        return [store.done[run.id] for run in runs]


def _different(before: Sweep, now: Sweep) -> list[str]:
    """What tells two sweeps apart, however they are written: the values of a field, or how they are combined."""
    old, new = before.expanded(), now.expanded()
    different = differences(_values(old), _values(new))
    different += differences(before.keep_models, now.keep_models, "keep_models")
    same = {run.id for run in old} == {run.id for run in new}
    return different or ([] if same else ["the combinations of its lists"])


def _values(runs: list[RunSpec]) -> dict[str, list[Any]]:
    """Field → its values, each once and in one order."""
    dumps = [run.model_dump() for run in runs]
    return {name: [json.loads(text) for text in sorted({json.dumps(d[name]) for d in dumps})] for name in dumps[0]}
