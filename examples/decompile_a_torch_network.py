"""A network trained in torch, decompiled: which attention did it learn?

    python examples/decompile_a_torch_network.py

The teacher is random linear attention, known only through its outputs. The student is a gated RNN (Eq. 2) in plain
torch, whose parameters have the names of docs/format.md, so that `uh.decompile` can read them.
"""

import numpy as np
import torch

import underhood as uh

D, MEMORY, FORGET, PRE_READOUT, STEPS = 2, 8, 6, 12, 8


class GatedRNN(torch.nn.Module):
    """h_t = λ ⊙ h_{t-1} + g_in(x_t, 1);  y_t = D g_out(h_t);  g(x) = (W_m x) ⊙ (W_x x);  λ = exp(−exp(ν))."""

    def __init__(self):
        super().__init__()
        self.nu = torch.nn.Parameter(torch.tensor([-40.0] * MEMORY + [7.0] * FORGET), requires_grad=False)  # λ = 1, 0
        self.readout = torch.nn.Parameter(torch.randn(D, PRE_READOUT) / PRE_READOUT**0.5)
        for name, n, d in (("input_gating", MEMORY + FORGET, D + 1), ("output_gating", PRE_READOUT, MEMORY + FORGET)):
            setattr(self, name, torch.nn.ParameterDict({part: torch.randn(n, d) / d**0.5 for part in ("w_m", "w_x")}))

    def forward(self, xs):
        first, second = ((gating["w_m"].T, gating["w_x"].T) for gating in (self.input_gating, self.output_gating))
        x, states = torch.cat([xs, torch.ones_like(xs[..., :1])], -1), [0.0]
        for one in ((x @ first[0]) * (x @ first[1])).unbind(-2):
            states.append(torch.exp(-torch.exp(self.nu)) * states[-1] + one)
        hidden = torch.stack(states[1:], -2)
        return (hidden @ second[0]) * (hidden @ second[1]) @ self.readout.T


def train(student, xs, targets, rounds=150):
    """Levenberg–Marquardt: δ = −(JᵀJ + μI)⁻¹ Jᵀr, with μ smaller after a step that helps."""
    weights = [weight for weight in student.parameters() if weight.requires_grad]
    names = [name for name, weight in student.named_parameters() if weight.requires_grad]

    def residuals(flat):
        parts = [
            one.view_as(weight) for one, weight in zip(flat.split([w.numel() for w in weights]), weights, strict=True)
        ]
        return (torch.func.functional_call(student, dict(zip(names, parts, strict=True)), (xs,)) - targets).flatten()

    flat, damping = torch.nn.utils.parameters_to_vector(weights).detach(), 1.0
    for number in range(rounds):
        jacobian, error = torch.func.jacfwd(residuals)(flat), residuals(flat)
        step = torch.linalg.solve(jacobian.T @ jacobian + damping * torch.eye(len(flat)), jacobian.T @ error)
        better = residuals(flat - step).square().sum() < error.square().sum()
        flat, damping = (flat - step, damping / 3) if better else (flat, damping * 4)
        if number % 10 == 9:
            print(f"{number + 1} iterations: loss {0.5 * error.square().mean():.2g}", flush=True)
        if error.square().mean() < 1e-22:
            break
    torch.nn.utils.vector_to_parameters(flat, weights)


def main(seed=0):
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)  # matrices this small gain nothing from a second thread
    torch.manual_seed(seed)
    teacher, student = uh.random_attention(D, seed=seed), GatedRNN()
    xs = torch.randn(48, STEPS, D)
    train(student, xs, torch.from_numpy(np.stack([teacher(one) for one in xs.numpy()])))
    found = uh.decompile(student, against=teacher)  # the torch module itself
    print(f"{found.verdict}: {found.reason}")
    print(f"hidden neurons {found.hidden_before} → {found.hidden_after}")
    xs = np.random.default_rng(seed).normal(size=(100, D))
    error = np.max(np.abs(found.attention(xs) - teacher(xs))) / np.max(np.abs(teacher(xs)))
    print(f"recovered attention against the teacher, 100 steps: {error:.2g} of the largest output")
    return found, error


if __name__ == "__main__":
    main()
