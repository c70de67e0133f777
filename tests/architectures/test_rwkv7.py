"""RWKV-7: the equations in NumPy. Its public layers need a GPU's compiler."""

import jax
import numpy as np
import pytest

import underhood as uh
from tests.architectures.references import transcribes
from tests.tolerance import agree
from underhood.architectures.rwkv7.cell import RWKV7


@transcribes("rwkv7-cell")
def rwkv7_cell(cell, xs):
    """Eq. 1 to 17 of arXiv 2503.14456 for the first layer, with S as values × keys as the paper has it."""
    w_down, w_up, w_0 = (np.asarray(w) for w in (cell.w_lora.down, cell.w_lora.up, cell.w_lora.bias))
    a_down, a_up, a_0 = (np.asarray(w) for w in (cell.a_lora.down, cell.a_lora.up, cell.a_lora.bias))
    g_down, g_up = np.asarray(cell.g_lora.down), np.asarray(cell.g_lora.up)
    r_k, k_k, k_a = (np.asarray(w) for w in (cell.r_k, cell.k_k, cell.k_a))
    heads, d_k = r_k.shape
    d_v = len(cell.v_proj.weight) // heads
    states, before, ys = np.zeros((heads, d_v, d_k)), np.zeros(xs.shape[1]), []
    for x in xs:
        x_r, x_w, x_k, x_v, x_a, x_g = (
            x + np.asarray(getattr(cell, f"x_{name}")) * (before - x) for name in ("r", "w", "k", "v", "a", "g")
        )
        before = x
        r, k, v = (np.asarray(p.weight) @ y for p, y in ((cell.r_proj, x_r), (cell.k_proj, x_k), (cell.v_proj, x_v)))
        w = np.exp(-np.exp(-0.5) * sigmoid(w_up @ np.tanh(w_down @ x_w) + w_0))
        a, g = sigmoid(a_up @ (a_down @ x_a) + a_0), g_up @ sigmoid(g_down @ x_g)
        kappa, written = (k * k_k).reshape(heads, d_k), (k * (1 + (a - 1) * k_a)).reshape(heads, d_k)
        out = np.zeros((heads, d_v))
        for head in range(heads):
            keys, v_head = slice(head * d_k, (head + 1) * d_k), v.reshape(heads, d_v)[head]
            direction = kappa[head] / max(np.linalg.norm(kappa[head]), 1e-12)
            change = np.diag(w[keys]) - np.outer(direction, a[keys] * direction)
            states[head] = states[head] @ change + np.outer(v_head, written[head])
            read = states[head] @ r[keys]
            normed = (read - read.mean()) / np.sqrt(read.var() + cell.g_norm.eps)
            values = slice(head * d_v, (head + 1) * d_v)
            normed = np.asarray(cell.g_norm.weight)[values] * normed + np.asarray(cell.g_norm.bias)[values]
            out[head] = normed + np.sum(r[keys] * r_k[head] * written[head]) * v_head
        ys.append(np.asarray(cell.o_proj.weight) @ (out.ravel() * g))
    return np.array(ys)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def random_cell(seed=0):
    with jax.enable_x64(True):
        return RWKV7.random(d=4, heads=2, head_dim=3, key=jax.random.key(seed), dtype=float)


def test_it_is_the_equations():
    cell, xs = random_cell(), np.random.default_rng(1).normal(size=(70, 4))
    assert agree(cell(xs), rwkv7_cell(cell, xs))
    assert not agree(cell(xs), rwkv7_cell(random_cell(seed=1), xs))


def test_keys_of_length_0_have_a_gradient():
    """κ is 0 there, and the derivative of |κ| undefined."""
    cell = random_cell()
    with jax.enable_x64(True):
        still = RWKV7(**{**vars(cell), "k_k": np.zeros(6)})
        gradient = jax.grad(lambda xs: still(xs).sum())(np.random.default_rng(1).normal(size=(5, 4)))
    assert np.all(np.isfinite(gradient))


def test_shapes_that_do_not_fit_are_refused():
    cell = random_cell()
    with pytest.raises(uh.UnderhoodError, match=r"x_g of shape \(d\) with d = 4"):
        RWKV7(**{**vars(cell), "x_g": np.ones(3)})
    with pytest.raises(uh.UnderhoodError, match="expected a_lora with 6 rows"):
        RWKV7(**{**vars(cell), "a_lora": type(cell.a_lora)(np.ones((2, 4)), np.ones((5, 2)))})
