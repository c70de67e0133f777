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
    """Attention heads; the output is their sum."""
    d_key: int | None = None
    """Size of keys and queries; d unless given."""
    d_value: int | None = None
    """Size of values, which is the output's; d unless given."""
    rank: int | None = None
    """Rank of each of the three matrices; full unless given."""
    seed: int = 0
    """Seed of the random numbers."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> int:
        from underhood.attention.teachers import random_attention
        from underhood.storage.files import save, sizes_of

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
