"""Errors in one line: what is wrong, what came instead, and what to do about it.

Two ways to say it:

    UnderhoodError("expected a seed of 0 or more", -1, "Use 0.")   expected a seed of 0 or more; got -1. Use 0.
    UnderhoodError("no such file: a.safetensors")                  no such file: a.safetensors

A remedy names settings as Python has them, in backticks: "Use `resume=True` or another `out`." The command line prints
the line on stderr with its flags in their place ("Use --resume or another --out.") and exits with 2; nothing else of
ours is raised on bad input.
"""

from __future__ import annotations

import re
from collections.abc import Callable

SETTING = re.compile(r"`([a-z]\w*)(?:=([^`]+))?`")


def in_shell(text: str) -> str:
    """Settings in backticks as flags: `resume=True` is --resume, `learning_rate` --learning-rate, `d=4` --d 4."""

    def flag(found: re.Match[str]) -> str:
        name, value = f"--{found[1].replace('_', '-')}", (found[2] or "True").strip("'\"")
        return name if value == "True" else f"{name} {value}"

    return SETTING.sub(flag, text)


# What a terminal obeys rather than shows: control characters but for line breaks and tabs, changes of the direction of
# writing, and bytes of file names that are no text.
_COMMANDS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: object) -> str:
    """The text with characters that a terminal would obey written out: names out of a file may hold any.

    **Arguments:**

    - `text`: what is to be printed.

    **Returns:**

    The same, with `\\x1b` for an escape.
    """
    return _COMMANDS.sub(lambda found: found[0].encode("unicode_escape").decode(), str(text))


def one_line(text: object) -> str:
    """A message may quote a file or a library: fold its line breaks, so that one error stays one line."""
    return printable(" ".join(str(text).split()))


class UnderhoodError(ValueError):
    """Bad input: the `rule` that it breaks, with what was `got`, or a plain statement; then the `remedy`."""

    def __init__(self, rule: str, got: object = "", remedy: str = "") -> None:
        self.rule, self.got, self.remedy = one_line(rule), one_line(got), one_line(remedy)
        super().__init__(self._with(self.remedy))

    def __reduce__(self) -> tuple[Callable[..., UnderhoodError], tuple[object, ...]]:
        return type(self), (self.rule, self.got, self.remedy)

    def _with(self, remedy: str) -> str:
        text = f"{self.rule}; got {self.got}" if self.got else self.rule
        # A statement alone may end in a path, which a full stop would spoil; a sentence that goes on needs one.
        if (self.got or remedy) and not text.endswith((".", "!", "?")):
            text += "."
        return f"{text} {remedy}" if remedy else text

    @property
    def for_shell(self) -> str:
        """What the command line prints."""
        return self._with(in_shell(self.remedy))

    def as_data(self) -> dict[str, object]:
        """What `--json` prints."""
        return {"error": self.for_shell, "rule": self.rule, "got": self.got, "remedy": in_shell(self.remedy)}


class NotFinite(UnderhoodError):
    """NaN or infinite numbers where weights belong."""


class NotConstructible(UnderhoodError):
    """A refusal is data: `target` with `layers` layers cannot hold the source, for `reason`, after `source`.

    `needs` is the number of layers that can; None where no number of them does.
    """

    def __init__(self, target: str, *, layers: int, needs: int | None, reason: str, source: str) -> None:
        self.target, self.layers, self.needs = target, layers, needs
        self.reason, self.source = reason, source
        if needs is None:
            super().__init__(f"{target} holds this in no number of layers: {reason} ({source})")
            return
        many = f"{needs} layer{'s' * (needs > 1)}"
        asked = f"{layers} layer{'s' * (layers != 1)}"
        rule = f"{target} needs {many} here" if layers < needs else f"{target} has no construction with {asked} here"
        super().__init__(
            f"{rule}: {reason} ({source})",
            asked,
            f"Use `layers={needs}`, or leave it out.",
        )

    def __reduce__(self) -> tuple[Callable[..., UnderhoodError], tuple[object, ...]]:
        return _refusal, (self.target, self.layers, self.needs, self.reason, self.source)

    def as_data(self) -> dict[str, object]:
        refusal = {name: getattr(self, name) for name in ("target", "layers", "needs", "reason", "source")}
        return {**super().as_data(), "refused": refusal}


def _refusal(target: str, layers: int, needs: int | None, reason: str, source: str) -> NotConstructible:
    """A pickled refusal, as it comes back from another process."""
    return NotConstructible(target, layers=layers, needs=needs, reason=reason, source=source)
