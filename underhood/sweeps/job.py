"""A job: runs of one shape, which train side by side in one compiled program; what a worker is handed.

A job goes out and comes back as plain JSON, and its numbers follow from it alone: whichever worker takes it, and
however often it is started anew, they are the same. A run that cannot be done is a record with its reason.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from underhood.core.errors import UnderhoodError, one_line
from underhood.core.memory import NotEnoughMemory
from underhood.core.model import AbstractModel
from underhood.training.specification import RunSpec
from underhood.training.tasks.task import HELD_OUT, VALIDATION, AbstractTask, draw

PAIRED = 65_536  # tasks on which a network and the optimal prediction are compared

Result = tuple[dict[str, Any], bytes | None]  # the record of a run, and its network where it is kept


def jobs_of(runs: Sequence[RunSpec], *, checkpoint_every: int, keep_models: bool) -> list[dict[str, Any]]:
    """Runs grouped by shape, the widest first: a long job that starts last would leave the other workers idle."""
    groups: dict[str, list[RunSpec]] = {}
    for run in runs:
        groups.setdefault(run.shape, []).append(run)
    ordered = sorted(groups.values(), key=lambda group: -sum(map(work_of, group)))
    return [
        {
            "id": hashlib.sha256("".join(run.id for run in group).encode()).hexdigest()[:16],
            "runs": [run.as_dict() for run in group],
            "checkpoint_every": checkpoint_every,
            "keep_models": keep_models,
        }
        for group in ordered
    ]


def work_of(run: RunSpec) -> float:
    """A guess at the work of a run, to sort by and to tell what is left: weights times tokens."""
    if run.optimizer == "levenberg":
        return 1e11  # a minute or two, whatever the width
    tokens = run.steps * run.batch_size * run.make_task().steps
    return 1.0 * tokens * run.layers * (run.hidden**2 + 50 * run.hidden)


def run_job(job: dict[str, Any], folder: str | None = None) -> list[Result]:
    """Train the runs of a job. With a folder, what is under way survives a kill."""
    from underhood.training.runs import Diverged

    runs = [RunSpec(**run) for run in job["runs"]]
    where = None if folder is None else Path(folder)
    if where is not None and where.is_symlink():
        raise UnderhoodError(f"expected a folder, not a link: {where}", "a link", "Remove it, or choose another `out`.")
    try:
        if runs[0].optimizer == "levenberg":
            return [_second_order(run, job) for run in runs]
        return _first_order(runs, job, where)
    except (Diverged, NotEnoughMemory) as error:
        reason, own = str(error), isinstance(error, Diverged)
    except (UnderhoodError, OSError) as error:
        if where is not None:
            raise  # not this run's doing: a disk that is full, a folder that is gone
        reason, own = f"{type(error).__name__}: {one_line(error)[:300]}", False  # of the machine of a worker
    except Exception as error:  # of jax, for want of memory, or of a task of somebody else's
        reason, own = f"{type(error).__name__}: {one_line(error)[:300]}", False
    if len(runs) == 1:
        return failures(job, reason, own=own)
    # One run of the group failed: the others do not depend on it.
    parts = [None if where is None else where.with_name(f"{where.name}-{run.id}") for run in runs]
    alone = [{**job, "runs": [run.as_dict()]} for run in runs]
    return [run_job(one, part and str(part))[0] for one, part in zip(alone, parts, strict=True)]


def own_results(job: dict[str, Any], answer: Any) -> list[Result]:
    """What came back for a job, which a worker may have got wrong: its own runs, each once, and their records.

    A run with no sound record among them is one that failed, to be tried again. Numbers can only be taken on trust.
    """
    found: dict[str, Result] = {}
    for entry in answer if isinstance(answer, list) else []:
        if isinstance(entry, list | tuple) and len(entry) == 2 and isinstance(entry[0], dict):
            found.setdefault(str(entry[0].get("id")), (entry[0], entry[1]))
    results = []
    for run in (RunSpec(**settings) for settings in job["runs"]):
        record, network = found.get(run.id, ({}, None))
        if _is_record_of(run, record) and isinstance(network, bytes | None):
            own = {**record, "id": run.id, **run.as_dict()}  # 0 equals False, and is read as another setting
            results.append((own, network if job["keep_models"] else None))
        else:
            results += failures({**job, "runs": [run.as_dict()]}, "its worker gave no sound record of it", own=False)
    return results


def _is_record_of(run: RunSpec, record: dict[str, Any]) -> bool:
    """The settings that were asked for, and an end: a loss where it was done, a reason where it failed."""
    if any(record.get(name) != value for name, value in run.as_dict().items()):
        return False
    if record.get("status") == "failed":
        return isinstance(record.get("reason"), str)
    numbers = (record.get("held_out_loss"), record.get("seconds"), record.get("parameters"))
    return record.get("status") == "done" and all(isinstance(number, int | float) for number in numbers)


def failures(job: dict[str, Any], reason: str, *, own: bool) -> list[Result]:
    """The records of runs that cannot be done; `own`: anywhere, so that a resumed sweep does not try them again."""
    runs = (RunSpec(**run) for run in job["runs"])
    again = {} if own else {"retry": True}
    return [({"id": run.id, **run.as_dict(), "status": "failed", "reason": reason, **again}, None) for run in runs]


def _first_order(runs: list[RunSpec], job: dict[str, Any], folder: Path | None) -> list[Result]:
    from underhood.training.population import Member
    from underhood.training.room import require_room, shape_of
    from underhood.training.runs import fit_population

    task, config = runs[0].make_task(), runs[0].make_config(job["checkpoint_every"])
    members = [Member(run.seed, run.learning_rate, run.weight_decay) for run in runs]
    require_room(shape_of(lambda: runs[0].make_model(task)), len(runs), task, config)
    models = [run.make_model(task) for run in runs]
    found = fit_population(models, members, task, config, out=folder, resume=True)
    return [
        _result(
            run,
            task,
            trained.model,
            {
                "held_out_loss": trained.held_out_loss,
                "validation_loss": trained.validation_loss,
                "seconds": trained.seconds / len(runs),
            },
            job,
        )
        for run, trained in zip(runs, found, strict=True)
    ]


def _second_order(run: RunSpec, job: dict[str, Any]) -> Result:
    """The best network of this width that was found, which tells what the width can express.

    A wide network is solved for first and then reduced exactly. Where that comes out no wider than asked for, it is
    the answer; else neurons are taken away, and what is left is trained on.
    """
    from underhood.training.second_order.on_task import fit_task, held_out_loss

    task, pre_readout = run.make_task(), run.pre_readout or run.hidden
    wide = run.model_copy(update={"hidden": 2, "pre_readout": None, "probe": False})
    model, seconds = _reduced(wide.model_dump_json())
    if model is None or model.hidden > run.hidden or model.pre_readout > pre_readout:
        options: dict[str, Any] = {"max_iterations": run.steps, "restarts": run.restarts, "prune": False}
        found = fit_task(task, run.seed, hidden=run.hidden, pre_readout=pre_readout, **options)
        model, seconds = found.model, seconds + found.seconds
    numbers = {"held_out_loss": held_out_loss(task, run.seed, model), "seconds": seconds}
    sizes = {"hidden_used": model.hidden, "pre_readout_used": model.pre_readout}
    return _result(run, task, model, {**numbers, **sizes}, job)


@functools.lru_cache(maxsize=8)
def _reduced(spec: str) -> tuple[Any, float]:
    """The smallest network of a solution at full width, whatever the run's own; None where none was found."""
    from underhood.decompiler.decompile import decompile
    from underhood.training.second_order.on_task import fit_task

    run = RunSpec.model_validate_json(spec)
    task = run.make_task()
    found = fit_task(task, run.seed, max_iterations=run.steps, restarts=run.restarts, prune=False)
    return decompile(found.model, tolerance=task.tolerance).reduced, found.seconds


