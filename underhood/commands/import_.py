"""`underhood import`: weights of torch and numpy as a model of ours."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import tyro

from underhood.commands.output import DONE, note, print_json, print_table
from underhood.core.errors import UnderhoodError

if TYPE_CHECKING:
    from underhood.interop.read import Reading

OF_FILES = ("kind", "part", "heads", "embedding", "readout")  # flags that say what a file does not


@dataclasses.dataclass(frozen=True)
class Import:
    """Read weights of another program, or a layer of a checkpoint folder, and write a model.

    Reads safetensors, .npz, Keras's .h5 and .keras, the recurrent operators of .onnx, and .pt or .bin as weights: a
    pickle that would run code is refused and does not run. Of a folder in the format of transformers or mamba_ssm it
    reads config.json and the tensors of one layer, and runs no code.
    """

    name: ClassVar[str] = "import"

    weights: Annotated[Path, tyro.conf.Positional]
    """File with weights, or checkpoint folder."""
    out: Path
    """File to write (safetensors)."""
    kind: str | None = None
    """Kind of the model in a file, such as lstm, gru or attention; an unknown name lists all. Without it, names are
    guessed, shapes confirm them, and what was read as what is printed."""
    layer: int | None = None
    """Layer of a checkpoint folder, from 0 on."""
    part: str = ""
    """Prefix of the tensors to read, or entry of the file that holds them; several in order, embedding,rnn_1,rnn_2,
    make a stack."""
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
        found = self._reading()
        said = {name: getattr(self, name) for name in ("kind", "layer") if getattr(self, name) is not None}
        save(found.model, self.out, provenance={"command": "import", "weights": self.weights.name, **said})
        payload = {"kind": found.model.kind, **sizes_of(found.model), "out": str(self.out)}
        guessed = {"read_as": found.mapping, "left_out": list(found.left_out)} if found.remark else {}
        if self.json:
            print_json({**payload, **guessed})
            return DONE
        if found.remark:
            note(found.remark)
        print_table(f"{self.weights.name} → {found.model.kind}", payload)
        return DONE

    def _reading(self) -> Reading:
        from underhood.interop.read import reading

        given = {name: getattr(self, name) for name in OF_FILES}
        if self.weights.is_dir():
            for name, value in given.items():
                if value != getattr(type(self), name):
                    what = f"--{name} is for files: config.json of a folder says what its layers are"
                    raise UnderhoodError(what, remedy="Leave it out.")
        elif self.layer is not None:
            got = f"the file {self.weights}"
            raise UnderhoodError("expected a checkpoint folder with --layer", got, "Leave it out.")
        return reading(self.weights, layer=self.layer, **given)
