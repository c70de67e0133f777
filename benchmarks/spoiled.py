"""Networks that were attention and have one defect, and networks fitted to softmax attention, which none is."""

from __future__ import annotations

import numpy as np

import underhood as uh
from underhood.decompiler.from_weights.reading import read
from underhood.layers.linear import dense


def rebuilt(network: uh.GatedRNN, **changes: np.ndarray) -> uh.GatedRNN:
    """The network with some of its arrays exchanged."""
    arrays = {
        "w_m": dense(network.input_gating.w_m),
        "w_x": dense(network.input_gating.w_x),
        "lambda_": network.lambda_,
        "left": dense(network.output_gating.w_m),
        "right": dense(network.output_gating.w_x),
        "readout": dense(network.readout),
    }
    new = {name: np.array(changes.get(name, array), np.float64) for name, array in arrays.items()}
    gatings = uh.Gating(new["w_m"], new["w_x"]), uh.Gating(new["left"], new["right"])
    return uh.GatedRNN.from_lambda(gatings[0], new["lambda_"], gatings[1], new["readout"])


def _used_memory(network: uh.GatedRNN) -> np.ndarray:
    """Memory neurons whose removal changes the output."""
    lambda_ = np.asarray(network.lambda_)
    found = uh.decompile(network)
    assert found.evidence.neurons is not None
    return np.flatnonzero((lambda_ == 1) & (found.evidence.neurons.contribution > 1e-6))


def spoil(network: uh.GatedRNN, kind: str, random: np.random.Generator) -> uh.GatedRNN:
    """One defect in a network that was attention."""
    if kind == "one gating weight 1 % off":
        name = ("w_m", "w_x", "left", "right")[int(random.integers(4))]
        gating = network.input_gating if name in ("w_m", "w_x") else network.output_gating
        array = np.array(dense(gating.w_m if name in ("w_m", "left") else gating.w_x))
        where = np.argwhere(array != 0)
        array[tuple(where[random.integers(len(where))])] *= 1.01
        return rebuilt(network, **{name: array})
    memory = _used_memory(network)
    one, other = random.choice(memory), random.choice(memory)
    if kind == "one memory λ at 0.99":
        lambda_ = np.array(network.lambda_)
        lambda_[one] = 0.99
        return rebuilt(network, lambda_=lambda_)
    if kind == "linear term of 1 %":
        branch = np.array(dense(network.input_gating.w_m))
        branch[one, -1] += 0.01 * np.abs(branch[one]).max()
        return rebuilt(network, w_m=branch)
    unit, readout = np.eye(network.hidden), np.asarray(dense(network.readout))
    column = 0.01 * np.abs(readout).max() * random.standard_normal((network.d_out, 1))
    return rebuilt(
        network,
        left=np.vstack([dense(network.output_gating.w_m), unit[one]]),
        right=np.vstack([dense(network.output_gating.w_x), unit[other]]),
        readout=np.hstack([readout, column]),
    )


def fitted_to_softmax(seed: int) -> uh.GatedRNN:
    """Random gatings with λ in {0, 1}, and the readout that best matches softmax attention."""
    random = np.random.default_rng(seed)
    d, hidden, rows = 3, 24, 40
    gatings = [random.standard_normal((2, hidden, d + 1)) / 2, random.standard_normal((2, rows, hidden)) / 4]
    lambda_ = (random.random(hidden) < 0.6).astype(float)
    draft = uh.GatedRNN.from_lambda(uh.Gating(*gatings[0]), lambda_, uh.Gating(*gatings[1]), np.eye(rows))
    xs = random.standard_normal((64, 16, d))
    values, keys, queries = random.standard_normal((3, d, d)) / np.sqrt(d)
    scores = np.einsum("btk,bsk->bts", xs @ queries.T, xs @ keys.T)
    scores = np.where(np.tril(np.ones((16, 16), bool)), scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    ys = (weights / weights.sum(axis=-1, keepdims=True)) @ xs @ values.T
    features = read(draft)(xs).reshape(-1, rows)
    readout, *_ = np.linalg.lstsq(features, ys.reshape(-1, d), rcond=None)
    return rebuilt(draft, readout=readout.T)


DEFECTS = (
    "one memory λ at 0.99",
    "memory×memory of 1 %",
    "linear term of 1 %",
    "one gating weight 1 % off",
)
