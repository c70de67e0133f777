"""`underhood`: one command for each thing the package does."""

from __future__ import annotations

import contextlib
import errno
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
from underhood.commands.output import ANSWER_IS_NO, BAD_INPUT, DONE, INTERNAL_ERROR, print_json
from underhood.commands.plot import Plot
from underhood.commands.probe import Probe
from underhood.commands.query import Query
from underhood.commands.report import Report
from underhood.commands.reproduce import Reproduce
from underhood.commands.sample import Sample
from underhood.commands.sweep import Sweep
from underhood.commands.train import Train
from underhood.commands.why import Why
from underhood.core.errors import UnderhoodError, one_line
from underhood.core.interrupts import INTERRUPTED, exit_on_interrupt

# One line for each command.
COMMANDS: tuple[type, ...] = (
    Sample,
    Compile,
    Disguise,
    Decompile,
    Probe,
    InContext,
    Train,
    Plot,
    Sweep,
    Query,
    Reproduce,
    Report,
    Explore,
    Attend,
    Why,
    Export,
    Import,
)

DESCRIPTION = f"""Compile linear self-attention into gated RNNs, train them, decompile them.

Exit codes: {DONE} done, {ANSWER_IS_NO} the answer is no, {BAD_INPUT} bad input or usage,
{INTERNAL_ERROR} a bug in underhood (UNDERHOOD_TRACEBACK=1 shows where), {INTERRUPTED} stopped by Ctrl-C.
underhood --version prints the version."""


def main(arguments: list[str] | None = None) -> int:
    """Parse, run, and turn what goes wrong into one line and an exit code.

    **Arguments:**

    - `arguments`: as typed after `underhood`; those of this process unless given.

    **Returns:**

    The exit code.
    """
    given = sys.argv[1:] if arguments is None else arguments
    command = None
    try:
        if arguments is None:
            exit_on_interrupt()
        _prepare_streams(given)
        if given == ["--version"]:
            print(f"underhood {__version__}")
            return DONE
        command = _parse(given)
        code = command.run()
        sys.stdout.flush()  # here, where a full disk can still be told
        return code
    except (Exception, KeyboardInterrupt) as error:
        return _failed(error, json=getattr(command, "json", "--json" in given))
    finally:
        if arguments is None:  # this process has nothing left to do but to end, and ends without a traceback
            signal.signal(signal.SIGINT, signal.SIG_IGN)


def _prepare_streams(given: list[str]) -> None:
    """Streams that take every letter; one that was closed is no place for the next file that is opened."""
    for number, name in ((0, "stdin"), (1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:
            with contextlib.suppress(OSError):
                os.fstat(number)
                continue
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115
            if name == "stdout" and "--json" in given:
                raise UnderhoodError("cannot print the answer: stdout is closed")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _failed(error: BaseException, *, json: bool) -> int:
    """One line on stderr and the exit code; with `--json`, the same as data."""
    if isinstance(error, BrokenPipeError):
        _drop_stdout()  # the reader of a pipe is gone (`underhood … | head`): nobody to tell
        return BAD_INPUT
    if os.environ.get("UNDERHOOD_TRACEBACK"):
        traceback.print_exception(error)
    code, message = _explained(error)
    try:
        if json:
            print_json(error.as_data() if isinstance(error, UnderhoodError) else {"error": message})
        sys.stdout.flush()
    except OSError as broken:
        _drop_stdout()
        if broken.errno != getattr(error, "errno", None):
            message = f"{message} (and stdout: {broken.strerror})"
    with contextlib.suppress(OSError):
        sys.stderr.write(f"underhood: {one_line(message)}\n")
    return code


def _drop_stdout() -> None:
    """What is left in the buffer goes nowhere: a second complaint at exit would change the exit code."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.stdout.flush()


def _explained(error: BaseException) -> tuple[int, str]:
    if isinstance(error, UnderhoodError):
        return BAD_INPUT, error.for_shell
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED, f"stopped by Ctrl-C; {error}" if str(error) else "stopped by Ctrl-C"
    if isinstance(error, OSError):
        # A disk that fills up or a folder that goes away, met where no reader or writer of ours could say more.
        what = f"{error.filename}: " if error.filename else "cannot write to stdout: " * (error.errno == errno.ENOSPC)
        return BAD_INPUT, what + (error.strerror or str(error))
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
