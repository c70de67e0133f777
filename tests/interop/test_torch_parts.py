"""from_torch finds parts by type and by the order in which they run; what is in the way gets its true reason."""

import numpy as np
import pytest
import torch

import underhood as uh

nn = torch.nn


class Chain(nn.Module):
    """Parts under any names, defined in another order than they run in."""

    def __init__(self, batch_first=True, **parts):
        super().__init__()
        for name, part in reversed(parts.items()):
            setattr(self, name, part)
        self.order, self.only_batches = list(parts), not batch_first

    def forward(self, xs):
        for name in self.order:
            xs = getattr(self, name)(xs)
            xs = xs[0] if isinstance(xs, tuple) else xs
        return xs


def sequence(d, length=7):
    return np.random.default_rng(0).normal(size=(length, d)).astype(np.float32)


@pytest.mark.parametrize("names", [("emb", "gru", "head"), ("embedding", "rnn", "readout"), ("a", "c", "b")])
def test_names_do_not_matter(names):
    torch.manual_seed(0)
    module = Chain(**dict(zip(names, (nn.Linear(3, 4), nn.GRU(4, 5, batch_first=True), nn.Linear(5, 2)), strict=True)))
    model, xs = uh.from_torch(module), sequence(3)
    assert [type(cell).__name__ for cell in model.cells] == ["GRU"]
    np.testing.assert_allclose(model(xs), module(torch.from_numpy(xs)).detach().numpy(), atol=1e-6)


def test_several_layers_and_linear_maps_in_a_row():
    torch.manual_seed(1)
    module = Chain(
        a=nn.Linear(3, 6),
        b=nn.Linear(6, 4),
        drop=nn.Dropout(0.5),
        one=nn.LSTM(4, 5, 2),
        two=nn.GRU(5, 3),
        c=nn.Linear(3, 2),
    ).eval()
    model, xs = uh.from_torch(module), sequence(3)
    assert [type(cell).__name__ for cell in model.cells] == ["LSTM", "LSTM", "GRU"]
    np.testing.assert_allclose(model(xs), module(torch.from_numpy(xs)).detach().numpy(), atol=1e-6)


def test_tokens_become_one_hot_rows():
    torch.manual_seed(0)
    module = Chain(emb=nn.Embedding(11, 4), lstm=nn.LSTM(4, 5, batch_first=True), fc=nn.Linear(5, 11))
    model, tokens = uh.from_torch(module), torch.tensor([3, 1, 4, 1, 5])
    np.testing.assert_allclose(model(np.eye(11, dtype=np.float32)[tokens]), module(tokens).detach().numpy(), atol=1e-6)


@pytest.mark.parametrize(("module", "gates"), [(nn.LSTMCell(3, 4), 4), (nn.GRUCell(3, 4), 3)])
def test_a_cell_alone(module, gates):
    model, xs, state = uh.from_torch(module), sequence(3), None
    assert model.u.shape[0] == gates
    for x, y in zip(torch.from_numpy(xs), model(xs), strict=True):
        state = module(x[None], state)
        np.testing.assert_allclose(y, (state[0] if gates == 4 else state)[0].detach().numpy(), atol=1e-6)


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(3, 3)

    def forward(self, xs):
        return xs + self.rnn(xs)[0]


@pytest.mark.parametrize(
    ("module", "says"),
    [
        (nn.LSTM(3, 4, proj_size=2), "projects its outputs"),
        (Chain(a=nn.Linear(3, 4), d=nn.Dropout(0.5), g=nn.GRU(4, 4)), r"Dropout d draws at random.*module\.eval\(\)"),
        (nn.LSTM(3, 4, 2, dropout=0.3), "LSTM draws at random, for the module is in training mode"),
        (Chain(g=nn.GRU(3, 4), n=nn.LayerNorm(4), h=nn.Linear(4, 2)), "LayerNorm n has no counterpart"),
        (Residual(), r"GRU rnn in this order is something else \(error"),
        (Chain(a=nn.Linear(3, 4)), "has no recurrent layer that underhood knows"),
    ],
)
def test_the_reason_is_the_true_one(module, says):
    with pytest.raises(uh.UnderhoodError, match=says) as caught:
        uh.from_torch(module)
    assert "\n" not in str(caught.value)
