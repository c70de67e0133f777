"""`uh.from_pretrained(folder, layer=3)`: one mixer of a local checkpoint folder in transformers' format.

Read are config.json and those tensors of the safetensors files that belong to the layer. No code of the folder runs,
nothing is unpickled, and torch and transformers are not needed.
"""

from __future__ import annotations

import contextlib
import json
import operator
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, SupportsIndex

import safetensors

from underhood.core.atomic import read_bytes, special_file
from underhood.core.errors import UnderhoodError
from underhood.interop.bridges import BRIDGES, Bridge
from underhood.interop.state_dict import Tensors, as_float

CONFIG, WHOLE, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
LONGEST_NAME = 200  # of a file
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


def from_pretrained(folder: str | os.PathLike[str], layer: SupportsIndex = 0) -> Any:
    """The mixer of one layer of a checkpoint, as a cell of ours, in float32 (or float64, if it is stored so).

    `folder`: a local checkpoint in transformers' format, config.json and safetensors, in shards or not; no code in it
    is run. `layer`: which layer, from 0 on.
    """
    folder = _folder(folder)
    config = _json_object(folder / CONFIG)
    bridge = _bridge(folder / CONFIG, config)
    number = _layer(layer, config.get("num_hidden_layers", config.get("n_layer")), folder)
    tensors = _layer_tensors(folder, bridge, number)
    try:
        settings = _settings(bridge, config)
        cell = bridge.read(tensors, settings)
        told, needed = bridge.write(cell)
    except UnderhoodError as error:
        what = f"layer {number} of {folder} is no {bridge.name}: {error.rule}"
        raise UnderhoodError(what, error.got, error.remedy) from None
    # What the tensors say, against config.json: sizes and flags, for other settings are config.json's own.
    for name, value in told.items():
        if isinstance(value, int) and (type(settings[name]), settings[name]) != (type(value), value):
            rule = f"{folder / CONFIG}: expected {name} {value}, as layer {number} has it with the other settings"
            remedy = "Take the config.json that was saved with these tensors."
            raise UnderhoodError(rule, repr(settings[name]), remedy)
    missing = sorted(needed.keys() - tensors.keys())
    if missing:
        raise UnderhoodError(f"layer {number} of {folder} is no {bridge.name}: no tensor {missing[0]}")
    return cell


def _folder(folder: Any) -> Path:
    try:
        path = Path(folder)
    except TypeError:
        raise UnderhoodError("expected the path of a checkpoint's folder", type(folder).__name__) from None
    if special_file(path) != "a folder":
        raise UnderhoodError(f"no such folder: {path}", remedy="Give a checkpoint's folder, not a file or a name.")
    return path


def _layer(layer: Any, layers: Any, folder: Path) -> int:
    if not isinstance(layers, int) or isinstance(layers, bool):
        raise UnderhoodError(f"{folder / CONFIG}: expected a whole number num_hidden_layers", repr(layers))
    if layers < 1:
        raise UnderhoodError(f"{folder} has no layers: num_hidden_layers is {layers}")
    try:
        number = -1 if isinstance(layer, bool) else operator.index(layer)
    except TypeError:
        number = -1
    if not 0 <= number < layers:
        raise UnderhoodError(f"expected a layer from 0 to {layers - 1}", repr(layer))
    return number


def _settings(bridge: Bridge, config: dict[str, Any]) -> dict[str, Any]:
    """config.json as the public class reads it: with its defaults, and its sizes that follow from others."""
    full = {**bridge.defaults, **config}
    for name, default in bridge.defaults.items():
        if callable(default) and config.get(name) in (None, "auto"):
            full[name] = default(full)
    return full


