"""State dicts of public layers without their configuration: read where the tensors tell all, refused elsewhere."""

import dataclasses

import equinox as eqx
import jax
import numpy as np
import pytest
import safetensors.torch

import underhood as uh
from underhood.architectures.deltanet.cell import GatedDeltaNet
from underhood.architectures.griffin.cell import Griffin
from underhood.architectures.mamba.cell import Mamba
from underhood.architectures.mamba2.cell import Mamba2
from underhood.architectures.mingru.cell import MinGRU
from underhood.architectures.mlstm.cell import MLSTM
from underhood.core.files import to_tensors
from underhood.interop.bridges import bridge_of
from underhood.interop.read import import_model
from underhood.interop.torch import export, to_module
from underhood.layers.projection import Projection

KEY = jax.random.key(0)
MAMBA2 = Mamba2.random(d=6, heads=4, head_dim=3, state_size=5, key=KEY)
CELLS = {
    "mamba": Mamba.random(d=6, channels=12, d_out=6, state=5, key=KEY),
    "mingru": MinGRU.random(d=6, hidden=10, key=KEY),
    "mlstm": MLSTM.random(d=6, heads=2, head_dim=4, blocks=4, key=KEY),
    "mamba2": MAMBA2,
    "mamba2, biases": dataclasses.replace(
        MAMBA2,
        in_proj=Projection(MAMBA2.in_proj.weight, np.ones(MAMBA2.in_proj.rows, np.float32)),
        out_proj=Projection(MAMBA2.out_proj.weight, np.ones(6, np.float32)),
    ),
    "gated-deltanet": GatedDeltaNet.random(d=6, heads=2, d_key=3, d_value=5, key=KEY),
    "griffin": dataclasses.replace(Griffin.random(d=6, channels=12, d_out=6, blocks=3, key=KEY), activation="gelu"),
}
UNTOLD = {"mamba2": "n_groups", "gated-deltanet": "linear_num_key_heads", "griffin": "hidden_activation"}


@pytest.mark.parametrize("name", CELLS)
def test_a_raw_state_dict(name, tmp_path):
    cell, path, kind = CELLS[name], tmp_path / "w.safetensors", name.partition(",")[0]
    safetensors.torch.save_file(to_module(cell).state_dict(), path)
    if kind not in UNTOLD:
        assert eqx.tree_equal(import_model(path, kind), cell)
        return
    with pytest.raises(uh.UnderhoodError, match=f"these tensors do not tell {UNTOLD[kind]}") as caught:
        import_model(path, kind)
    assert "uh.from_torch" in caught.value.remedy and "`layer`" in caught.value.remedy


@pytest.mark.parametrize("name", CELLS)
def test_our_export_tells_the_rest_and_the_kind(name, tmp_path):
    export(CELLS[name], tmp_path / "w.safetensors")
    assert eqx.tree_equal(import_model(tmp_path / "w.safetensors"), CELLS[name])


@pytest.mark.parametrize(("name", "setting"), [("mamba2", "groups"), ("gated-deltanet", "key_heads"), ("mamba", None)])
def test_tensors_under_our_own_names_are_ours(name, setting, tmp_path):
    """Some names are the public ones, too; the kernel's axes tell, and heads and groups must be told here as well."""
    cell = CELLS[name]
    tensors = {key: np.ascontiguousarray(one) for key, one in to_tensors(cell)[1].items()}
    safetensors.numpy.save_file(tensors, tmp_path / "w.safetensors")
    if setting is None:
        assert eqx.tree_equal(import_model(tmp_path / "w.safetensors", name), cell)
        return
    assert tensors.keys() == bridge_of(cell).write(cell)[1].keys()
    with pytest.raises(uh.UnderhoodError, match=f"these tensors do not tell {setting}"):
        import_model(tmp_path / "w.safetensors", name)


@pytest.mark.parametrize("name", ["lstm", "gru", "lru-in-skip", "gated-rnn", "rwkv7", "attention"])
def test_an_export_says_its_kind(name, tmp_path):
    model = uh.random_attention(3) if name == "attention" else uh.make_model(name, 3, hidden=4)
    export(model, tmp_path / "w.safetensors")
    assert eqx.tree_equal(import_model(tmp_path / "w.safetensors"), model)


@pytest.mark.parametrize("ours", ["{}", "[]", "3", '{"kind": []}', '{"cells": [3]}', '{"cells": {}}', '{"kind": "x"}'])
def test_a_header_that_says_nothing_leaves_the_kind_to_be_told(ours, tmp_path):
    header = {"underhood": f'{{"class": [], "ours": {ours}}}'}
    safetensors.numpy.save_file({"u": np.ones(3, np.float32)}, tmp_path / "w", metadata=header)
    with pytest.raises(uh.UnderhoodError, match=r"does not say what its weights are\. Use `kind`, one of"):
        import_model(tmp_path / "w")
