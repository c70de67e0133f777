"""Gated DeltaNet: the equations in NumPy, and transformers' Qwen3NextGatedDeltaNet."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import underhood as uh
from tests.architectures.modules import TOLERANCE, cell_like, disagreement, perturbed, randomised
from tests.architectures.references import transcribes
from tests.tolerance import agree, error
from underhood.architectures.deltanet.cell import GatedDeltaNet
from underhood.core.model import as_dtype


@transcribes("gated-deltanet-cell")
def gated_deltanet_cell(cell, xs):
    """Eq. 10 of arXiv 2412.06464, with the rows of the projections taken apart one head after another."""
    w_qkvz, w_ba, kernel, w_out = (
        np.asarray(part.weight) for part in (cell.in_proj_qkvz, cell.in_proj_ba, cell.conv1d, cell.out_proj)
    )
    a_log, dt_bias, weight = (np.asarray(w) for w in (cell.A_log, cell.dt_bias, cell.norm.weight))
    heads, key_heads, d_v = len(a_log), cell.key_heads, len(weight)
    many = heads // key_heads
    d_k = len(w_qkvz) // (2 * key_heads) - many * d_v
    states, window, ys = np.zeros((heads, d_k, d_v)), np.zeros((kernel.shape[1], len(kernel))), []
    for x in xs:
        qs, ks, vs, zs, bs, gates = [], [], [], [], [], []
        for rows, small in zip((w_qkvz @ x).reshape(key_heads, -1), (w_ba @ x).reshape(key_heads, -1), strict=True):
            q, k, v, z = np.split(rows, [d_k, 2 * d_k, 2 * d_k + many * d_v])
            qs, ks, vs, zs = [*qs, *q], [*ks, *k], [*vs, *v], [*zs, *z]
            bs, gates = [*bs, *small[:many]], [*gates, *small[many:]]
        window = np.vstack([window[1:], [*qs, *ks, *vs]])
        mixed = np.sum(window.T * kernel, axis=1)
        mixed = mixed / (1 + np.exp(-mixed))
        q, k, v = np.split(mixed, [key_heads * d_k, 2 * key_heads * d_k])
        out = []
        for head in range(heads):
            q_head, k_head = (one.reshape(key_heads, d_k)[head // many] for one in (q, k))
            q_head, k_head = (one / np.sqrt(np.sum(one**2) + 1e-6) for one in (q_head, k_head))
            beta = 1 / (1 + np.exp(-bs[head]))
            decay = np.exp(-np.exp(a_log[head]) * np.log1p(np.exp(gates[head] + dt_bias[head])))
            kept = decay * (states[head] - beta * np.outer(k_head, k_head @ states[head]))
            states[head] = kept + beta * np.outer(k_head, v.reshape(heads, d_v)[head])
            read = q_head @ states[head] / np.sqrt(d_k)
            gate = np.array(zs).reshape(heads, d_v)[head]
            out.extend(weight * read / np.sqrt(np.mean(read**2) + cell.norm.eps) * gate / (1 + np.exp(-gate)))
        ys.append(w_out @ out)
    return np.array(ys)


def net(key_heads=2, heads=4, seed=0):
    from transformers import Qwen3NextConfig
    from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

    config = Qwen3NextConfig(
        hidden_size=6, linear_num_key_heads=key_heads, linear_num_value_heads=heads, linear_key_head_dim=3,
        linear_value_head_dim=5, linear_conv_kernel_dim=4, num_hidden_layers=1, layer_types=["linear_attention"],
    )  # fmt: skip
    return randomised(lambda: Qwen3NextGatedDeltaNet(config, layer_idx=0), seed)


def cell_of(module):
    norm = {"kind": "norm", "eps": module.norm.variance_epsilon}
    return cell_like(module, "gated-deltanet-cell", {}, key_heads=module.num_k_heads, norm=norm)


@pytest.mark.parametrize(("key_heads", "heads", "length"), [(2, 2, 1), (2, 4, 32), (2, 2, 70)])
def test_it_is_transformers(key_heads, heads, length):
    module = net(key_heads, heads)
    cell, xs = cell_of(module), np.random.default_rng(1).normal(size=(length, 6))
    worst, errors = disagreement(module, cell, {}, xs)
    assert worst <= TOLERANCE, errors
    assert disagreement(module, perturbed(cell), {}, xs)[0] > TOLERANCE


def test_it_is_the_equations():
    cell, other = (as_dtype(cell_of(net(seed=seed)), np.float64) for seed in (0, 1))
    xs = np.random.default_rng(1).normal(size=(70, 6))
    assert agree(cell(xs), gated_deltanet_cell(cell, xs))
    assert not agree(cell(xs), gated_deltanet_cell(other, xs))


def test_without_decay_it_is_deltanet():
    cell = as_dtype(cell_of(net(2, 2)), np.float64)
    with jax.enable_x64(True):
        still = GatedDeltaNet(**{**vars(cell), "A_log": np.full(2, -60.0)})
        log_decay = still._signals(jnp.ones((3, 6)), still._initial_state()[0])[0].log_decay
    assert np.all(np.exp(log_decay) == 1)
    xs = np.random.default_rng(1).normal(size=(9, 6))
    assert error(still(xs), cell(xs)) > 1e-3


def test_shapes_that_do_not_fit_are_refused():
    cell = cell_of(net())
    with pytest.raises(uh.UnderhoodError, match="expected key_heads that divide 4 heads; got 3"):
        GatedDeltaNet(**{**vars(cell), "key_heads": 3})
