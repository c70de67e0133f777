"""`underhood sample`: random attention weights to play with."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from underhood.commands.output import DONE, print_json, print_table


@dataclasses.dataclass(frozen=True)
class Sample:
    """Draw a random linear self-attention and write it to a file."""

    d: int
    """Input size."""
    out: Path
    """File to write (safetensors)."""
    heads: int = 1
    """Attention heads, whose outputs are added."""
    d_key: int | None = None
    """Size of keys and queries; d unless given."""
    d_value: int | None = None
    """Size of values and of the output; d unless given."""
    rank: int | None = None
    """Rank of each of the three matrices; full unless given."""
    seed: int = 0
    """Seed of the random numbers."""
    force: bool = False
    """Write over a file of another kind."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> int:
        from underhood.attention.teachers import random_attention
        from underhood.core.files import save, sizes_of
        from underhood.core.outputs import MODEL, require_outputs

        require_outputs((self.out, MODEL), force=self.force)
        drawn = {name: getattr(self, name) for name in ("d", "heads", "d_key", "d_value", "rank", "seed")}
        attention = random_attention(**drawn)
        save(attention, self.out, provenance={"command": "sample", **drawn})
        payload = {
            "kind": attention.kind,
            **sizes_of(attention),
            "rank": self.rank,
            "seed": self.seed,
            "out": str(self.out),
        }
        print_json(payload) if self.json else print_table("random attention", payload)
        return DONE
