"""A user's own sequence: what comes in is what was written, and nothing else comes in."""

import numpy as np
import pytest

from underhood.core.errors import UnderhoodError
from underhood.core.sequences import read_sequence, read_tokens

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
        (XS + 1j, r"expected real numbers in .*a\.npy; got complex numbers"),
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


def test_a_spreadsheets_csv_comes_in(tmp_path):
    (tmp_path / "X.CSV").write_bytes(b"\xef\xbb\xbf1,2,3\r\n\r\n4, 5e0,6 # the second\r\n")
    assert read_sequence(tmp_path / "X.CSV", 3).tolist() == [[1, 2, 3], [4, 5, 6]]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x,y,z\n1,2,3\n", r"expected numbers in line 1 of .*a\.csv; got 'x,y,z'"),
        ("1,2,3\n1;2;3\n", "expected numbers in line 2 of .*; got '1;2;3'"),
        ("1,2,3\n\n1,2\n", "expected 3 numbers in line 3 of .*; got 2"),
        ("1,2,\n", "expected numbers in line 1"),
        ("1,2,1_000\n", "expected numbers in line 1"),
        ("1,2,3\n" + "a" * 500, f"got '{'a' * 40}…'"),
    ],
)
def test_the_first_bad_line_of_a_csv_is_named(text, says, tmp_path):
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(UnderhoodError, match=says) as refused:
        read_sequence(tmp_path / "a.csv", 3)
    assert str(refused.value).endswith("numbers separated by commas, one step a line, no header.")


@pytest.mark.parametrize("text", ["the\n\ncat", "the\n\ncat\n", "the\r\n\r\ncat\r\n", "\ufeffthe\n\ncat\n"])
def test_tokens_are_lines(text, tmp_path):
    (tmp_path / "a.txt").write_bytes(text.encode())
    assert read_tokens(tmp_path / "a.txt") == ["the", "", "cat"]


def test_tokens_are_text(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"caf\xe9")
    with pytest.raises(UnderhoodError, match="UTF-8"):
        read_tokens(tmp_path / "a.txt")
