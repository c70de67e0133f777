"""torch as a second opinion: nn.LSTM with the same weights, and nn.GRU where both conventions coincide."""

import jax
import numpy as np
import pytest

import underhood as uh
from tests.tolerance import agree, error

torch = pytest.importorskip("torch")


def sequence(length, d):
    return np.random.default_rng(1).normal(size=(length, d))


def torch_copy(module, cell, order):
    """Our gates, in torch's order, into a one-layer torch module; bias_hh stays zero."""
    with torch.no_grad():
        for name, value in {"weight_ih_l0": cell.u, "weight_hh_l0": cell.v, "bias_ih_l0": cell.b}.items():
            gates = np.asarray(value)[order]
            getattr(module, name).copy_(torch.from_numpy(gates.reshape(-1, *gates.shape[2:]).copy()))
        module.bias_hh_l0.zero_()
    return module


def outputs(module, xs):
    with torch.no_grad():
        return module(torch.from_numpy(xs))[0].numpy()


@pytest.mark.parametrize("length", [1, 32, 1000])
def test_lstm_is_torchs(length):
    cell = uh.LSTM.random(d=5, hidden=7, key=jax.random.key(0))
    cell = uh.LSTM(*(np.asarray(w, np.float64) + 0.1 for w in (cell.u, cell.v, cell.b)))
    # torch has i, f, g, o where the paper has g, f, c̃, o; ours are f, c̃, g, o.
    module = torch_copy(torch.nn.LSTM(5, 7, dtype=torch.float64), cell, [2, 0, 1, 3])
    xs = sequence(length, 5)
    assert agree(cell(xs), outputs(module, xs)), error(cell(xs), outputs(module, xs))
    swapped = torch_copy(torch.nn.LSTM(5, 7, dtype=torch.float64), cell, [0, 2, 1, 3])
    assert not agree(cell(xs), outputs(swapped, xs))


def test_gru_is_torchs_where_the_reset_gate_is_open():
    """torch resets after the recurrent product, the paper before: with r = 1 there is no difference."""
    cell = uh.GRU.random(d=5, hidden=7, key=jax.random.key(0))
    u, v, b = (np.array(w, np.float64) for w in (cell.u, cell.v, cell.b))
    u[0], v[0], b[0] = 0, 0, 40
    # In torch the new state is (1 − z) n + z h: its z is one minus ours, and σ(−a) = 1 − σ(a).
    flip = np.array([1, 1, -1.0])
    cell = uh.GRU(u, v, b)
    flipped = uh.GRU(flip[:, None, None] * u, flip[:, None, None] * v, flip[:, None] * b)
    module = torch_copy(torch.nn.GRU(5, 7, dtype=torch.float64), flipped, [0, 2, 1])
    xs = sequence(100, 5)
    assert agree(cell(xs), outputs(module, xs)), error(cell(xs), outputs(module, xs))
    assert not agree(cell(xs), outputs(torch_copy(module, cell, [0, 2, 1]), xs))


def test_gru_that_resets_after_the_product_is_torchs():
    random = np.random.default_rng(0)
    module = torch.nn.GRU(5, 7, dtype=torch.float64)
    weights = {name: random.normal(size=tuple(value.shape)) for name, value in module.state_dict().items()}
    module.load_state_dict({name: torch.from_numpy(value) for name, value in weights.items()}, strict=True)
    u, v = (weights[f"weight_{which}_l0"].reshape(3, 7, -1)[[0, 2, 1]] for which in ("ih", "hh"))
    b_input, b_hidden = (weights[f"bias_{which}_l0"].reshape(3, 7)[[0, 2, 1]] for which in ("ih", "hh"))
    b_hn, b = b_hidden[1].copy(), b_input + b_hidden * np.array([1, 0, 1.0])[:, None]
    flip = np.array([1, 1, -1.0])[:, None]  # torch's z keeps what ours replaces
    u, v, b = flip[..., None] * u, flip[..., None] * v, flip * b
    xs = sequence(1000, 5)
    ours = uh.GRU(u, v, b, b_hn, "after")
    assert agree(ours(xs), outputs(module, xs)), error(ours(xs), outputs(module, xs))
    papers = uh.GRU(u, v, b + b_hn * np.array([0, 1, 0.0])[:, None])
    assert not agree(papers(xs), outputs(module, xs))


def test_a_reset_convention_comes_with_its_bias():
    u, v, b = np.ones((3, 2, 2)), np.ones((3, 2, 2)), np.ones((3, 2))
    for arguments in ((u, v, b, np.ones(2), "before"), (u, v, b, None, "after")):
        with pytest.raises(uh.UnderhoodError, match=r"expected b_hn with reset=.after., and only there"):
            uh.GRU(*arguments)
