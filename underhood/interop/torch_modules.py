"""Networks of underhood in plain torch. Needs torch and safetensors, nothing else: keep it beside your weights.

    import underhood_torch
    network = underhood_torch.load("rnn.safetensors")      # torch.nn.Module, weights loaded with strict=True
    ys = network(xs)                                        # (t, d) or (batch, t, d)  →  (…, t, d_out)

Parameters have the names of underhood's own files; `network.state_dict()` saved as safetensors goes back with
`underhood import`. x̃ is x with a constant 1 appended, ⊙ is the product by components.
"""

import json

import torch
from safetensors import safe_open
from torch import nn


def empty(*shape):
    return nn.Parameter(torch.zeros(*shape))


def scan(step, state, inputs):
    """The states h_1 … h_t of h_t = step(h_{t-1}, u_t), along the last axis but one."""
    states = []
    for current in inputs.unbind(-2):
        state = step(state, current)
        states.append(state)
    return torch.stack(states, -2)


class Gating(nn.Module):
    """g(x) = (W_m x) ⊙ (W_x x); with a sigmoid, σ(W_m m) ⊙ (W_x x)."""

    def __init__(self, neurons, inputs_m, inputs_x):
        super().__init__()
        self.w_m, self.w_x = empty(neurons, inputs_m), empty(neurons, inputs_x)

    def forward(self, x):
        return (x @ self.w_m.T) * (x @ self.w_x.T)

    def sigmoid(self, m, x):
        return torch.sigmoid(m @ self.w_m.T) * (x @ self.w_x.T)


class GatedRNN(nn.Module):
    """h_t = λ ⊙ h_{t-1} + g_in(x̃_t);  y_t = D g_out(h_t);  λ = exp(−exp(ν)), or a matrix `recurrence`."""

    def __init__(self, d, hidden, pre_readout, d_out, dense=False):
        super().__init__()
        self.input_gating = Gating(hidden, d + 1, d + 1)
        self.output_gating = Gating(pre_readout, hidden, hidden)
        self.readout = empty(d_out, pre_readout)
        if dense:
            self.recurrence = empty(hidden, hidden)
        else:
            self.nu = empty(hidden)
        self.dense = dense

    def forward(self, xs):
        inputs = self.input_gating(torch.cat([xs, torch.ones_like(xs[..., :1])], -1))
        if self.dense:
            states = scan(lambda h, u: h @ self.recurrence.T + u, torch.zeros_like(inputs[..., 0, :]), inputs)
        else:
            lambda_ = torch.exp(-torch.exp(self.nu))
            states = scan(lambda h, u: lambda_ * h + u, torch.zeros_like(inputs[..., 0, :]), inputs)
        return self.output_gating(states) @ self.readout.T


class LRU(nn.Module):
    """h_t = λ ⊙ h_{t-1} + γ ⊙ (B u_t);  ŷ_t = Re[C h_t] + D u_t;  y_t = σ(W_m m_t) ⊙ (W_x ŷ_t).

    u = x and m = ŷ in the form "out"; u = σ(W_m x) ⊙ (W_x x) in "in-out" and "in-skip", where m is ŷ and x.
    """

    def __init__(self, d, hidden, driven, read, d_out, form):
        super().__init__()
        self.nu_log, self.theta_log, self.gamma_log = empty(hidden), empty(hidden), empty(hidden)
        self.b_real, self.b_imag = empty(hidden, driven), empty(hidden, driven)
        self.c_real, self.c_imag = empty(read, hidden), empty(read, hidden)
        self.skip = empty(read, driven)
        self.output_gating = Gating(d_out, d if form == "in-skip" else read, read)
        self.input_gating = None if form == "out" else Gating(driven, d, d)
        self.form = form

    def forward(self, xs):
        u = xs if self.input_gating is None else self.input_gating.sigmoid(xs, xs)
        lambda_ = torch.exp(torch.complex(-torch.exp(self.nu_log), torch.exp(self.theta_log)))
        inputs = torch.exp(self.gamma_log) * torch.complex(u @ self.b_real.T, u @ self.b_imag.T)
        states = scan(lambda h, v: lambda_ * h + v, torch.zeros_like(inputs[..., 0, :]), inputs)
        read = states.real @ self.c_real.T - states.imag @ self.c_imag.T + u @ self.skip.T
        return self.output_gating.sigmoid(xs if self.form == "in-skip" else read, read)


