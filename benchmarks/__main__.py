"""`python -m benchmarks [suite …]`: every suite in a process of its own; each stores results/bench/<suite>.json."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

SUITES = (
    "training",
    "profile",
    "restart",
    "levenberg",
    "compiler",
    "decompiler",
    "sizes",
    "table1",
    "decays",
    "sweep",
    "install",
    "layers",
    "maps",
    "faithfulness",
    "in_context",
    "zoo",
)


def main() -> int:
    wanted = sys.argv[1:] or [name for name in SUITES if importlib.util.find_spec(f"benchmarks.{name}")]
    unknown = [name for name in wanted if importlib.util.find_spec(f"benchmarks.{name}") is None]
    if unknown:
        sys.stderr.write(f"unknown suite {', '.join(unknown)}. Known: {', '.join(SUITES)}.\n")
        return 2
    return max(subprocess.run([sys.executable, "-m", f"benchmarks.{name}"]).returncode for name in wanted)


if __name__ == "__main__":
    sys.exit(main())
