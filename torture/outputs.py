"""Outputs: `--out` names what must not be lost. It stays as it was, or is written where the rule allows it.

The rule as a table, apart from the code that keeps it: what is found under the name of the output, and whether a
command may write there without --force and with it. After each attempt the whole folder is compared with what it was.
"""

from __future__ import annotations

import io
import os
import shutil
import socket
import stat
import struct
import tempfile
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from torture import healthy
from torture.attempt import attempt
from torture.children import command, done, in_processes
from torture.tally import Tally

ATTEMPTS = {"small": 20, "long": 1500}
PATIENT = 120.0  # seconds of computing: what compiles for the first time is slow, and not what is tried here
NEVER, FORCED, ALWAYS = (False, False), (False, True), (True, True)  # may it be written: as it is, with --force?

# Command → its arguments but --out, its inputs among them, and the earlier file of its own kind.
COMMANDS: dict[str, tuple[list[str], tuple[str, ...], str]] = {
    "sample": (["sample", "--d", "2"], (), "a.safetensors"),
    "compile": (["compile", "attn", "--to", "gated-rnn", "--horizon", "3"], ("attn",), "a.safetensors"),
    "disguise": (["disguise", "rnn"], ("rnn",), "a.safetensors"),
    "decompile": (["decompile", "rnn", "--against", "attn", "--horizon", "3"], ("rnn", "attn"), "a.safetensors"),
    "decompile, reduced": (
        ["decompile", "rnn", "--horizon", "3", "--out", "first", "--reduced"],
        ("rnn",),
        "a.safetensors",
    ),
    "import": (["import", "attn", "--kind", "attention"], ("attn",), "a.safetensors"),
    "export to torch": (["export", "rnn", "--to", "torch"], ("rnn",), "t.safetensors"),
    "explore": (["explore", "rnn"], ("rnn",), "a.html"),
    "attend": (["attend", "rnn", "--length", "5"], ("rnn",), "a.html"),
    "attend, picture": (["attend", "rnn", "--length", "5"], ("rnn",), "a.png"),
    "attend, archive": (["attend", "rnn", "--length", "5"], ("rnn",), "a.npz"),
    "report": (["report", "results"], (), "a.html"),
}


