"""A cell of ours beside the public torch class with the same weights: values, and gradients in every weight."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from tests.tolerance import error
from underhood.interop.bridges import bridge_of
from underhood.interop.torch import to_module

FLOAT32 = 2e-5  # relative to the largest entry: the public modules compute in float32


def sequence(length, d, seed=1):
    return np.random.default_rng(seed).normal(size=(length, d)).astype(np.float32)


def public_outputs(cell, xs, public=None):
    import torch

    run = bridge_of(cell, public).run
    with torch.no_grad():
        return run(to_module(cell, public), torch.from_numpy(xs)[None])[0].numpy()


def gradient_errors(cell, xs, public=None):
    """Name → relative error of the gradient of a random projection of the outputs; `xs` stands for the inputs."""
    import torch

    bridge = bridge_of(cell, public)
    weights = np.random.default_rng(2).normal(size=(len(xs), cell.d_out)).astype(np.float32)
    module, inputs = to_module(cell, public), torch.from_numpy(xs).requires_grad_()
    (bridge.run(module, inputs[None])[0] * torch.from_numpy(weights)).sum().backward()
    expected = {name: tensor.grad.numpy() for name, tensor in module.named_parameters()}

    @eqx.filter_jit
    @eqx.filter_grad
    def gradients(both):
        model, xs = both
        return jnp.sum(jnp.asarray(weights) * model.scan(xs)[0])

    in_weights, in_inputs = gradients((cell, jnp.asarray(xs)))
    ours = bridge.write(in_weights)[1]  # a gradient has the structure of its cell
    assert ours.keys() == expected.keys()
    errors = {name: error(ours[name], expected[name]) for name in expected}
    return {**errors, "xs": error(in_inputs, inputs.grad.numpy())}
