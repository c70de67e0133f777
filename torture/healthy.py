"""Sound files of every kind that underhood reads: what the damage starts from."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np


def networks() -> dict[str, Any]:
    """One small network of every kind that a model file can hold."""
    import underhood as uh
    from underhood.core.model import ARCHITECTURES

    attention = uh.random_attention(2, heads=2, seed=0)
    weights = attention.w_value, attention.w_key, attention.w_query
    found: dict[str, Any] = {
        "attention": attention,
        "decayed-attention": uh.LinearAttention(*weights, np.array([0.9, 1.0])),
        "sparse": uh.compile(uh.random_attention(2), to="gated-rnn", horizon=2, sparse=True).model,
    }
    for name in ARCHITECTURES:
        layers = 1 if name.startswith("gated-rnn") else 2
        found[name] = uh.make_model(name, 2, hidden=3, d_out=2, layers=layers, dtype=np.float64)
    found["float32"] = uh.make_model("gated-rnn", 2, hidden=3)
    for name in ("lstm", "gru", "lru"):
        found[f"{name}-cell"] = found[name].cells[0]
    return found


def model_files() -> dict[str, bytes]:
    from underhood.core.files import model_bytes

    return {name: model_bytes(model, {"by": "torture"}) for name, model in networks().items()}


def earlier_files() -> dict[str, bytes]:
    """Earlier results, each of the kind that a command may write over: a model, an export to torch, a graph, a page,
    a picture, an archive.
    """
    from underhood.core.files import tensor_bytes

    numbers = {"w": np.ones(3)}
    return {
        "a.safetensors": tensor_bytes(numbers, {"format": "underhood/1", "kind": "earlier"}),
        "t.safetensors": tensor_bytes(numbers, {"format": "pt", "underhood": "{}"}),
        "a.onnx": b"\x08\x0a\x12\x07earlier",
        "a.html": b'<!doctype html>\n<meta name="generator" content="underhood">',
        "a.png": b"\x89PNG\r\n\x1a\nearlierIEND\xaeB`\x82",
        "a.npz": b"PK\x03\x04earlier",
    }


def sequence_files(models: dict[str, bytes]) -> dict[str, bytes]:
    """What attend reads: a network, a sequence in both forms, a token a step."""
    xs = np.random.default_rng(0).normal(size=(5, 2))
    buffer, text = io.BytesIO(), io.StringIO()
    np.save(buffer, xs)
    np.savetxt(text, xs, delimiter=",")
    tokens = "the\ncat\nsat\ndown\n.\n"
    read = {"xs.npy": buffer.getvalue(), "xs.csv": text.getvalue().encode(), "tokens.txt": tokens.encode()}
    return {"network": models["attention"], **read}


def foreign_files() -> Iterator[tuple[str, list[str], bytes]]:
    """(name, flags of `underhood import`, content): weights as other programs write them."""
    import safetensors.numpy

    from underhood.interop.torch_names import to_state_dict

    random, made = np.random.default_rng(0), networks()
    attention = {name: random.normal(size=(2, 2)) for name in ("w_value", "w_key", "w_query")}
    joint = {"in_proj_weight": random.normal(size=(6, 2)), "out_proj.weight": random.normal(size=(2, 2))}
    dicts = {
        ("attention",): attention,
        ("attention", "--heads", "2"): joint,
        **{(name,): to_state_dict(made[name])[1] for name in ("gated-rnn", "lstm", "gru", "lru", "lru-in-skip")},
    }
    for (kind, *flags), tensors in dicts.items():
        description = json.dumps(to_state_dict(made[kind])[0]) if kind != "attention" else "{}"
        plain = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
        arguments = ["--kind", kind, *flags]
        yield f"{kind} safetensors", arguments, safetensors.numpy.save(plain, {"underhood": description})
        buffer = io.BytesIO()
        np.savez(buffer, **plain)
        yield f"{kind} npz", arguments, buffer.getvalue()
        for name, content in _torch_files(plain):
            yield f"{kind} {name}", arguments, content
    yield from _by_layer()


def _by_layer() -> Iterator[tuple[str, list[str], bytes]]:
    """Files whose formats name their layers: Keras's HDF5 and ONNX."""
    import h5py
    import onnx

    random, gates = np.random.default_rng(0), 3
    kernel, recurrent, bias = (random.normal(size=size).astype(np.float32) for size in ((2, 12), (4, 12), (2, 12)))
    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        for name, array in {"kernel": kernel, "recurrent_kernel": recurrent, "bias": bias}.items():
            file[f"gru/gru/{name}:0"] = array
    yield "keras h5", [], buffer.getvalue()
    arrays = {"w": kernel.T[None], "r": recurrent.T[None], "b": bias.reshape(1, -1)}
    tensors = [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()]
    node = onnx.helper.make_node("GRU", ["x", *arrays], ["y"], hidden_size=4, linear_before_reset=1)
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in "xy"]
    graph = onnx.helper.make_graph([node], "g", ends[:1], ends[1:], tensors)
    assert len(kernel.T) == gates * 4
    yield "onnx", [], onnx.helper.make_model(graph, producer_name="torture").SerializeToString()


def _torch_files(tensors: dict[str, np.ndarray]) -> Iterator[tuple[str, bytes]]:
    try:
        import torch
    except ImportError:
        return
    state = {name: torch.from_numpy(tensor.copy()) for name, tensor in tensors.items()}
    for name, content, old in (
        ("pt", state, False),
        ("pt, old", state, True),
        ("pt, wrapped", {"state_dict": state}, 0),
    ):
        buffer = io.BytesIO()
        torch.save(content, buffer, _use_new_zipfile_serialization=not old)
        yield name, buffer.getvalue()


SPEC: dict[str, Any] = {
    "name": "torture",
    "checkpoint_every": 20,
    "runs": [
        {
            "task": "linear-regression",
            "examples": 3,
            "d_x": 1,
            "d_y": 1,
            "hidden": [3, 4],
            "steps": 40,
            "batch_size": 4,
        },
        {"task": "teacher-student", "d": 2, "length": 4, "hidden": 4, "seeds": [1, 2], "learning_rate": [1e-3, 1e-2]},
    ],
}


def results_of(spec: dict[str, Any]) -> str:
    """The lines that a sweep over `spec` leaves; numbers do not matter here."""
    from underhood.sweeps.spec import read_spec

    rows = [
        {"id": run.id, **run.as_dict(), "status": "done", "parameters": 9, "held_out_loss": 0.1, "seconds": 1.0}
        for run in read_spec(spec).expanded()
    ]
    return "".join(json.dumps(row) + "\n" for row in rows)


TRAIN = [
    *("train", "--task", "linear-regression", "--examples", "3", "--d-x", "1", "--d-y", "1", "--hidden", "3"),
    *("--batch-size", "4", "--steps", "40", "--log-every", "10", "--checkpoint-every", "10", "--seeds", "2", "--json"),
]
LEVENBERG = [
    *("train", "--task", "teacher-student", "--d", "1", "--length", "4", "--optimizer", "levenberg", "--steps", "4"),
    *("--seeds", "2", "--json"),
]


def run_folder(folder: Path, arguments: list[str] = TRAIN) -> dict[str, bytes]:
    """The files of a run that has ended, made in `folder`."""
    from torture.children import done, snapshot

    done(*arguments, "--out", folder)
    return snapshot(folder)
