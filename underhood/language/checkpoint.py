"""`uh.open_model(folder)`: a language model out of config.json, safetensors and tokenizer.json; no code of it runs."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from underhood.core.errors import UnderhoodError
from underhood.core.memory import require_memory
from underhood.interop.checkpoints import checkpoint_folder, open_tensors, places_of, read_named
from underhood.interop.config import CONFIG, json_object
from underhood.interop.tensors import as_float
from underhood.language.family import read_network
from underhood.language.model import LanguageModel
from underhood.language.tokens import read_tokenizer
from underhood.language.weights import Weights

WIDE = 4  # bytes of a number, whatever the file has


def open_model(folder: str | os.PathLike[str]) -> LanguageModel:
    """A whole language model out of a local folder in transformers' format: tokenizer, blocks and head.

    Read are config.json, tokenizer.json and the safetensors files, in shards or not; float16 and bfloat16 widen to
    float32. No code of the folder runs, and neither torch nor transformers is needed.

    **Arguments:**

    - `folder`: The folder that `save_pretrained` wrote, or that a model hub's page lists.

    **Returns:**

    A `LanguageModel`: `model.read("text")` runs it, and shows what happened.
    """
    path = checkpoint_folder(folder)
    config = json_object(path / CONFIG)
    places = places_of(path)
    _require_room(path, places)

    def read(names: Iterable[str]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for file in dict.fromkeys(places[name] for name in names):
            found |= read_named(path / file, {name: name for name in names if places[name] == file})
        return {name: as_float(name, tensor) for name, tensor in found.items()}

    network = read_network(config, Weights(places, read), str(path / CONFIG))
    tokenizer = read_tokenizer(path, network.vocabulary)
    return LanguageModel(network, tokenizer, name=path.resolve().name, family=config["model_type"])


def _require_room(path: Path, places: dict[str, str]) -> None:
    """All numbers as float32, before any is read."""
    numbers = 0
    for file in dict.fromkeys(places.values()):
        if not (path / file).is_file():
            raise UnderhoodError(f"no such file: {path / file}", remedy="A shard is missing: take all files.")
        with open_tensors(path / file) as opened:
            for name in list(opened.keys()):
                numbers += int(np.prod(opened.get_slice(name).get_shape(), dtype=np.int64))
    require_memory(WIDE * numbers, f"the weights of {path}", "Take a smaller model.")
