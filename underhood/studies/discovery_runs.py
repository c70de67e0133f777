"""What does each architecture find, beside what it can represent? Every one of the registry, on four tasks.

A small search that is the same for all: seed 0 with each learning rate, then the other seeds with the best of them.
Their networks are read: loss beside the ladder of algorithms, the algorithm that each runs in context, and R² of the
nearest attention. Architectures that can represent the gradient step and did not find it start once more, from the
compiled weights, each off by one percent: where these stay, it was the optimiser that did not come there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np

from underhood.attention.teachers import gradient_descent_attention
from underhood.compiler.compile import compile
from underhood.compiler.targets import ATTENTION, TARGETS
from underhood.core.arrays import precision_of
from underhood.core.atomic import make_folder, write_atomically
from underhood.core.errors import UnderhoodError
from underhood.core.files import load
from underhood.core.model import ARCHITECTURES, AbstractModel
from underhood.decompiler.from_outputs.closeness import closeness
from underhood.explain.in_context import NONE, in_context
from underhood.layers.kernels.dispatch import forward
from underhood.sweeps.spec import parse
from underhood.sweeps.sweep import SweepProgress, run_sweep
from underhood.training.config import FitConfig
from underhood.training.runs import Diverged, fit
from underhood.training.tasks.associative_recall import AssociativeRecall
from underhood.training.tasks.linear_regression import LinearRegression
from underhood.training.tasks.make import make_task
from underhood.training.tasks.task import HELD_OUT, AbstractTask, draw, stream_key

RECALL = "associative-recall"
SMALL_RECALL = {"vocabulary": 32, "pairs": 3, "embedding": 16}
# name of the task in the study → how `sweep` has it
TASKS: dict[str, dict[str, Any]] = {
    "teacher-student": {"task": "teacher-student", "d": 3, "length": 16},
    "regression, uniform": {"task": "linear-regression"},
    "regression, sphere": {"task": "linear-regression", "settings": {"inputs": "sphere"}},
    "recall": {"task": RECALL, "length": 64},
}
# overnight: about 8 core hours, at 4 to 12 ms per step. laptop: about one, with a recall of fewer pairs and tokens.
SIZES: dict[str, dict[str, Any]] = {
    "laptop": {"hidden": 32, "batch_size": 32, "steps": 6_000, "rates": [3e-3, 1e-2], "seeds": 3},
    "overnight": {"hidden": 32, "batch_size": 64, "steps": 8_000, "rates": [1e-3, 3e-3, 1e-2], "seeds": 3},
}
READ = 4096  # sequences from which R² of the nearest attention is read
FOUND = 0.99  # R² from which a network counts as attention
OFF = 0.01  # of each compiled weight
START_RATES = (1e-3, 1e-4, 1e-5)  # from there: compiled weights are large and small, and want other steps
STAYED = 1.1  # times the loss of the gradient step
MOST_PARAMETERS = 20_000  # of a compiled network that is trained on

Record = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Finding:
    """One architecture with so many layers."""

    model: str
    layers: int
    holds: int | None
    """Fewest layers that represent attention; None where no construction is known."""
    tasks: dict[str, Record]
    """Task → loss of the best network and what was read off it, and of all seeds their losses and how many found it."""
    start: Record | None = None
    """Loss at the compiled weights, off by one percent, and after training from there."""

    @property
    def label(self) -> str:
        return ARCHITECTURES[self.model].label + (f", {self.layers} layers" if self.layers > 1 else "")

    @property
    def held(self) -> bool:
        return self.holds is not None and self.holds <= self.layers


def fewest_layers(name: str) -> int | None:
    """That represent attention, as the zoo measures them."""
    if name not in TARGETS:
        return None
    return min(layers for kind, layers in TARGETS[name].ways if kind == ATTENTION)


def entries(budget: str, names: list[str]) -> list[Record]:
    """What is trained in each task, as a sweep has it: all with one layer, and with as many as attention needs."""
    sizes = SIZES[budget]
    common = {name: sizes[name] for name in ("hidden", "batch_size", "steps")}
    found = []
    for task in TASKS.values():
        chosen = {**task, **common, "weight_decay": 0.0}
        if budget == "laptop" and task["task"] == RECALL:
            chosen |= {"length": 17, "settings": SMALL_RECALL}
        for name in names:
            layers = [1] if (fewest_layers(name) or 1) == 1 else [1, 2]
            found.append({**chosen, "model": name, "layers": layers})
    return found


def trained(budget: str, names: list[str], folder: Path) -> list[Record]:
    """The search over rates, then the other seeds; goes on where it was stopped."""
    sizes = SIZES[budget]
    runs = [{**entry, "learning_rate": sizes["rates"]} for entry in entries(budget, names)]
    records = _swept("rates", runs, folder)
    if sizes["seeds"] == 1:
        return records
    further = []
    for entry in entries(budget, names):
        for layers in entry["layers"]:
            best = _best([one for one in records if _is_of(one, {**entry, "layers": layers})])
            others = list(range(1, sizes["seeds"]))
            further.append({**entry, "layers": layers, "learning_rate": best["learning_rate"], "seeds": others})
    return records + _swept("seeds", further, folder)


def _swept(name: str, runs: list[Record], folder: Path) -> list[Record]:
    sweep = parse({"name": f"discovery, {name}", "runs": runs, "keep_models": True})
    records = run_sweep(sweep, make_folder(folder) / name, resume=True, watch=SweepProgress())
    return [{**one, "file": str(folder / name / "models" / f"{one['id']}.safetensors")} for one in records]


def _is_of(record: Record, entry: Record) -> bool:
    named = all(record[key] == entry[key] for key in ("task", "model", "layers"))
    return named and record.get("settings", {}) == entry.get("settings", {})


def _best(records: list[Record]) -> Record:
    """The run of least loss."""
    done = [one for one in records if one["status"] == "done"]
    if not done:
        raise UnderhoodError(f"no run of {records[0]['model']} on {records[0]['task']} came to an end")
    return min(done, key=lambda one: one["held_out_loss"])


def read(record: Record, task: AbstractTask) -> Record:
    """What a trained network does."""
    model, found = load(record["file"]), {}
    if not isinstance(task, AssociativeRecall):
        xs, _ = draw(task, 0, READ, stream=HELD_OUT, part=2)
        found["attention_r2"] = closeness(model, xs, last=task.last_only)
    if isinstance(task, LinearRegression):
        answer = in_context(model, task.d_x, task.d_y, task.examples, task.inputs)
        found |= {"algorithm": answer.name, "parameters": answer.parameters, "algorithm_r2": answer.r2}
        found |= {"nearest": answer.nearest.name, "loss": answer.training_loss}
        found["validation_loss"] = answer.validation_loss
    return found


def start_compiled(name: str, budget: str, folder: Path) -> Record | None:
    """Regression from the compiled gradient step, every weight off by one percent; None where that is too large."""
    task, sizes = LinearRegression(), SIZES[budget]
    step = gradient_descent_attention(task.d_x, task.d_y, task.optimal_eta)
    model = compile(step, to=name, dtype="float32", input_bound=2.0, horizon=task.steps).model
    if model.parameters > MOST_PARAMETERS:
        return None
    off = perturbed(model, OFF, seed=0)
    before = {"compiled": _loss(model, task), "perturbed": _loss(off, task), "optimal": task.optimal_loss()}
    trained: dict[float, float] = {}
    for rate in START_RATES:
        config = FitConfig(steps=sizes["steps"], batch_size=sizes["batch_size"], learning_rate=rate, weight_decay=0.0)
        with contextlib.suppress(Diverged):
            run = fit(off, task, config, out=make_folder(folder) / f"{name}, {rate:g}", resume=True)
            trained[rate] = run.held_out_loss
    best = min(trained, key=trained.__getitem__, default=None)
    return {**before, "trained": None if best is None else trained[best], "rate": best}


def perturbed(model: AbstractModel, share: float, *, seed: int) -> AbstractModel:
    """Every weight times 1 + share · N(0, 1)."""
    random = np.random.default_rng(seed)

    def off(leaf: Any) -> Any:
        if not eqx.is_inexact_array(leaf):
            return leaf
        return leaf * (1 + share * random.standard_normal(leaf.shape)).astype(leaf.dtype)

    with precision_of(model):
        return jax.tree.map(off, model)


def _loss(model: AbstractModel, task: AbstractTask) -> float:
    xs, wanted = task.batch(stream_key(0, HELD_OUT), READ)
    return float(task.loss(forward(model, xs, task.last_only), wanted))


def findings(budget: str, names: list[str], folder: Path) -> list[Finding]:
    """All architectures; readings are kept as they are made."""
    records = trained(budget, names, folder)
    kept = _Kept(folder / "readings.json")
    found: dict[tuple[str, int], Finding] = {}
    for (task_name, _), entry in zip(
        ((task, name) for task in TASKS for name in names), entries(budget, names), strict=True
    ):
        for layers in entry["layers"]:
            own = [one for one in records if _is_of(one, {**entry, "layers": layers})]
            name = entry["model"]
            one = found.setdefault((name, layers), Finding(name, layers, fewest_layers(name), {}))
            one.tasks[task_name] = _told(own, _task_of(entry), kept)
    return [_started(one, budget, kept, folder) for one in found.values()]


def _told(own: list[Record], task: AbstractTask, kept: _Kept) -> Record:
    """Of one architecture on one task: its best network, and all seeds at the rate of that."""
    best = _best(own)
    seeds = [one for one in own if one["status"] == "done" and one["learning_rate"] == best["learning_rate"]]
    readings = [kept(one["id"], lambda one=one: read(one, task)) for one in seeds]
    shown = ("held_out_loss", "validation_loss", "learning_rate", "seed", "parameters", "seconds")
    return {
        **{key: best[key] for key in shown},
        **readings[seeds.index(best)],
        "found": _finds(readings[seeds.index(best)]),
        "losses": [one.get("loss", run["held_out_loss"]) for run, one in zip(seeds, readings, strict=True)],
        "found_by": sum(map(_finds, readings)),
    }


def _finds(reading: Record) -> bool:
    """An algorithm where one was asked for, attention elsewhere."""
    if "algorithm" in reading:
        return reading["algorithm"] != NONE
    return reading.get("attention_r2", 0.0) >= FOUND


def _started(one: Finding, budget: str, kept: _Kept, folder: Path) -> Finding:
    """Those that hold the step and did not find it."""
    regression = one.tasks["regression, uniform"]
    if one.holds != one.layers or regression["algorithm"] != NONE or one.model not in TARGETS:
        return one
    start = kept(f"start {one.model}", lambda: start_compiled(one.model, budget, folder / "starts"))
    return dataclasses.replace(one, start=start)


def _task_of(entry: Record) -> AbstractTask:
    usual = {key: entry[key] for key in ("d", "length") if key in entry}
    return make_task(entry["task"], **usual, **entry.get("settings", {}))


class _Kept:
    """Answers that took long, in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.known: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}

    def __call__(self, name: str, make: Callable[[], Any]) -> Any:
        if name not in self.known:
            self.known[name] = make()
            write_atomically(self.path, (json.dumps(self.known, indent=1) + "\n").encode())
        return self.known[name]
