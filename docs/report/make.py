"""The technical report as a PDF: `python docs/report/make.py report.pdf` (make report-pdf).

report.typ reads every number from the JSON files under results/, and shows the figures beside them; nothing is run, and
none is typed in. Sections whose results are not there yet are left out.
"""

from __future__ import annotations

import sys
from pathlib import Path

import typst

ROOT = Path(__file__).resolve().parents[2]
SOURCE = Path(__file__).with_name("report.typ")
# flag of report.typ → the file that a section is made of
SECTIONS = {
    "faithfulness": "results/bench/faithfulness.json",
    "softmax": "results/quick/softmax.json",
}


def make(out: Path) -> Path:
    """Compile the report and write it to `out`."""
    there = {name: str((ROOT / path).is_file()).lower() for name, path in SECTIONS.items()}
    typst.compile(str(SOURCE), output=str(out), root=str(ROOT), sys_inputs=there)
    return out


if __name__ == "__main__":
    path = make(Path(sys.argv[1] if len(sys.argv) > 1 else "report.pdf"))
    print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")
