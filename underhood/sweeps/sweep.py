"""A sweep from its specification to its results: expand, leave out what is done, group into jobs, run, write."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from underhood.core.errors import UnderhoodError
from underhood.core.interrupts import interruptible
from underhood.core.progress import Progress
from underhood.sweeps.cluster import Tls, require_address, run_on_cluster
from underhood.sweeps.job import jobs_of, own_results, work_of
from underhood.sweeps.local import run_here
from underhood.sweeps.spec import Sweep, parse, read_spec
from underhood.sweeps.store import SPEC, Store
from underhood.training.folder import differences
from underhood.training.specification import RunSpec

# Called with (runs that are done, runs of the sweep, record of the last) as each run ends.
Watcher = Callable[[int, int, dict[str, Any]], Any]


class SweepProgress(Progress):
    """A line for each run that ends, with the time that is left: the widest come first, so that work is counted."""

    def __init__(self) -> None:
        super().__init__("sweep", 0.0)
        self._work: dict[str, float] = {}

    def expects(self, runs: Sequence[RunSpec]) -> None:
        """What is to be done."""
        self._work = {run.id: work_of(run) for run in runs}
        self.total, self._left_over = sum(self._work.values()), dict(self._work)
        self._first = 0.0, time.monotonic()

    def __call__(self, done: int, total: int, record: dict[str, Any]) -> None:
        """A run ended; `done` of `total` have."""
        self._left_over.pop(record["id"], None)
        loss = record.get("held_out_loss")
        outcome = record.get("reason", "") if loss is None else f"loss {loss:.3e}, {record['seconds']:.0f} s"
        size = f"{record['model']} {record['layers']}×{record['hidden']} seed {record['seed']}"
        self.name = f"{done}/{total}"
        work = (self.total or 0.0) - sum(self._left_over.values())
        self.update(work, f"{record['task']} · {size}: {outcome}", now=True)


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
    """Train all runs of a sweep.

    **Arguments:**

    - `spec`: a file, its content, or what `parse` made of it (docs/scale.md).
    - `out`: the folder for the results.
    - `scheduler`: the address of a dask cluster; without it, `workers` processes run here.
    - `tls`: certificates, where the cluster asks for them.
    - `workers`: processes of one core each; as many as there are cores unless given.
    - `resume`: go on with the sweep in `out`.
    - `watch`: called with the number of runs that are done, that of all, and the record of the last, as each run ends;
        its method `expects(runs)`, where it has one, before the first of those that are to be done.
    - `warn`: called with a text where something was mended, or is waited for.

    **Returns:**

    The records, in the order of the specification: settings, `status`, losses, `seconds`.
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

        def done(job: dict[str, Any], answer: Any) -> None:
            for record, network in own_results(job, answer):
                if network is not None:
                    store.keep(record["id"], network)
                store.add(record)
                if watch is not None:
                    watch(len(wanted & store.done.keys()), len(runs), record)

        with interruptible():
            if scheduler is None:
                run_here(jobs, store.jobs, workers, done)
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
