"""The losses of a run against its steps, both on logarithmic scales: a curve for each network."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from underhood.core.errors import UnderhoodError, printable
from underhood.core.outputs import PDF, PNG, SVG, require_outputs, write_output
from underhood.pages.drawing import new_figure, rendered

KINDS = {"png": PNG, "pdf": PDF, "svg": SVG}

Curves = dict[str, tuple[list[int], list[float]]]


def losses_by_seed(lines: list[dict[str, Any]]) -> Curves:
    """The curves in a log.

    **Arguments:**

    - `lines`: of `read_metrics`; those of the second-order solver have a start beside the seed.

    **Returns:**

    Name → (steps, losses), in the order of the log.
    """
    curves: Curves = {}
    for line in lines:
        start = f", start {line['restart']}" if "restart" in line else ""
        name = f"seed {line.get('seed', line['member'])}, network {line['member']}{start}"
        steps, losses = curves.setdefault(name, ([], []))
        try:
            steps.append(int(line["step"]))
            losses.append(float(line["loss"]))
        except (KeyError, TypeError, ValueError):
            raise UnderhoodError("expected a step and a loss in each line of the log", str(line)[:60]) from None
    if not curves:
        raise UnderhoodError("the log is empty", remedy="Plot the run once it has trained for some steps.")
    return curves


def draw_losses(curves: Curves, out: str | os.PathLike[str], *, title: str = "", force: bool = False) -> Path:
    """Write the picture.

    **Arguments:**

    - `curves`: of `losses_by_seed`.
    - `out`: a PNG, PDF or SVG by its name.
    - `title`: above the picture.
    - `force`: write over a file of another kind.

    **Returns:**

    The path of the file.
    """
    suffix = Path(out).suffix.removeprefix(".").lower()
    if suffix not in KINDS:
        raise UnderhoodError("expected a file name that ends in .png, .pdf or .svg", str(out))
    require_outputs((out, KINDS[suffix]), force=force)
    figure = new_figure(6.0, 3.6)
    axes = figure.subplots()
    for name, (steps, losses) in curves.items():
        axes.plot(steps, losses, label=name, linewidth=1.2)
    axes.set(xscale="log", yscale="log", xlabel="step", ylabel="loss", title=printable(title))
    if len(curves) <= 10:
        axes.legend(frameon=False, fontsize=8)
    return write_output(out, rendered(figure, suffix), KINDS[suffix], force=force)
