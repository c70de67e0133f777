"""Networks of underhood in plain torch. Needs torch and safetensors, nothing else: keep it beside your weights.

    import underhood_torch
    network = underhood_torch.load("rnn.safetensors")      # torch.nn.Module, weights loaded with strict=True
    ys = network(xs)                                        # (t, d) or (batch, t, d)  →  (…, t, d_out)

Parameters have the names of underhood's own files; `network.state_dict()` saved as safetensors goes back with
`underhood import`. An LSTM or GRU is torch's own. Every other network is a `Program`: the operations of one step, as
the file's header lists them.
"""

import json

import torch
from safetensors import safe_open
from torch import nn

# name → function of the inputs, component by component.
PLAIN = {
    **{one.__name__: one for one in (torch.neg, torch.exp, torch.log, torch.log1p, torch.expm1, torch.tanh)},
    **{one.__name__: one for one in (torch.sqrt, torch.rsqrt, torch.abs, torch.sign, torch.erf, torch.sin, torch.cos)},
    **{one.__name__: one for one in (torch.floor, torch.square, torch.add, torch.sub, torch.mul, torch.div)},
    **{one.__name__: one for one in (torch.atan2, torch.pow, torch.lt, torch.le, torch.gt, torch.ge, torch.eq)},
    "ne": torch.ne,
    "logistic": torch.sigmoid,
    "max": torch.maximum,
    "min": torch.minimum,
    "rem": torch.fmod,
    "not": torch.logical_not,
    "and": torch.logical_and,
    "or": torch.logical_or,
    "is_finite": torch.isfinite,
    "select_n": lambda which, no, yes: torch.where(which.bool(), yes, no),
    "same": lambda x: x,
}


def dot_general(op, a, b):
    """Contract some axes of both, keep the axes of the batch first, then those left of a and of b."""
    (contract_a, contract_b), (batch_a, batch_b) = op["contract"], op["batch"]
    names_a, names_b = list(range(a.ndim)), list(range(a.ndim, a.ndim + b.ndim))
    for i, j in zip(contract_a + batch_a, contract_b + batch_b, strict=True):
        names_b[j] = names_a[i]
    left_a = [name for i, name in enumerate(names_a) if i not in contract_a + batch_a]
    left_b = [name for j, name in enumerate(names_b) if j not in contract_b + batch_b]
    return torch.einsum(a, names_a, b, names_b, [names_a[i] for i in batch_a] + left_a + left_b)


def broadcast(op, x):
    shape = [1] * len(op["shape"])
    for axis, size in zip(op["axes"], x.shape, strict=True):
        shape[axis] = size
    return x.reshape(shape).expand(op["shape"])


def cumsum(op, x):
    x = x.flip(op["axis"]) if op["reverse"] else x
    x = torch.cumsum(x, op["axis"])
    return x.flip(op["axis"]) if op["reverse"] else x


def iota(op):
    shape = [1] * len(op["shape"])
    shape[op["axis"]] = -1
    return torch.arange(op["shape"][op["axis"]]).reshape(shape).expand(op["shape"])


STRUCTURED = {
    "dot_general": dot_general,
    "broadcast_in_dim": broadcast,
    "reshape": lambda op, x: x.reshape(op["shape"]),
    "transpose": lambda op, x: x.permute(op["axes"]),
    "concatenate": lambda op, *xs: torch.cat(xs, op["axis"]),
    "stack": lambda op, *xs: torch.stack(xs, op["axis"]),
    "slice": lambda op, x: x[tuple(map(slice, op["start"], op["stop"], op["step"]))],
    "integer_pow": lambda op, x: x ** op["power"],
    "cumsum": cumsum,
    "iota": iota,
    "reduce_sum": lambda op, x: x.sum(op["axes"]),
    "reduce_max": lambda op, x: x.amax(op["axes"]),
    "reduce_min": lambda op, x: x.amin(op["axes"]),
    "reduce_prod": lambda op, x: x.flatten().prod() if len(op["axes"]) == x.ndim else x.prod(*op["axes"]),
}


class Program(nn.Module):
    """A network by the operations of one step: arrays are numbered, and each operation makes a new one of others."""

    def __init__(self, program, shapes):
        super().__init__()
        self.program = program
        for name, shape in shapes.items():
            *path, last = name.split(".")
            place = self
            for part in path:
                if not hasattr(place, part):
                    place.add_module(part, nn.Module())
                place = getattr(place, part)
            place.register_parameter(last, nn.Parameter(torch.zeros(shape)))

    def known(self, like):
        """Slot → tensor, of what does not change from step to step."""
        kind = {"dtype": like.dtype, "device": like.device}
        constants = {int(slot): torch.tensor(value, **kind) for slot, value in self.program["constants"].items()}
        return constants | {slot: self.get_parameter(name) for name, slot in self.program["weights"].items()}

    def initial_state(self, like):
        """The tensors of the state before the first input."""
        return [torch.tensor(value, dtype=like.dtype, device=like.device) for value in self.program["initial"]]

    def step(self, states, x, known=None):
        """The state and one input (d,) to the next state and the output."""
        at = dict(self.known(x) if known is None else known)
        at |= dict(zip(self.program["states"], states, strict=True))
        at[self.program["x"]] = x
        for op in self.program["ops"]:
            name, given = op["op"], [at[slot] for slot in op["in"]]
            if name == "number":
                at[op["out"]] = given[0].to(x.dtype)
                continue
            at[op["out"]] = PLAIN[name](*given) if name in PLAIN else STRUCTURED[name](op, *given)
        return [at[slot] for slot in self.program["next"]], at[self.program["y"]]

    def forward(self, xs):
        known, states, ys = self.known(xs), self.initial_state(xs), []

        def step(states, x):
            return self.step(states, x, known)

        if xs.ndim == 3:
            states, step = [state.expand(len(xs), *state.shape) for state in states], torch.vmap(step)
        for x in xs.unbind(-2):
            states, y = step(states, x)
            ys.append(y)
        return torch.stack(ys, -2)


class Recurrent(nn.Module):
    """y = readout(lstm(embedding(x))), with torch's own LSTM, GRU or RNN, named `lstm`, `gru` or `rnn`."""

    def __init__(self, d, width, hidden, layers, d_out, cell, **settings):
        super().__init__()
        self.name = cell.lower()
        self.embedding = nn.Linear(d, width)
        setattr(self, self.name, getattr(nn, cell)(width, hidden, layers, batch_first=True, **settings))
        self.readout = nn.Linear(hidden, d_out)

    def forward(self, xs):
        return self.readout(getattr(self, self.name)(self.embedding(xs))[0])


def build(description):
    """The module that an export describes, with weights still to be loaded."""
    sizes = {name: value for name, value in description.items() if name not in ("class", "ours")}
    if description["class"] in ("LSTM", "GRU", "RNN"):
        return getattr(nn, description["class"])(**sizes, batch_first=True)
    return {"Program": Program, "Recurrent": Recurrent}[description["class"]](**sizes)


def load(path):
    """The network in an exported file, in the dtype of its weights."""
    if str(path).endswith((".pt", ".pth", ".bin")):
        tensors = torch.load(path, map_location="cpu", weights_only=True)
        description = json.loads(tensors._metadata["underhood"]["description"])
    else:
        with safe_open(path, "pt") as file:
            description = json.loads(file.metadata()["underhood"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    network = build(description)
    network.to(max((tensor.dtype for tensor in tensors.values()), key=lambda dtype: dtype.itemsize))
    network.load_state_dict(tensors, strict=True)
    network.underhood = {"ours": description["ours"]}  # for the way back
    return network.eval()