def occupants(inputs: tuple[str, ...], own: bytes, others: list[bytes]) -> dict[str, tuple[Any, tuple[bool, bool]]]:
    """name → (how it is put at a path, what is right)."""

    def linked(make: Callable[[Path], Any]) -> Callable[[Path], Any]:
        def put(path: Path) -> None:
            make(path.with_name("behind the link"))
            path.symlink_to("behind the link")

        return put

    def listening(path: Path) -> None:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(os.path.relpath(path))

    def content(what: bytes) -> Callable[[Path], Any]:
        return lambda path: path.write_bytes(what)

    found: dict[str, tuple[Any, tuple[bool, bool]]] = {
        "nothing": (lambda path: None, ALWAYS),
        "an empty file": (content(b""), ALWAYS),
        "its own kind": (content(own), ALWAYS),
        "a link to its own kind": (linked(content(own)), ALWAYS),
        "a dangling link": (lambda path: path.symlink_to("not there yet"), ALWAYS),
        "words": (content(b"\\documentclass{thesis}"), FORCED),
        "a link to words": (linked(content(b"years of work")), FORCED),
        "half of its own kind": (content(own[: len(own) // 3]), FORCED),
        "a folder": (lambda path: path.mkdir(), NEVER),
        "a FIFO": (os.mkfifo, NEVER),
        "a link to a FIFO": (linked(os.mkfifo), NEVER),
        "a link to a device": (lambda path: path.symlink_to(os.devnull), NEVER),
        "a socket": (listening, NEVER),
        "a link to itself": (lambda path: path.symlink_to(path.name), NEVER),
        "a link into nowhere": (lambda path: path.symlink_to("nowhere/at all"), NEVER),
    }
    for index, other in enumerate(others):
        found[f"another kind, {index}"] = (content(other), FORCED)
    for name in inputs:
        found[f"the input {name}"] = (partial(_same_as, name, Path.hardlink_to), FORCED)
        found[f"a link to the input {name}"] = (partial(_same_as, name, Path.symlink_to), FORCED)
    return found


def pictures_and_archives() -> dict[str, bytes]:
    """Those of attend, and a user's own."""
    found = {}
    for name, software in {"a.png": b"underhood", "another's.png": b"camera"}.items():
        chunks = (
            (b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)),
            (b"tEXt", b"Software\0" + software),
            (b"IEND", b""),
        )
        parts = (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
            for kind, data in chunks
        )
        found[name] = b"\x89PNG\r\n\x1a\n" + b"".join(parts)
    arrays = ["weights", "names", "kind", "completeness", "completeness_steps"]
    for name, members in {"a.npz": arrays, "b.npz": arrays[:1], "c.npz": [*arrays, "mine"]}.items():
        buffer = io.BytesIO()
        np.savez(buffer, **dict.fromkeys(members, np.ones(1)))
        found[name] = buffer.getvalue()
    return found


def _same_as(name: str, link: Callable[[Path, Path], Any], path: Path) -> None:
    link(path, Path(name))


def state(folder: Path) -> dict[str, Any]:
    """Type, target and content of everything in a folder."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        kind, name = stat.S_IFMT(path.lstat().st_mode), path.relative_to(folder).as_posix()
        found[name] = (
            kind,
            (str(path.readlink()) if path.is_symlink() else path.read_bytes() if stat.S_ISREG(kind) else None),
        )
    return found


def wrong(before: dict[str, Any], after: dict[str, Any], code: int, allowed: bool, out: str) -> str | None:
    """What the table does not allow; what is written is the output, or what its link leads to."""
    if (code in (0, 1)) != allowed:
        return f"exit code {code}, where it {'may' if allowed else 'may not'} be written"
    changed = {name for name in {*before, *after} if before.get(name) != after.get(name)}
    if not allowed:
        return f"refused, and changed: {', '.join(sorted(changed))}" if changed else None
    kind, target = before.get(out, (0, None))
    may = {target if stat.S_ISLNK(kind) else out, "first", "underhood_torch.py"}
    may |= {
        name for name, entry in before.items() if entry == before.get(str(target or out))
    }  # a hard link's other name
    return f"also changed: {', '.join(sorted(changed - may))}" if changed - may else None


def tried(inputs: Path, seed: str, begin: int, end: int) -> list[str | None]:
    """Attempts `begin` to `end`, in this process, each in a folder of its own."""
    earlier, problems, home = healthy.earlier_files() | pictures_and_archives(), [], Path.cwd()
    for index in range(begin, end):
        random = Random(f"{seed} {index}")
        name = random.choice(list(COMMANDS))
        arguments, given, own = COMMANDS[name]
        others = [content for file, content in earlier.items() if file != own]
        found = occupants(given, earlier[own], others)
        what, force = random.choice(list(found)), random.random() < 0.4
        put, right = found[what]
        out = "out" + Path(own).suffix
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary, "folder")
            shutil.copytree(inputs, folder)
            try:
                os.chdir(folder)
                put(folder / out)
                before = state(folder)
                flags = ["--out"] * (arguments[-1] != "--reduced")
                call = command(*arguments, *flags, out, *["--force"] * force)
                problem, code = _attempted(call)
                problem = problem or wrong(before, state(folder), code, right[force], out)
            finally:
                os.chdir(home)
        problems.append(problem and f"{name} over {what}{', forced' * force}: {problem}")
    return problems


def _attempted(call: Callable[[], int]) -> tuple[str | None, int]:
    codes = []

    def kept() -> int:
        codes.append(call())
        return codes[-1]

    problem, _ = attempt(kept, seconds=PATIENT, prints=False)
    return problem, codes[-1] if codes else -1


def make_inputs(inputs: Path) -> None:
    inputs.mkdir()
    done("sample", "--d", 2, "--out", inputs / "attn")
    done("compile", inputs / "attn", "--to", "gated-rnn", "--horizon", 3, "--out", inputs / "rnn")
    done("reproduce", "table4", "--out", inputs / "results", codes=(0, 1))


def run(scale: str, workers: int = 2, seed: int = 0) -> list[Tally]:
    count, tally = ATTEMPTS[scale], Tally("outputs", "what --out may write over")
    with tempfile.TemporaryDirectory() as temporary:
        inputs = Path(temporary, "inputs")
        make_inputs(inputs)
        step = -(-count // (workers * 2))
        calls = [partial(tried, inputs, str(seed), begin, min(begin + step, count)) for begin in range(0, count, step)]
        for problem in (one for batch in in_processes(calls, workers) for one in batch):
            tally.count(problem)
    tally.detail = f"{len(COMMANDS)} commands over files, links, FIFOs, devices, inputs; with and without --force"
    return [tally]
