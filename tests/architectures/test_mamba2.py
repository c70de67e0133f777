"""Mamba-2: the equations in NumPy, and transformers' Mamba2Mixer."""

import numpy as np
import pytest

import underhood as uh
from tests.architectures.modules import TOLERANCE, cell_like, disagreement, perturbed, randomised
from tests.architectures.references import transcribes
from tests.tolerance import agree, error
from underhood.architectures.mamba2.cell import Mamba2
from underhood.core.model import as_dtype
from underhood.layers.norm import Norm


@transcribes("mamba2-cell")
def mamba2_cell(cell, xs):
    """Section 7 of arXiv 2405.21060, one step, head and entry of the state at a time."""
    (w_in, w_out, kernel) = (np.asarray(w) for w in (cell.in_proj.weight, cell.out_proj.weight, cell.conv1d.weight))
    dt_bias, a_log, skip = (np.asarray(w) for w in (cell.dt_bias, cell.A_log, cell.D))
    heads, inner, groups = len(skip), w_out.shape[1], cell.groups
    size, n = inner // heads, (len(kernel) - inner) // (2 * groups)
    states, window, ys = np.zeros((heads, n, size)), np.zeros((kernel.shape[1], len(kernel))), []
    for token in xs:
        projected = w_in @ token + _bias(cell.in_proj, len(w_in))
        z, mixed, dt = np.split(projected, [inner, inner + len(kernel)])
        window = np.vstack([window[1:], mixed])
        mixed = silu(np.sum(window.T * kernel, axis=1) + _bias(cell.conv1d, len(kernel)))
        x, b, c = np.split(mixed, [inner, inner + groups * n])
        out = np.zeros((heads, size))
        for head in range(heads):
            group = head // (heads // groups)
            b_head, c_head = b.reshape(groups, n)[group], c.reshape(groups, n)[group]
            step = np.log1p(np.exp(dt[head] + dt_bias[head]))
            step = np.clip(step, cell.least_step, np.inf if cell.most_step is None else cell.most_step)
            x_head = x.reshape(heads, size)[head]
            states[head] = np.exp(-step * np.exp(a_log[head])) * states[head] + step * np.outer(b_head, x_head)
            out[head] = c_head @ states[head] + skip[head] * x_head
        gated = out.ravel() * silu(z)
        normed = np.asarray(cell.norm.weight) * gated / np.sqrt(np.mean(gated**2) + cell.norm.eps)
        ys.append(w_out @ normed + _bias(cell.out_proj, len(w_out)))
    return np.array(ys)


def silu(x):
    return x / (1 + np.exp(-x))


def _bias(part, size):
    return np.zeros(size) if part.bias is None else np.asarray(part.bias)


def mixer(groups=1, heads=4, bias=False, limit=(0.0, float("inf")), seed=0):
    from transformers import Mamba2Config
    from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer

    config = Mamba2Config(
        hidden_size=6, expand=2, num_heads=heads, head_dim=12 // heads, state_size=5, n_groups=groups, use_bias=bias,
        conv_kernel=3, chunk_size=16, num_hidden_layers=1, time_step_limit=limit,
    )  # fmt: skip
    return randomised(lambda: Mamba2Mixer(config, layer_idx=0), seed)


def cell_of(module, **settings):
    settings = {"groups": module.n_groups, "norm": {"kind": "norm", "eps": module.norm.variance_epsilon}} | settings
    return cell_like(module, "mamba2-cell", {}, **settings)


@pytest.mark.parametrize(("groups", "heads", "bias", "length"), [(1, 4, False, 1), (1, 4, False, 32), (2, 4, True, 70)])
def test_it_is_transformers(groups, heads, bias, length):
    module = mixer(groups, heads, bias)
    cell, xs = cell_of(module), np.random.default_rng(1).normal(size=(length, 6))
    worst, errors = disagreement(module, cell, {}, xs)
    assert worst <= TOLERANCE, errors
    assert disagreement(module, perturbed(cell), {}, xs)[0] > TOLERANCE


def test_the_limits_of_the_step_are_kept():
    import torch

    module = mixer(limit=(0.3, 0.6))
    xs = np.random.default_rng(1).normal(size=(40, 6))
    expected = module(torch.from_numpy(xs.astype(np.float32))[None]).detach().numpy()[0]
    assert error(cell_of(module, least_step=0.3, most_step=0.6)(xs), expected) <= TOLERANCE
    assert error(cell_of(module)(xs), expected) > TOLERANCE


@pytest.mark.parametrize(("groups", "bias"), [(1, False), (2, True)])
def test_it_is_the_equations(groups, bias):
    cell = as_dtype(cell_of(mixer(groups, bias=bias)), np.float64)
    xs = np.random.default_rng(1).normal(size=(70, 6))
    assert agree(cell(xs), mamba2_cell(cell, xs))
    assert not agree(cell(xs), mamba2_cell(as_dtype(cell_of(mixer(groups, bias=bias, seed=1)), np.float64), xs))


def test_shapes_that_do_not_fit_are_refused():
    cell = cell_of(mixer())
    with pytest.raises(uh.UnderhoodError, match="expected groups that divide 4 heads; got 3"):
        Mamba2(**{**vars(cell), "groups": 3})
    with pytest.raises(uh.UnderhoodError, match="inner = 5 as in norm"):
        Mamba2(**{**vars(cell), "norm": Norm(np.ones(5))})
