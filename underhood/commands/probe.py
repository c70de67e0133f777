"""`underhood probe`: the linear attention nearest to any Python callable."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from underhood.commands.found import answer
from underhood.commands.output import announce, note, require_seed
from underhood.core.errors import UnderhoodError

if TYPE_CHECKING:
    import numpy as np


@dataclasses.dataclass(frozen=True)
class Probe:
    """Find the linear attention that a callable (t, d) → (t, d_out) computes, or the nearest one, and test it.

    Runs the callable: probe only code that you trust.
    """

    function: Annotated[str, tyro.conf.Positional]
    """package.module:callable, found from the current folder: numpy, jax, torch; or an ONNX file."""
    d: int | None = None
    """Input size; models, many modules and files tell it themselves."""
    against: Path | None = None
    """Attention to compare with (safetensors)."""
    inputs: Path | None = None
    """Sequences on which R² is measured as well: (b, t, d) in a .npy file."""
    task: str | None = None
    """Task on whose sequences R² is measured as well, by a name that `underhood train --list` prints."""
    last: bool = False
    """On those sequences, the last step's outputs alone; a task knows whether it is about these."""
    out: Path | None = None
    """File for the best attention found."""
    length: int = 32
    """Length of the sequences."""
    input_bound: float = 4.0
    """Largest |input|."""
    distribution: Literal["normal", "uniform"] = "normal"
    """Of the inputs: N(0, 1), clipped at the bound, or uniform within it."""
    pooling: Literal["each", "together"] = "each"
    """Whether each output is judged against its own size, or all together."""
    tolerance: float = 1e-4
    """Relative root mean square error up to which the answer is yes."""
    max_heads: int = 2
    """Most heads of the nearest attention where the answer is no and d is above 8."""
    batched: bool | None = None
    """Whether the callable takes batches (b, t, d); tried out unless given."""
    seed: int = 0
    """Seed of the random sequences."""
    force: bool = False
    """Write over an input, or over a file of another kind."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> int:
        from underhood.attention.linear import require_attention
        from underhood.core.files import load
        from underhood.core.outputs import MODEL, require_outputs
        from underhood.core.progress import Progress
        from underhood.decompiler.decompile import decompile_cost
        from underhood.decompiler.from_outputs.functions import import_callable, parse_name
        from underhood.decompiler.from_outputs.probe import probe
        from underhood.interop.foreign import is_onnx

        require_seed(self.seed)
        require_outputs((self.out, MODEL), inputs=(self.against, self.inputs), force=self.force)
        against = None if self.against is None else require_attention(load(self.against))
        if self.inputs is not None and self.task is not None:
            raise UnderhoodError("expected --inputs or --task, not both")
        inputs = None if self.inputs is None else _read_sequences(self.inputs)
        onnx = is_onnx(self.function)
        if not onnx:
            parse_name(self.function)
            note(f"underhood: running the code of {self.function}")
        # Whatever the code prints, on import or when called, is not our answer.
        with contextlib.redirect_stdout(sys.stderr), Progress("asking", 1.0, transient=True) as progress:
            function = self.function if onnx else import_callable(self.function)
            announce(decompile_cost(None, self.d if self.d is not None else getattr(function, "d", None)))
            found = probe(
                function,
                self.d,
                against=against,
                inputs=inputs,
                task=self.task,
                last=self.last,
                seed=self.seed,
                length=self.length,
                input_bound=self.input_bound,
                distribution=self.distribution,
                pooling=self.pooling,
                tolerance=self.tolerance,
                max_heads=self.max_heads,
                batched=self.batched,
                watch=lambda what, share: progress.update(share, what),
            )
        provenance = {"command": "probe", "function": self.function, "verdict": found.verdict}
        return answer(found, json=self.json, out=self.out, reduced=None, provenance=provenance)


def _read_sequences(path: Path) -> np.ndarray:
    import numpy as np

    from underhood.core.arrays import require_real
    from underhood.core.atomic import read_bytes
    from underhood.core.sequences import read_npy

    try:
        given = read_npy(read_bytes(path))
        require_real(f"numbers in {path}", given)
        xs = np.asarray(given, np.float64)
    except UnderhoodError:
        raise
    except (ValueError, TypeError, OverflowError, SyntaxError) as error:
        raise UnderhoodError(f"cannot read numbers from {path}: {error}", remedy="Give a .npy file.") from None
    if xs.ndim != 3 or len(xs) < 2 or not xs.size:
        raise UnderhoodError(f"expected two or more sequences, of shape (b, t, d), in {path}", f"shape {xs.shape}")
    if not np.isfinite(xs).all():
        raise UnderhoodError(f"NaN or infinite numbers in {path}")
    return xs
