"""The command line as a user meets it: exit codes, one-line errors, JSON on stdout, a quick --help."""

import gc
import json
import os
import signal
import subprocess
import sys
import time

import pytest

import underhood as uh
from underhood.cli import COMMANDS, main, name_of
from underhood.commands.sample import Sample


def run(*arguments):
    return subprocess.run([sys.executable, "-m", "underhood.cli", *arguments], capture_output=True, text=True)


def test_sample_writes_what_it_says(tmp_path, capsys):
    out = tmp_path / "attn.safetensors"
    arguments = [
        "--d",
        "5",
        "--heads",
        "2",
        "--d-key",
        "3",
        "--d-value",
        "4",
        "--rank",
        "2",
        "--seed",
        "7",
        "--json",
    ]
    assert main(["sample", *arguments, "--out", str(out)]) == 0
    printed = json.loads(capsys.readouterr().out)
    attention = uh.load(out)
    assert (attention.d, attention.heads, attention.d_key, attention.d_out) == (5, 2, 3, 4)
    assert {printed[name] for name in ("d", "d_key", "d_out")} == {5, 3, 4}
    again = uh.random_attention(5, heads=2, d_key=3, d_value=4, rank=2, seed=7)
    assert bytes(again.w_key) == bytes(attention.w_key)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["sample", "--d", "0", "--out", "a"], "d is a whole number from 1 on; got 0"),
        (["sample", "--d", "x", "--out", "a"], "invalid literal"),
        (["sample", "--d", "4"], "--out"),
        (["sample", "--d", "4", "--out", "none/a"], "folder to write to exists"),
        (["sample", "--d", "4", "--rank", "9", "--out", "a"], "rank is between 0 and 4"),
        (["smaple"], "smaple"),
        ([], "Expected one of"),
        (["reproduce", "table9"], "Known: table1"),
        (["reproduce", "--budget", "vast"], "Known: quick"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, says, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    try:
        code = main(arguments)
    except SystemExit as stop:
        code = stop.code
    out, err = capfd.readouterr()
    assert code == 2
    assert says in err
    assert err.count("\n") == 1
    assert out == ""
    assert os.listdir(tmp_path) == []


def test_errors_are_data_with_json(tmp_path, capsys):
    assert main(["sample", "--d", "0", "--out", str(tmp_path / "a"), "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["got"] == "0"


def test_help_needs_no_jax():
    """`--help` imports neither jax nor numpy; benchmarks/ measures what that buys."""
    code = (
        "import sys\nfrom underhood.cli import main\ntry:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "sys.exit(any(name in sys.modules for name in ('jax', 'equinox', 'matplotlib', 'torch')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for command in COMMANDS:
        assert name_of(command) in done.stdout


@pytest.mark.parametrize("command", COMMANDS, ids=name_of)
def test_every_command_explains_itself(command, capsys):
    with pytest.raises(SystemExit) as stop:
        main([name_of(command), "--help"])
    assert stop.value.code == 0
    assert "--json" in capsys.readouterr().out


def test_installed_entry_point_reports_errors_the_same_way():
    done = run("sample", "--d", "-1", "--out", "a")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "underhood: d is a whole number from 1 on; got -1.\n"


def test_ctrl_c_within_a_hook_of_the_garbage_collector_is_heard(monkeypatch, capfd):
    """Python prints what is raised in such a hook, jax's among them, and goes on: Ctrl-C would be lost."""

    def hook(phase, info):
        if phase == "start" and not heard:
            heard.append(phase)
            signal.raise_signal(signal.SIGINT)

    def run(command):
        gc.callbacks.append(hook)
        gc.collect()
        gc.callbacks.remove(hook)
        time.sleep(10)
        return 0

    heard = []
    monkeypatch.setattr(Sample, "run", run)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        began = time.monotonic()
        assert main(["sample", "--d", "2", "--out", "a"]) == 2
        assert time.monotonic() - began < 5 and heard
    finally:
        signal.signal(signal.SIGINT, before)
    assert capfd.readouterr().err == "underhood: stopped by Ctrl-C\n"


def test_reproduce_says_in_one_line_that_its_folder_cannot_be_written_to(tmp_path, capfd):
    (tmp_path / "file").write_text("an earlier result")
    assert main(["reproduce", "table4", "--out", str(tmp_path / "file")]) == 2
    error = capfd.readouterr().err
    assert error.startswith("underhood: the folder ") and error.count("\n") == 1 and "--out" in error
    assert (tmp_path / "file").read_text() == "an earlier result"
