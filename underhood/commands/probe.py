"""`underhood probe`: the linear attention nearest to any Python callable."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from pathlib import Path
from typing import Annotated

import tyro

from underhood.commands.found import answer
from underhood.commands.output import note


@dataclasses.dataclass(frozen=True)
class Probe:
    """Fit linear attention to a callable (t, d) → (t, d_out), in closed form, and test it on fresh sequences.

    Runs the callable: probe only code that you trust.
    """

    function: Annotated[str, tyro.conf.Positional]
    """package.module:callable, found from the current folder: numpy, jax, torch; or an ONNX file."""
    d: int
    """Input size."""
    against: Path | None = None
    """Attention to compare with (safetensors)."""
    out: Path | None = None
    """File for the best attention found."""
    length: int = 32
    """Length of the sequences."""
    input_bound: float = 4.0
    """Inputs are N(0, 1), clipped at ± this."""
    tolerance: float = 1e-4
    """Relative root mean square error up to which the answer is yes."""
    seed: int = 0
    """Seed of the random sequences."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> int:
        from underhood.attention.linear import require_attention
        from underhood.identify.callables import import_callable
        from underhood.interop.foreign import is_onnx, probe
        from underhood.storage.files import load

        against = None if self.against is None else require_attention(load(self.against))
        onnx = is_onnx(self.function)
        if not onnx:
            note(f"underhood: running the code of {self.function}")
        # Whatever the code prints, on import or when called, is not our answer.
        with contextlib.redirect_stdout(sys.stderr):
            found = probe(
                self.function if onnx else import_callable(self.function),
                self.d,
                against=against,
                seed=self.seed,
                length=self.length,
                input_bound=self.input_bound,
                tolerance=self.tolerance,
            )
        provenance = {"command": "probe", "function": self.function, "verdict": found.verdict}
        return answer(found, json=self.json, out=self.out, reduced=None, provenance=provenance)
