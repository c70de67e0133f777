"""The command line as a user meets it: exit codes, one-line errors, JSON on stdout, a quick --help."""

import json
import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from rich.table import Table

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
        (["sample", "--d", "0", "--out", "a"], "expected d of 1 or more; got 0"),
        (["sample", "--d", "x", "--out", "a"], "invalid literal"),
        (["sample", "--d", "4"], "--out"),
        (["sample", "--d", "4", "--out", "none/a"], "no such folder: none"),
        (["sample", "--d", "4", "--rank", "9", "--out", "a"], "expected a rank between 0 and 4"),
        (["smaple"], "smaple"),
        ([], "Expected one of"),
        (["reproduce", "table9"], "Known: table1"),
        (["reproduce", "--budget", "vast"], "Known: quick"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, says, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    code = main(arguments)
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
    assert done.stderr == "underhood: expected d of 1 or more; got -1.\n"


def test_ctrl_c_in_a_training_of_reproduce_leaves_no_result(monkeypatch, tmp_path, capfd):
    """A training that Ctrl-C cut short has a model, too; a table must not be made of it."""
    from underhood.studies import teacher

    def stopped(models, members, *rest, **settings):
        return [SimpleNamespace(model=models[0], interrupted=True, held_out_loss=1.0, seconds=1.0)]

    monkeypatch.setattr(teacher, "fit_population", stopped)
    assert main(["reproduce", "table1", "--budget", "paper", "--out", str(tmp_path)]) == 130
    assert teacher.paper_student.cache_info().currsize == 0
    assert "table1 is unfinished; the same command goes on" in capfd.readouterr().err
    assert not list(tmp_path.rglob("*.json"))


def fails(error):
    def run(command):
        raise error

    return run


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (KeyError("x"), 70, "internal error: KeyError: 'x' (cli.py:"),
        (AssertionError(), 70, "internal error: AssertionError"),
        (MemoryError(), 2, "not enough memory for these sizes"),
        (RuntimeError("RESOURCE_EXHAUSTED: Out of memory"), 2, "not enough memory"),
        (OSError(28, "No space left on device", "a.bin"), 2, "a.bin: No space left on device"),
        (uh.UnderhoodError("no such file: a"), 2, "no such file: a"),
        (KeyboardInterrupt(), 130, "stopped by Ctrl-C"),
    ],
)
def test_no_failure_looks_like_no(error, code, says, monkeypatch, capfd):
    monkeypatch.setattr(Sample, "run", fails(error))
    assert main(["sample", "--d", "2", "--out", "a", "--json"]) == code
    out, err = capfd.readouterr()
    assert err.startswith("underhood: ") and says in err and err.count("\n") == 1
    assert says.partition(" (")[0] in json.loads(out)["error"]
    monkeypatch.setenv("UNDERHOOD_TRACEBACK", "1")
    assert main(["sample", "--d", "2", "--out", "a"]) == code
    assert "Traceback" in capfd.readouterr().err


def test_the_version_and_the_module():
    done = subprocess.run([sys.executable, "-m", "underhood", "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"underhood {uh.__version__}\n", "")


def test_help_names_the_exit_codes(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    printed = " ".join(capsys.readouterr().out.split())
    for words in ("0 done", "1 the answer is no", "2 bad input", "70 a bug", "130 stopped by Ctrl-C", "--version"):
        assert words in printed


@pytest.mark.parametrize("command", ["decompile", "explore", "disguise"])
def test_a_seed_below_zero_is_bad_input(command, tmp_path, capfd):
    uh.save(uh.make_model("gated-rnn", 2, hidden=3), tmp_path / "rnn")
    assert main([command, str(tmp_path / "rnn"), "--seed", "-1", "--out", str(tmp_path / "out")]) == 2
    assert capfd.readouterr().err == "underhood: expected a seed of 0 or more; got -1. Use --seed 0.\n"


@pytest.mark.parametrize("flags", [["--d", "20000"], ["--d", "2", "--heads", "1000000000"], ["--d", "9" * 30]])
def test_what_does_not_fit_is_refused_before_it_is_drawn(flags, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr("underhood.core.memory.available_memory", lambda: 8e9)
    began = time.process_time()
    assert main(["sample", *flags, "--out", str(tmp_path / "a")]) == 2
    error = capfd.readouterr().err
    assert "not enough memory" in error and "8 GB are free" in error
    assert time.process_time() - began < 5


def test_tables_keep_their_digits_at_any_width(monkeypatch, capsys):
    from underhood.commands.output import show

    monkeypatch.setenv("COLUMNS", "30")
    table = Table("name", "a value", "another value", "what it means")
    table.add_row("loss", "1.206e-23", "-4.5678e-101", "words that may go to the next line where they must")
    show(table)
    printed = capsys.readouterr().out
    for digits in ("1.206e-23", "-4.5678e-101"):
        assert digits in printed
    assert "…" not in printed and "must" in printed


def test_reproduce_says_in_one_line_that_its_folder_cannot_be_written_to(tmp_path, capfd):
    (tmp_path / "file").write_text("an earlier result")
    assert main(["reproduce", "table4", "--out", str(tmp_path / "file")]) == 2
    error = capfd.readouterr().err
    assert error.startswith("underhood: cannot write to the folder ") and error.count("\n") == 1 and "--out" in error
    assert (tmp_path / "file").read_text() == "an earlier result"
