"""Killed with SIGKILL at 20 random moments and resumed: the same bits as an unbroken run, metrics log included.

python -m benchmarks.restart [--kills 20]
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.measure import row, show, store

STEPS, LINES = 40_000, 800
FLAGS = f"train --task linear-regression --hidden 16 --seeds 2 --steps {STEPS} --log-every 50 --checkpoint-every 200"


def start(folder: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "underhood.cli", *FLAGS.split(), "--resume", "--out", str(folder)]
    environment = {**os.environ, "NPROC": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def files_of(folder: Path) -> dict[str, bytes]:
    kept = [folder / "run.json", folder / "metrics.jsonl", *folder.glob("model*"), *folder.glob("checkpoints/*")]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in kept}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    flags = parser.parse_args()
    choose, kills, finished = random.Random(flags.seed), 0, 0
    with tempfile.TemporaryDirectory() as temporary:
        unbroken, broken = Path(temporary, "unbroken"), Path(temporary, "broken")
        begun = time.monotonic()
        if start(unbroken).wait() != 0:
            raise SystemExit("the unbroken run failed")
        whole = time.monotonic() - begun
        while kills < flags.kills:
            process = start(broken)
            # Anywhere from the import of the first module to half a run: mostly in the middle of training.
            time.sleep(choose.uniform(0, 0.5 * whole))
            if process.poll() is None:
                process.kill()
                kills += 1
            else:
                finished += 1  # done already: begin another, or there is nothing left to kill
                if files_of(broken) != files_of(unbroken):
                    break
                broken = Path(temporary, f"broken-{finished}")
            process.wait()
        start(broken).wait()
        same = files_of(broken) == files_of(unbroken)
        lines = (broken / "metrics.jsonl").read_text().splitlines()
        right = len(lines) == len(set(lines)) == 2 * LINES
    rows = [
        row("kills survived with the same bits", float(kills * same), at_least=flags.kills),
        row("metrics lines, none lost and none doubled", float(len(lines) * right), at_least=2 * LINES),
    ]
    show("restart", rows)
    store("restart", rows, {"flags": FLAGS, "runs_finished_between_kills": finished})


if __name__ == "__main__":
    main()
