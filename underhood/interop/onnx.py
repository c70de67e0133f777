"""ONNX: the whole sequence in one graph with free batch and time axes, and one step with its state in and out.

    rnn.onnx         x (batch, time, d)                         →  y (batch, time, d_out), from the initial state
    rnn.step.onnx    x (batch, d), state_0 (batch, …), …        →  y (batch, d_out), next_state_0 (batch, …), …

The initial state is all zeros. x and y are float32 unless asked otherwise; in between, a graph computes in the dtype
of the weights, as models do, or of x where that is wider: a network compiled in float64 keeps its precision. A complex
state, the LRU's, is handed over as two real ones. jax2onnx does the lowering, from the same `_step` that jax runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from underhood.core.atomic import read_bytes, write_atomically
from underhood.core.errors import UnderhoodError, one_line
from underhood.core.extras import require
from underhood.interop.checked import check
from underhood.interop.onnx_child import Runner
from underhood.interop.onnx_graphs import to_graphs
from underhood.layers.linear import densified

DTYPES = ("float32", "float64")
TOLERANCE = {"float32": 1e-4, "float64": 1e-6}  # of the larger dtype's rounding and of y's own, over largest output
KINDS = {"tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(float16)": np.float16}
QUIET = 3  # errors only: onnxruntime would remark on constants that the lowering leaves unused


def export(model: Any, path: str | os.PathLike[str], *, dtype: str = "float32") -> dict[str, Any]:
    """Write both graphs, after a run of each in onnxruntime was compared with the model."""
    if dtype not in DTYPES:
        raise UnderhoodError("expected dtype float32 or float64 for x and y", repr(dtype))
    for module in ("onnx", "onnxruntime", "jax2onnx"):
        require(module, "onnx", "export to ONNX")
    path = Path(path)
    beside = step_path(path)
    whole, step = to_graphs(densified(model), dtype)
    narrow = min(dtype, str(model.dtype))
    ways = (_callable(_session(whole)), _streaming(_session(step)))
    checks = [check(model, way, TOLERANCE[narrow], widen=False) for way in ways]
    checked = next((one for one in checks if not one.verified), checks[0])
    write_atomically(beside, step)
    write_atomically(path, whole)
    return {
        "kind": model.kind,
        "to": "onnx",
        "dtype": dtype,
        "computes_in": max(dtype, str(model.dtype)),
        **checked.report,
        "out": str(path),
        "step": str(beside),
    }


def step_path(path: Path) -> Path:
    """The graph of a single step lies beside that of the whole sequence."""
    return path.parent / f"{path.stem}.step{path.suffix or '.onnx'}"


def as_callable(path: str | os.PathLike[str]) -> Callable[[np.ndarray], np.ndarray]:
    """One sequence (t, d) → (t, d_out) through onnxruntime, NumPy in and out, in a process with limits.

    Takes a graph whose one input is (batch, time, d) or (time, d), of ours or of others; its first output counts.
    """
    require("onnxruntime", "onnx", "running an ONNX file")
    runner, source = Runner(read_bytes(path), str(path)), str(path)
    dtype, batched = _sequence_input(runner.inputs, source)

    def run(xs: np.ndarray) -> np.ndarray:
        ys = runner(np.ascontiguousarray(xs[None] if batched else xs, dtype))
        return np.asarray(ys[0] if batched else ys, np.float64)

    return run


def input_size(path: str | os.PathLike[str]) -> int | None:
    """d, where the graph tells it."""
    require("onnxruntime", "onnx", "running an ONNX file")
    inputs = Runner(read_bytes(path), str(path)).inputs
    size = inputs[0]["shape"][-1:] if inputs else []
    return size[0] if size and isinstance(size[0], int) else None


def _sequence_input(inputs: list[dict[str, Any]], source: str) -> tuple[Any, bool]:
    """The dtype of the one input, and whether it has an axis of batches."""
    if len(inputs) != 1 or inputs[0]["type"] not in KINDS or len(inputs[0]["shape"]) not in (2, 3):
        got = ", ".join(f"{one['name']} {one['type']} {one['shape']}" for one in inputs)
        remedy = "Use the graph of the whole sequence, not the step graph; uh.read(path) reads its LSTM or GRU."
        raise UnderhoodError(f"expected one float input, (batch, time, d) or (time, d), in {source}", got, remedy)
    return KINDS[inputs[0]["type"]], len(inputs[0]["shape"]) == 3


def _streaming(session: Any) -> Callable[[np.ndarray], np.ndarray]:
    """A step graph as a map of one sequence, from a state of zeros."""
    given = {one.name: one for one in session.get_inputs()}

    def run(xs: np.ndarray) -> np.ndarray:
        state = {name: np.zeros((1, *one.shape[1:]), KINDS[one.type]) for name, one in given.items() if name != "x"}
        ys = []
        for x in xs.astype(KINDS[given["x"].type]):
            y, *following = session.run(None, {"x": x[None], **state})
            state = dict(zip(state, following, strict=True))
            ys.append(y[0])
        return np.asarray(ys, np.float64)

    return run


def _session(content: bytes, source: str = "the graph") -> Any:
    import onnxruntime

    onnxruntime.disable_telemetry_events()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = QUIET
    options.intra_op_num_threads = options.inter_op_num_threads = 1  # networks this small gain nothing from more
    try:
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise UnderhoodError(f"onnxruntime cannot run {source}: {one_line(error)[:200]}") from None


def _callable(session: Any, source: str = "the graph") -> Callable[[np.ndarray], np.ndarray]:
    """A graph of ours, in this process."""
    told = [{"name": one.name, "type": one.type, "shape": one.shape} for one in session.get_inputs()]
    name = told[0]["name"] if told else ""
    dtype, batched = _sequence_input(told, source)

    def run(xs: np.ndarray) -> np.ndarray:
        xs = np.ascontiguousarray(xs, dtype)
        ys = session.run(None, {name: xs[None] if batched else xs})[0]
        return np.asarray(ys[0] if batched else ys, np.float64)

    return run