class PaperGRU(nn.Module):
    """r, z = σ(U x + V h + b);  h̃ = tanh(U x + V (r ⊙ h) + b);  h_t = (1 − z) ⊙ h_{t-1} + z ⊙ h̃; rows r, h̃, z.

    torch.nn.GRU resets after the product, and computes 1 − z first, where a gate that is nearly shut is lost.
    """

    def __init__(self, d, hidden):
        super().__init__()
        self.u, self.v, self.b = empty(3, hidden, d), empty(3, hidden, hidden), empty(3, hidden)

    def forward(self, xs):
        driven = torch.einsum("...td,gnd->...tgn", xs, self.u) + self.b

        def step(h, current):
            r = torch.sigmoid(current[..., 0, :] + h @ self.v[0].T)
            z = torch.sigmoid(current[..., 2, :] + h @ self.v[2].T)
            return (1 - z) * h + z * torch.tanh(current[..., 1, :] + (r * h) @ self.v[1].T)

        states, h = [], torch.zeros_like(driven[..., 0, 0, :])
        for current in driven.unbind(-3):
            h = step(h, current)
            states.append(h)
        return torch.stack(states, -2)


class LinearAttention(nn.Module):
    """y_t = Σ_heads Σ_{s≤t} decay^{t-s} (W_V x_s) (W_K x_s · W_Q x_t); decay 1 unless there is one."""

    def __init__(self, d, heads, d_key, d_out, decay=False):
        super().__init__()
        self.w_value = empty(heads, d_out, d)
        self.w_key, self.w_query = empty(heads, d_key, d), empty(heads, d_key, d)
        self.decay = empty(heads) if decay else None

    def forward(self, xs):
        v, k, q = (torch.einsum("...td,hkd->...htk", xs, w) for w in (self.w_value, self.w_key, self.w_query))
        time = torch.arange(xs.shape[-2], device=xs.device)
        lag = time[:, None] - time[None, :]
        weight = (lag >= 0).to(xs.dtype)
        if self.decay is not None:
            weight = weight * self.decay[:, None, None] ** lag.clamp(min=0)
        return torch.einsum("...hts,...hsv->...tv", weight * (q @ k.transpose(-1, -2)), v)


class Stack(nn.Module):
    """y = readout(cell_L(… cell_1(embedding(x))))."""

    def __init__(self, d, width, cells, d_out):
        super().__init__()
        self.embedding = nn.Linear(d, width)
        self.cells = nn.ModuleList([build(cell) for cell in cells])
        last = cells[-1].get("d_out", cells[-1]["hidden"])
        self.readout = nn.Linear(last, d_out)

    def forward(self, xs):
        signal = self.embedding(xs)
        for cell in self.cells:
            signal = cell(signal)
        return self.readout(signal)


class Recurrent(nn.Module):
    """y = readout(lstm(embedding(x))), with torch's own LSTM or GRU, named `lstm` or `gru`."""

    def __init__(self, d, width, hidden, layers, d_out, cell):
        super().__init__()
        self.name = cell.lower()
        self.embedding = nn.Linear(d, width)
        setattr(self, self.name, {"LSTM": nn.LSTM, "GRU": nn.GRU}[cell](width, hidden, layers, batch_first=True))
        self.readout = nn.Linear(hidden, d_out)

    def forward(self, xs):
        return self.readout(getattr(self, self.name)(self.embedding(xs))[0])


def build(description):
    """The module that an export describes, with weights still to be loaded."""
    sizes = {name: value for name, value in description.items() if name not in ("class", "ours")}
    if description["class"] in ("LSTM", "GRU"):
        return getattr(nn, description["class"])(**sizes, batch_first=True)
    known = {one.__name__: one for one in (GatedRNN, LRU, PaperGRU, LinearAttention, Stack, Recurrent)}
    return known[description["class"]](**sizes)


def load(path):
    """The network in an exported file, in the dtype of its weights."""
    with safe_open(path, "pt") as file:
        network = build(json.loads(file.metadata()["underhood"]))
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    network.to(max((tensor.dtype for tensor in tensors.values()), key=lambda dtype: dtype.itemsize))
    network.load_state_dict(tensors, strict=True)
    return network.eval()
