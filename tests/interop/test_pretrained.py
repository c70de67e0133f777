"""Layers of checkpoint folders that transformers itself wrote, whole and sharded; and folders that are broken."""

import copy
import inspect
import json

import numpy as np
import pytest
import torch
import transformers

from tests.tolerance import error
from underhood.architectures.griffin.cell import Griffin
from underhood.architectures.mamba.cell import Mamba
from underhood.core.errors import UnderhoodError
from underhood.interop.checkpoints import INDEX, from_pretrained
from underhood.interop.torch import from_module

FLOAT32 = 2e-5
unchecked = inspect.unwrap(from_pretrained)  # as users have it; here, jaxtyping refuses arguments of other types


def mamba():
    config = transformers.MambaConfig(hidden_size=12, state_size=4, num_hidden_layers=3, vocab_size=20, expand=2)
    return transformers.MambaForCausalLM(config)


def recurrent_gemma():
    config = transformers.RecurrentGemmaConfig(
        hidden_size=16, lru_width=16, num_attention_heads=2, num_hidden_layers=3, vocab_size=20, intermediate_size=24
    )
    return transformers.RecurrentGemmaForCausalLM(config)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Name → (model, folder), with random weights instead of the constant ones that a new model has."""
    torch.manual_seed(0)
    found = {}
    for make in (mamba, recurrent_gemma):
        model = make()
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(0.1 * torch.randn_like(weight))
        folder = tmp_path_factory.mktemp(make.__name__)
        model.save_pretrained(folder)
        found[make.__name__] = model.eval(), folder
    return found


def layer_of(name, model, layer):
    return model.backbone.layers[layer].mixer if name == "mamba" else model.model.layers[layer].temporal_block


@pytest.mark.parametrize(("name", "kind", "layer"), [("mamba", Mamba, 2), ("recurrent_gemma", Griffin, 1)])
def test_a_layer_computes_what_it_does_in_the_model(saved, name, kind, layer):
    model, folder = saved[name]
    cell = from_pretrained(folder, layer=layer)
    assert isinstance(cell, kind)
    mixer = layer_of(name, model, layer)
    xs = np.random.default_rng(0).normal(size=(7, cell.d)).astype(np.float32)
    inputs = torch.from_numpy(xs)[None]
    with torch.no_grad():
        given = (inputs,) if name == "mamba" else (inputs, torch.arange(7)[None], None)
        ys = mixer(*given, **({} if name == "mamba" else {"use_cache": False}))
    ys = ys if name == "mamba" else ys[0]
    assert error(cell(xs), ys[0].numpy()) <= FLOAT32
    other = from_pretrained(folder, layer=0)
    assert error(other(xs), ys[0].numpy()) > 1e-2  # negative control: another layer is another function


def test_shards_and_bfloat16_are_read(saved, tmp_path):
    model, folder = saved["mamba"]
    model.save_pretrained(tmp_path / "shards", max_shard_size="6KB")
    assert (tmp_path / "shards" / INDEX).exists()
    one, other = from_pretrained(folder, 1), from_pretrained(tmp_path / "shards", 1)
    np.testing.assert_array_equal(one.x_proj, other.x_proj)
    copy.deepcopy(model).to(torch.bfloat16).save_pretrained(tmp_path / "half")
    half = from_pretrained(tmp_path / "half", 1)
    assert half.x_proj.dtype == np.float32
    assert 1e-5 < error(half.x_proj, one.x_proj) < 1e-2
    only = json.loads((tmp_path / "shards" / INDEX).read_text())["weight_map"]
    needed = {file for name, file in only.items() if name.startswith("backbone.layers.1.mixer.")}
    for file in (tmp_path / "shards").glob("*.safetensors"):
        if file.name not in needed:
            file.unlink()
    from_pretrained(tmp_path / "shards", 1)
    with pytest.raises(UnderhoodError, match=r"no such file: .*safetensors"):
        from_pretrained(tmp_path / "shards", 2)


def test_the_attention_layer_of_recurrent_gemma_is_refused(saved):
    with pytest.raises(UnderhoodError, match=r"layer 2 of .* is no RecurrentGemmaRecurrentBlock\. These are: 0, 1\."):
        from_pretrained(saved["recurrent_gemma"][1], 2)


def copied(saved, tmp_path, **changes):
    folder = tmp_path / "copy"
    folder.mkdir()
    for file in saved["mamba"][1].iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    return folder


@pytest.mark.parametrize("layer", [-1, 3, 10**9, True, 1.0, "1", None, np.arange(2)])
def test_layers_that_are_none_are_refused(saved, layer):
    with pytest.raises(UnderhoodError, match="expected a layer from 0 to 2; got"):
        unchecked(saved["mamba"][1], layer)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model_type": "llama"}, "no bridge for the model type 'llama'"),
        ({"model_type": None}, "no bridge for the model type None"),
        ({"model_type": []}, r"no bridge for the model type \[\]"),
        ({"model_type": {}}, "no bridge for the model type {}"),
        ({"num_hidden_layers": 0}, "has no layers: num_hidden_layers is 0"),
        ({"sliding_dance": 3}, "unknown field 'sliding_dance'"),
        ({"num_hidden_layers": "three"}, "whole number num_hidden_layers; got 'three'"),
        ({"hidden_size": 13}, "expected hidden_size 12, as layer 0 has it with the other settings; got 13"),
        ({"hidden_act": "mish"}, "expected the setting hidden_act to be 'silu' or 'swish'; got 'mish'"),
    ],
)
def test_configurations_that_mean_something_else_are_refused(saved, tmp_path, changes, says):
    with pytest.raises(UnderhoodError, match=says) as caught:
        from_pretrained(copied(saved, tmp_path, **changes))
    assert "\n" not in str(caught.value)


def test_broken_folders_are_refused_in_one_line(saved, tmp_path):
    folder = copied(saved, tmp_path)

    def says(text, path=folder):
        with pytest.raises(UnderhoodError, match=text) as caught:
            unchecked(path)
        assert "\n" not in str(caught.value)

    says("no such folder", tmp_path / "nowhere")
    says("no such folder", folder / "config.json")
    says("no such folder", "a" * 5000)
    says("expected the path of a checkpoint's folder; got NoneType", None)
    says("expected the path of a checkpoint's folder; got int", 3)
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    says("no whole safetensors file")
    (folder / "model.safetensors").unlink()
    says("no model.safetensors and no model.safetensors.index.json")
    (folder / INDEX).write_text(json.dumps({"weight_map": {"backbone.layers.0.mixer.D": "../elsewhere.safetensors"}}))
    says("expected the name of a file beside it; got ../elsewhere")
    (folder / INDEX).write_text(json.dumps({"weight_map": {"backbone.layers.0.mixer.D": "a" * 5000}}))
    says("expected the name of a file beside it; got aaaa")
    (folder / INDEX).write_text(json.dumps({"weight_map": {"backbone.embeddings.weight": "a.safetensors"}}))
    says("no layer of .* is a MambaMixer: no tensor backbone.layers.0.mixer.A_log")
    (folder / INDEX).write_text(json.dumps({"weight_map": ["D"]}))
    says("expected a weight_map")
    (folder / "config.json").write_text("{not json")
    says("not JSON")
    (folder / "config.json").write_text("[]")
    says("expected a JSON object; got list")
    (folder / "config.json").unlink()
    says("no such file: .*config.json")


def test_tensors_of_another_shape_are_refused(saved, tmp_path):
    from safetensors.numpy import load_file, save_file

    folder = copied(saved, tmp_path)
    tensors = load_file(folder / "model.safetensors")
    for name, wrong in {"D": np.ones(3), "A_log": np.ones(5), "dt_proj.bias": np.ones((2, 2))}.items():
        changed = {**tensors, f"backbone.layers.0.mixer.{name}": wrong.astype(np.float32)}
        save_file(changed, folder / "model.safetensors")
        with pytest.raises(UnderhoodError, match="shape"):
            from_pretrained(folder)


def test_it_is_what_the_module_itself_gives(saved):
    model, folder = saved["mamba"]
    one, other = from_pretrained(folder, np.int64(2)), from_module(model.backbone.layers[2].mixer)
    np.testing.assert_array_equal(one.a_log, other.a_log)
