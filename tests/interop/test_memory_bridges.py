"""Mamba-2, Gated DeltaNet and mLSTM to the public classes and back; layers of checkpoints that transformers wrote."""

import dataclasses
import json

import equinox as eqx
import jax
import numpy as np
import pytest
import torch
import transformers

import underhood as uh
from tests.tolerance import error
from underhood.architectures.deltanet.cell import GatedDeltaNet
from underhood.architectures.mamba2.cell import Mamba2
from underhood.architectures.mlstm.cell import MLSTM
from underhood.core.model import as_dtype
from underhood.interop.bridges import bridge_of
from underhood.interop.checkpoints import from_pretrained
from underhood.interop.torch import from_module, to_module
from underhood.layers.convolution import Convolution
from underhood.layers.projection import Projection

FLOAT32 = 2e-5
KEY = jax.random.key(0)


def with_bias(cell, *names):
    """The cell with biases in these projections."""
    random = np.random.default_rng(0)
    parts = {name: getattr(cell, name) for name in names}
    changed = {name: dataclasses.replace(p, bias=np.float32(random.normal(size=p.rows))) for name, p in parts.items()}
    return dataclasses.replace(cell, **changed)


def mamba2(head_dim=3):
    """12 channels are twice the width of 6; 8 are no multiple of it."""
    cell = Mamba2.random(d=6, heads=4, head_dim=head_dim, state_size=5, key=KEY)
    return dataclasses.replace(cell, least_step=0.01, most_step=0.5)


def deltanet():
    return GatedDeltaNet.random(d=6, heads=2, d_key=3, d_value=5, key=KEY)


def mlstm():
    return MLSTM.random(d=6, heads=2, head_dim=4, blocks=4, key=KEY)


CELLS = {
    "mamba2": mamba2,
    "mamba2, odd width": lambda: mamba2(head_dim=2),
    "mamba2, biases": lambda: with_bias(mamba2(), "in_proj", "out_proj"),
    "gated deltanet": deltanet,
    "mlstm": mlstm,
    "mlstm, biases": lambda: with_bias(mlstm(), "proj_up", "q_proj", "k_proj", "v_proj", "proj_down"),
}


@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_there_and_back(name, dtype):
    cell = as_dtype(CELLS[name](), dtype)
    module = to_module(cell)
    assert eqx.tree_equal(cell, from_module(module))
    assert set(bridge_of(cell).write(cell)[1]) == set(module.state_dict())


@pytest.mark.parametrize("name", ["mamba2, odd width", "gated deltanet", "mlstm, biases"])
def test_the_module_computes_what_the_cell_does(name):
    cell, xs = CELLS[name](), np.random.default_rng(0).normal(size=(9, 6)).astype(np.float32)
    with torch.no_grad():
        ys = to_module(cell)(torch.from_numpy(xs)[None])[0].numpy()
    assert error(cell(xs), ys) <= FLOAT32
    assert error(cell(xs[::-1]), ys) > 1e-2


def test_one_bias_becomes_all_of_them():
    cell = with_bias(mlstm(), "proj_down")
    module = to_module(cell)
    assert torch.all(module.q_proj.bias == 0)
    xs = np.random.default_rng(0).normal(size=(5, 6)).astype(np.float32)
    assert error(from_module(module)(xs), cell(xs)) <= 1e-6


def test_a_convolution_of_width_1_is_widened_for_xlstm():
    cell = dataclasses.replace(mlstm(), conv1d=Convolution.off(8, 1))
    cell, xs = as_dtype(cell, np.float32), np.random.default_rng(0).normal(size=(5, 6)).astype(np.float32)
    with torch.no_grad():
        ys = to_module(cell)(torch.from_numpy(xs)[None])[0].numpy()
    assert error(cell(xs), ys) <= FLOAT32


