"""`underhood attend`: what it prints, what it writes, and what it refuses."""

import json

import numpy as np
import pytest
from matplotlib.figure import Figure

import underhood as uh
from underhood.cli import main


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("attend")
    uh.save(uh.random_attention(2, heads=2, seed=0), folder / "attn")
    uh.save(uh.compile(uh.random_attention(2, seed=0), to="mamba", horizon=5).model, folder / "mamba")
    np.save(folder / "xs.npy", np.random.default_rng(0).normal(size=(6, 2)))
    np.savetxt(folder / "xs.csv", np.load(folder / "xs.npy"), delimiter=",", fmt="%.17g")
    np.save(folder / "nan.npy", np.full((6, 2), np.nan))
    np.save(folder / "huge.npy", 1e200 * np.load(folder / "xs.npy"))
    np.save(folder / "complex.npy", 1j * np.load(folder / "xs.npy"))
    (folder / "header.csv").write_text("a,b\n1,2\n")
    np.save(folder / "none.npy", np.zeros((0, 2)))
    np.save(folder / "wide.npy", np.ones((6, 3)))
    (folder / "tokens.txt").write_text("the\ncat\nsat\non\na\nmat\n")
    (folder / "five.txt").write_text("the\ncat\nsat\non\na\n")
    (folder / "latin.txt").write_bytes(b"caf\xe9\n" * 6)
    return folder


@pytest.fixture
def here(made, monkeypatch):
    monkeypatch.chdir(made)
    return made


def test_json_names_what_the_largest_row_comes_from(here, tmp_path, capsys):
    arguments = ["attend", "attn", "--input", "xs.npy", "--tokens", "tokens.txt", "--out", str(tmp_path / "a.npz")]
    assert main([*arguments, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    found = uh.attention_map(uh.load("attn"), np.load("xs.npy"))
    assert (told["kind"], told["length"], told["layer"], told["reduce"]) == ("exact", 6, None, "norm")
    assert told["completeness"] == float(found.completeness) < 1e-12
    t = int(found.weights[0].sum(axis=1).argmax())
    words = ["the", "cat", "sat", "on", "a", "mat"]
    assert (told["largest"]["step"], told["largest"]["token"]) == (t, words[t])
    best = np.argsort(-found.weights[0, t, : t + 1])[:5]
    assert [one["step"] for one in told["largest"]["attends_to"]] == best.tolist()
    assert told["largest"]["attends_to"][0]["weight"] == found.weights[0, t, best[0]]
    read = np.load(tmp_path / "a.npz")
    assert np.array_equal(read["weights"], found.weights)
    assert read["tokens"].tolist() == words


@pytest.mark.parametrize("suffix", ["html", "png", "npz"])
def test_every_kind_of_file_twice_the_same(suffix, here, tmp_path, capsys):
    out = tmp_path / f"map.{suffix}"
    arguments = ["attend", "mamba", "--seed", "3", "--length", "9", "--reduce", "none", "--out", str(out)]
    assert main(arguments) == 0
    first = out.read_bytes()
    assert main(arguments) == 0  # over its own kind
    assert out.read_bytes() == first
    assert "comes from" in capsys.readouterr().out
    (tmp_path / f"words.{suffix}").write_text("a thesis")
    assert main([*arguments[:-1], str(tmp_path / f"words.{suffix}")]) == 2
    assert "add --force" in capsys.readouterr().err


def test_csv_is_the_same_sequence(here, tmp_path):
    for name in ("xs.npy", "xs.csv"):
        assert main(["attend", "attn", "--input", name, "--out", str(tmp_path / f"{name}.npz")]) == 0
    first, second = (np.load(tmp_path / f"{name}.npz")["weights"] for name in ("xs.npy", "xs.csv"))
    assert np.array_equal(first, second)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--input", "wide.npy"], "expected a sequence of shape (t, 2)"),
        (["--input", "none.npy"], "got shape (0, 2)"),
        (["--input", "nan.npy"], "NaN or infinite numbers in nan.npy"),
        (["--input", "huge.npy"], "the outputs overflow for these inputs. Scale the sequence down."),
        (["--input", "huge.npy", "--out", "a.npz"], "the outputs overflow"),
        (["--input", "complex.npy"], "expected real numbers in complex.npy"),
        (["--input", "header.csv"], "expected numbers in line 1 of header.csv; got 'a,b'"),
        (["--input", "nothing.npy"], "no such file: nothing.npy"),
        (["--input", "xs.npy", "--tokens", "five.txt"], "expected 6 tokens, one for each step; got 5"),
        (["--input", "xs.npy", "--tokens", "latin.txt"], "cannot read tokens from latin.txt"),
        (["--input", "xs.npy", "--seed", "1"], "not both"),
        (["--input", "xs.npy", "--length", "6"], "not both"),
        (["--layer", "7"], "layer"),
        (["--seed", "-1"], "seed of 0 or more"),
        (["--length", "0"], "length of 1 or more"),
        (["--length", "2000"], "at most 1,413 steps for a page"),
        (["--length", "1000000000000"], "not enough memory"),
        (["--reduce", "mean"], "reduce"),
        (["--out", "a.jpg"], "ends in .html, .png or .npz; got a.jpg"),
        (["--out", "none/a.html"], "no such folder: none"),
    ],
)
def test_what_is_refused_in_one_line(arguments, says, here, capfd):
    before = {path.name for path in here.iterdir()}
    given = ["attend", "attn", *([] if "--out" in arguments else ["--out", "a.html"]), *arguments]
    assert main(given) == 2
    out, err = capfd.readouterr()
    assert out == "" and err.count("\n") == 1 and says in err
    assert {path.name for path in here.iterdir()} == before


@pytest.mark.parametrize("suffix", ["png", "npz"])
def test_a_users_own_picture_and_archive_stay(suffix, here, tmp_path, capsys):
    out = tmp_path / f"mine.{suffix}"
    if suffix == "npz":
        np.savez(out, data=np.ones(3))
    else:
        Figure().savefig(out)
    before, arguments = out.read_bytes(), ["attend", "attn", "--length", "5", "--out", str(out)]
    assert main(arguments) == 2
    assert "of underhood. Choose another output, or add --force." in capsys.readouterr().err
    assert out.read_bytes() == before
    assert main([*arguments, "--force"]) == main(arguments) == 0
    assert out.read_bytes() != before


def test_an_input_stays(here, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    model = (here / "attn").read_bytes()
    (tmp_path / "attn.npz").write_bytes(model)
    assert main(["attend", "attn.npz", "--out", "attn.npz"]) == 2
    assert "over the input" in capfd.readouterr().err
    assert (tmp_path / "attn.npz").read_bytes() == model
