"""What a command may write over, and what renaming must not replace."""

import io
import os
import stat
import struct
from pathlib import Path

import numpy as np
import pytest

import underhood as uh
from underhood.core.atomic import read_bytes, write_atomically
from underhood.core.errors import UnderhoodError
from underhood.core.files import model_bytes, tensor_bytes
from underhood.core.outputs import MAP, MODEL, NPZ, ONNX, PAGE, PNG, STATE_DICT, require_outputs

PAGE_HEAD = b'<!doctype html>\n<html><head><meta name="generator" content="underhood"><title>x</title>'


def archived(*names: str) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **dict.fromkeys(names, np.ones(2)))
    return buffer.getvalue()


def picture(software: bytes, before: bytes = b"pHYs") -> bytes:
    chunks = (b"IHDR", bytes(13)), (before, bytes(9)), (b"tEXt", b"Software\0" + software)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + bytes(4) for kind, data in chunks
    )


def samples() -> dict[str, bytes]:
    """One file of each kind, by what tells it apart; commands that write twice try the true ones (tests/commands)."""
    return {
        "model": model_bytes(uh.random_attention(2)),
        "state": tensor_bytes({"w": np.ones(3)}, {"format": "pt", "underhood": "{}"}),
        "npz": archived(*MAP),
        "png": picture(b"underhood"),
        "page": PAGE_HEAD,
        "onnx": b"\x08\x0a\x12\x08jax2onnx\x1a\x060.17.1:",
        "another's safetensors": tensor_bytes({"w": np.ones(3)}, {"format": "pt"}),
        "a user's npz": archived("x"),
        "more than a map": archived(*MAP, "mine"),
        "less than a map": archived(*MAP[1:]),
        "half a map": archived(*MAP)[:-30],
        "a broken zip": archived(*MAP).replace(b"PK\x01\x02", b"PK\x01\x03"),
        "a user's png": picture(b"camera"),
        "a png without a word": picture(b"")[:40],
        "a png that says it after its pixels": picture(b"underhood", before=b"IDAT"),
        "words": b"\\documentclass{thesis}",
        "another's page": b"<!doctype html><title>underhood</title>",
    }


def test_each_kind_recognises_its_own_and_nothing_else(tmp_path):
    kinds = {"model": MODEL, "state": STATE_DICT, "npz": NPZ, "png": PNG, "page": PAGE, "onnx": ONNX}
    for content_name, content in samples().items():
        path = tmp_path / "out"
        path.write_bytes(content)
        for name, kind in kinds.items():
            if name == content_name:
                require_outputs((path, kind))
            else:
                with pytest.raises(UnderhoodError, match="it is not"):
                    require_outputs((path, kind))
            require_outputs((path, kind), force=True)


def test_an_empty_file_and_a_free_name_are_taken(tmp_path):
    (tmp_path / "empty").touch()
    require_outputs((tmp_path / "empty", MODEL), (tmp_path / "free", MODEL), (None, MODEL), inputs=(None, "nowhere"))


def test_inputs_are_safe_under_any_name(tmp_path):
    path = uh.save(uh.random_attention(2), tmp_path / "in")
    (tmp_path / "soft").symlink_to("in")
    (tmp_path / "hard").hardlink_to(path)
    for name in ("in", "soft", "hard", "../" + tmp_path.name + "/in"):
        with pytest.raises(UnderhoodError, match="over the input"):
            require_outputs((tmp_path / name, MODEL), inputs=(path,))
    uh.save(uh.random_attention(2), tmp_path / "other")
    require_outputs((tmp_path / "other", MODEL), inputs=(path,))


def test_two_outputs_are_two_files(tmp_path):
    (tmp_path / "link").symlink_to("z")
    for other in ("z", "link", "./z"):
        with pytest.raises(UnderhoodError, match="same name"):
            require_outputs((tmp_path / "z", MODEL), (tmp_path / other, MODEL), force=True)


def test_a_link_stays_and_its_target_is_written(tmp_path):
    (tmp_path / "far").mkdir()
    for name, target in {"there": "far/there", "dangling": "far/new"}.items():
        (tmp_path / name).symlink_to(target)
    (tmp_path / "far" / "there").write_bytes(b"old")
    (tmp_path / "far" / "there").chmod(0o640)
    for name in ("there", "dangling"):
        assert write_atomically(tmp_path / name, b"new") == tmp_path / name
        assert (tmp_path / name).is_symlink() and (tmp_path / name).read_bytes() == b"new"
    assert stat.S_IMODE((tmp_path / "far" / "there").stat().st_mode) == 0o640
    assert sorted(os.listdir(tmp_path / "far")) == ["new", "there"]


@pytest.mark.parametrize("force", [False, True])
def test_what_is_no_regular_file_is_never_replaced(tmp_path, force):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "to-fifo").symlink_to("fifo")
    (tmp_path / "null").symlink_to(os.devnull)
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "folder").mkdir()
    before = {path.name: path.lstat() for path in tmp_path.iterdir()}
    for name in (*before, os.devnull, tmp_path / "none" / "a"):
        with pytest.raises(UnderhoodError):
            require_outputs((tmp_path / name, MODEL), force=force)
        with pytest.raises(UnderhoodError):
            write_atomically(tmp_path / name, b"content")
    assert {path.name: path.lstat() for path in tmp_path.iterdir()} == before
    assert stat.S_ISCHR(Path(os.devnull).stat().st_mode)


def test_reading_a_fifo_does_not_wait_for_a_writer(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(UnderhoodError, match="is a FIFO"):
        read_bytes(tmp_path / "fifo")
    with pytest.raises(UnderhoodError, match="is a device"):
        read_bytes("/dev/zero")


def test_python_writes_over_what_it_likes(tmp_path):
    (tmp_path / "notes").write_text("words")
    uh.save(uh.random_attention(2), tmp_path / "notes")
    assert uh.load(tmp_path / "notes").d == 2


NETWORK = uh.compile(uh.random_attention(2, seed=0), to="lstm").model


@pytest.mark.parametrize(
    ("write", "names"),
    [
        (lambda path, **how: uh.explore(NETWORK, path, **how), ["notes.md", "thesis.html"]),
        (lambda path, **how: uh.attend(NETWORK, np.ones((3, 2)), path, **how), ["a.npz", "a.png", "a.html"]),
        (lambda path, **how: uh.draw(NETWORK, path, **how), ["photo.png", "paper.pdf", "drawing.svg"]),
    ],
    ids=["explore", "attend", "draw"],
)
def test_functions_write_over_what_commands_write_over(write, names, tmp_path):
    """A file of somebody's stays, one of ours is made anew, and `force=True` overrules."""
    for name in names:
        path = tmp_path / name
        path.write_bytes(b"years of work")
        with pytest.raises(UnderhoodError, match="cannot write over"):
            write(path)
        assert path.read_bytes() == b"years of work"
        write(path, force=True)
        assert path.read_bytes() != b"years of work"
        write(path)
