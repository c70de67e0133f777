"""Where answers go: streams that are closed, full or know few letters, and names that a terminal would obey."""

import json
import os
import subprocess
import sys

import pytest

import underhood as uh
from underhood.cli import main
from underhood.core.errors import UnderhoodError, printable

SAMPLE = [sys.executable, "-m", "underhood", "sample", "--d", "2", "--out", "a"]


def shell(command, folder, **environment):
    return subprocess.run(command, shell=True, cwd=folder, capture_output=True, env={**os.environ, **environment})


def test_a_closed_stdout_is_one_line_and_no_answer(tmp_path):
    done = shell(" ".join([*SAMPLE, "--json", ">&-"]), tmp_path)
    assert (done.returncode, done.stderr) == (2, b"underhood: cannot print the answer: stdout is closed\n")
    assert os.listdir(tmp_path) == []


def test_with_stderr_and_stdin_closed_the_answer_is_whole(tmp_path):
    done = shell(" ".join([*SAMPLE, "--json", "2>&-", "<&-"]), tmp_path)
    assert done.returncode == 0
    assert json.loads(done.stdout)["d"] == 2
    assert uh.load(tmp_path / "a").d == 2


def test_a_full_disk_for_the_answer(tmp_path):
    done = shell(" ".join([*SAMPLE, "--json", ">/dev/full"]), tmp_path)
    assert done.returncode == 2
    assert done.stderr == b"underhood: cannot write to stdout: No space left on device\n"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_streams_that_know_few_letters(encoding, tmp_path):
    environment = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": encoding, "PYTHONCOERCECLOCALE": "0"}
    uh.save(uh.random_attention(2, seed=0), tmp_path / "λ")
    command = f"{sys.executable} -m underhood"
    done = shell(f"{command} compile λ --to lstm --out b --json", tmp_path, **environment)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["target"] == "lstm"
    done = shell(f"{command} compile λ --to lstm --out b", tmp_path, **environment)
    assert done.returncode == 0, done.stderr
    assert shell(f"{command} --help", tmp_path, **environment).returncode == 0
    done = shell(f"{command} compile none-λ --to lstm --out b", tmp_path, **environment)
    assert (done.returncode, done.stderr.count(b"\n")) == (2, 1)


def test_a_file_name_that_is_no_text(tmp_path, capsys):
    """An explorer of it; a fork, as `main` is given no bytes."""
    name = os.fsdecode(b"n\xff")
    uh.save(uh.compile(uh.random_attention(2, seed=0), to="lstm").model, tmp_path / name)
    assert main(["explore", str(tmp_path / name), "--out", str(tmp_path / "page.html")]) == 0
    assert "n\\udcff" in (tmp_path / "page.html").read_text()


HOSTILE = "x\x1b]0;gotcha\x07\x9b31m\u202egnp.exe"


def test_names_that_a_terminal_would_obey(tmp_path, capsys):
    import safetensors.numpy

    header = {"format": f"underhood/1{HOSTILE}", "kind": HOSTILE}
    (tmp_path / "a").write_bytes(safetensors.numpy.save({HOSTILE: uh.random_attention(2).w_key.__array__()}, header))
    for command in (["compile", "--to", "lstm"], ["decompile"], ["import", "--kind", "lstm"]):
        flags = ["--out", str(tmp_path / "b")]
        for json_flag in ([], ["--json"]):
            assert main([command[0], str(tmp_path / "a"), *command[1:], *flags, *json_flag]) == 2
            printed = capsys.readouterr()
            assert printable(printed.err.replace("\n", "")) == printed.err.replace("\n", "")
            assert printable(printed.out.replace("\n", "")) == printed.out.replace("\n", "")
            if json_flag:
                assert "\x1b" not in str(json.loads(printed.out))
    assert str(UnderhoodError("expected x", HOSTILE)).isprintable()


def test_tables_and_notes_print_what_a_terminal_would_obey(capsys):
    from underhood.commands.output import note, print_table

    print_table(HOSTILE, {HOSTILE: HOSTILE})
    note(HOSTILE)
    printed = capsys.readouterr()
    for text in (printed.out, printed.err):
        assert not set("\x1b\x07\x9b\u202e") & set(text)
        assert "gotcha" in text
