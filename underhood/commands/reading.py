"""What the commands on language models share: opening a folder, a meter, and maps of all layers."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from underhood.commands.output import DONE, announce, note, print_json, print_table
from underhood.core.errors import UnderhoodError

EVERY = 10.0  # seconds between two lines of a log
SMALL = 3_000_000  # parameters up to which the heads are studied without being asked


def opened(folder: Path) -> Any:
    """The model, and a line on its size."""
    from underhood.language.checkpoint import open_model

    model = open_model(folder)
    note(f"underhood: {model}")
    return model


@contextlib.contextmanager
def meter(what: str) -> Iterator[Callable[[int, int], None]]:
    """A line on stderr now and then: how much is done, and how long the rest will take."""
    began = told = time.monotonic()

    def watch(done: int, of: int) -> None:
        nonlocal told
        now = time.monotonic()
        if now - told < EVERY and not (told == began and now - began > 2):
            return
        told = now
        left = (now - began) / max(done, 1) * (of - done)
        sys.stderr.write(f"{what}: {done:,} of {of:,}, {left:.0f} s left\n")

    yield watch


def attend_text(command: Any) -> int:
    """`underhood attend FOLDER --text …`: the maps of one layer or of all, as a page, a picture or an archive."""
    from underhood.core.atomic import write_atomically
    from underhood.core.memory import readable
    from underhood.core.outputs import require_outputs
    from underhood.pages.attend import SUFFIXES, archive, suffix_of

    suffix = suffix_of(command.out)
    given = {"--input": command.input, "--seed": command.seed, "--length": command.length, "--tokens": command.tokens}
    for flag, value in given.items():
        if value is not None:
            raise UnderhoodError(f"expected --text, or {flag}, not both")
    require_outputs((command.out, SUFFIXES[suffix]), inputs=(), force=command.force)
    model = opened(command.network)
    reading = model.read(command.text)
    layers = [index for index in range(model.layers) if model.mixer(index) is not None]
    if command.layer is not None:
        model.mixer(command.layer)
        layers = [command.layer]
    if suffix != ".html" and len(layers) > 1:
        raise UnderhoodError(f"expected --layer for {suffix}", remedy="Use --layer 0, or write a page (.html).")
    length = len(reading)
    announce(f"{len(layers)} maps of {length:,} tokens, {readable(8 * len(layers) * length * length)}")
    maps: dict[int, Any] = {}
    with meter("maps") as watch:
        for done, layer in enumerate(layers):
            maps[layer] = reading.map(layer, reduce=command.reduce if command.reduce != "none" else "norm")
            watch(done + 1, len(layers))
    if suffix == ".html":
        from underhood.pages.reading import attend_page

        heads = None
        if command.heads or model.parameters <= SMALL:
            with meter("heads") as watch:
                heads = model.heads(command.text, watch=watch)
        content = attend_page(reading.tokens, maps, name=model.name, what=repr(model), heads=heads).encode()
    elif suffix == ".npz":
        content = archive(maps[layers[0]], reading.tokens)
    else:
        from underhood.pages.map_figure import draw_map

        content = draw_map(maps[layers[0]], reading.tokens, f"{model.name}, layer {layers[0]}")
    write_atomically(command.out, content)
    return _told(command, model, reading, maps)


def _told(command: Any, model: Any, reading: Any, maps: dict[int, Any]) -> int:
    payload = {
        "kind": {str(layer): found.kind for layer, found in maps.items()},
        "completeness": max(float(found.completeness) for found in maps.values()),
        "tokens": reading.tokens,
        "layers": list(maps),
        "loss": reading.loss,
        "next": [{"word": word, "probability": share} for word, share in reading.likely()],
        "out": str(command.out),
    }
    if command.json:
        print_json(payload)
        return DONE
    kinds = ", ".join(dict.fromkeys(payload["kind"].values()))
    likely = ", ".join(f"{one['word']!r} {one['probability']:.0%}" for one in payload["next"])
    rows = {"kinds": kinds, "completeness": payload["completeness"], "tokens": len(reading), "layers": len(maps)}
    print_table("attention in a text", {**rows, "nats a token": reading.loss, "next": likely, "out": str(command.out)})
    return DONE
