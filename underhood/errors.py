"""Errors that say the rule, what came, and the remedy, in one line.

The command line prints `str(error)` on stderr and exits with 2; nothing else of ours is raised on bad input.
"""

from __future__ import annotations


def one_line(text: object) -> str:
    """A message may quote a file or a library: fold its line breaks, so that one error stays one line."""
    return " ".join(str(text).split())


class UnderhoodError(ValueError):
    """Bad input: `rule`, what was `got` instead, and the `remedy`."""

    def __init__(self, rule: str, got: object = "", remedy: str = "") -> None:
        self.rule, self.got, self.remedy = one_line(rule), one_line(got), one_line(remedy)
        text = self.rule + (f"; got {self.got}" if self.got else "") + "."
        super().__init__(text + (f" {self.remedy}" if self.remedy else ""))

    def __reduce__(self) -> tuple[type, tuple[str, str, str]]:
        return type(self), (self.rule, self.got, self.remedy)

    def as_data(self) -> dict[str, object]:
        """What `--json` prints."""
        return {"error": str(self), "rule": self.rule, "got": self.got, "remedy": self.remedy}


class NotConstructible(UnderhoodError):
    """A refusal is data: `target` with `layers` layers cannot hold the source, for `reason`, after `source`."""

    def __init__(self, target: str, *, layers: int, needs: int, reason: str, source: str) -> None:
        self.target, self.layers, self.needs = target, layers, needs
        self.reason, self.source = reason, source
        super().__init__(
            f"{target} needs {needs} layer{'s' * (needs > 1)} here: {reason} ({source})",
            f"--layers {layers}",
            f"Use --layers {needs}, or leave it out.",
        )

    def as_data(self) -> dict[str, object]:
        refusal = {name: getattr(self, name) for name in ("target", "layers", "needs", "reason", "source")}
        return {**super().as_data(), "refused": refusal}
