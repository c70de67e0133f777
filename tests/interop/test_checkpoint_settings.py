"""config.json against the tensors: every size and flag that disagrees is refused, and what is absent is the default."""

import dataclasses
import json

import equinox as eqx
import jax
import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import save_file

import underhood as uh
from underhood.architectures.deltanet.cell import GatedDeltaNet
from underhood.architectures.griffin.cell import Griffin
from underhood.architectures.mamba.cell import Mamba
from underhood.architectures.mamba2.cell import Mamba2
from underhood.interop.bridges import BRIDGES, bridge_of
from underhood.interop.checkpoints import from_pretrained
from underhood.interop.torch import from_module

KEY = jax.random.key(0)
CELLS = {
    "mamba": Mamba.random(d=6, channels=12, d_out=6, state=5, key=KEY),
    "mamba2": dataclasses.replace(Mamba2.random(d=6, heads=4, head_dim=3, state_size=6, key=KEY), groups=2),
    "recurrent_gemma": Griffin.random(d=6, channels=12, d_out=6, blocks=3, key=KEY),
    "qwen3_next": dataclasses.replace(GatedDeltaNet.random(d=6, heads=4, d_key=4, d_value=5, key=KEY), key_heads=2),
}
CONFIGS = {
    "mamba": transformers.MambaConfig,
    "mamba2": transformers.Mamba2Config,
    "recurrent_gemma": transformers.RecurrentGemmaConfig,
    "qwen3_next": transformers.Qwen3NextConfig,
}
SIZES = [
    (name, size)
    for name, cell in CELLS.items()
    for size, value in bridge_of(cell).write(cell)[0].items()
    if isinstance(value, int)
]


def written(name, folder, tensors=(), **changes):
    """A checkpoint of one layer, with some tensors and settings changed; `...` takes one out."""
    bridge = bridge_of(CELLS[name])
    settings, weights = bridge.write(CELLS[name])
    config = {**settings, "model_type": name, "num_hidden_layers": 1, **changes}
    weights = {**weights, **dict(tensors)}
    prefix = bridge.prefix.format(layer=0)
    weights = {prefix + key: np.ascontiguousarray(one) for key, one in weights.items() if one is not ...}
    (folder / "config.json").write_text(json.dumps({key: one for key, one in config.items() if one is not ...}))
    save_file(weights, folder / "model.safetensors")
    return folder