def _result(
    run: RunSpec, task: AbstractTask, model: AbstractModel, numbers: dict[str, Any], job: dict[str, Any]
) -> Result:
    from underhood.core.files import model_bytes

    record = {"id": run.id, **run.as_dict(), "status": "done", "parameters": model.parameters, **numbers}
    record |= dict(_against_optimum(task, model, run.seed))
    if run.probe:
        record["attention_r2"] = _closeness(run, task, model)
    kept = model_bytes(model, provenance={"command": "sweep", **run.as_dict()}) if job["keep_models"] else None
    return record, kept


def _against_optimum(task: AbstractTask, model: AbstractModel, seed: int) -> Iterable[tuple[str, float]]:
    """The optimal loss, and how far the network is above it on the very same sequences, which sheds the noise."""
    for name, stream in (("", HELD_OUT), ("validation_", VALIDATION)):
        optimum = task.optimal_loss(validation=bool(name))
        if optimum is None:
            continue
        yield f"optimal_{name}loss", optimum
        xs, wanted = draw(task, seed, PAIRED, stream=stream, part=1)
        optimal = task.optimal_prediction(xs)
        if optimal is None:
            continue
        here = _outputs(model, xs, task.last_only)[..., -task.d_out :]
        over = [0.5 * np.mean((guess - wanted).reshape(len(xs), -1) ** 2, axis=1) for guess in (here, optimal)]
        excess = over[0] - over[1]
        yield f"{name}excess", float(excess.mean())
        yield f"{name}excess_error", float(excess.std() / len(excess) ** 0.5)


def _outputs(model: AbstractModel, xs: np.ndarray, last: bool) -> np.ndarray:
    import equinox as eqx
    import jax.numpy as jnp

    from underhood.core.arrays import precision_of
    from underhood.layers.kernels.dispatch import forward

    with precision_of(model):
        evaluate = eqx.filter_jit(lambda part: forward(model, part, last))
        parts = np.array_split(xs.astype(model.dtype), max(1, len(xs) // 4096))
        return np.concatenate([np.asarray(evaluate(jnp.asarray(part)), np.float64) for part in parts])


def _closeness(run: RunSpec, task: AbstractTask, model: AbstractModel) -> float:
    from underhood.decompiler.from_outputs.closeness import closeness, sequences_needed

    count = max(task.probes, sequences_needed(task.d, 1 if task.last_only else task.steps))
    xs, _ = draw(task, run.seed, count, stream=HELD_OUT, part=2)
    return closeness(model, xs, last=task.last_only)
