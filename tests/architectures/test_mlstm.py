"""mLSTM: the equations in NumPy, and xlstm's mLSTMLayer."""

import numpy as np
import pytest

import underhood as uh
from tests.architectures.modules import TOLERANCE, cell_like, disagreement, perturbed, randomised
from tests.architectures.references import transcribes
from tests.tolerance import agree, error
from underhood.architectures.mlstm.cell import MLSTM
from underhood.core.model import as_dtype

NAMES = {
    "conv1d.conv.weight": "conv1d.weight",
    "conv1d.conv.bias": "conv1d.bias",
    "mlstm_cell.igate.weight": "igate.weight",
    "mlstm_cell.igate.bias": "igate.bias",
    "mlstm_cell.fgate.weight": "fgate.weight",
    "mlstm_cell.fgate.bias": "fgate.bias",
    "mlstm_cell.outnorm.weight": "outnorm.weight",
}


@transcribes("mlstm-cell")
def mlstm_cell(cell, xs):
    """Eq. 19 to 27 of arXiv 2405.04517, stabilised as in its Eq. 15 to 17."""
    kernel, skip = np.asarray(cell.conv1d.weight), np.asarray(cell.learnable_skip)
    inner, heads = len(skip), cell.igate.weight.shape[0]
    size = inner // heads
    c, n, m = np.zeros((heads, size, size)), np.zeros((heads, size)), np.zeros(heads)
    window, ys = np.zeros((kernel.shape[1], inner)), []
    for token in xs:
        x, z = np.split(_linear(cell.proj_up, token), 2)
        window = np.vstack([window[1:], x])
        u = silu(np.sum(window.T * kernel, axis=1) + np.asarray(cell.conv1d.bias))
        q, k, v = _blocks(cell.q_proj, u), _blocks(cell.k_proj, u), _blocks(cell.v_proj, x)
        i, f = (_linear(gate, np.concatenate([q, k, v])) for gate in (cell.igate, cell.fgate))
        h = np.zeros((heads, size))
        for head in range(heads):
            q_head, k_head, v_head = (one.reshape(heads, size)[head] for one in (q, k, v))
            k_head = k_head / np.sqrt(size)
            log_f = -np.log1p(np.exp(-f[head]))
            before, m[head] = m[head], max(log_f + m[head], i[head])
            forget, write = np.exp(log_f + before - m[head]), np.exp(i[head] - m[head])
            c[head] = forget * c[head] + write * np.outer(k_head, v_head)
            n[head] = forget * n[head] + write * k_head
            h[head] = q_head @ c[head] / (max(abs(n[head] @ q_head), np.exp(-m[head])) + 1e-6)
        centred = h - h.mean(axis=1, keepdims=True)
        normed = centred / np.sqrt(np.mean(centred**2, axis=1, keepdims=True) + cell.outnorm.eps)
        ys.append(_linear(cell.proj_down, (np.asarray(cell.outnorm.weight) * normed.ravel() + skip * u) * silu(z)))
    return np.array(ys)


def silu(x):
    return x / (1 + np.exp(-x))


def _linear(part, x):
    return np.asarray(part.weight) @ x + (0 if part.bias is None else np.asarray(part.bias))


def _blocks(part, x):
    weight = np.asarray(part.weight)
    out = np.concatenate([w @ one for w, one in zip(weight, x.reshape(len(weight), -1), strict=True)])
    return out + (0 if part.bias is None else np.asarray(part.bias))


def layer(heads=2, bias=False, seed=0):
    from xlstm import mLSTMLayer, mLSTMLayerConfig

    config = mLSTMLayerConfig(
        conv1d_kernel_size=4, qkv_proj_blocksize=4, num_heads=heads, proj_factor=2.0, embedding_dim=6, bias=bias,
        context_length=70, round_proj_up_to_multiple_of=4,
    )  # fmt: skip
    return randomised(lambda: mLSTMLayer(config), seed)


def cell_of(module):
    norm = {"kind": "norm", "eps": module.mlstm_cell.outnorm.eps, "centred": True}
    # Its weights are kept as what they are above 1.
    return cell_like(module, "mlstm-cell", NAMES, {"outnorm.weight": 1}, outnorm=norm)


@pytest.mark.parametrize(("heads", "bias", "length"), [(2, False, 1), (3, True, 32), (2, False, 70)])
def test_it_is_xlstms(heads, bias, length):
    # Seed 0 has |n·q| > 1 at the first step: h is then v, and the gradient in q nothing but rounding.
    module = layer(heads, bias, seed=2)
    cell, xs = cell_of(module), np.random.default_rng(1).normal(size=(length, 6))
    worst, errors = disagreement(module, cell, NAMES, xs)
    assert worst <= TOLERANCE, errors
    assert disagreement(module, perturbed(cell), NAMES, xs)[0] > TOLERANCE


def test_a_step_is_xlstms():
    import torch

    module = layer()
    cell, xs = cell_of(module), np.random.default_rng(1).normal(size=(5, 6)).astype(np.float32)
    theirs, ours = {}, cell.initial_state()
    for x in xs:
        with torch.no_grad():
            expected, theirs = module.step(torch.from_numpy(x)[None, None], **theirs)
        ours, y = cell.step(ours, x)
        assert error(y, expected.numpy()[0, 0]) <= TOLERANCE


@pytest.mark.parametrize("bias", [False, True])
def test_it_is_the_equations(bias):
    cell, other = (as_dtype(cell_of(layer(bias=bias, seed=seed)), np.float64) for seed in (0, 1))
    xs = np.random.default_rng(1).normal(size=(70, 6))
    assert agree(cell(xs), mlstm_cell(cell, xs))
    assert not agree(cell(xs), mlstm_cell(other, xs))


def test_input_gates_beyond_the_range_of_exp_do_not_overflow():
    cell = cell_of(layer())
    gate = type(cell.igate)(cell.igate.weight, np.full(2, 500.0, np.float32))
    xs = np.random.default_rng(1).normal(size=(40, 6))
    assert np.all(np.isfinite(MLSTM(**{**vars(cell), "igate": gate})(xs)))


def test_shapes_that_do_not_fit_are_refused():
    cell = cell_of(layer())
    with pytest.raises(uh.UnderhoodError, match="proj_up with 24 rows"):
        MLSTM(**{**vars(cell), "proj_up": cell.proj_down})
