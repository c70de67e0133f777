"""`underhood in-context`: which algorithm does a network run in context?"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import tyro

from underhood.commands.output import ANSWER_IS_NO, DONE, print_json, print_table

if TYPE_CHECKING:
    from underhood.explain.in_context import Algorithm


@dataclasses.dataclass(frozen=True)
class InContext:
    """Find the algorithm by which a network predicts y at a new x from examples (x, y) in its context."""

    name: ClassVar[str] = "in-context"

    network: Annotated[Path, tyro.conf.Positional]
    """Network that reads (x, y) and predicts y: safetensors, or an ONNX graph."""
    d_x: int = 3
    """Size of x."""
    d_y: int = 3
    """Size of y."""
    observations: int = 12
    """Examples in a sequence."""
    inputs: Literal["uniform", "sphere", "normal"] = "uniform"
    """Distribution of x, of variance 1."""
    seed: int = 0
    """Seed of the tasks."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> int:
        from underhood.core.files import load
        from underhood.explain.in_context import in_context
        from underhood.interop.foreign import is_onnx

        network = self.network if is_onnx(self.network) else load(self.network)
        sizes = (self.d_x, self.d_y, self.observations)
        found = in_context(network, *sizes, inputs=self.inputs, seed=self.seed)
        print_json(found.as_data()) if self.json else _print(found)
        return DONE if found.is_known else ANSWER_IS_NO


def _print(found: Algorithm) -> None:
    from underhood.commands.rows import print_rows

    low, high = found.r2_interval
    what = {"algorithm": found.name, **found.parameters} if found.is_known else {"algorithm": "none of the known ones"}
    nearest = {} if found.is_known else {"nearest": found.nearest.name}
    losses = {"training_loss": found.training_loss, "validation_loss": found.validation_loss}
    print_table("in context", {**what, **nearest, "R²": f"{found.r2:.6f} ({low:.6f} to {high:.6f})", **losses})
    rows = [
        {
            "algorithm": rung.name,
            "fitted to the network": ", ".join(f"{name} {value:.4g}" for name, value in rung.parameters.items()),
            "R²": f"{rung.r2:.5f}",
            "loss": rung.loss,
            "measured": rung.monte_carlo,
            "loss at its best": rung.best_loss,
        }
        for rung in found.ladder
    ]
    print_rows("ladder", rows)
    asked = [
        {"algorithm": rung.name} | {condition.name: _share(condition.r2[rung.name]) for condition in found.elsewhere}
        for rung in found.ladder
    ]
    print_rows("R² elsewhere, with the same parameters", asked)


def _share(r2: float | None) -> str:
    """R², "–" where the network takes no such tasks; what is far below zero says no more than that."""
    return "–" if r2 is None else f"{r2:.4f}" if r2 > -10 else "< -10"
