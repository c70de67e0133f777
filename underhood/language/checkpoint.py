"""`uh.open_model(folder)`: a language model out of config.json, safetensors and tokenizer.json; no code of it runs."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from underhood.core.errors import UnderhoodError
from underhood.core.memory import require_memory
from underhood.interop.pretrained import CONFIG, _folder, _json_object, _opened, _places, _read
from underhood.interop.state_dict import as_float
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
    path = _folder(folder)
    config = _json_object(path / CONFIG)
    places = _places(path)
    _require_room(path, places)

    def read(names: Iterable[str]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for file in dict.fromkeys(places[name] for name in names):
            found |= _read(path / file, {name: name for name in names if places[name] == file})
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
        with _opened(path / file) as opened:
            for name in list(opened.keys()):
                numbers += int(np.prod(opened.get_slice(name).get_shape(), dtype=np.int64))
    require_memory(WIDE * numbers, f"the weights of {path}", "Take a smaller model.")
