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
    """torch (a state dict in safetensors, for strict=True) or onnx (a graph, and beside it one for a single step)."""
    out: Path
    """File to write; it appears when it is complete."""
    dtype: str | None = None
    """Of x and y in ONNX graphs, float32 unless given; torch state dicts keep the dtype of the weights."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> int:
        from underhood.errors import UnderhoodError

        if self.to not in TARGETS:
            raise UnderhoodError("unknown target of an export", repr(self.to), f"Known: {', '.join(TARGETS)}.")
        if self.dtype is not None and self.to != "onnx":
            raise UnderhoodError(
                "a state dict keeps the dtype of the weights", f"--dtype {self.dtype}", "Leave it out."
            )
        from underhood.storage.files import load

        if self.to == "torch":
            from underhood.interop.torch import export as export_torch

            report = export_torch(load(self.model), self.out)
        else:
            from underhood.interop.onnx import export as export_onnx

            report = export_onnx(load(self.model), self.out, dtype=self.dtype or "float32")
        print_json(report) if self.json else print_table(f"{self.model.name} → {self.to}", report)
        if report["verified"]:
            return DONE
        note(f"not verified: error {report['max_rel_error']:.3g} of the largest output")
        return ANSWER_IS_NO
