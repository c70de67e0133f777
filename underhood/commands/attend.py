"""`underhood attend`: which earlier steps each output of a network comes from."""

from __future__ import annotations

import dataclasses
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from underhood.commands.output import ANSWER_IS_NO, DONE, note, print_json, print_table, require_seed
from underhood.core.errors import UnderhoodError

if TYPE_CHECKING:
    import numpy as np

    from underhood.explain.maps import AttentionMap

MOST = 5  # steps that the answer names


@dataclasses.dataclass(frozen=True)
class Attend:
    """Write the attention map of a network on a sequence: which earlier steps each output comes from, and how much of
    the outputs that explains.
    """

    network: Annotated[Path, tyro.conf.Positional]
    """Network or attention to run (safetensors), or a checkpoint folder with --text."""
    out: Path
    """File to write: a page (.html), a picture (.png) or arrays (.npz)."""
    text: str | None = None
    """Text that the language model in the folder reads."""
    heads: bool = False
    """Study the heads of a large language model, too; of small ones it is done without being asked."""
    input: Path | None = None
    """Sequence: .npy of shape (t, d), or .csv with a line for each time step; random unless given."""
    seed: int | None = None
    """Seed of the random sequence; 0 unless given."""
    length: int | None = None
    """Steps of the random sequence; 64 unless given."""
    layer: int | None = None
    """Layer of a stack, counted from 0; all of it unless given."""
    tokens: Path | None = None
    """Names of the steps: a text file with a line for each."""
    kind: Literal["exact", "frozen", "jacobian", "deletion", "shapley", "integrated"] | None = None
    """What a contribution is (docs/attention-maps.md); the architecture's own unless given."""
    baseline: str = "zero"
    """What replaces a step in a deletion: zero, mean, or a sequence to draw from (.npy or .csv)."""
    check: bool = False
    """Measure whether the map can be believed; exit with 1 if it cannot."""
    reduce: Literal["norm", "sum", "none"] = "norm"
    """Size of each contribution, sum of its coordinates with their sign, or a map for each head or channel."""
    force: bool = False
    """Write over an input, or over a file of another kind."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> int:
        from underhood.core.files import load
        from underhood.core.outputs import require_outputs
        from underhood.core.sequences import read_tokens
        from underhood.explain.faithfulness import faithfulness
        from underhood.explain.maps import CancellationWarning
        from underhood.pages.attend import SUFFIXES, attend, require_tokens, suffix_of

        if self.text is not None:
            from underhood.commands.reading import attend_text

            return attend_text(self)
        kind = SUFFIXES[suffix_of(self.out)]
        is_file = self.baseline not in ("zero", "mean")
        inputs = (self.network, self.input, self.tokens, self.baseline if is_file else None)
        require_outputs((self.out, kind), inputs=inputs, force=self.force)
        network = load(self.network)
        xs = self._sequence(network.d)
        tokens = None if self.tokens is None else require_tokens(read_tokens(self.tokens), len(xs))
        baseline = self._baseline(network.d)
        options = {"layer": self.layer, "baseline": baseline}
        settings = {"kind": self.kind, "reduce": self.reduce, "tokens": tokens, "name": self.network.name}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CancellationWarning)
            found = attend(network, xs, self.out, **options, **settings, force=self.force)
        if found.warning is not None:
            note(f"warning: {found.warning}")
        trust = faithfulness(found, network, xs, **options) if self.check else None
        payload = {
            "kind": found.kind,
            "completeness": float(found.completeness),
            "cancellation": float(found.cancellation),
            "faithfulness": None if trust is None else trust.as_data(),
            "length": len(xs),
            "layer": self.layer,
            "reduce": self.reduce,
            "maps": len(found.names),
            "largest": _largest(found, tokens),
            "out": str(self.out),
        }
        answer = DONE if trust is None or trust.passed else ANSWER_IS_NO
        if self.json:
            print_json(payload)
            return answer
        print_table("attention map", {**payload, "largest": _told(payload["largest"]), "faithfulness": trust})
        if self.out.suffix.lower() == ".html":
            note(f"{self.out}: open it in a browser; it works offline")
        return answer

    def _baseline(self, d: int) -> Any:
        from underhood.core.sequences import read_sequence

        if self.baseline in ("zero", "mean"):
            return self.baseline
        if not self.baseline.lower().endswith((".npy", ".csv")):
            raise UnderhoodError("expected a baseline of zero, mean or a file .npy or .csv", repr(self.baseline))
        return read_sequence(self.baseline, d)

    def _sequence(self, d: int) -> np.ndarray:
        import numpy as np

        from underhood.core.memory import require_memory
        from underhood.core.sequences import read_sequence

        if self.input is not None:
            if self.seed is not None or self.length is not None:
                raise UnderhoodError("expected --input, or --seed and --length, not both")
            return read_sequence(self.input, d)
        seed, length = self.seed or 0, 64 if self.length is None else self.length
        require_seed(seed)
        if length < 1:
            raise UnderhoodError("expected a length of 1 or more", length, "Use --length 64.")
        require_memory(8 * length * (length + d), f"a map of {length} steps", "Use a shorter --length.")
        return np.random.default_rng(seed).normal(size=(length, d))


def _largest(found: AttentionMap, tokens: list[str] | None) -> dict[str, Any]:
    """The row with the most weight, and the steps that it comes from, the largest first; steps count from 0."""
    import numpy as np

    with np.errstate(over="ignore"):
        which, t = divmod(int(np.abs(found.weights).sum(axis=2).argmax()), found.weights.shape[1])
    row = found.weights[which, t, : t + 1]

    def step(s: int) -> dict[str, Any]:
        return {"step": s} | ({} if tokens is None else {"token": tokens[s]})

    steps = np.argsort(-np.abs(row), kind="stable")[:MOST].tolist()
    attends_to = [{**step(s), "weight": float(row[s])} for s in steps]
    return {"map": found.names[which], **step(t), "attends_to": attends_to}


def _told(largest: dict[str, Any]) -> str:
    steps = [f"{one.get('token', one['step'])} ({one['weight']:.3g})" for one in largest["attends_to"]]
    return f"step {largest['step']} comes from {', '.join(steps)}"
