"""Checkpoint folders in transformers' format, whole and sharded, and what can be wrong with them."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

from torture import mutate

LAYERS = 2
CONFIG, WHOLE, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"

Files = dict[str, bytes]


def sound() -> dict[str, Files]:
    """Folders of two layers, one for each model type that can be read; every second one in shards."""
    import numpy as np
    import safetensors.numpy

    import underhood as uh
    from underhood.interop.bridges import BRIDGES

    found: dict[str, Files] = {}
    for bridge in BRIDGES.values():
        if not bridge.model_types:
            continue
        model = uh.make_model(bridge.kind.removesuffix("-cell"), 2, hidden=4, layers=LAYERS)
        weights, config = {}, {"model_type": bridge.model_types[0], "num_hidden_layers": LAYERS}
        try:
            written = [bridge.write(cell) for cell in model.cells]
        except uh.UnderhoodError:  # a class with an option that models made by name don't have
            continue
        for layer, (settings, tensors) in enumerate(written):
            config |= {name: value for name, value in settings.items() if name in bridge.defaults}
            prefix = bridge.prefixes[0].format(layer=layer)
            weights |= {prefix + name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
        files = {CONFIG: json.dumps(config).encode()}
        if len(found) % 2 == 0:
            files[WHOLE] = safetensors.numpy.save(weights)
        else:
            shards = {
                "1.safetensors": dict(list(weights.items())[::2]),
                "2.safetensors": dict(list(weights.items())[1::2]),
            }
            files |= {file: safetensors.numpy.save(part) for file, part in shards.items()}
            places = {name: file for file, part in shards.items() for name in part}
            files[INDEX] = json.dumps({"weight_map": places}).encode()
        found[bridge.model_types[0]] = files
    return found


def damaged(files: Files, random: Random) -> tuple[Files, int, str]:
    """(files, layer to ask for, what was done)."""
    files, layer = dict(files), random.randrange(LAYERS)
    ways = ["bytes", "config", "fields", "missing", "layer"] + ["index"] * (INDEX in files)
    way = random.choice(ways)
    if way == "bytes":
        name = random.choice([file for file in files if file.endswith(".safetensors")])
        files[name] = mutate.damaged_safetensors(files[name], random)
    elif way == "config":
        files[CONFIG] = mutate.damaged_json_text(files[CONFIG].decode(), random)
    elif way == "fields":
        change = random.choice(
            [
                {"model_type": random.choice(["llama", [], {}])},
                {"dance": 3},
                {"hidden_act": "mish"},
                {"num_hidden_layers": random.choice([10**9, 0])},
                {random.choice(_sizes(files)): random.choice([3, "4", [], None, 10**400])},
            ]
        )
        files[CONFIG] = json.dumps({**json.loads(files[CONFIG]), **change}).encode()
    elif way == "missing":
        del files[random.choice(list(files))]
    elif way == "layer":
        layer = random.choice([-1, LAYERS, 10**9])
    elif random.random() < 0.5:
        files[INDEX] = mutate.damaged_json_text(files[INDEX].decode(), random)
    else:
        places = json.loads(files[INDEX])["weight_map"]
        places[random.choice(list(places))] = random.choice(
            ["../1.safetensors", "/etc/passwd", "3.safetensors", "", ".", "a" * 5000]
        )
        files[INDEX] = json.dumps({"weight_map": places}).encode()
    return files, layer, way


def _sizes(files: Files) -> list[str]:
    """The settings of config.json that must fit the tensors."""
    return [name for name, value in json.loads(files[CONFIG]).items() if isinstance(value, int)]


def written(files: Files, folder: Path) -> Path:
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder
