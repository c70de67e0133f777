"""`underhood explore`: watch a network run, beside the attention that it implements."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import tyro

from underhood.commands.output import DONE, note, print_json


@dataclasses.dataclass(frozen=True)
class Explore:
    """Write a self-contained page in which the network runs on a sequence that can be edited, step by step."""

    network: Annotated[Path, tyro.conf.Positional]
    """Network to run (safetensors)."""
    against: Path | None = None
    """Attention to show beside it (safetensors); the one that decompile finds, unless given."""
    out: Path = Path("explorer.html")
    """File to write."""
    seed: int = 0
    """Seed of the sequence to begin with."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> int:
        from underhood.report.explore import explore
        from underhood.storage.files import load

        against = None if self.against is None else load(self.against)
        path = explore(load(self.network), self.out, against=against, name=self.network.name, seed=self.seed)
        payload = {"out": str(path), "bytes": path.stat().st_size}
        print_json(payload) if self.json else note(f"{path}: open it in a browser; nothing in it needs a network")
        return DONE
