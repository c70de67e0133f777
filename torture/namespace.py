"""A small disk of one's own: a tmpfs in a mount namespace that goes away with the process; no trace is left.

Root needs no more than this; others may get it through a user namespace, where the system allows it.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

NEW_MOUNTS, NEW_USER = 0x00020000, 0x10000000
READ_ONLY, REMOUNT, RECURSIVE, PRIVATE = 1, 32, 16384, 1 << 18

_libc = ctypes.CDLL(None, use_errno=True)


class Unavailable(Exception):
    """This system lets us have no disk of our own; the text says why."""


def _call(name: str, *arguments: object) -> None:
    if getattr(_libc, name)(*arguments) != 0:
        raise Unavailable(f"{name}: {os.strerror(ctypes.get_errno())}")


def enter() -> None:
    """From here on this process has mounts of its own."""
    user, group = os.getuid(), os.getgid()
    _call("unshare", NEW_MOUNTS if user == 0 else NEW_MOUNTS | NEW_USER)
    if user != 0:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    _call("mount", None, b"/", None, ctypes.c_ulong(RECURSIVE | PRIVATE), None)


def mount(folder: Path, size: int) -> None:
    """A disk of `size` bytes at `folder`."""
    _call("mount", b"tmpfs", os.fsencode(folder), b"tmpfs", ctypes.c_ulong(0), f"size={size}".encode())


def make_read_only(folder: Path) -> None:
    _call("mount", None, os.fsencode(folder), None, ctypes.c_ulong(REMOUNT | READ_ONLY), None)


def reason() -> str:
    """Why there is no disk of our own here; empty where there can be one."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            enter()
            mount(Path("/tmp"), 4096)
            code = 0
        finally:
            os._exit(code)
    return "" if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0 else "the system refuses a mount namespace"
