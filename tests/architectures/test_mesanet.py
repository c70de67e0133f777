"""MesaNet: the equations in NumPy. Its public layer needs a GPU's compiler."""

import jax
import numpy as np
import pytest

import underhood as uh
from tests.architectures.references import transcribes
from tests.tolerance import agree
from underhood.architectures.mesanet.cell import MesaNet


@transcribes("mesanet-cell")
def mesanet_cell(cell, xs):
    """Eq. 5 to 9 of arXiv 2506.05233: the normal equations of each step, solved."""
    w_q, w_k, w_v, w_o = (np.asarray(p.weight) for p in (cell.q_proj, cell.k_proj, cell.v_proj, cell.o_proj))
    kernels = [np.asarray(part.weight) for part in (cell.q_conv1d, cell.k_conv1d)]
    ridge = np.log1p(np.exp(np.asarray(cell.lambda_params))) + cell.lambda_lower_bound
    heads, weight = cell.a_proj.weight.shape[0], np.asarray(cell.o_norm.weight)
    d_k, d_v = len(w_q) // heads, len(w_v) // heads
    h, g = np.zeros((heads, d_k, d_k)), np.zeros((heads, d_k, d_v))
    windows, ys = [np.zeros((kernel.shape[1], len(w_q))) for kernel in kernels], []
    for x in xs:
        windows = [np.vstack([past[1:], w @ x]) for past, w in zip(windows, (w_q, w_k), strict=True)]
        mixed = [np.sum(past.T * kernel, axis=1) for past, kernel in zip(windows, kernels, strict=True)]
        q, k = ((one / (1 + np.exp(-one))).reshape(heads, d_k) for one in mixed)
        logits = (np.asarray(part.weight) @ x + np.asarray(part.bias) for part in (cell.a_proj, cell.b_proj))
        gamma, beta = (1 / (1 + np.exp(-one)) for one in logits)
        out = []
        for head in range(heads):
            q_head, k_head = (one[head] / np.sqrt(np.sum(one[head] ** 2) + 1e-6) for one in (q, k))
            v_head = (w_v @ x).reshape(heads, d_v)[head]
            h[head] = gamma[head] * h[head] + beta[head] * np.outer(k_head, k_head)
            g[head] = gamma[head] * g[head] + beta[head] * np.outer(k_head, v_head)
            read = g[head].T @ np.linalg.solve(h[head] + np.diag(ridge.reshape(heads, d_k)[head]), q_head)
            out.extend(weight * read / np.sqrt(np.mean(read**2) + cell.o_norm.eps))
        ys.append(w_o @ out)
    return np.array(ys)


def random_cell(seed=0):
    with jax.enable_x64(True):
        return MesaNet.random(d=4, heads=2, d_key=3, d_value=5, key=jax.random.key(seed), dtype=float)


def test_it_is_the_equations():
    cell, xs = random_cell(), np.random.default_rng(1).normal(size=(70, 4))
    assert agree(cell(xs), mesanet_cell(cell, xs))
    assert not agree(cell(xs), mesanet_cell(random_cell(seed=1), xs))


def test_shapes_that_do_not_fit_are_refused():
    cell = random_cell()
    with pytest.raises(uh.UnderhoodError, match=r"lambda_params of shape \(keys\) with keys = 6 .*; got shape \(2,\)"):
        MesaNet(**{**vars(cell), "lambda_params": np.ones(2)})
    with pytest.raises(uh.UnderhoodError, match="expected a positive lambda_lower_bound"):
        MesaNet(**{**vars(cell), "lambda_lower_bound": -1.0})
