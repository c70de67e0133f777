"""Whole models in transformers' folders: logits, and each mixer's inputs and outputs, are those of transformers."""

import json

import numpy as np
import pytest
import safetensors.numpy
import transformers

import underhood as uh
from tests.language.public import FAMILIES, saved, watched
from tests.tolerance import error

FLOAT32 = 1e-4
LENGTH = 64

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = {}

    def folder(name):
        if name not in made:
            path = tmp_path_factory.mktemp(name)
            made[name] = saved(name, path), path
        return made[name]

    return folder


@pytest.mark.parametrize("name", FAMILIES)
def test_a_folder_computes_what_transformers_does(folders, name):
    public, folder = folders(name)
    tokens = np.random.default_rng(0).integers(0, 300, LENGTH)
    wanted, seen = watched(public, tokens)
    run = uh.open_model(folder).read_tokens(tokens)
    assert error(run.logits, wanted) <= FLOAT32
    for layer, (entered, given) in seen.items():
        assert error(run.inputs(layer), entered) <= FLOAT32, layer
        assert error(run.outputs(layer), given) <= FLOAT32, layer


@pytest.mark.parametrize("name", FAMILIES)
def test_a_changed_tensor_is_another_function(folders, name, tmp_path):
    """Negative control."""
    public, folder = folders(name)
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    matrices = sorted(key for key in tensors if ".layers.1." in key and tensors[key].ndim == 2)
    chosen = max(matrices, key=lambda key: tensors[key].size)
    tensors[chosen] = tensors[chosen] + 0.1
    safetensors.numpy.save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    for file in ("config.json", "tokenizer.json"):
        (tmp_path / file).write_bytes((folder / file).read_bytes())
    tokens = np.random.default_rng(0).integers(0, 300, LENGTH)
    wanted, _ = watched(public, tokens)
    assert error(uh.open_model(tmp_path).read_tokens(tokens).logits, wanted) > 10 * FLOAT32


@pytest.mark.parametrize("name", ["mamba", "qwen3_next"])
def test_shards_and_half_precision_are_read(folders, name, tmp_path):
    public, folder = folders(name)
    public.save_pretrained(tmp_path, max_shard_size="20KB")
    (tmp_path / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    assert not (tmp_path / "model.safetensors").exists()
    tokens = np.arange(20)
    whole, sharded = (uh.open_model(path).read_tokens(tokens).logits for path in (folder, tmp_path))
    np.testing.assert_array_equal(whole, sharded)


def test_the_config_that_codestral_mamba_was_published_with_opens(folders, tmp_path):
    """Fields of its config.json that transformers reads over, at the sizes of a test."""
    public, folder = folders("mamba2")
    published = {"norm_before_gate": True, "intermediate_size": 32, "time_step_init_scheme": "random"}
    published |= {"time_step_scale": 1.0, "torch_dtype": "bfloat16", "rms_norm": True, "residual_in_fp32": True}
    config = json.loads((folder / "config.json").read_text()) | published
    text = json.dumps({**config, "time_step_limit": [0.0, float("inf")]})
    assert "Infinity" in text
    (tmp_path / "config.json").write_text(text)
    for file in ("model.safetensors", "tokenizer.json"):
        (tmp_path / file).write_bytes((folder / file).read_bytes())
    tokens = np.arange(20)
    assert error(uh.open_model(tmp_path).read_tokens(tokens).logits, watched(public, tokens)[0]) <= FLOAT32
