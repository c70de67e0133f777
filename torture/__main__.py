"""`python -m torture [--part files crashes …] [--scale small|long]`: the summary; the long run is kept in results/.

Each part is kept as it ends. Exit code 0: nothing was lost. 1: something was, and the table says what.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from pathlib import Path

from torture.children import preload
from torture.tally import PARTS, RESULTS, Tally, show, store


def tried(part: str, flags: argparse.Namespace) -> list[Tally]:
    """The tallies of one part; one that breaks down itself is a loss, and the others go on."""
    try:
        return importlib.import_module(f"torture.{part}").run(flags.scale, flags.workers, flags.seed)
    except Exception as error:
        tally = Tally(part, "the part itself")
        tally.count(f"{type(error).__name__}: {error}")
        return [tally]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m torture", description=__doc__)
    parser.add_argument("--part", nargs="+", choices=PARTS, default=PARTS, help="all unless named")
    parser.add_argument("--scale", choices=("small", "long"), default="small", help="a minute, or up to twenty")
    parser.add_argument("--workers", type=int, default=2, help="processes at a time")
    parser.add_argument("--seed", type=int, default=0, help="of the damage and of the moments of the kills")
    parser.add_argument("--out", type=Path, help="file for the results; results/torture.json for the long run")
    flags = parser.parse_args()
    preload()
    out = flags.out or (RESULTS if flags.scale == "long" else None)
    tallies, seconds = [], {}
    for part in flags.part:
        began = time.monotonic()
        sys.stderr.write(f"torture: {part} …\n")
        found = tried(part, flags)
        tallies += found
        seconds[part] = time.monotonic() - began
        if out is not None:
            store(found, flags.scale, {part: seconds[part]}, out)
    show(tallies)
    sys.stderr.write(json.dumps({"seconds": {part: round(value, 1) for part, value in seconds.items()}}) + "\n")
    return 1 if any(tally.lost for tally in tallies) else 0


if __name__ == "__main__":
    sys.exit(main())
