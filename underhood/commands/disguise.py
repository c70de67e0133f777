"""`underhood disguise`: the same function in other weights."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import tyro

from underhood.commands.output import DONE, print_json, print_table, require_seed


@dataclasses.dataclass(frozen=True)
class Disguise:
    """Change a network's weights at random and keep its function: ground truth for decompilers."""

    network: Annotated[Path, tyro.conf.Positional]
    """Network to disguise (safetensors)."""
    out: Path
    """File to write (safetensors)."""
    seed: int = 0
    """Seed of the random changes."""
    force: bool = False
    """Write over an input, or over a file of another kind."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> int:
        import numpy as np

        from underhood.core.files import load, save, sizes_of
        from underhood.core.outputs import MODEL, require_outputs
        from underhood.decompiler.disguise import disguise

        require_seed(self.seed)
        require_outputs((self.out, MODEL), inputs=(self.network,), force=self.force)
        network = load(self.network)
        hidden = disguise(network, seed=self.seed)
        xs = np.random.default_rng(self.seed).standard_normal((32, network.d))
        ys = np.asarray(network(xs), np.float64)
        with np.errstate(all="ignore"):  # outputs that overflow have no relative change
            change = float(np.abs(ys - hidden(xs)).max() / (np.abs(ys).max() or 1.0))
        save(hidden, self.out, provenance={"command": "disguise", "seed": self.seed})
        payload = {
            "kind": hidden.kind,
            "hidden_before": getattr(network, "hidden", None),
            **sizes_of(hidden),
            "relative_change": change,
            "seed": self.seed,
            "out": str(self.out),
        }
        print_json(payload) if self.json else print_table("disguised network", payload)
        return DONE
