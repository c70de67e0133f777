"""Gated linear attention: the equations in NumPy. Its public layer needs a GPU's compiler."""

import jax
import numpy as np
import pytest

import underhood as uh
from tests.architectures.references import transcribes
from tests.tolerance import agree
from underhood.architectures.gla.cell import GLA


@transcribes("gla-cell")
def gla_cell(cell, xs):
    """Section 4.4 of arXiv 2312.06635 with the layer's 1/√d_k, one step and head at a time."""
    q_proj, k_proj, v_proj, g_proj, o_proj = (
        np.asarray(part.weight) for part in (cell.q_proj, cell.k_proj, cell.v_proj, cell.g_proj, cell.o_proj)
    )
    down, up, bias = (np.asarray(w) for w in (cell.gk_proj.down, cell.gk_proj.up, cell.gk_proj.bias))
    heads, weight = cell.heads, np.asarray(cell.g_norm.weight)
    d_k, d_v = len(q_proj) // heads, len(v_proj) // heads
    states, ys = np.zeros((heads, d_k, d_v)), []
    for x in xs:
        alpha = (1 / (1 + np.exp(-(up @ (down @ x) + bias)))) ** (1 / cell.gate_logit_normalizer)
        out = []
        for head in range(heads):
            keys, values = slice(head * d_k, (head + 1) * d_k), slice(head * d_v, (head + 1) * d_v)
            states[head] = alpha[keys, None] * states[head] + np.outer((k_proj @ x)[keys], (v_proj @ x)[values])
            read = (q_proj @ x)[keys] @ states[head] / np.sqrt(d_k)
            gate = (g_proj @ x)[values]
            out.extend(weight * read / np.sqrt(np.mean(read**2) + cell.g_norm.eps) * gate / (1 + np.exp(-gate)))
        ys.append(o_proj @ out)
    return np.array(ys)


def random_cell(seed=0):
    with jax.enable_x64(True):
        return GLA.random(d=4, heads=2, d_key=3, d_value=5, key=jax.random.key(seed), dtype=float)


def test_it_is_the_equations():
    cell, xs = random_cell(), np.random.default_rng(1).normal(size=(70, 4))
    assert agree(cell(xs), gla_cell(cell, xs))
    assert not agree(cell(xs), gla_cell(random_cell(seed=1), xs))


def test_shapes_that_do_not_fit_are_refused():
    cell = random_cell()
    with pytest.raises(uh.UnderhoodError, match="values = 10 as in v_proj, heads = 4"):
        GLA(**{**vars(cell), "heads": 4})
    with pytest.raises(uh.UnderhoodError, match=r"expected k_proj with 6 rows .*; got 10 rows"):
        GLA(**{**vars(cell), "k_proj": cell.v_proj})
