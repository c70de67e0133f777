"""`underhood`: one command for each thing the package does."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Annotated, Any, Union

import tyro

from underhood.commands.compile import Compile
from underhood.commands.decompile import Decompile
from underhood.commands.disguise import Disguise
from underhood.commands.explore import Explore
from underhood.commands.export import Export
from underhood.commands.import_ import Import
from underhood.commands.output import BAD_INPUT, print_json
from underhood.commands.probe import Probe
from underhood.commands.report import Report
from underhood.commands.reproduce import Reproduce
from underhood.commands.sample import Sample
from underhood.commands.sweep import Sweep
from underhood.commands.train import Train
from underhood.errors import UnderhoodError, one_line

# One line a command.
COMMANDS: tuple[type, ...] = (
    Sample,
    Compile,
    Disguise,
    Decompile,
    Probe,
    Train,
    Sweep,
    Reproduce,
    Report,
    Explore,
    Export,
    Import,
)


def main(arguments: list[str] | None = None) -> int:
    """Parse, run, and turn bad input into one line and exit code 2."""
    arguments = sys.argv[1:] if arguments is None else arguments
    command = None
    try:
        command = _parse(arguments)
        with _interrupts_are_heard():
            return command.run()
    except UnderhoodError as error:
        if getattr(command, "json", False):
            print_json(error.as_data())
        return _refuse(str(error))
    except KeyboardInterrupt:
        return _refuse("stopped by Ctrl-C")
    except BrokenPipeError:
        # The reader of a pipe is gone (`underhood … | head`): not worth a traceback, nor a second one at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BAD_INPUT
    except OSError as error:
        # A disk that fills up or a folder that goes away, met where no reader or writer of ours stands between.
        where = f"{error.filename}: " if error.filename else ""
        return _refuse(f"{where}{error.strerror or error}")
    except MemoryError as error:
        return _refuse(f"there is memory for these sizes; got {error or 'too little'}.")


@contextlib.contextmanager
def _interrupts_are_heard() -> Iterator[None]:
    """Ctrl-C that strikes where Python can only print it, in a hook of the garbage collector, say, comes once more."""
    usual = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        if unraisable.exc_type is KeyboardInterrupt:
            threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGINT)).start()
        else:
            usual(unraisable)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = usual


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
                description="Compile linear self-attention into gated RNNs, train them, decompile them.",
                config=(tyro.conf.FlagCreatePairsOff, tyro.conf.OmitArgPrefixes),
            )
    except SystemExit as stop:
        if stop.code in (0, None):
            sys.stderr.write(complaint.getvalue())
            raise
        raise SystemExit(_refuse(_unboxed(complaint.getvalue()))) from None


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


def _refuse(message: str) -> int:
    sys.stderr.write(f"underhood: {one_line(message)}\n")
    return BAD_INPUT


if __name__ == "__main__":
    sys.exit(main())
