"""Figure 1 written out by hand: the decompiler is not tested on what its own package compiles alone."""

from collections.abc import Callable

import numpy as np
import pytest

from underhood import GatedRNN, Gating, LinearAttention


def _figure_1(attention: LinearAttention) -> GatedRNN:
    values, keys, queries = (
        np.asarray(weight, np.float64) for weight in (attention.w_value, attention.w_key, attention.w_query)
    )
    heads, d_value, d = values.shape
    d_key = keys.shape[1]
    decay = np.ones(heads) if attention.decay is None else np.asarray(attention.decay)
    first, second, lambda_, products = [], [], [], []
    for h in range(heads):
        for i in range(d_value):
            for j in range(d_key):
                products.append((len(first), h * d_key + j, i))
                first.append([*values[h, i], 0.0])
                second.append([*keys[h, j], 0.0])
                lambda_.append(decay[h])
    memory = len(first)
    for h in range(heads):
        for j in range(d_key):
            first.append([*queries[h, j], 0.0])
            second.append([*np.zeros(d), 1.0])
            lambda_.append(0.0)
    left, right = np.zeros((len(products), len(first))), np.zeros((len(products), len(first)))
    readout = np.zeros((d_value, len(products)))
    for row, (neuron, query, output) in enumerate(products):
        left[row, neuron] = right[row, memory + query] = readout[output, row] = 1.0
    return GatedRNN.from_lambda(
        Gating(np.array(first), np.array(second)), np.array(lambda_), Gating(left, right), readout
    )


@pytest.fixture(scope="session")
def figure_1() -> Callable[[LinearAttention], GatedRNN]:
    return _figure_1


def _changed(model: GatedRNN, **changes: np.ndarray) -> GatedRNN:
    arrays = {
        "w_m": model.input_gating.w_m,
        "w_x": model.input_gating.w_x,
        "lambda_": model.lambda_,
        "left": model.output_gating.w_m,
        "right": model.output_gating.w_x,
        "readout": model.readout,
    }
    new = {name: np.array(changes.get(name, array), np.float64) for name, array in arrays.items()}
    return GatedRNN.from_lambda(
        Gating(new["w_m"], new["w_x"]), new["lambda_"], Gating(new["left"], new["right"]), new["readout"]
    )


@pytest.fixture(scope="session")
def changed() -> Callable[..., GatedRNN]:
    """A copy of a gated RNN with some arrays replaced."""
    return _changed
