"""Ctrl-C at any moment of a command: exit code 130, one line, and no file that is half there."""

import os
import signal
import subprocess
import sys
import time

import pytest

import underhood as uh


@pytest.mark.parametrize("moment", [0.2, 0.6, 1.0, 1.8, 2.6])
def test_ctrl_c_in_the_first_seconds_of_a_command(moment, tmp_path):
    """An exception in the middle of jax's import, or of a callback out of compiled code, crashed the interpreter."""
    uh.save(uh.random_attention(3, seed=0), tmp_path / "a")
    began = tmp_path / "began"
    code = (
        "import sys, pathlib; from underhood.__main__ import main, exit_on_interrupt; exit_on_interrupt();"
        f"pathlib.Path({str(began)!r}).touch(); sys.exit(main())"
    )
    command = [sys.executable, "-c", code, "compile", str(tmp_path / "a"), "--to", "lstm", "--out", str(tmp_path / "o")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not began.exists():
        time.sleep(0.01)
    time.sleep(moment)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    if process.returncode == 0:
        return  # it was done before
    assert (process.returncode, out, err) == (130, "", "underhood: stopped by Ctrl-C\n")
    assert sorted(os.listdir(tmp_path)) == ["a", "began"]


HOOK = """
import gc, os, pathlib, signal, sys, time
from underhood.core.interrupts import advice, exit_on_interrupt, interrupts_blocked, interruptible
exit_on_interrupt()
"""


def run(code):
    done = subprocess.run([sys.executable, "-c", HOOK + code], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


def test_ctrl_c_in_a_hook_is_not_lost():
    code = "gc.callbacks.append(lambda *_: signal.raise_signal(signal.SIGINT)); gc.collect(); time.sleep(30)"
    assert run(code) == (130, "", "underhood: stopped by Ctrl-C\n")


def test_a_write_is_finished_first():
    code = """
with advice("go on with x"):
    with interrupts_blocked():
        signal.raise_signal(signal.SIGINT)
        print("written", flush=True)
    print("not reached", flush=True)
"""
    assert run(code) == (130, "written\n", "underhood: stopped by Ctrl-C; go on with x\n")


def test_work_that_asks_for_it_gets_an_exception():
    code = """
try:
    with interruptible():
        signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    print("put in order", flush=True)
signal.raise_signal(signal.SIGINT)
"""
    assert run(code) == (130, "put in order\n", "underhood: stopped by Ctrl-C\n")


def test_a_library_leaves_signals_alone():
    code = "import signal; before = signal.getsignal(signal.SIGINT); import underhood as uh; uh.LinearAttention; "
    code += "from underhood.cli import main; main(['--version']); assert signal.getsignal(signal.SIGINT) is before"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0
