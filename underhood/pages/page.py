"""One self-contained HTML file: style and script inside, and a policy that lets nothing else in.

Three things stop a hostile name in a file: the template escapes it, the policy in the head allows only the one script
whose hash it names, and the page may not fetch anything.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

PAGES = Path(__file__).parent / "templates"


@functools.cache
def _environment() -> jinja2.Environment:
    loader = jinja2.FileSystemLoader(PAGES)
    made = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    made.filters["typeset"] = typeset
    return made


def typeset(text: str) -> Markup:
    """W_m^in, x_1² and y_1 with their indices below and above; everything else is escaped."""
    parts = re.split(r"(?<![A-Za-z])([A-Za-z])_(\w)(?:\^(\w+))?", str(text))
    out = Markup(escape(parts[0]))
    for letter, below, above, rest in zip(*(parts[at::4] for at in (1, 2, 3, 4)), strict=True):
        raised = Markup("<sup>{}</sup>").format(above) if above else ""
        out += Markup("{}<sub>{}</sub>{}").format(letter, below, raised) + escape(rest)
    return out


def render(template: str, scripts: tuple[str, ...], **context: Any) -> str:
    """The template with `scripts`, files of the pages folder, as its one script."""
    script = "\n".join((PAGES / name).read_text() for name in scripts)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'"
    return (
        _environment()
        .get_template(template)
        .render(policy=policy, script=Markup(script), style=Markup((PAGES / "style.css").read_text()), **context)
    )
