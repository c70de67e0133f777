"""The causal convolution against torch's Conv1d and NumPy's convolve; step, scan and split agree."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import underhood as uh
from tests.tolerance import agree
from underhood.layers.convolution import Convolution


def random_convolution(channels=3, width=4, bias=True, seed=0):
    random = np.random.default_rng(seed)
    return Convolution(random.normal(size=(channels, width)), random.normal(size=channels) if bias else None)


@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("length", [1, 3, 9])
def test_scan_is_torchs_convolution(width, bias, length):
    import torch

    layer = random_convolution(width=width, bias=bias)
    xs = np.random.default_rng(1).normal(size=(length, 3))
    public = torch.nn.Conv1d(3, 3, width, groups=3, padding=width - 1, bias=bias).double()
    with torch.no_grad(), jax.enable_x64(True):
        public.weight.copy_(torch.from_numpy(np.array(layer.weight)[:, None]))
        if bias:
            public.bias.copy_(torch.from_numpy(np.array(layer.bias)))
        expected = public(torch.from_numpy(xs.T))[:, :length].numpy().T
        ys, past = layer.scan(jnp.asarray(xs), layer.initial_past())
        assert agree(ys, expected)
        if length > 1 and width > 1:
            assert not agree(layer.scan(jnp.asarray(xs[::-1].copy()), layer.initial_past())[0], expected)
        kept = np.concatenate([np.zeros((width - 1, 3)), xs])[length:]
        np.testing.assert_array_equal(past, kept)


def test_step_scan_and_split_agree():
    layer = random_convolution()
    xs = np.random.default_rng(1).normal(size=(7, 3))
    with jax.enable_x64(True):
        whole, end = layer.scan(jnp.asarray(xs), layer.initial_past())
        past, steps = layer.initial_past(), []
        for x in jnp.asarray(xs):
            past, y = layer.step(past, x)
            steps.append(y)
        assert agree(np.stack(steps), whole)
        np.testing.assert_array_equal(past, end)
        first, past = layer.scan(jnp.asarray(xs[:2]), layer.initial_past())
        second, past = layer.scan(jnp.asarray(xs[2:]), past)
        assert agree(np.concatenate([first, second]), whole)
        np.testing.assert_array_equal(past, end)


def test_off_hands_its_input_on():
    xs = np.random.default_rng(1).normal(size=(5, 2))
    with jax.enable_x64(True):
        layer = Convolution.off(2, 4)
        np.testing.assert_array_equal(layer.scan(jnp.asarray(xs), layer.initial_past())[0], xs)


def test_wrong_shapes_are_refused():
    with pytest.raises(uh.UnderhoodError, match=r"expected bias of shape .* with channels = 3"):
        Convolution(np.ones((3, 4)), np.ones(4))
    with pytest.raises(uh.UnderhoodError, match="weight of shape"):
        Convolution(np.ones((3, 0)))
