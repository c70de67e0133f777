"""`python -m torture [--part files crashes …] [--scale small|long]`: the summary; the long run is kept in results/.

Exit code 0: nothing was lost. 1: something was, and the table says what.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from pathlib import Path

from torture.children import preload
from torture.tally import RESULTS, show, store

PARTS = ("files", "crashes", "disk", "numbers", "determinism", "streaming")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m torture", description=__doc__)
    parser.add_argument("--part", nargs="+", choices=PARTS, default=PARTS, help="all unless named")
    parser.add_argument("--scale", choices=("small", "long"), default="small", help="a minute, or up to twenty")
    parser.add_argument("--workers", type=int, default=2, help="processes at a time")
    parser.add_argument("--seed", type=int, default=0, help="of the damage and of the moments of the kills")
    parser.add_argument("--out", type=Path, help="file for the results; results/torture.json for the whole long run")
    flags = parser.parse_args()
    preload()
    tallies, seconds = [], {}
    for part in flags.part:
        began = time.monotonic()
        sys.stderr.write(f"torture: {part} …\n")
        tallies += importlib.import_module(f"torture.{part}").run(flags.scale, flags.workers, flags.seed)
        seconds[part] = time.monotonic() - began
    show(tallies)
    whole = flags.scale == "long" and set(flags.part) == set(PARTS)
    out = flags.out or (RESULTS if whole else None)
    if out is not None:
        store(tallies, flags.scale, seconds, out)
    sys.stderr.write(json.dumps({"seconds": {part: round(value, 1) for part, value in seconds.items()}}) + "\n")
    return 1 if any(tally.lost for tally in tallies) else 0


if __name__ == "__main__":
    sys.exit(main())
