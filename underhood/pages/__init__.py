"""Figures and self-contained pages: the report, the explorer, attention maps."""

from underhood.core.extras import require

for _module in ("matplotlib", "jinja2"):  # before any of the files here imports them: one line instead of a traceback
    require(_module, "report", "a report, a figure or a page")
