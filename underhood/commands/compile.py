"""`underhood compile`: attention, or a gated RNN, into a recurrent network, verified."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import tyro

from underhood.commands.output import ANSWER_IS_NO, DONE, note, print_json, print_table


@dataclasses.dataclass(frozen=True)
class Compile:
    """Compile linear self-attention, or a gated RNN, into a recurrent network, and measure how close it is."""

    source: Annotated[Path, tyro.conf.Positional]
    """File with a linear attention, or a gated RNN of Eq. 2."""
    to: str
    """gated-rnn, gated-rnn-compact, gated-rnn-minimal, lru, lru-in-out, lru-in-skip, lstm or gru."""
    out: Path
    """File to write (safetensors); it appears when it is complete."""
    layers: int | None = None
    """Layers; what the target needs unless given."""
    input_bound: float = 4.0
    """Inputs are within ± this; scales are chosen for it."""
    horizon: int = 1000
    """Longest sequence that the bound holds for."""
    order: int = 1
    """Scales at which neurons are copied to linearise σ; 1 is the paper's."""
    dtype: str = "float64"
    """float64 or float32."""
    tolerance: float | None = None
    """Largest error over largest output that counts as verified; the target's own unless given."""
    sparse: bool = False
    """Keep the gating matrices of gated-rnn sparse (done anyway where they are large)."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> int:
        from underhood.construct.compile import compile as compile_
        from underhood.storage.files import load, save

        settings = {
            name: getattr(self, name) for name in ("layers", "input_bound", "horizon", "order", "dtype", "tolerance")
        }
        compiled = compile_(load(self.source), to=self.to, sparse=self.sparse or None, **settings)
        report = compiled.report
        save(compiled.model, self.out, provenance={"command": "compile", "source": self.source.name, **report})
        print_json(report) if self.json else print_table(f"{self.source.name} → {self.to}", report)
        if compiled.verified:
            return DONE
        note(
            f"not verified: error {compiled.max_rel_error:.3g} of the largest output, "
            f"{compiled.max_rel_error / compiled.tolerance:.3g} times the tolerance {compiled.tolerance:g}; "
            f"largest {compiled.max_abs_error:.3g}, bound {compiled.error_bound:.3g}"
        )
        return ANSWER_IS_NO
