"""The gated RNN of Eq. 2 in eager torch, trained by torch's own AdamW, to be compared with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np


def trainer(model: Any, batches: Iterator[Any], steps: int) -> Callable[[], float]:
    """A function that takes `steps` training steps of the teacher-student task."""
    import torch

    gates = (model.input_gating, model.output_gating)
    arrays = (gates[0].w_m, gates[0].w_x, model.nu, gates[1].w_m, gates[1].w_x, model.readout)
    weights = [torch.tensor(np.array(array), requires_grad=True) for array in arrays]
    in_m, in_x, nu, out_m, out_x, readout = weights
    decayed = [in_m, in_x, out_m, out_x, readout]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": [nu], "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 781_000, 1e-6)

    def outputs(xs: Any) -> Any:
        extended = torch.cat([xs, torch.ones(*xs.shape[:2], 1)], dim=-1).transpose(0, 1)
        inputs = (extended @ in_m.T) * (extended @ in_x.T)
        lambda_ = torch.exp(-torch.exp(nu))
        h, states = torch.zeros_like(inputs[0]), []
        for now in inputs.unbind(0):
            h = torch.addcmul(now, lambda_, h)
            states.append(h)
        h = torch.stack(states)
        return (((h @ out_m.T) * (h @ out_x.T)) @ readout.T).transpose(0, 1)

    def run() -> float:
        for _ in range(steps):
            xs, wanted = (torch.from_numpy(array) for array in next(batches))
            loss = 0.5 * torch.mean((outputs(xs) - wanted) ** 2)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
        return loss.item()

    return run
