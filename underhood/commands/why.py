"""`underhood why`: which earlier tokens, through which layers, raised the logit of a word."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import tyro

from underhood.commands.output import DONE, note, print_json, print_table
from underhood.core.errors import UnderhoodError


@dataclasses.dataclass(frozen=True)
class Why:
    """Tell which earlier tokens of a text, and through which layers of a language model, raised the logit of a word."""

    folder: Annotated[Path, tyro.conf.Positional]
    """Checkpoint folder: config.json, safetensors and tokenizer.json."""
    text: str
    """Text to read."""
    target: str
    """Next word in question, one token with its space: " Paris"."""
    against: str | None = None
    """Word whose logit is subtracted."""
    at: int = -1
    """Token after which the word is asked for, from 0; the last one unless given."""
    out: Path | None = None
    """Page to write (.html)."""
    force: bool = False
    """Write over a file of another kind."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> int:
        from underhood.commands.reading import meter, opened
        from underhood.core.outputs import PAGE, require_outputs

        if self.out is None and not self.json:
            raise UnderhoodError("expected --out FILE.html, --json, or both")
        if self.out is not None:
            if self.out.suffix.lower() != ".html":
                raise UnderhoodError("expected an output that ends in .html", self.out.name)
            require_outputs((self.out, PAGE), inputs=(), force=self.force)
        model = opened(self.folder)
        model.tokenizer.token(self.target)
        reading = model.read(self.text)
        with meter("deletions and gradients") as watch:
            why = reading.why(self.target, at=self.at, against=self.against, watch=watch)
        if self.out is not None:
            from underhood.core.atomic import write_atomically
            from underhood.pages.reading import why_page

            write_atomically(self.out, why_page(why, name=model.name, what=repr(model)).encode())
        if self.json:
            print_json({**why.as_data(), "out": None if self.out is None else str(self.out)})
            return DONE
        largest = ", ".join(f"{word!r} at {place} ({value:+.2f})" for place, word, value in why.largest())
        told = {"target": repr(why.target), "against": why.against and repr(why.against), "logit": why.logit}
        told |= {"largest": largest, "completeness": why.completeness, "cancellation": why.cancellation}
        print_table("why", {**told, **{f"without {name}": value for name, value in why.deletion._asdict().items()}})
        note(f"{self.out}: open it in a browser; it works offline")
        return DONE
