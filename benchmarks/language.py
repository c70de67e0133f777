"""What `why` and `heads` say of the byte-level models, and what maps and `why` cost at the shapes of 130m models.

    python -m benchmarks.language models [NAME …]     100 places of held-out text each; heads on repeated tokens
    python -m benchmarks.language shapes [mamba|mamba2]

Each writes its part of results/bench/language.json.
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import underhood as uh
from underhood.language.byte_models import MODELS, PRINTABLE, corpus

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results" / "bench" / "language.json"
PLACES, CONTEXT = 100, 64
SHAPES: dict[str, dict[str, Any]] = {
    "mamba": {"hidden_size": 768, "num_hidden_layers": 24, "state_size": 16, "vocab_size": 50280},
    "mamba2": {
        "hidden_size": 768, "num_hidden_layers": 24, "state_size": 128, "num_heads": 24, "head_dim": 64,
        "n_groups": 1, "vocab_size": 50288, "tie_word_embeddings": True,
    },
}  # fmt: skip


def of_model(name: str, folder: Path) -> dict[str, Any]:
    """How often the five largest tokens matter more than five random and the five most recent ones."""
    model, (_, held_out) = uh.open_model(folder / name), corpus()
    random = np.random.default_rng(0)
    recent, drawn, errors, gaps, cancels = [], [], [], [], []
    for start in random.integers(0, len(held_out) - CONTEXT - 1, PLACES):
        piece = held_out[start : start + CONTEXT + 1]
        why = model.read_tokens(piece[:-1]).why(int(piece[-1]))
        recent.append(why.deletion.largest > why.deletion.recent)
        drawn.append(why.deletion.largest > why.deletion.random)
        errors.append(abs(float(why.contributions.sum()) - why.logit))
        gaps.append(why.completeness)
        cancels.append(why.cancellation)
    heads = model.heads(tokens=tuple(PRINTABLE.tolist()))
    best = heads.best("induction", 1)[0]
    return {
        "places": PLACES,
        "beats_recent": float(np.mean(recent)),
        "beats_random": float(np.mean(drawn)),
        "largest_error": max(errors),
        "completeness": float(np.median(gaps)),
        "cancellation": float(np.median(cancels)),
        "held_out_loss": json.loads((folder / name / "training.json").read_text())["held_out_loss"],
        "repeated_loss": heads.loss,
        "new_loss": heads.first_loss,
        "induction_agreement": heads.agreement,
        "best_head": f"{best.layer}.{best.head}",
        "best_induction": best.induction,
        "best_cost": best.cost,
    }


def of_shape(name: str, length: int = 512, long: int = 2048) -> dict[str, Any]:
    """Seconds and gigabytes of all maps and of `why`, at random weights, and of one map of a long text."""
    import transformers

    from underhood.language.byte_models import byte_tokenizer

    config = {"mamba": transformers.MambaConfig, "mamba2": transformers.Mamba2Config}[name](**SHAPES[name])
    public = {"mamba": transformers.MambaForCausalLM, "mamba2": transformers.Mamba2ForCausalLM}[name](config)
    with tempfile.TemporaryDirectory() as folder:
        public.save_pretrained(folder)
        del public
        (Path(folder) / "tokenizer.json").write_text(json.dumps(byte_tokenizer()))
        model = uh.open_model(folder)
    tokens, base = np.random.default_rng(0).integers(0, 50000, long), _peak()
    reading = model.read_tokens(tokens[:length])

    def timed(work: Any) -> tuple[float, float]:
        began = time.perf_counter()
        work()
        return time.perf_counter() - began, _peak()

    why = timed(lambda: reading.why(11))
    maps = timed(lambda: [reading.map(layer) for layer in range(model.layers)])
    far = timed(lambda: model.read_tokens(tokens).map(3))
    names = ("why_seconds", "why_peak_gb", "maps_seconds", "maps_peak_gb", "long_seconds", "long_peak_gb")
    return dict(zip(names, (*why, *maps, *far), strict=True)) | {"length": length, "long": long, "base_gb": base}


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def keep(part: str, name: str, row: dict[str, Any]) -> None:
    """Into the results, beside what is there."""
    told = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    told.setdefault(part, {})[name] = row
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(told, indent=1, sort_keys=True) + "\n")
    print(part, name, json.dumps(row))


if __name__ == "__main__":
    part, names = sys.argv[1], sys.argv[2:]
    for name in names or (MODELS if part == "models" else SHAPES):
        row = of_model(name, ROOT / "examples" / "byte-models") if part == "models" else of_shape(name)
        keep(part, name, row)
