"""How long trained networks of public packages remember: another past, and how soon the outputs forget it.

    python -m benchmarks.network_memory           writes results/bench/network_memory.json

Two sequences differ in their first 40 steps. `uh.patch` gives the first one the other's state after them; the change in
the outputs is followed, and said is after how many steps it is below a tenth and a hundredth of what it was at first.
`uh.difference` says which part of the state carries it. Tokens are letters of Python's own help texts; the speech
networks, whose inputs are features of sound, get numbers N(0, 1), so theirs is a property of the weights alone.
"""

from __future__ import annotations

import pydoc_data.topics
from typing import Any

import numpy as np

import underhood as uh
from benchmarks.measure import store
from benchmarks.networks import path_of
from underhood.core.model import as_dtype

BEFORE, AFTER, PAIRS = 40, 160, 8
NETWORKS = {
    "g2p, encoder": ("g2p", "enc_emb,enc"),
    "textgenrnn": ("textgenrnn", "embedding,rnn_1,rnn_2"),
    "silero-vad": ("silero-vad", ""),
    "Resemblyzer": ("resemblyzer", "lstm"),
    "nsnet2": ("nsnet2", ""),
}


def network(name: str) -> Any:
    path, part = NETWORKS[name]
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return as_dtype(uh.read(path_of(path), part=part), np.float64)


def sequences(model: Any, tokens: bool, seed: int) -> np.ndarray:
    """Two of them."""
    random, length = np.random.default_rng(seed), BEFORE + AFTER
    if not tokens:
        return random.normal(size=(2, length, model.d))
    text = "".join(one for one in " ".join(pydoc_data.topics.topics.values()).lower() if one.isalpha() or one == " ")
    starts = random.integers(0, len(text) - length, 2)
    rows = [[(ord(one) - ord("a")) % 26 + 3 if one.isalpha() else 1 for one in text[at : at + length]] for at in starts]
    return np.eye(model.d)[np.array(rows)]


def measured(name: str) -> dict[str, Any]:
    model, tokens = network(name), name in ("g2p, encoder", "textgenrnn")
    fades, parts = [], []
    for seed in range(PAIRS):
        one, other = sequences(model, tokens, seed)
        change = uh.patch(model, one, uh.states(model, other), at=BEFORE) - np.asarray(model(one))
        fades.append(np.sqrt(np.mean(change[BEFORE:] ** 2, axis=1)))
        parts.append(uh.difference(model, one, other, at=BEFORE).alone)
    fade = np.mean(fades, axis=0)

    def below(share: float) -> int | None:
        under = np.flatnonzero(fade < share * fade[0])
        return int(under[0]) if len(under) else None

    carried = {part: round(float(np.mean([one[part] for one in parts])), 3) for part in parts[0]}
    return {
        "name": name,
        "kind": model.kind,
        "d": model.d,
        "tenth": below(0.1),
        "hundredth": below(0.01),
        "parts": carried,
    }


def main() -> None:
    rows = [measured(name) for name in NETWORKS]
    for row in rows:
        print(row, flush=True)
    store("network_memory", rows)


if __name__ == "__main__":
    main()
