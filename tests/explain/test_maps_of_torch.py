"""Maps of public torch modules at random weights: what the steps give adds up to the module's own outputs."""

import numpy as np
import pytest
import torch
from transformers import Mamba2Config, MambaConfig
from transformers.models.mamba.modeling_mamba import MambaMixer
from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer
from xlstm import mLSTMLayer, mLSTMLayerConfig

import underhood as uh
from tests.architectures.modules import randomised
from tests.tolerance import error
from underhood.interop.bridges import bridge_of

D, LENGTH = 16, 40
FLOAT32 = 1e-5


def mamba():
    return MambaMixer(MambaConfig(hidden_size=D, state_size=4, num_hidden_layers=1, vocab_size=1), layer_idx=0)


def mamba2():
    sizes = {"hidden_size": D, "num_heads": 4, "head_dim": 8, "n_groups": 2, "state_size": 5, "expand": 2}
    return Mamba2Mixer(Mamba2Config(**sizes, num_hidden_layers=1, vocab_size=1), layer_idx=0)


def mlstm():
    return mLSTMLayer(mLSTMLayerConfig(embedding_dim=D, num_heads=2, context_length=64, qkv_proj_blocksize=4))


@pytest.mark.parametrize("make", [mamba, mamba2, mlstm])
def test_a_public_module(make):
    module = randomised(make, scale=0.1)
    xs = np.random.default_rng(0).normal(size=(LENGTH, D)).astype(np.float32)
    cell = uh.from_torch(module)
    found = uh.attention_map(cell, xs)
    with torch.no_grad():
        outputs = bridge_of(cell).run(module, torch.from_numpy(xs)[None])[0].numpy()
    told = np.stack([found.contributions(t).sum(axis=0) for t in range(LENGTH)])
    assert found.kind == "exact"
    assert found.completeness <= FLOAT32
    assert error(told, outputs) <= FLOAT32


def test_a_module_needs_its_bridge():
    with pytest.raises(uh.UnderhoodError, match=r"got MambaMixer\. Use uh.from_torch"):
        uh.attention_map(mamba(), np.ones((3, D)))
