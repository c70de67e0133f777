"""`underhood compile`: attention, or a gated RNN, into a recurrent network, verified."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import tyro

from underhood.commands.output import ANSWER_IS_NO, DONE, announce, note, print_json, print_table


@dataclasses.dataclass(frozen=True)
class Compile:
    """Compile linear self-attention, or a gated RNN, into a recurrent network, and measure how close it is."""

    source: Annotated[Path, tyro.conf.Positional]
    """Linear attention, or gated RNN of Eq. 2 (safetensors)."""
    to: str
    """Target, such as gated-rnn, gated-rnn-minimal, lru, lstm or gru; an unknown name lists them all."""
    out: Path
    """File to write (safetensors)."""
    layers: int | None = None
    """Layers; as many as the target needs, unless given."""
    input_bound: float = 4.0
    """Largest |input| that the scales are chosen for."""
    horizon: int = 1000
    """Longest sequence that the error bound holds for."""
    order: int = 1
    """Order of the approximation that linearises σ with copies of a neuron; the paper's is 1."""
    dtype: str = "float64"
    """Dtype of the network: float64 or float32."""
    tolerance: float | None = None
    """Largest error, over the largest output, that counts as verified; the target's own unless given."""
    sparse: bool = False
    """Sparse form of the network, for targets that have one (large networks get it anyway)."""
    force: bool = False
    """Write over an input, or over a file of another kind."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> int:
        from underhood.compiler.compile import compile as compile_
        from underhood.compiler.compile import compile_cost
        from underhood.core.files import load, save
        from underhood.core.outputs import MODEL, require_outputs

        require_outputs((self.out, MODEL), inputs=(self.source,), force=self.force)
        settings = {
            name: getattr(self, name) for name in ("layers", "input_bound", "horizon", "order", "dtype", "tolerance")
        }
        source = load(self.source)
        announce(compile_cost(source, self.to, self.layers, self.sparse or None))
        compiled = compile_(source, to=self.to, sparse=self.sparse or None, **settings)
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
