"""A gated RNN that computes attention, in onnxruntime: whole sequences, and one step at a time.

python examples/gated_rnn_in_onnxruntime.py
"""

import tempfile
from pathlib import Path

import numpy as np
import onnxruntime

import underhood as uh
from underhood.interop.onnx import export

D = 4


def main(seed=0):
    onnxruntime.disable_telemetry_events()
    attention = uh.random_attention(D, seed=seed)
    compiled = uh.compile(attention, to="gated-rnn-minimal")
    with tempfile.TemporaryDirectory() as folder:
        report = export(compiled.model, Path(folder) / "rnn.onnx")
        whole = onnxruntime.InferenceSession(report["out"], providers=["CPUExecutionProvider"])
        step = onnxruntime.InferenceSession(report["step"], providers=["CPUExecutionProvider"])

    worst = 0.0
    for batch, length in ((1, 1), (7, 32), (1, 1000)):  # one file for all of them
        xs = np.random.default_rng(seed).normal(size=(batch, length, D)).astype(np.float32)
        (ys,) = whole.run(["y"], {"x": xs})
        expected = np.stack([attention(one) for one in xs])
        error = np.max(np.abs(ys - expected)) / np.max(np.abs(expected))
        print(f"batch {batch}, {length} steps: largest difference over largest output {error:.2g}")
        worst = max(worst, error)

    state = np.zeros((1, compiled.hidden))
    streamed = []
    for x in xs[0]:
        y, state = step.run(["y", "next_state_0"], {"x": x[None], "state_0": state})
        streamed.append(y[0])
    difference = np.max(np.abs(np.stack(streamed) - ys[0])) / np.max(np.abs(ys))
    print(f"streamed against whole: {difference:.2g}")
    return worst, difference


if __name__ == "__main__":
    main()
