"""LSTM, GRU and RNN operators of an ONNX file as cells: W (1, gates · n, d), R (1, gates · n, n), B (1, 2 gates · n).

Their weights are initialisers, or follow from some by moving numbers about, as exporters do to put gates in order. That
is done here in NumPy; nothing of the file runs. Operators whose outputs feed one another make a stack.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from underhood.core.errors import UnderhoodError, one_line
from underhood.core.extras import require
from underhood.interop.recurrent import Found
from underhood.interop.tensors import as_float, printable

OPERATORS = {"LSTM": ("lstm", 4), "GRU": ("gru", 3), "RNN": ("rnn", 1)}
DEFAULTS = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}
PASSING = ("Squeeze", "Transpose", "Reshape", "Identity", "Cast", "Unsqueeze", "Dropout", "Flatten")
MOST_DEPTH = 40  # graphs within graphs


def read_onnx(path: str | os.PathLike[str], content: bytes) -> list[list[Found]]:
    """Chains of recurrent layers, each layer fed by the one before it."""
    onnx = require("onnx", "onnx", "reading an ONNX file")
    try:
        model = onnx.load_model_from_string(content)
    except Exception as error:
        raise UnderhoodError(f"{path} is no whole ONNX file: {one_line(error)[:160]}") from None
    if any(tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in model.graph.initializer):
        raise UnderhoodError(f"{path} keeps its weights in another file", remedy="Save it as one file.")
    found: list[tuple[Found, str, str]] = []
    try:
        for graph, known in _graphs(onnx, model.graph, {}, 0):
            found += [_layer(path, onnx, node, known, graph) for node in graph.node if node.op_type in OPERATORS]
    except (ValueError, IndexError, TypeError, KeyError) as error:
        if isinstance(error, UnderhoodError):
            raise
        raise UnderhoodError(f"{path}: its weights cannot be read: {one_line(error)[:160]}") from None
    return _chains(_without_copies(found))


def _graphs(onnx: Any, graph: Any, outer: dict[str, np.ndarray], depth: int) -> Iterator[tuple[Any, Any]]:
    """Each graph, with those within it, and the arrays that are known in it."""
    if depth > MOST_DEPTH:
        raise UnderhoodError(f"expected graphs within graphs up to {MOST_DEPTH} deep")
    known = dict(outer)
    known |= {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    for node in graph.node:
        folded = _folded(onnx, node, known)
        if folded is not None:
            known[node.output[0]] = folded
    yield graph, known
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from _graphs(onnx, attribute.g, known, depth + 1)


def _folded(onnx: Any, node: Any, known: dict[str, np.ndarray]) -> np.ndarray | None:
    """What a node gives where it only moves known numbers about; such results are no larger than what they are of."""
    said = {one.name: onnx.helper.get_attribute_value(one) for one in node.attribute if one.type != one.GRAPH}
    if node.op_type == "Constant" and "value" in said:
        return onnx.numpy_helper.to_array(said["value"])
    inputs = [known.get(name) for name in node.input if name]
    if node.op_type not in MOVES or not inputs or any(one is None for one in inputs):
        return None
    return MOVES[node.op_type](said, *inputs)


def _slice(said: dict[str, Any], x: np.ndarray, *given: np.ndarray) -> np.ndarray:
    starts, ends = (given[0], given[1]) if given else (said["starts"], said["ends"])
    axes = given[2] if len(given) > 2 else said.get("axes", range(len(starts)))
    steps = given[3] if len(given) > 3 else [1] * len(starts)
    index = [slice(None)] * x.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        index[int(axis)] = slice(int(start), int(end), int(step))
    return x[tuple(index)]


def _axes(said: dict[str, Any], given: tuple[np.ndarray, ...]) -> tuple[int, ...]:
    return tuple(int(axis) for axis in (given[0].reshape(-1) if given else said.get("axes", ())))


MOVES: dict[str, Callable[..., np.ndarray]] = {
    "Identity": lambda said, x: x,
    "Transpose": lambda said, x: x.transpose(said.get("perm")),
    "Concat": lambda said, *xs: np.concatenate(xs, axis=said["axis"]),
    "Unsqueeze": lambda said, x, *axes: np.expand_dims(x, _axes(said, axes)),
    "Squeeze": lambda said, x, *axes: np.squeeze(x, _axes(said, axes) or None),
    "Reshape": lambda said, x, shape: x.reshape([int(n) for n in shape]),
    "Slice": _slice,
}


def _layer(path: Any, onnx: Any, node: Any, known: dict[str, np.ndarray], graph: Any) -> tuple[Found, str, str]:
    """One operator, the name of the signal that it reads, and of the one it gives."""
    name, gates = OPERATORS[node.op_type]
    where = printable(node.name or node.output[0])
    said = {one.name: onnx.helper.get_attribute_value(one) for one in node.attribute}
    inputs = [*node.input, *[""] * 8]
    w, r = (known.get(inputs[index]) for index in (1, 2))
    if w is None or r is None:
        raise UnderhoodError(f"{path}: the weights of {where} are not in the file")
    _require_plain(path, where, node.op_type, said, inputs, known)
    if w.ndim != 3 or r.ndim != 3 or len(w) != len(r) or r.shape[1] != gates * r.shape[2] or w.shape[1] != r.shape[1]:
        got = f"{w.shape} and {r.shape}"
        raise UnderhoodError(f"{path}: expected W (1, {gates}·n, d) and R (1, {gates}·n, n) of {where}", got)
    b = known.get(inputs[3]) if inputs[3] else np.zeros((len(w), 2 * w.shape[1]), w.dtype)
    if b is None or b.shape != (len(w), 2 * w.shape[1]):
        raise UnderhoodError(
            f"{path}: expected B ({len(w)}, {2 * w.shape[1]}) of {where}", None if b is None else b.shape
        )
    options: dict[str, Any] = {}
    if name == "gru":
        options = {"reset_after": bool(said.get("linear_before_reset", 0))}
    elif name == "rnn" and _activations(said)[:1] == ["Relu"]:
        options = {"activation": "relu"}
    w, r, b = (as_float(f"{path}: {where}", array[0]) for array in (w, r, b))
    tensors = {"weight_ih": inputs[1], "weight_hh": inputs[2], "bias": inputs[3]}
    found = Found(where, 0, w, r, *np.split(b, 2), program="onnx", options=options, names=tensors, model=name)
    return found, _source(graph, node.input[0]), node.output[0]


def _activations(said: dict[str, Any]) -> list[str]:
    return [one.decode() if isinstance(one, bytes) else one for one in said.get("activations", [])]


def _require_plain(path: Any, where: str, operator: str, said: dict[str, Any], inputs: list[str], known: Any) -> None:
    """No option of the operator that our cells lack."""
    direction = said.get("direction", b"forward")
    direction = direction.decode() if isinstance(direction, bytes) else direction
    plain = [], DEFAULTS[operator], ["Relu"] * (operator == "RNN")
    wrong = {
        "direction": direction != "forward" and direction,
        "clip": said.get("clip"),
        "input_forget": said.get("input_forget"),
        "activations": "" if _activations(said) in plain else said["activations"],
    }
    for name, value in wrong.items():
        if value:
            raise UnderhoodError(f"{path}: expected no {name} of {where}, which no cell of underhood has", value)
    peepholes = inputs[7] if operator == "LSTM" else ""
    if peepholes and np.any(known.get(peepholes, np.ones(1))):
        raise UnderhoodError(f"{path}: {where} has peepholes, which no cell of underhood has")
    for state in filter(None, inputs[5:7]):
        if np.any(known.get(state, np.zeros(1))):
            raise UnderhoodError(f"{path}: {where} starts from a state other than zero")


def _source(graph: Any, signal: str) -> str:
    """Where a signal comes from, through what only changes its shape."""
    makers = {output: node for node in graph.node for output in node.output[:1]}
    while signal in makers and makers[signal].op_type in PASSING:
        signal = makers[signal].input[0]
    return signal


def _without_copies(found: list[tuple[Found, str, str]]) -> list[tuple[Found, str, str]]:
    """Branches of a graph may hold the same layer twice."""
    seen, kept = set(), []
    for layer, source, output in found:
        key = tuple(np.ascontiguousarray(one).tobytes() for one in (layer.w, layer.v, layer.b, layer.b_recurrent))
        if key not in seen:
            seen.add(key)
            kept.append((layer, source, output))
    return kept


def _chains(found: list[tuple[Found, str, str]]) -> list[list[Found]]:
    """Layers whose output is the next one's input."""
    follows = {source: (layer, output) for layer, source, output in found}
    outputs = {output for _, _, output in found}
    chains = []
    for layer, source, output in found:
        if source in outputs:
            continue
        chain = [layer]
        while output in follows and len(chain) < len(found):
            following, output = follows[output]
            chain.append(dataclasses.replace(following, level=len(chain)))
        chains.append(chain)
    return chains
