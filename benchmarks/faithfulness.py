"""Which attention map can be believed: sensitivity on trained networks that nobody here wrote, beside Captum's.

    python -m benchmarks faithfulness            some minutes on one core; needs the extras networks, torch and oracles

60 inputs for each network of `benchmarks.networks`: lines of Python's own help for textgenrnn's LSTMs, words of it for
g2p_en's encoder. For the last output, random subsets of a third of the steps are replaced by zeros, in torch, and what
changes is correlated with what each map says: over all coordinates of the output ("vector"), and along the output's own
direction ("scalar"), which is what Captum takes. Subsets are drawn from the steps before the last ("earlier") and from
all of them ("all"). Medians over the inputs.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections import defaultdict
from typing import Any

os.environ |= {"NPROC": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

import captum.attr
import numpy as np
import torch
from scipy.stats import spearmanr

import underhood as uh
from benchmarks.measure import row, show, store
from benchmarks.networks import g2p, textgenrnn

INPUTS, SUBSETS, LENGTH = 60, 100, 40
LEAST, LEAST_SPEARMAN = 0.65, 0.6
KINDS = ("deletion", "frozen", "jacobian", "integrated")


def texts(random: np.random.Generator) -> tuple[list[str], list[str]]:
    """Lines of 40 characters, and words of 7 to 10 letters."""
    from pydoc_data.topics import topics

    whole = re.sub(r"\s+", " ", " ".join(topics[name] for name in sorted(topics)))
    starts = random.integers(0, len(whole) - LENGTH, INPUTS)
    words = sorted(set(re.findall(r"\b[a-z]{7,10}\b", whole)))
    return [whole[start : start + LENGTH] for start in starts], sorted(random.choice(words, INPUTS, False), key=len)


def networks(random: np.random.Generator) -> dict[str, tuple[Any, list[np.ndarray]]]:
    """Name → model and its inputs."""
    lines, words = texts(random)
    characters, letters = textgenrnn(), g2p()
    first, second = characters.layers
    entering = [characters.inputs(line) for line in lines]
    between = [np.asarray(first(xs)) for xs in entering]
    one, many = (uh.Linear(np.eye(cell), np.zeros(cell)) for cell in (first.d, second.d_out))
    return {
        "textgenrnn, first LSTM": (first, entering),
        "textgenrnn, second LSTM": (second, between),
        "textgenrnn, both": (uh.Stack(one, (first, second), many), entering),
        "g2p_en, encoder GRU": (letters.encoder, [letters.inputs(str(word)) for word in words]),
    }


class Last(torch.nn.Module):
    """(n, t, d) → the last outputs (n, d_out), or what they are along a direction (n,)."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        cells = getattr(model, "cells", (model,))
        self.layers = torch.nn.ModuleList([uh.to_torch(cell).double() for cell in cells])
        self.direction: torch.Tensor | None = None

    def forward(self, xs: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            xs = layer(xs)
            xs = xs[0] if isinstance(xs, tuple) else xs
        return xs[:, -1] if self.direction is None else xs[:, -1] @ self.direction


def correlation(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.corrcoef(one.ravel(), other.ravel())[0, 1])


def drawn(steps: int, size: int, length: int, random: np.random.Generator) -> np.ndarray:
    """(subsets, length): which steps are replaced, of the first `steps`."""
    subsets = np.zeros((SUBSETS, length), bool)
    for subset in subsets:
        subset[random.choice(steps, size, replace=False)] = True
    return subsets


def of_input(model: Any, module: Last, xs: np.ndarray, random: np.random.Generator) -> dict[str, float]:
    """Every measure of one input."""
    length, found = len(xs), {}

    def run(versions: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return module(torch.as_tensor(versions)).numpy()

    module.direction = None
    output = run(xs[None])[0]
    assert np.abs(output - np.asarray(model(xs))[-1]).max() < 1e-9
    direction = output / np.linalg.norm(output)
    maps = {kind: uh.attention_map(model, xs, kind=kind, rows=[-1]) for kind in KINDS}
    maps["default"] = uh.attention_map(model, xs, rows=[-1])
    vectors = {name: made.contributions(-1) for name, made in maps.items()}
    replaced = np.repeat(xs[None], length, axis=0)
    replaced[np.arange(length), np.arange(length)] = xs.mean(axis=0)
    other = np.linalg.norm(output - run(replaced), axis=1)[:-1]
    for name, made in maps.items():
        found[f"spearman with deletion by the mean, {name}"] = float(
            spearmanr(np.linalg.norm(vectors[name], axis=1)[:-1], other)[0]
        )
        found[f"cancellation, {name}"] = float(made.cancellation)
    module.direction = torch.as_tensor(direction)
    tensor = torch.as_tensor(xs[None])
    scalars = {name: vector @ direction for name, vector in vectors.items()}
    by_captum = {
        "Captum integrated gradients": captum.attr.IntegratedGradients(module).attribute(tensor, n_steps=32),
        "Captum DeepLift": captum.attr.DeepLift(module).attribute(tensor),
        "Captum occlusion": captum.attr.Occlusion(module).attribute(tensor, (1, xs.shape[1])),
    }
    for name, given in by_captum.items():
        numbers = given.detach().numpy()[0]
        scalars[name] = numbers[:, 0] if "occlusion" in name else numbers.sum(axis=1)
    recent = 1 / np.arange(length, 0, -1.0)
    vectors |= {"recency": np.outer(recent, output), "shuffled": random.permutation(vectors["default"])}
    for which, steps in (("earlier", length - 1), ("all", length)):
        subsets = drawn(steps, max(1, length // 3), length, random)
        module.direction = None
        changed = output - run(np.where(subsets[:, :, None], 0.0, xs))
        for name, vector in vectors.items():
            found[f"vector, {which}, {name}"] = correlation(subsets @ vector, changed)
        for name, numbers in scalars.items():
            found[f"scalar, {which}, {name}"] = correlation(subsets @ numbers, changed @ direction)
    return found


def main() -> int:
    random, rows, extra = np.random.default_rng(0), [], {}
    warnings.simplefilter("ignore")
    for name, (model, inputs) in networks(random).items():
        module, gathered = Last(model), defaultdict(list)
        for index, xs in enumerate(inputs):
            for what, value in of_input(model, module, xs, random).items():
                gathered[what].append(value)
            sys.stderr.write(f"\r{name}: {index + 1} of {len(inputs)}")
        medians = {what: float(np.median(values)) for what, values in gathered.items()}
        extra[name] = medians
        best = {
            which: max(v for k, v in medians.items() if f"scalar, {which}, Captum" in k) for which in ("all", "earlier")
        }
        ours = {which: medians[f"scalar, {which}, default"] for which in best}
        spearman = medians["spearman with deletion by the mean, default"]
        rows += [
            row(
                f"{name}: sensitivity", medians["vector, earlier, default"], at_least=LEAST, detail="t/3, earlier steps"
            ),
            row(f"{name}: sensitivity, all steps", medians["vector, all, default"], at_least=LEAST, detail="t/3"),
            row(
                f"{name}: over Captum's best", ours["earlier"] - best["earlier"], at_least=-1e-6, detail="earlier steps"
            ),
            row(f"{name}: over Captum's best, all", ours["all"] - best["all"], at_least=-1e-6, detail="all steps"),
            row(f"{name}: Spearman", spearman, at_least=LEAST_SPEARMAN, detail="with deletion by the mean"),
            row(f"{name}: shuffled", medians["vector, earlier, shuffled"], detail="negative control"),
            row(f"{name}: recency", medians["vector, earlier, recency"], detail="control"),
        ]
        store("faithfulness", rows, {"medians": extra, "inputs": INPUTS, "subsets": SUBSETS})
    show("Faithfulness of maps", rows)
    return 0 if all(entry["met"] is not False for entry in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
