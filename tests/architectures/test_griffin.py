"""Griffin's recurrent block against its equations in NumPy, and against transformers' own module."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import erf

from tests.architectures.public import FLOAT32, gradient_errors, public_outputs, sequence
from tests.architectures.references import sigmoid, transcribes
from tests.tolerance import error
from underhood.architectures.griffin.cell import Griffin, blocks_of


def gelu(z, activation):
    if activation == "gelu":
        return z * 0.5 * (1 + erf(z / np.sqrt(2)))
    return 0.5 * z * (1 + np.tanh(np.sqrt(2 / np.pi) * (z + 0.044715 * z**3)))


@transcribes("griffin-cell")
def griffin_cell(cell, xs):
    """Equations 1 to 4 of the paper, channel by channel; the first input with the factor 1, as released."""
    kernel, bias = np.asarray(cell.conv_1d.weight), np.asarray(cell.conv_1d.bias)
    channels, width = kernel.shape
    projected = xs @ np.asarray(cell.linear_x.weight).T + np.asarray(cell.linear_x.bias)
    branch = gelu(xs @ np.asarray(cell.linear_y.weight).T + np.asarray(cell.linear_y.bias), cell.activation)
    rate = np.log1p(np.exp(np.asarray(cell.recurrent_param)))

    def gate(part, u):
        blocks, block = part.bias.shape
        rows = [u[b * block : (b + 1) * block] @ np.asarray(part.weight)[b] for b in range(blocks)]
        return sigmoid(np.concatenate(rows) + np.asarray(part.bias).ravel())

    h, ys = np.zeros(channels), []
    for t in range(len(xs)):
        u = bias.astype(np.float64)
        for lag in range(min(width, t + 1)):
            u = u + kernel[:, width - 1 - lag] * projected[t - lag]
        a = np.exp(-8 * rate * gate(cell.recurrent_gate, u))
        scale = np.sqrt(1 - a**2) if t else 1.0
        h = a * h + scale * gate(cell.input_gate, u) * u
        ys.append(np.asarray(cell.linear_out.weight) @ (branch[t] * h) + np.asarray(cell.linear_out.bias))
    return np.array(ys)


def random_cell(activation="gelu_pytorch_tanh", seed=0):
    cell = Griffin.random(d=6, channels=12, d_out=6, blocks=3, key=jax.random.key(seed))
    leaves, structure = jax.tree.flatten(cell)
    keys = jax.random.split(jax.random.key(seed + 1), len(leaves))
    leaves = [leaf + 0.3 * jax.random.normal(key, leaf.shape) for leaf, key in zip(leaves, keys, strict=True)]
    return dataclasses.replace(jax.tree.unflatten(structure, leaves), activation=activation)


@pytest.mark.parametrize("activation", ["gelu_pytorch_tanh", "gelu"])
def test_values_and_gradients_are_the_public_modules(activation):
    cell, xs = random_cell(activation), sequence(9, 6)
    assert error(cell(xs), public_outputs(cell, xs)) <= FLOAT32
    assert error(cell(xs), griffin_cell(cell, xs.astype(np.float64))) <= FLOAT32
    errors = gradient_errors(cell, xs)
    assert max(errors.values()) <= FLOAT32, errors


def test_the_first_input_has_a_rule_of_its_own():
    """Negative control: a state that says a first input has been seen gives other outputs."""
    cell, xs = random_cell(), sequence(5, 6)
    past, h, seen = cell.initial_state()
    assert seen == 0
    assert error(cell.scan(xs, (past, h, jnp.ones_like(seen)))[0], public_outputs(cell, xs)) > 1e-2
    state, _ = cell.step(cell.initial_state(), xs[0])
    assert state[2] == 1


def test_a_perturbed_weight_is_noticed_by_the_public_module():
    cell, xs = random_cell(), sequence(9, 6)
    for where in (lambda c: c.recurrent_param, lambda c: c.input_gate.weight, lambda c: c.recurrent_gate.weight):
        moved = eqx.tree_at(where, cell, replace_fn=lambda w: w * 1.01)
        assert error(moved(xs), public_outputs(cell, xs)) > FLOAT32


def test_the_root_has_a_bounded_slope_as_the_public_one_has():
    import torch
    from transformers.models.recurrent_gemma.modeling_recurrent_gemma import SqrtBoundDerivative

    from underhood.architectures.griffin.cell import _root

    for x in (1.0, 1e-4, 1e-12, 0.0):
        tensor = torch.tensor(x, dtype=torch.float32, requires_grad=True)
        SqrtBoundDerivative.apply(tensor).backward()
        assert error(jax.grad(_root)(jnp.float32(x)), tensor.grad.numpy()) <= 1e-6


def test_blocks_divide_the_width():
    assert [blocks_of(width) for width in (1, 7, 8, 12, 64, 100)] == [1, 1, 2, 3, 8, 5]
