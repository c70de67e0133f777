"""An LSTM that computes attention, running in plain torch.

    python examples/lstm_that_attends.py

Compiles random linear attention into an LSTM, exports it, and loads it into torch's own classes, strictly.
"""

import tempfile
from pathlib import Path

import numpy as np
import safetensors.torch
import torch

import underhood as uh
from underhood.interop.torch import export

D, STEPS = 4, 200


def main(seed=0):
    attention = uh.random_attention(D, seed=seed)
    compiled = uh.compile(attention, to="lstm", horizon=STEPS)
    with tempfile.TemporaryDirectory() as folder:
        export(compiled.model, Path(folder) / "lstm.safetensors")
        state = safetensors.torch.load_file(Path(folder) / "lstm.safetensors")

    # From here on there is only torch.
    hidden, width = state["lstm.weight_hh_l0"].shape[1], state["lstm.weight_ih_l0"].shape[1]
    network = torch.nn.ModuleDict(
        {
            "embedding": torch.nn.Linear(D, width),
            "lstm": torch.nn.LSTM(width, hidden),
            "readout": torch.nn.Linear(hidden, D),
        }
    ).double()
    network.load_state_dict(state, strict=True)
    xs = torch.from_numpy(np.random.default_rng(seed).uniform(-4, 4, (STEPS, D)))
    with torch.no_grad():
        ys = network["readout"](network["lstm"](network["embedding"](xs))[0]).numpy()

    error, largest = np.max(np.abs(ys - attention(xs.numpy()))), np.max(np.abs(ys))
    print(f"torch.nn.LSTM with {hidden} neurons, {STEPS} steps, outputs up to {largest:.3g}")
    print(f"largest difference from attention {error:.3g}; the compiler promised {compiled.error_bound:.3g}")
    return error, compiled.error_bound, largest


if __name__ == "__main__":
    main()