def _bridge(path: Path, config: dict[str, Any]) -> Bridge:
    name = config.get("model_type")
    known = {bridge.model_type: bridge for bridge in BRIDGES.values() if bridge.model_type}
    bridge = known.get(name) if isinstance(name, str) else None
    if bridge is None:
        raise UnderhoodError(f"{path}: no bridge for the model type {name!r}", remedy=f"Known: {', '.join(known)}.")
    unknown = sorted(config.keys() - bridge.fields - set(GENERAL.split()))
    if unknown:
        # A field that is not known may change what the layer computes.
        remedy = "Take it out if it does not change what the layer computes."
        raise UnderhoodError(f"{path}: unknown field {unknown[0]!r} for the model type {name}", remedy=remedy)
    return bridge


def _json_object(path: Path) -> dict[str, Any]:
    content = read_bytes(path)
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
        raise UnderhoodError(f"{path}: not JSON: {error}") from None
    if not isinstance(value, dict):
        raise UnderhoodError(f"{path}: expected a JSON object", type(value).__name__)
    return value


def _layer_tensors(folder: Path, bridge: Bridge, layer: int) -> Tensors:
    """The layer's tensors, each read from its own shard, under the names that the layer itself has for them."""
    places = _places(folder)
    # A base model (MambaModel) has no "backbone." before its layers.
    prefixes = bridge.prefix, bridge.prefix.partition(".")[2]
    layers = next(filter(None, (_by_layer(places, prefix) for prefix in prefixes)), {})
    names = layers.get(layer, {})
    if bridge.mark not in names:
        others = [number for number in sorted(layers) if bridge.mark in layers[number]]
        if not others:
            tensor = bridge.prefix.format(layer=layer) + bridge.mark
            raise UnderhoodError(f"no layer of {folder} is a {bridge.name}: no tensor {tensor}")
        remedy = f"These are: {', '.join(map(str, others[:8]))}{' and others' * (len(others) > 8)}."
        raise UnderhoodError(f"layer {layer} of {folder} is no {bridge.name}", remedy=remedy)
    found: Tensors = {}
    for file in dict.fromkeys(places[name] for name in names.values()):
        wanted = {short: name for short, name in names.items() if places[name] == file}
        found |= _read(folder / file, wanted)
    return {name: as_float(names[name], tensor) for name, tensor in found.items()}


def _by_layer(places: dict[str, str], prefix: str) -> dict[int, dict[str, str]]:
    """Layer → name within the layer → whole name, of the tensors under the prefix."""
    start, _, rest = prefix.partition("{layer}")
    pattern = re.compile(rf"{re.escape(start)}(0|[1-9][0-9]{{0,8}}){re.escape(rest)}(.+)")
    layers: dict[int, dict[str, str]] = {}
    for match in filter(None, map(pattern.fullmatch, places)):
        layers.setdefault(int(match[1]), {})[match[2]] = match[0]
    return layers


def _places(folder: Path) -> dict[str, str]:
    """Tensor → the file beside config.json that has it."""
    if _is_file(folder / WHOLE):
        with _opened(folder / WHOLE) as file:
            return dict.fromkeys(file.keys(), WHOLE)
    index = folder / INDEX
    if not _is_file(index):
        raise UnderhoodError(f"no {WHOLE} and no {INDEX} in {folder}", remedy="Save the model with safetensors.")
    places = _json_object(index).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(file, str) for file in places.values()):
        raise UnderhoodError(f"{index}: expected a weight_map from tensors to files", type(places).__name__)
    for file in places.values():
        if Path(file).name != file or len(file) > LONGEST_NAME:  # a path could lead out of the folder
            raise UnderhoodError(f"{index}: expected the name of a file beside it", file[:LONGEST_NAME])
    return places


def _read(path: Path, names: dict[str, str]) -> Tensors:
    if not _is_file(path):
        raise UnderhoodError(f"no such file: {path}", remedy=f"{INDEX} names it.")
    with _opened(path) as file:
        return {short: file.get_tensor(name) for short, name in names.items()}


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with safetensors.safe_open(path, framework="np") as file:
            yield file
    except (safetensors.SafetensorError, OSError, ValueError, TypeError) as error:
        raise UnderhoodError(f"{path}: no whole safetensors file with the layer's tensors: {error}") from None


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a folder that is closed to us
        return False
