"""`underhood import`: weights of torch and numpy as a model of ours."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, ClassVar

import tyro

from underhood.commands.output import DONE, print_json, print_table


@dataclasses.dataclass(frozen=True)
class Import:
    """Read a torch state dict, or attention weights of torch or numpy, and write a model.

    Reads safetensors and .npz; .pt only as weights: a pickle that would run code is refused and does not run.
    """

    name: ClassVar[str] = "import"

    weights: Annotated[Path, tyro.conf.Positional]
    """File with named tensors: safetensors, .pt or .npz."""
    kind: str
    """Kind of the model, such as lstm or gru (torch's), gated-rnn or attention; `--kind list` names them all."""
    out: Path
    """File to write (safetensors)."""
    part: str = ""
    """Prefix of the tensors to read, or entry of the file that holds them."""
    heads: int = 1
    """Heads that the rows of attention matrices are split into."""
    embedding: str = "embedding"
    """Name of the torch.nn.Linear before an lstm or gru, if there is one."""
    readout: str = "readout"
    """Name of the torch.nn.Linear after an lstm or gru, if there is one."""
    force: bool = False
    """Write over an input, or over a file of another kind."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> int:
        from underhood.interop.torch_import import import_model
        from underhood.storage.files import save, sizes_of
        from underhood.storage.outputs import MODEL, require_outputs

        require_outputs((self.out, MODEL), inputs=(self.weights,), force=self.force)
        options = {name: getattr(self, name) for name in ("part", "heads", "embedding", "readout")}
        model = import_model(self.weights, self.kind, **options)
        save(model, self.out, provenance={"command": "import", "weights": self.weights.name, "kind": self.kind})
        payload = {"kind": model.kind, **sizes_of(model), "out": str(self.out)}
        print_json(payload) if self.json else print_table(f"{self.weights.name} → {model.kind}", payload)
        return DONE
