"""`uh.from_pretrained(folder, layer=3)`: one mixer of a local checkpoint folder in transformers' format.

Read are config.json and those tensors of the safetensors files that belong to the layer. No code of the folder runs,
nothing is unpickled, and torch and transformers are not needed.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import safetensors

from underhood.errors import UnderhoodError
from underhood.interop.bridges import BRIDGES, Bridge
from underhood.interop.state_dict import Tensors, as_float
from underhood.storage.atomic import read_bytes

CONFIG, WHOLE, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
# What config.json has for every model, in this version of transformers and in earlier ones.
GENERAL = """
model_type architectures dtype torch_dtype transformers_version _name_or_path _attn_implementation attribute_map
auto_map name_or_path use_cache tie_word_embeddings is_encoder_decoder is_decoder add_cross_attention
chunk_size_feed_forward cross_attention_hidden_size tie_encoder_decoder output_hidden_states output_attentions
return_dict return_dict_in_generate torchscript use_bfloat16 pruned_heads id2label label2id problem_type
finetuning_task task_specific_params tokenizer_class prefix bos_token_id pad_token_id eos_token_id sep_token_id
decoder_start_token_id max_length min_length do_sample early_stopping num_beams num_beam_groups temperature top_k
top_p typical_p repetition_penalty length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids
diversity_penalty num_return_sequences output_scores suppress_tokens begin_suppress_tokens forced_bos_token_id
forced_eos_token_id remove_invalid_values exponential_decay_length_penalty tf_legacy_loss
"""


def from_pretrained(folder: str | os.PathLike[str], layer: int = 0) -> Any:
    """The mixer of one layer of a checkpoint, as a cell of ours, in float32 (or float64, if it is stored so).

    `folder`: a local checkpoint in transformers' format, config.json and safetensors, in shards or not; no code in it
    is run. `layer`: which layer, from 0 on.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise UnderhoodError(f"no such folder: {folder}", remedy="Give a checkpoint's folder, not a file or a name.")
    config = _json_object(folder / CONFIG)
    bridge = _bridge(folder / CONFIG, config)
    layers = config.get("num_hidden_layers", config.get("n_layer"))
    if not isinstance(layers, int) or isinstance(layers, bool):
        raise UnderhoodError(f"{folder / CONFIG}: expected a whole number num_hidden_layers", repr(layers))
    if not isinstance(layer, int) or not 0 <= layer < layers:
        raise UnderhoodError(f"expected a layer from 0 to {layers - 1}", layer)
    tensors = _layer_tensors(folder, bridge.prefix.format(layer=layer))
    try:
        cell = bridge.read(tensors, config)
    except UnderhoodError as error:
        what = f"layer {layer} of {folder} is no {bridge.public.rsplit('.', 1)[1]}: {error.rule}"
        raise UnderhoodError(what, error.got, error.remedy) from None
    if config.get("hidden_size", cell.d) != cell.d:
        raise UnderhoodError(
            f"{folder / CONFIG}: expected hidden_size {cell.d}, as layer {layer} has it", config["hidden_size"]
        )
    return cell


def _bridge(path: Path, config: dict[str, Any]) -> Bridge:
    name = config.get("model_type")
    known = {bridge.model_type: bridge for bridge in BRIDGES.values() if bridge.model_type}
    if name not in known:
        raise UnderhoodError(f"{path}: no bridge for the model type {name!r}", remedy=f"Known: {', '.join(known)}.")
    bridge = known[name]
    unknown = sorted(config.keys() - bridge.fields - set(GENERAL.split()))
    if unknown:
        # A field that is not known may change what the layer computes.
        remedy = "Take it out if it does not change what the layer computes."
        raise UnderhoodError(f"{path}: unknown field {unknown[0]!r} for the model type {name}", remedy=remedy)
    return bridge


def _json_object(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise UnderhoodError(f"no such file: {path}")
    try:
        value = json.loads(read_bytes(path))
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
        raise UnderhoodError(f"{path}: not JSON: {error}") from None
    if not isinstance(value, dict):
        raise UnderhoodError(f"{path}: expected a JSON object", type(value).__name__)
    return value


def _layer_tensors(folder: Path, prefix: str) -> Tensors:
    """The tensors under the prefix, each read from its own shard, without the prefix."""
    if (folder / WHOLE).is_file():
        shards = {WHOLE: None}
    elif (folder / INDEX).is_file():
        shards = _shards(folder / INDEX, prefix)
    else:
        raise UnderhoodError(f"no {WHOLE} and no {INDEX} in {folder}", remedy="Save the model with safetensors.")
    found: Tensors = {}
    for shard, wanted in shards.items():
        found |= _read(folder / shard, prefix, wanted)
    if not found:
        raise UnderhoodError(f"no tensors under {prefix!r} in {folder}")
    return {name.removeprefix(prefix): as_float(name, tensor) for name, tensor in found.items()}


def _shards(index: Path, prefix: str) -> dict[str, list[str] | None]:
    """Shard → the names under the prefix that it has."""
    files = _json_object(index).get("weight_map")
    if not isinstance(files, dict) or not all(isinstance(file, str) for file in files.values()):
        raise UnderhoodError(f"{index}: expected a weight_map from tensors to files", type(files).__name__)
    shards: dict[str, list[str] | None] = {}
    for name, file in files.items():
        if name.startswith(prefix):
            if Path(file).name != file:  # a path could lead out of the folder
                raise UnderhoodError(f"{index}: expected the name of a file beside it", file)
            shards.setdefault(file, []).append(name)  # pyright: ignore[reportOptionalMemberAccess]
    return shards


def _read(path: Path, prefix: str, wanted: list[str] | None) -> dict[str, np.ndarray]:
    if not path.is_file():
        raise UnderhoodError(f"no such file: {path}", remedy=f"{INDEX} names it.")
    try:
        with safetensors.safe_open(path, framework="np") as file:
            names = [name for name in file.keys() if name.startswith(prefix)] if wanted is None else wanted  # noqa: SIM118
            return {name: file.get_tensor(name) for name in names}
    except (safetensors.SafetensorError, OSError, ValueError, TypeError) as error:
        raise UnderhoodError(f"{path}: no whole safetensors file with the layer's tensors: {error}") from None
