"""The paper's tables and figures: measured here, beside the paper's numbers."""

from underhood.extras import require

for _module in ("matplotlib", "jinja2"):  # before any of the files here imports them: one line instead of a traceback
    require(_module, "report", "a report, a figure or a page")
