"""A network trained in torch, decompiled: which attention did it learn?

    python examples/decompile_a_torch_network.py

The student is a gated RNN (Eq. 2) written in torch, with neurons that remember (λ = 1) or forget (λ = 0); the teacher
is random linear attention, known only through its outputs.
"""

import numpy as np
import torch

import underhood as uh
from underhood.interop.torch_modules import GatedRNN

D, MEMORY, FORGET, PRE_READOUT = 2, 6, 4, 8


def train(teacher, seed, rounds=60):
    torch.manual_seed(seed)
    student = GatedRNN(D, MEMORY + FORGET, PRE_READOUT, D).double()
    for weight in student.parameters():
        torch.nn.init.normal_(weight, std=weight.shape[-1] ** -0.5)
    with torch.no_grad():
        student.nu[:MEMORY], student.nu[MEMORY:] = -40.0, 7.0  # λ = exp(−exp(ν)): 1 and 0
    xs = torch.randn(64, 12, D, dtype=torch.float64)
    targets = torch.from_numpy(np.stack([teacher(one) for one in xs.numpy()]))
    exact = {"tolerance_grad": 0.0, "tolerance_change": 0.0, "line_search_fn": "strong_wolfe"}
    optimizer = torch.optim.LBFGS(student.parameters(), max_iter=50, history_size=100, **exact)

    def loss():
        optimizer.zero_grad()
        value = 0.5 * torch.mean((student(xs) - targets) ** 2)
        value.backward()
        return value

    for _ in range(rounds):
        last = optimizer.step(loss).item()
        if last < 1e-16:
            break
    return student, last


def main(seed=0):
    teacher = uh.random_attention(D, seed=seed)
    student, loss = train(teacher, seed)
    print(f"loss after training in torch {loss:.2g}")
    found = uh.decompile(student, against=teacher)  # the torch module itself
    print(f"{found.verdict}: {found.reason}")
    print(f"hidden neurons {found.hidden_before} → {found.hidden_after}")
    xs = np.random.default_rng(seed).normal(size=(100, D))
    error = np.max(np.abs(found.attention(xs) - teacher(xs))) / np.max(np.abs(teacher(xs)))
    print(f"recovered attention against the teacher, 100 steps: {error:.2g} of the largest output")
    return found, error


if __name__ == "__main__":
    main()
