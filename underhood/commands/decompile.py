"""`underhood decompile`: is this network attention, and which?"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import tyro

from underhood.commands.found import answer
from underhood.commands.output import announce, require_seed


@dataclasses.dataclass(frozen=True)
class Decompile:
    """Read a network's weights back to the linear attention they implement, with a certificate."""

    network: Annotated[Path, tyro.conf.Positional]
    """Network to read: safetensors, or an ONNX graph, read as a black box."""
    against: Path | None = None
    """Attention to compare with (safetensors)."""
    out: Path | None = None
    """File for the recovered attention; the nearest one if the answer is no."""
    reduced: Path | None = None
    """File for the smallest network with the same function."""
    tolerance: float | None = None
    """Share of the output that may be something else: 1e-8 for exact weights, 1e-3 for noisy ones, unless given."""
    input_bound: float = 4.0
    """Largest |input| that the certificate covers."""
    horizon: int = 100
    """Longest sequence that the certificate covers."""
    fine_tune: bool = False
    """Refit of the smallest network's readout, where merging changed the function."""
    seed: int = 0
    """Seed of the random sequences and starts."""
    force: bool = False
    """Write over an input, or over a file of another kind."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> int:
        from underhood.attention.linear import require_attention
        from underhood.core.files import load
        from underhood.core.outputs import MODEL, require_outputs
        from underhood.decompiler.decompile import decompile, decompile_cost
        from underhood.interop.foreign import is_onnx

        require_seed(self.seed)
        outputs = (self.out, MODEL), (self.reduced, MODEL)
        require_outputs(*outputs, inputs=(self.network, self.against), force=self.force)
        against = None if self.against is None else require_attention(load(self.against))
        network = self.network if is_onnx(self.network) else load(self.network)
        announce(decompile_cost(network))
        found = decompile(
            network,
            against=against,
            tolerance=self.tolerance,
            input_bound=self.input_bound,
            horizon=self.horizon,
            fine_tune=self.fine_tune,
            seed=self.seed,
        )
        provenance = {"command": "decompile", "network": self.network.name, "verdict": found.verdict}
        return answer(found, json=self.json, out=self.out, reduced=self.reduced, provenance=provenance)
