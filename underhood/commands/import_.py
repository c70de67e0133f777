"""`underhood import`: weights of torch and numpy as a model of ours."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import tyro

from underhood.commands.output import DONE, print_json, print_table
from underhood.core.errors import UnderhoodError

if TYPE_CHECKING:
    from underhood.core.model import AbstractModel

OF_FILES = ("kind", "part", "heads", "embedding", "readout")  # flags that say what a file does not


@dataclasses.dataclass(frozen=True)
class Import:
    """Read a torch state dict, attention weights, or a layer of a checkpoint folder, and write a model.

    Reads safetensors and .npz; .pt only as weights: a pickle that would run code is refused and does not run. Of a
    folder in transformers' format it reads config.json and the safetensors of one layer, and runs no code.
    """

    name: ClassVar[str] = "import"

    weights: Annotated[Path, tyro.conf.Positional]
    """File with named tensors (safetensors, .pt or .npz), or checkpoint folder in transformers' format."""
    out: Path
    """File to write (safetensors)."""
    kind: str | None = None
    """Kind of the model in a file, such as lstm or gru (torch's), gated-rnn or attention; an unknown name lists all.
    What `underhood export` wrote says it itself."""
    layer: int | None = None
    """Layer of a checkpoint folder, from 0 on."""
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
        from underhood.core.files import save, sizes_of
        from underhood.core.outputs import MODEL, require_outputs

        require_outputs((self.out, MODEL), inputs=(self.weights,), force=self.force)
        model = self._of_folder() if self.weights.is_dir() else self._of_file()
        said = {name: getattr(self, name) for name in ("kind", "layer") if getattr(self, name) is not None}
        save(model, self.out, provenance={"command": "import", "weights": self.weights.name, **said})
        payload = {"kind": model.kind, **sizes_of(model), "out": str(self.out)}
        print_json(payload) if self.json else print_table(f"{self.weights.name} → {model.kind}", payload)
        return DONE

    def _of_folder(self) -> AbstractModel:
        from underhood.interop.checkpoints import from_pretrained

        for name in OF_FILES:
            if getattr(self, name) != getattr(type(self), name):
                what = f"--{name} is for files: config.json of a folder says what its layers are"
                raise UnderhoodError(what, remedy="Leave it out.")
        if self.layer is None:
            raise UnderhoodError(f"{self.weights} is a folder of many layers", remedy="Use --layer 0.")
        return from_pretrained(self.weights, self.layer)

    def _of_file(self) -> AbstractModel:
        from underhood.interop.read import import_model

        if self.layer is not None:
            raise UnderhoodError(
                "expected a checkpoint folder with --layer", f"the file {self.weights}", "Leave it out."
            )
        return import_model(self.weights, **{name: getattr(self, name) for name in OF_FILES})
