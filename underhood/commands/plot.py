"""`underhood plot`: the losses of a run as a curve."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import tyro

from underhood.commands.output import DONE, note, print_json


@dataclasses.dataclass(frozen=True)
class Plot:
    """Draw the training losses of a run folder, finished or under way."""

    folder: Annotated[Path, tyro.conf.Positional]
    """Run folder."""
    out: Path | None = None
    """Picture to write, .png, .pdf or .svg; loss.png in the folder unless given."""
    force: bool = False
    """Write over a file of another kind."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> int:
        from underhood.core.extras import require
        from underhood.training.metrics import read_metrics

        require("matplotlib", "report", "plot")
        from underhood.pages.losses import draw_losses, losses_by_seed

        curves = losses_by_seed(read_metrics(self.folder)[0])
        path = draw_losses(curves, self.out or self.folder / "loss.png", title=str(self.folder), force=self.force)
        last = {name: {"step": steps[-1], "loss": losses[-1]} for name, (steps, losses) in curves.items()}
        print_json({"out": str(path), "curves": last}) if self.json else note(f"{path}: {len(curves)} curves")
        return DONE
