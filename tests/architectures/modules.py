"""A cell beside the public torch module with the same weights: outputs and all gradients, in float32."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from tests.tolerance import error, share
from underhood.core.files import from_tensors, to_tensors

TOLERANCE = 2e-5  # relative to the largest entry: some 160 roundings of float32, over up to 70 steps and back


def randomised(make, seed=0, scale=0.3):
    """A new module, every weight moved at random, those that begin at 0 or 1 included."""
    import torch

    random = np.random.default_rng(seed)
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(seed)
        module = make()
        for weight in module.parameters():
            weight.add_(torch.from_numpy(scale * random.normal(size=tuple(weight.shape))).to(weight.dtype))
    return module.eval()


def cell_like(module, kind, names, offsets=None, **structure):
    """The cell of this kind with the module's weights: `names` are their own for ours, in our shapes."""
    shapes = {ours: weight.detach().numpy() for ours, weight in _renamed(module, names).items()}
    for name, offset in (offsets or {}).items():
        shapes[name] = shapes[name] + np.float32(offset)
    return from_tensors({"kind": kind, **structure}, {n: _in_shape(n, w) for n, w in shapes.items()}, "the module")


def _renamed(module, names):
    return {names.get(name, name): weight for name, weight in module.named_parameters()}


def _in_shape(name, weight):
    return weight[:, 0] if name.endswith("conv1d.weight") else weight  # torch has one input channel a group


def disagreement(module, cell, names, xs, forward=lambda module, xs: module(xs)):
    """The largest error of the outputs, and of the gradients of a random projection of them in inputs and weights."""
    import torch

    random = np.random.default_rng(2)
    given = torch.from_numpy(xs.astype(np.float32))[None].requires_grad_()
    expected = forward(module, given)
    weights = random.normal(size=tuple(expected.shape[1:])).astype(np.float32)
    (expected[0] * torch.from_numpy(weights)).sum().backward()

    outputs, (gradient, in_xs) = _outputs_and_gradients((cell, jnp.asarray(xs, jnp.float32)), jnp.asarray(weights))
    found = {f"gradient in {name}": one for name, one in to_tensors(gradient)[1].items()}
    wanted = {
        f"gradient in {name}": _in_shape(name, weight.grad.numpy())
        for name, weight in _renamed(module, names).items()
        if weight.grad is not None
    }
    assert found.keys() == wanted.keys()
    largest = max(np.max(np.abs(one)) for one in wanted.values())
    errors = {name: error(found[name], wanted[name]) * share(wanted[name], largest) for name in found}
    errors["outputs"] = error(outputs, expected.detach().numpy()[0])
    errors["gradient in the input"] = error(in_xs, given.grad.numpy()[0])
    return max(errors.values()), errors


# As a user's jax compiles it. Without its optimiser, which `make test` leaves out, XLA rounds every product before it
# adds: where a gradient cancels, as that of a vector's length does, that alone is 2.4e-5.
@functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 3})
def _outputs_and_gradients(both, weights):
    def loss(both):
        outputs = both[0](both[1])
        return jnp.sum(weights * outputs), outputs

    gradients, outputs = jax.grad(loss, has_aux=True)(both)
    return outputs, gradients


def perturbed(cell, amount=1e-3):
    """Negative control: one weight off by a thousandth."""
    leaves, treedef = jax.tree.flatten(cell)
    return jax.tree.unflatten(treedef, [leaves[0] * (1 + amount), *leaves[1:]])
