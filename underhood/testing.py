"""Does an architecture keep the contract? The checks that every one of the registry passes, for yours as well.

    from underhood.testing import check_architecture
    check_architecture("leaky", reference)         # reference(cell, xs): its equations in NumPy

Each check returns what it measured and raises AssertionError with it where that is too much.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from underhood.core.files import load, save
from underhood.core.model import ARCHITECTURES, AbstractModel, make_model
from underhood.interop.program import trace

Reference = Callable[[Any, np.ndarray], np.ndarray]  # a model, or the cell of a stack, and a sequence to its outputs

# Relative to the largest entry of the reference.
TOLERANCES = {np.dtype(np.float64): 1e-12, np.dtype(np.float32): 2e-4}


def check_architecture(
    name: str, reference: Reference, *, d: int = 4, d_out: int = 5, hidden: int = 8
) -> dict[str, float]:
    """Run every check on a random model of the registry; `reference` is for its cell where it is a stack."""
    most = ARCHITECTURES[name].most_layers
    measured = {}
    for layers in (1,) if most == 1 else (1, 2):
        for dtype in (np.float64, np.float32):
            model = make_model(name, d, d_out=d_out, hidden=hidden, layers=layers, dtype=dtype)
            for length in (1, 2, 33):
                xs = sequence(length, d)
                expected = of_stack(model, xs, reference)
                error = max(error_of(ys, expected) for ys in ways(model, xs).values())
                _require(error <= TOLERANCES[np.dtype(dtype)], f"{name}, {layers} layers, {np.dtype(dtype)}", error)
                measured[f"values, {np.dtype(dtype)}"] = error
        model = make_model(name, d, d_out=d_out, hidden=hidden, layers=layers, dtype=np.float64)
        measured["unnoticed weight"] = check_every_weight_counts(model, sequence(32, d))
        measured["gradient"] = check_gradient(model, sequence(9, d), lambda m, xs: of_stack(m, xs, reference))
        measured["kept"] = check_kept(model, sequence(9, d))
        measured["program"] = check_program(model, sequence(20, d))
    return measured


def sequence(length: int, d: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(length, d))


def error_of(actual: Any, expected: Any) -> float:
    """Largest absolute difference over the largest expected entry."""
    actual, expected = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    _require(actual.shape == expected.shape, "shapes differ", (actual.shape, expected.shape))
    largest = max(np.max(np.abs(expected)), np.finfo(np.float64).tiny)
    return float(np.max(np.abs(actual - expected)) / largest)


def of_stack(model: Any, xs: np.ndarray, reference: Reference) -> np.ndarray:
    """The reference's outputs; for a stack, between its embedding and its readout."""
    if not hasattr(model, "cells"):
        return reference(model, np.asarray(xs, np.float64))
    signal = xs @ np.asarray(model.embedding.weight, np.float64).T + np.asarray(model.embedding.bias, np.float64)
    for cell in model.cells:
        signal = reference(cell, signal)
    return signal @ np.asarray(model.readout.weight, np.float64).T + np.asarray(model.readout.bias, np.float64)


def ways(model: AbstractModel, xs: np.ndarray) -> dict[str, np.ndarray]:
    """The call, the scan, step by step, and the scan in two halves: all are one function."""
    state, steps = model.initial_state(), []
    for x in xs:
        state, y = model.step(state, x)
        steps.append(y)
    found = {"call": model(xs), "scan": model.scan(xs)[0], "steps": np.stack(steps)}
    if len(xs) > 1:
        first, state = model.scan(xs[: len(xs) // 2])
        found["split"] = np.concatenate([first, model.scan(xs[len(xs) // 2 :], state)[0]])
    return found


def check_every_weight_counts(model: AbstractModel, xs: np.ndarray) -> float:
    """Negative control: each array moved by one part in a million shows in the outputs. Returns how many do not."""
    leaves, treedef = jax.tree.flatten(model)
    expected, silent = model(xs), []
    for index, leaf in enumerate(leaves):
        moved = np.array(leaf)
        moved.flat[0] = moved.flat[0] * (1 + 1e-6) + 1e-9
        with jax.enable_x64(True):
            other = jax.tree.unflatten(treedef, [*leaves[:index], jnp.asarray(moved), *leaves[index + 1 :]])
        if error_of(other(xs), expected) <= TOLERANCES[np.dtype(np.float64)]:
            silent.append(index)
    _require(not silent, f"{model.kind}: weights that do nothing", silent)
    return float(len(silent))


def check_gradient(model: AbstractModel, xs: np.ndarray, reference: Reference) -> float:
    """The gradient in the inputs against central differences of the reference."""
    weights = np.random.default_rng(2).normal(size=(len(xs), model.d_out))
    with jax.enable_x64(True):
        gradient = jax.grad(lambda inputs: jnp.sum(jnp.asarray(weights) * model(inputs)))(jnp.asarray(xs))
    direction, step = np.random.default_rng(3).normal(size=xs.shape), 1e-6
    ahead, behind = reference(model, xs + step * direction), reference(model, xs - step * direction)
    slope = np.sum(weights * (ahead - behind)) / (2 * step)
    error = abs(np.sum(np.asarray(gradient) * direction) - slope) / max(1.0, abs(slope))
    _require(error <= 1e-6, f"{model.kind}: gradient", error)
    return float(error)


def check_kept(model: AbstractModel, xs: np.ndarray) -> float:
    """A file and a copy, made as a pickle is, give every bit back."""
    with tempfile.TemporaryDirectory() as folder:
        kept = load(save(model, Path(folder) / "model.safetensors"))
    for other in (kept, copy.deepcopy(model)):
        same = np.asarray(other(xs)).tobytes() == np.asarray(model(xs)).tobytes()
        _require(same, f"{model.kind}: outputs after saving and loading", "others")
    return 0.0


def check_program(model: AbstractModel, xs: np.ndarray) -> float:
    """The operations that torch, ONNX and the page run."""
    program = trace(model).folded()
    program.as_json()
    with jax.enable_x64(True):
        states, ys = jax.tree.leaves(model.initial_state()), []
        for x in jnp.asarray(xs, model.dtype):
            states, y = program.step(states, x)
            ys.append(np.asarray(y))
    error = error_of(np.stack(ys), model(xs))
    _require(error <= TOLERANCES[model.dtype], f"{model.kind}: program", error)
    return error


def _require(held: bool | np.bool, what: str, got: Any) -> None:
    # Not an assert statement, which python -O would take away.
    if not held:
        raise AssertionError(f"{what}: {got}")
