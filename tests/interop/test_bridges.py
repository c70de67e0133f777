"""Bridges to public torch classes: there and back, what they refuse, and the probe on a public module."""

import dataclasses

import equinox as eqx
import jax
import numpy as np
import pytest
import torch

import underhood as uh
from tests.tolerance import error
from underhood.architectures.griffin.cell import Griffin
from underhood.architectures.mamba.cell import Mamba
from underhood.architectures.mingru.cell import MinGRU
from underhood.core.model import as_dtype
from underhood.interop.bridges import BRIDGES, bridge_of
from underhood.interop.torch import from_module, to_module
from underhood.layers.norm import Norm

CELLS = {
    "mamba-cell": lambda key: Mamba.random(d=6, channels=10, d_out=6, state=5, key=key),
    "griffin-cell": lambda key: Griffin.random(d=6, channels=12, d_out=6, blocks=3, key=key),
    "mingru-cell": lambda key: MinGRU.random(d=6, hidden=10, key=key),
}


def normed(key):
    """A Mamba with norms on Δ, B and C."""
    sizes = {"dt_norm": 1, "b_norm": 5, "c_norm": 5}
    norms = {name: Norm(np.ones(size, np.float32), eps=1e-6) for name, size in sizes.items()}
    return dataclasses.replace(Mamba.random(d=6, channels=12, d_out=6, state=5, key=key), **norms)


@pytest.mark.parametrize("public", [one.public for one in BRIDGES.values() if one.kind in CELLS])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_there_and_back(public, dtype):
    make = normed if public.endswith(("FalconMambaMixer", "JambaMambaMixer")) else CELLS[BRIDGES[public].kind]
    cell = as_dtype(make(jax.random.key(0)), dtype)
    module = to_module(cell, public)
    assert f"{type(module).__module__}.{type(module).__qualname__}" == public
    back = from_module(module)
    assert eqx.tree_equal(cell, back)
    _, tensors = bridge_of(cell, public).write(cell)
    assert set(tensors) == set(module.state_dict())


def test_a_module_without_a_bridge_is_refused():
    with pytest.raises(uh.UnderhoodError, match=r"no bridge for the torch class .*\.Linear\. Known:"):
        from_module(torch.nn.Linear(2, 2))
    lstm = uh.make_model("lstm", 2, hidden=3)
    with pytest.raises(uh.UnderhoodError, match="no public torch class for the kind lstm-cell"):
        to_module(lstm)


def test_what_the_public_class_cannot_hold_is_refused():
    key = jax.random.key(0)
    with pytest.raises(uh.UnderhoodError, match="as many outputs as inputs"):
        to_module(Mamba.random(d=6, channels=10, d_out=5, key=key))
    with pytest.raises(uh.UnderhoodError, match="candidate positive; got 'linear'"):
        to_module(MinGRU(np.ones((4, 2)), None, "linear"))


def test_a_missing_and_an_unknown_tensor_are_named():
    cell = CELLS["mamba-cell"](jax.random.key(0))
    bridge = bridge_of(cell)
    _, tensors = bridge.write(cell)
    with pytest.raises(uh.UnderhoodError, match="no tensor A_log among"):
        bridge.read({name: tensor for name, tensor in tensors.items() if name != "A_log"}, {})
    with pytest.raises(uh.UnderhoodError, match="unknown tensor norm among"):
        bridge.read({**tensors, "norm": np.ones(3)}, {})


@pytest.mark.parametrize("target", ["mamba", "griffin"])
def test_a_compiled_stack_runs_in_the_public_modules(target):
    attention = uh.random_attention(3, seed=1)
    compiled = uh.compile(attention, to=target, horizon=20, dtype="float32")
    module = to_module(compiled.model)
    xs = np.random.default_rng(0).uniform(-4, 4, (20, 3)).astype(np.float32)
    with torch.no_grad():
        ys = module(torch.from_numpy(xs))
        batch = module(torch.from_numpy(np.stack([xs, xs[::-1].copy()])))
    assert error(ys.numpy(), attention(xs)) <= (1e-5 if target == "mamba" else 1e-2)
    assert error(batch[0].numpy(), ys.numpy()) <= (1e-5 if target == "mamba" else 1e-2)


def test_the_probe_finds_attention_in_the_public_mamba():
    """W_KᵀW_Q out of transformers' own MambaMixer, which computes in float32."""
    attention = uh.random_attention(3, seed=1)
    module = to_module(uh.compile(attention, to="mamba", horizon=50).model)
    found = uh.probe(module, d=3)
    assert found.verdict == "linear-attention", found.reason
    assert found.attention is not None
    wanted, got = (
        np.einsum("hia,hjb,hjc->iabc", *(np.asarray(w) for w in (one.w_value, one.w_key, one.w_query)))
        for one in (attention, found.attention)
    )
    wanted, got = (tensor + tensor.transpose(0, 2, 1, 3) for tensor in (wanted, got))
    assert error(got, wanted) <= 1e-6