def test_what_the_public_class_cannot_hold_is_refused():
    with pytest.raises(uh.UnderhoodError, match="as many outputs as inputs"):
        cell = mamba2()
        to_module(dataclasses.replace(cell, out_proj=Projection(cell.out_proj.weight[:3])))
    with pytest.raises(uh.UnderhoodError, match=r"the public layer has no out_proj\.bias"):
        to_module(with_bias(deltanet(), "out_proj"))
    with pytest.raises(uh.UnderhoodError, match="as many blocks"):
        wide = MLSTM.random(d=6, heads=2, head_dim=4, blocks=2, key=KEY).q_proj
        to_module(dataclasses.replace(mlstm(), q_proj=wide))


def mamba2_model():
    return transformers.Mamba2ForCausalLM(
        transformers.Mamba2Config(
            hidden_size=12, state_size=4, num_heads=6, head_dim=4, n_groups=2, num_hidden_layers=2, vocab_size=20
        )
    )


def qwen3_next_model():
    return transformers.Qwen3NextForCausalLM(
        transformers.Qwen3NextConfig(
            hidden_size=12, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=3,
            linear_value_head_dim=5, num_hidden_layers=2, layer_types=["linear_attention", "full_attention"],
            vocab_size=20, num_experts=2, num_experts_per_tok=1, moe_intermediate_size=4, head_dim=4,
            shared_expert_intermediate_size=4, intermediate_size=8, num_attention_heads=2, num_key_value_heads=1,
        )
    )  # fmt: skip


MODELS = {"mamba2": mamba2_model, "qwen3_next": qwen3_next_model}
MIXERS = {"mamba2": lambda m: m.backbone.layers[0].mixer, "qwen3_next": lambda m: m.model.layers[0].linear_attn}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Name → (mixer, folder), its weights moved at random."""
    torch.manual_seed(0)
    found = {}
    for name, make in MODELS.items():
        model, folder = make(), tmp_path_factory.mktemp(name)
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(0.1 * torch.randn_like(weight))
        model.save_pretrained(folder)
        found[name] = MIXERS[name](model).eval(), folder
    return found


@pytest.mark.parametrize("name", MODELS)
def test_a_layer_of_a_checkpoint_is_the_models(saved, name):
    mixer, folder = saved[name]
    cell = from_pretrained(folder, layer=0)
    assert isinstance(cell, {"mamba2": Mamba2, "qwen3_next": GatedDeltaNet}[name])
    assert eqx.tree_equal(cell, from_module(mixer))
    xs = np.random.default_rng(0).normal(size=(7, 12)).astype(np.float32)
    with torch.no_grad():
        ys = mixer(torch.from_numpy(xs)[None])[0].numpy()
    assert error(cell(xs), ys) <= FLOAT32


def test_the_attention_layer_of_qwen3_next_is_refused(saved):
    with pytest.raises(uh.UnderhoodError, match=r"layer 1 of .* is no Qwen3NextGatedDeltaNet\. These are: 0\."):
        from_pretrained(saved["qwen3_next"][1], layer=1)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"hidden_act": "gelu"}, "expected the setting hidden_act to be 'silu' or 'swish'; got 'gelu'"),
        ({"n_groups": 5}, "expected groups that divide 6 heads; got 5"),
        ({"n_groups": "two"}, "expected a whole number n_groups from 1 on; got 'two'"),
        ({"time_step_limit": ["a", "b"]}, "expected two numbers time_step_limit"),
        ({"time_step_limit": 3}, "expected two numbers time_step_limit"),
        ({"layer_norm_epsilon": -1}, "expected a positive number layer_norm_epsilon; got -1"),
        ({"a_new_field": 1}, "unknown field 'a_new_field'"),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused(saved, tmp_path, change, says):
    _, folder = saved["mamba2"]
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
    (tmp_path / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    with pytest.raises(uh.UnderhoodError) as caught:
        from_pretrained(tmp_path)
    assert says in str(caught.value)
