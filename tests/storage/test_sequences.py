"""A user's own sequence: what comes in is what was written, and nothing else comes in."""

import numpy as np
import pytest

from underhood.errors import UnderhoodError
from underhood.storage.sequences import read_sequence, read_tokens

XS = np.random.default_rng(0).standard_normal((5, 3))


def test_npy_and_csv_come_in_digit_for_digit(tmp_path):
    np.save(tmp_path / "c.npy", XS)
    np.save(tmp_path / "fortran.npy", np.asfortranarray(XS))
    np.savetxt(tmp_path / "a.csv", XS, delimiter=",", fmt="%.17g")
    for name in ("c.npy", "fortran.npy", "a.csv"):
        assert np.array_equal(read_sequence(tmp_path / name, 3), XS)
    np.save(tmp_path / "whole.npy", np.ones((2, 3), np.int32))
    assert read_sequence(tmp_path / "whole.npy", 3).dtype == np.float64


@pytest.mark.parametrize(
    ("array", "says"),
    [
        (XS[0], r"expected a sequence of shape \(t, 3\)"),
        (XS[:, :2], r"got shape \(5, 2\)"),
        (XS[None], "choose one of its sequences"),
        (XS[:0], "expected a sequence"),
        (XS * np.nan, "NaN or infinite"),
        (np.array([["a", "b", "c"]]), "cannot read numbers"),
        (np.array([[{}, 1, 2]], object), "cannot read numbers"),
    ],
)
def test_what_is_no_sequence_is_refused(array, says, tmp_path):
    np.save(tmp_path / "a.npy", array, allow_pickle=True)
    with pytest.raises(UnderhoodError, match=says):
        read_sequence(tmp_path / "a.npy", 3)


@pytest.mark.parametrize("content", [b"", b"words", b"\x93NUMPY", b"1,2\n3"])
@pytest.mark.parametrize("suffix", ["npy", "csv"])
def test_broken_files_are_refused(content, suffix, tmp_path):
    (tmp_path / f"a.{suffix}").write_bytes(content)
    with pytest.raises(UnderhoodError):
        read_sequence(tmp_path / f"a.{suffix}", 3)


@pytest.mark.parametrize("text", ["the\n\ncat", "the\n\ncat\n", "the\r\n\r\ncat\r\n", "\ufeffthe\n\ncat\n"])
def test_tokens_are_lines(text, tmp_path):
    (tmp_path / "a.txt").write_bytes(text.encode())
    assert read_tokens(tmp_path / "a.txt") == ["the", "", "cat"]


def test_tokens_are_text(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"caf\xe9")
    with pytest.raises(UnderhoodError, match="UTF-8"):
        read_tokens(tmp_path / "a.txt")