def refusal(folder):
    with pytest.raises(uh.UnderhoodError) as caught:
        from_pretrained(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", CELLS)
def test_what_agrees_is_read(name, tmp_path):
    assert eqx.tree_equal(from_pretrained(written(name, tmp_path)), CELLS[name])


@pytest.mark.parametrize("name", CELLS)
def test_the_defaults_are_the_public_classes(name):
    bridge = next(one for one in BRIDGES.values() if one.model_type == name)
    public = CONFIGS[name]()
    assert bridge.defaults.keys() == bridge.write(CELLS[name])[0].keys()
    for setting, value in bridge.defaults.items():
        value = value(bridge.defaults) if callable(value) else value
        assert value == getattr(public, setting), setting


@pytest.mark.parametrize(("name", "size"), SIZES)
def test_a_size_that_disagrees_is_refused(name, size, tmp_path):
    value = bridge_of(CELLS[name]).write(CELLS[name])[0][size]
    for other in (not value,) if isinstance(value, bool) else (1, 2 * value, value + 1, str(value), None):
        if other == value or (other is None and size in ("lru_width", "intermediate_size", "time_step_rank")):
            continue  # right, or derived
        assert "expected" in refusal(written(name, tmp_path, **{size: other})), other


@pytest.mark.parametrize("name", CELLS)
def test_an_absent_size_is_the_default(name, tmp_path):
    says = refusal(written(name, tmp_path, hidden_size=...))
    assert "expected hidden_size 6" in says and f"got {CONFIGS[name]().hidden_size}" in says


def test_derived_sizes(tmp_path):
    derived = {"intermediate_size": None, "time_step_rank": "auto"}
    assert eqx.tree_equal(from_pretrained(written("mamba", tmp_path, **derived, expand=2)), CELLS["mamba"])
    for expand in (3, "2", None, [2], True, 1e308, float("nan")):
        assert "expand" in refusal(written("mamba", tmp_path, expand=expand))
        assert "expand" in refusal(written("mamba2", tmp_path, expand=expand))
    assert "expected lru_width 12" in refusal(written("recurrent_gemma", tmp_path, lru_width=None))
    assert "whole number hidden_size" in refusal(written("mamba", tmp_path, **derived, hidden_size=[6]))


@pytest.mark.parametrize(
    ("name", "kernel", "out"),
    [
        ("mamba", "conv1d.weight", "out_proj.weight"),
        ("mamba2", "conv1d.weight", "out_proj.weight"),
        ("qwen3_next", "conv1d.weight", "out_proj.weight"),
        ("recurrent_gemma", "conv_1d.weight", "linear_out.weight"),
    ],
)
def test_tensors_of_another_size_are_refused(name, kernel, out, tmp_path):
    weights = bridge_of(CELLS[name]).write(CELLS[name])[1]
    says = refusal(written(name, tmp_path, {kernel: weights[kernel][..., 1:]}))
    assert " 3, as layer 0 has it with the other settings; got 4" in says
    cut = {out: weights[out][1:]}
    cut |= {"linear_out.bias": weights["linear_out.bias"][1:]} if name == "recurrent_gemma" else {}
    assert "expected as many outputs as inputs" in refusal(written(name, tmp_path, cut))


@pytest.mark.parametrize("name", ["mamba", "mamba2"])
def test_biases_are_there_as_the_flags_say(name, tmp_path):
    assert "use_conv_bias False" in refusal(written(name, tmp_path, {"conv1d.bias": ...}))
    weights = bridge_of(CELLS[name]).write(CELLS[name])[1]
    both = {f"{part}.bias": np.zeros(len(weights[f"{part}.weight"]), np.float32) for part in ("in_proj", "out_proj")}
    from_pretrained(written(name, tmp_path, both, use_bias=True))
    assert "use_bias True" in refusal(written(name, tmp_path, both))
    for part in both:
        assert "bias" in refusal(written(name, tmp_path, {**both, part: ...}, use_bias=True))


@pytest.mark.parametrize(
    "limit", [["nan", "nan"], [float("nan")] * 2, [2, 1], "01", ["0", "1"], [0], [0, 1, 2], [True, 2], None, {"0": 1}]
)
def test_limits_that_are_none(limit, tmp_path):
    assert "expected two numbers time_step_limit" in refusal(written("mamba2", tmp_path, time_step_limit=limit))


def test_limits(tmp_path):
    for most in (float("inf"), {"__float__": "Infinity"}, 10**400):
        assert from_pretrained(written("mamba2", tmp_path, time_step_limit=[0.5, most])).most_step is None
    assert from_pretrained(written("mamba2", tmp_path, time_step_limit=[0, 2])).most_step == 2


SMALL = {"num_hidden_layers": 2, "vocab_size": 20, "hidden_size": 8}
EXPERTS = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 4, "shared_expert_intermediate_size": 4}
BASES = {
    "mamba": lambda: transformers.MambaModel(transformers.MambaConfig(**SMALL, state_size=3)),
    "mamba2": lambda: transformers.Mamba2Model(
        transformers.Mamba2Config(**SMALL, num_heads=4, head_dim=4, n_groups=2, state_size=3)
    ),
    "recurrent_gemma": lambda: transformers.RecurrentGemmaModel(
        transformers.RecurrentGemmaConfig(**SMALL, num_attention_heads=2, intermediate_size=8)
    ),
    "qwen3_next": lambda: transformers.Qwen3NextModel(
        transformers.Qwen3NextConfig(
            **SMALL, **EXPERTS, intermediate_size=8, num_attention_heads=2, num_key_value_heads=1, head_dim=4,
            linear_num_key_heads=1, linear_num_value_heads=2, linear_key_head_dim=4, linear_value_head_dim=4,
        )
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BASES)
def test_a_base_model_has_the_same_layers(name, tmp_path):
    torch.manual_seed(0)
    model = BASES[name]()
    model.save_pretrained(tmp_path)
    part = bridge_of(CELLS[name]).prefix.split(".")[-2]
    wanted = from_module(getattr(model.layers[1], part))
    assert eqx.tree_equal(from_pretrained(tmp_path, 1), wanted)
