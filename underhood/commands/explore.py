"""`underhood explore`: watch a network run, beside the attention that it implements."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import tyro

from underhood.commands.output import DONE, note, print_json, require_seed


@dataclasses.dataclass(frozen=True)
class Explore:
    """Write a self-contained page in which the network runs on a sequence that can be edited, step by step."""

    network: Annotated[Path, tyro.conf.Positional]
    """Network to run (safetensors)."""
    against: Path | None = None
    """Attention to show beside the network (safetensors); the one that decompile finds, unless given."""
    out: Path = Path("explorer.html")
    """Page to write (HTML)."""
    input: Path | None = None
    """Sequence to begin with: .npy of shape (t, d), or .csv with a line for each time step; random unless given."""
    seed: int = 0
    """Seed of the random sequence."""
    force: bool = False
    """Write over an input, or over a file of another kind."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> int:
        from underhood.core.files import load
        from underhood.core.outputs import PAGE, require_outputs
        from underhood.core.sequences import read_sequence
        from underhood.pages.explore import explore

        require_seed(self.seed)
        require_outputs((self.out, PAGE), inputs=(self.network, self.against, self.input), force=self.force)
        network = load(self.network)
        against = None if self.against is None else load(self.against)
        xs = None if self.input is None else read_sequence(self.input, network.d)
        path = explore(
            network, self.out, against=against, name=self.network.name, xs=xs, seed=self.seed, force=self.force
        )
        payload = {"out": str(path), "bytes": path.stat().st_size}
        print_json(payload) if self.json else note(f"{path}: open it in a browser; it works offline")
        return DONE
