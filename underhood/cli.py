"""`underhood`: one command for each thing the package does."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Union

import tyro

from underhood import __version__
from underhood.commands.attend import Attend
from underhood.commands.compile import Compile
from underhood.commands.decompile import Decompile
from underhood.commands.disguise import Disguise
from underhood.commands.explore import Explore
from underhood.commands.export import Export
from underhood.commands.import_ import Import
from underhood.commands.in_context import InContext
from underhood.commands.interrupts import interrupts_are_heard
from underhood.commands.output import ANSWER_IS_NO, BAD_INPUT, DONE, INTERNAL_ERROR, INTERRUPTED, print_json
from underhood.commands.probe import Probe
from underhood.commands.report import Report
from underhood.commands.reproduce import Reproduce
from underhood.commands.sample import Sample
from underhood.commands.sweep import Sweep
from underhood.commands.train import Train
from underhood.core.errors import UnderhoodError, one_line

# One line a command.
COMMANDS: tuple[type, ...] = (
    Sample,
    Compile,
    Disguise,
    Decompile,
    Probe,
    InContext,
    Train,
    Sweep,
    Reproduce,
    Report,
    Explore,
    Attend,
    Export,
    Import,
)

DESCRIPTION = f"""Compile linear self-attention into gated RNNs, train them, decompile them.

Exit codes: {DONE} done, {ANSWER_IS_NO} the answer is no, {BAD_INPUT} bad input or usage,
{INTERNAL_ERROR} a bug in underhood (UNDERHOOD_TRACEBACK=1 shows where), {INTERRUPTED} stopped by Ctrl-C.
underhood --version prints the version."""


def main(arguments: list[str] | None = None) -> int:
    """Parse, run, and turn what goes wrong into one line and an exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    if given == ["--version"]:
        print(f"underhood {__version__}")
        return 0
    command = None
    try:
        with interrupts_are_heard():
            command = _parse(given)
            return command.run()
    except (Exception, KeyboardInterrupt) as error:
        return _failed(error, json=getattr(command, "json", "--json" in given))
    finally:
        if arguments is None:  # this process has nothing left to do but to end, and ends without a traceback
            signal.signal(signal.SIGINT, signal.SIG_IGN)


def _failed(error: BaseException, *, json: bool) -> int:
    """One line on stderr and the exit code; with `--json`, the same as data."""
    if isinstance(error, BrokenPipeError):
        # The reader of a pipe is gone (`underhood … | head`): nobody to tell, and no second complaint at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BAD_INPUT
    if os.environ.get("UNDERHOOD_TRACEBACK"):
        traceback.print_exception(error)
    code, message = _explained(error)
    if json:
        print_json(error.as_data() if isinstance(error, UnderhoodError) else {"error": message})
    sys.stderr.write(f"underhood: {one_line(message)}\n")
    return code


def _explained(error: BaseException) -> tuple[int, str]:
    if isinstance(error, UnderhoodError):
        return BAD_INPUT, error.for_shell
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED, f"stopped by Ctrl-C; {error}" if str(error) else "stopped by Ctrl-C"
    if isinstance(error, OSError):
        # A disk that fills up or a folder that goes away, met where no reader or writer of ours could say more.
        return BAD_INPUT, f"{error.filename}: " * bool(error.filename) + (error.strerror or str(error))
    if isinstance(error, MemoryError) or str(error).startswith("RESOURCE_EXHAUSTED"):  # the second is XLA's status code
        return BAD_INPUT, f"not enough memory for these sizes: {error or 'an allocation failed'}"
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if Path(frame.filename).is_relative_to(Path(__file__).parent)]
    what = f"{type(error).__name__}: {error} ({Path(ours[-1].filename).name}:{ours[-1].lineno})"
    return INTERNAL_ERROR, f"internal error: {what}. Please report it; UNDERHOOD_TRACEBACK=1 shows the traceback."


def name_of(command: type) -> str:
    """What the user types: the class's name in lower case, unless it has a `name` of its own."""
    return getattr(command, "name", command.__name__.lower())


def _parse(arguments: list[str]) -> Any:
    subcommands = tuple(
        Annotated[command, tyro.conf.subcommand(name_of(command), prefix_name=False)] for command in COMMANDS
    )
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint), _without_blocked_torch():
            return tyro.cli(
                Union[subcommands],  # type: ignore[valid-type]  # noqa: UP007
                args=arguments,
                prog="underhood",
                description=DESCRIPTION,
                config=(tyro.conf.FlagCreatePairsOff, tyro.conf.OmitArgPrefixes),
            )
    except SystemExit as stop:
        if stop.code in (0, None):
            sys.stderr.write(complaint.getvalue())
            raise
        raise UnderhoodError(_unboxed(complaint.getvalue())) from None


@contextlib.contextmanager
def _without_blocked_torch() -> Iterator[None]:
    """tyro imports torch where sys.modules has an entry for it, even the None that says it must not be imported."""
    if sys.modules.get("torch", sys) is not None:
        yield
        return
    del sys.modules["torch"]
    try:
        yield
    finally:
        sys.modules["torch"] = None  # type: ignore[assignment]


def _unboxed(text: str) -> str:
    """tyro frames its complaints for a wide terminal; a log wants the same words in one line."""
    rows = [row.strip("│╭╮╰╯─ ") for row in text.splitlines()]
    return one_line(" · ".join(row for row in rows if row)) or "bad usage; see underhood --help"


if __name__ == "__main__":
    sys.exit(main())
