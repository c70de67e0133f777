"""`underhood decompile`: is this network attention, and which?"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import tyro

from underhood.commands.found import answer


@dataclasses.dataclass(frozen=True)
class Decompile:
    """Read a network's weights back to the linear attention they implement, with a certificate."""

    network: Annotated[Path, tyro.conf.Positional]
    """Network to read: safetensors, or an ONNX graph, which is a black box."""
    against: Path | None = None
    """Attention to compare with: its key-values, queries and polynomial (safetensors)."""
    out: Path | None = None
    """File for the recovered attention."""
    reduced: Path | None = None
    """File for the smallest network found with the same function."""
    tolerance: float | None = None
    """Share of the output that may be something else; 1e-8 for exact weights, 1e-3 for noisy ones."""
    input_bound: float = 4.0
    """The certificate holds for inputs within ± this."""
    horizon: int = 100
    """And for sequences up to this length."""
    fine_tune: bool = False
    """Fit the readout of the smallest network again, where merging cost something."""
    seed: int = 0
    """Seed of the random sequences and starts."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> int:
        from underhood.attention.linear import require_attention
        from underhood.interop.foreign import decompile, is_onnx
        from underhood.storage.files import load

        against = None if self.against is None else require_attention(load(self.against))
        found = decompile(
            self.network if is_onnx(self.network) else load(self.network),
            against=against,
            tolerance=self.tolerance,
            input_bound=self.input_bound,
            horizon=self.horizon,
            fine_tune=self.fine_tune,
            seed=self.seed,
        )
        provenance = {"command": "decompile", "network": self.network.name, "verdict": found.verdict}
        return answer(found, json=self.json, out=self.out, reduced=self.reduced, provenance=provenance)
