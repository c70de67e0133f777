"""Mamba against its equations in NumPy, and against transformers' and mambapy's own modules."""

import dataclasses

import jax
import numpy as np
import pytest

import underhood as uh
from tests.architectures.public import FLOAT32, gradient_errors, public_outputs, sequence
from tests.architectures.references import transcribes
from tests.tolerance import error
from underhood.architectures.mamba.cell import Mamba

PUBLIC = ["transformers.models.mamba.modeling_mamba.MambaMixer", "mambapy.mamba.MambaBlock"]


def silu(z):
    return z / (1 + np.exp(-z))


@transcribes("mamba-cell")
def mamba_cell(cell, xs):
    """Equation by equation and channel by channel, from the paper's Algorithm 2 and Figure 3."""
    in_proj, x_proj, dt_proj, out_proj = map(np.asarray, (cell.in_proj, cell.x_proj, cell.dt_proj, cell.out_proj))
    kernel, a = np.asarray(cell.conv1d.weight), -np.exp(np.asarray(cell.a_log))
    channels, width = kernel.shape
    rank, states = dt_proj.shape[1], a.shape[1]
    projected = xs @ in_proj.T + (0 if cell.in_bias is None else np.asarray(cell.in_bias))
    before, z = projected[:, :channels], projected[:, channels:]
    h, ys = np.zeros((channels, states)), []
    for t in range(len(xs)):
        convolved = np.zeros(channels) if cell.conv1d.bias is None else np.array(cell.conv1d.bias, np.float64)
        for lag in range(min(width, t + 1)):
            convolved += kernel[:, width - 1 - lag] * before[t - lag]
        u = silu(convolved)
        selected = x_proj @ u
        delta = np.log1p(np.exp(dt_proj @ selected[:rank] + np.asarray(cell.dt_bias)))
        b, c = selected[rank : rank + states], selected[rank + states :]
        y = np.zeros(channels)
        for i in range(channels):
            h[i] = np.exp(delta[i] * a[i]) * h[i] + delta[i] * b * u[i]
            y[i] = (c @ h[i] + np.asarray(cell.skip)[i] * u[i]) * silu(z[t, i])
        ys.append(out_proj @ y + (0 if cell.out_bias is None else np.asarray(cell.out_bias)))
    return np.array(ys)


def random_cell(bias=False, seed=0):
    cell = Mamba.random(d=6, channels=10, d_out=6, state=5, key=jax.random.key(seed))
    random = np.random.default_rng(seed)
    shapes = {"a_log": (10, 5), "skip": 10, "dt_bias": 10, **({"in_bias": 20, "out_bias": 6} if bias else {})}
    return dataclasses.replace(cell, **{name: np.float32(random.normal(size=shape)) for name, shape in shapes.items()})


@pytest.mark.parametrize("public", PUBLIC)
@pytest.mark.parametrize("bias", [False, True])
def test_values_and_gradients_are_the_public_modules(public, bias):
    cell, xs = random_cell(bias), sequence(9, 6)
    assert error(cell(xs), public_outputs(cell, xs, public)) <= FLOAT32
    errors = gradient_errors(cell, xs, public)
    assert max(errors.values()) <= FLOAT32, errors


def test_a_perturbed_weight_is_noticed_by_the_public_module():
    cell, xs = random_cell(), sequence(9, 6)
    for name in ("a_log", "skip", "dt_bias", "x_proj"):
        moved = dataclasses.replace(cell, **{name: getattr(cell, name) * 1.001})
        assert error(moved(xs), public_outputs(cell, xs)) > FLOAT32, name


def test_biases_are_the_equations():
    cell, xs = random_cell(bias=True), sequence(9, 6)
    assert error(cell(xs), mamba_cell(cell, xs.astype(np.float64))) <= FLOAT32


def test_wrong_shapes_are_refused():
    cell = random_cell()
    with pytest.raises(uh.UnderhoodError, match=r"x_proj of shape \(rank \+ 2 × state, .*; got shape \(10, 10\)"):
        dataclasses.replace(cell, x_proj=cell.x_proj[:-1])
