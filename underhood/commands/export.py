"""`underhood export`: a model as a torch state dict or as ONNX graphs, compared with the model."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import tyro

from underhood.commands.output import ANSWER_IS_NO, DONE, note, print_json, print_table

TARGETS = ("torch", "onnx")


@dataclasses.dataclass(frozen=True)
class Export:
    """Write a model for torch or onnxruntime, and compare what it computes there with the model."""

    model: Annotated[Path, tyro.conf.Positional]
    """Model to export (safetensors)."""
    to: str
    """torch (a state dict in safetensors) or onnx (a graph, and beside it one for a single step)."""
    out: Path
    """File to write."""
    dtype: str | None = None
    """Dtype of x and y in ONNX graphs, float32 unless given; a torch state dict keeps that of the weights."""
    force: bool = False
    """Write over an input, or over a file of another kind."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> int:
        from underhood.core.errors import UnderhoodError

        if self.to not in TARGETS:
            raise UnderhoodError(f"unknown target: {self.to!r}", remedy=f"Known: {', '.join(TARGETS)}.")
        if self.dtype is not None and self.to != "onnx":
            raise UnderhoodError(
                "--dtype is for --to onnx: a state dict keeps the dtype of the weights", remedy="Leave it out."
            )
        from underhood.core.files import load
        from underhood.core.outputs import ONNX, STATE_DICT, require_outputs

        if self.to == "torch":
            from underhood.interop.torch import export as export_torch

            require_outputs((self.out, STATE_DICT), inputs=(self.model,), force=self.force)
            report = export_torch(load(self.model), self.out)
        else:
            from underhood.interop.onnx import export as export_onnx
            from underhood.interop.onnx import step_path

            outputs = (self.out, ONNX), (step_path(self.out), ONNX)
            require_outputs(*outputs, inputs=(self.model,), force=self.force)
            report = export_onnx(load(self.model), self.out, dtype=self.dtype or "float32")
        print_json(report) if self.json else print_table(f"{self.model.name} → {self.to}", report)
        if report["verified"]:
            return DONE
        note(f"not verified: error {report['max_rel_error']:.3g} of the largest output")
        return ANSWER_IS_NO
