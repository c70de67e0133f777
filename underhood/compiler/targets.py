"""Table 3: which targets there are, how many layers each needs for which source, and why not fewer.

A construction, a `Way`, says what the source is written as and what function makes the network. Its file registers it:

    register_target("mine", attention={1: Way(to_mine, form=rank_revealed)}, why_not_fewer="…", source="Table 3")
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float

from underhood.algebra.key_values import KeyValueForm
from underhood.architectures.gated_rnn.cell import GatedRNN
from underhood.attention.linear import LinearAttention
from underhood.compiler.envelope import Envelope
from underhood.compiler.settings import SETTINGS
from underhood.core.errors import NotConstructible, UnderhoodError
from underhood.core.registry import Registry

Source = LinearAttention | GatedRNN

ATTENTION, GATED = "linear self-attention", "simplified gated RNN"  # the columns of Table 3

# order → largest error over largest output, in float64
ROUNDING_ONLY = {1: 1e-12}
LINEARISED = {1: 1e-7, 2: 1e-9, 3: 1e-10}


@dataclasses.dataclass(frozen=True)
class Lowered:
    """A network, in float64, how far its outputs may be from its source's, and how large these can be."""

    model: Any
    errors: Float[np.ndarray, " d_o"]
    output_bounds: Float[np.ndarray, " d_o"]

    @property
    def error_bound(self) -> float:
        """max |y_network − y_source| over all inputs and steps of the envelope."""
        return float(np.max(self.errors, initial=0.0))

    @property
    def relative_bound(self) -> float:
        """The same over the largest output possible."""
        return self.error_bound / (float(np.max(self.output_bounds, initial=0.0)) or 1.0)


Lowering = Callable[[Any, Envelope, int], Lowered]
"""(what the source is written as, envelope, order) → Lowered."""


def large_gating(source: LinearAttention) -> bool:
    """Products of memories with queries, as many as memories, each of which could read every neuron."""
    queries = source.heads * source.d_key
    products = source.d_out * queries
    return products * (products + queries) > SETTINGS.large


@dataclasses.dataclass(frozen=True)
class Way:
    """One construction of a target from one sort of source."""

    lower: Lowering
    """Makes the network."""
    form: Callable[[LinearAttention], KeyValueForm] | None = None
    """What an attention is written as before; None hands on the source itself."""
    gated: bool = False
    """Whether that form is then written as a gated RNN of Eq. 2."""
    second: Callable[[LinearAttention], KeyValueForm] | None = None
    """A form that is larger or further from the paper's, and rounds less: where the first comes near its limits."""
    refuses: Callable[[Any], str | None] = lambda source: None
    """Why this source has no such network, if so."""
    sparse: Lowering | None = None
    """The same network from the attention itself, with its large matrices kept as rules."""
    sparse_cost: str = ""
    """What the sparse network takes, in `COSTS`."""
    is_large: Callable[[LinearAttention], bool] = large_gating
    """Whether the source is kept sparse unless `compile` is told."""

    def takes_sparse(self, source: Source, sparse: bool | None) -> bool:
        """Whether matrices are kept as rules: as asked, or where dense ones would be large."""
        if self.sparse is None or not isinstance(source, LinearAttention):
            return False
        return self.is_large(source) if sparse is None else sparse


@dataclasses.dataclass(frozen=True)
class Target:
    """An architecture to compile to, and the constructions that lead there."""

    name: str
    """What the user types."""
    exact: bool
    """Whether the network equals its source in exact arithmetic, or in a limit only."""
    tolerances: dict[int, float]
    """order → largest error over largest output that counts as verified, in float64."""
    ways: dict[tuple[str, int], Way]
    """(source, layers) → construction."""
    why_not_fewer: str
    """Why no network of fewer layers is built."""
    source: str
    """Where that is said."""
    in_paper: dict[str, int | None]
    """source → layers after Table 3; None is its dash."""

    def choose(self, source: object, layers: int | None) -> tuple[int, Way]:
        """The construction with `layers` layers, or the fewest that hold this source; else a refusal that says why."""
        column = source_kind(source)
        counts = sorted(count for name, count in self.ways if name == column)
        if not counts:
            known = " or ".join(sorted({name for name, _ in self.ways}))
            raise UnderhoodError(f"no construction of {self.name} from a {column}", remedy=f"Start from a {known}.")
        reasons = {count: self.ways[column, count].refuses(source) for count in counts}
        fewest = next(count for count in counts if reasons[count] is None)
        layers = fewest if layers is None else layers
        if layers < 1:
            raise UnderhoodError("expected layers of 1 or more", layers)
        if layers in counts and reasons[layers] is None:
            return layers, self.ways[column, layers]
        if layers < counts[0]:
            reason = self.why_not_fewer
        else:
            reason = reasons.get(layers) or f"networks of {_listed(counts)} are built, and more layers add nothing"
        raise NotConstructible(self.name, layers=layers, needs=fewest, reason=reason, source=self.source)

    def tolerance(self, order: int, float32: bool) -> float:
        """What a compile must meet; in float32, what that precision leaves of it."""
        if float32:
            return 1e-4 if self.exact else {1: 1e-2, 2: 3e-3}.get(order, 1e-3)
        return self.tolerances[min(order, max(self.tolerances))]


def _listed(counts: list[int]) -> str:
    return f"{' or '.join(map(str, counts))} layer{'s' * (counts[-1] > 1)}"


TARGETS: Registry[Target] = Registry("target", "underhood.architectures.*.lowering")


def register_target(
    name: str,
    *,
    attention: dict[int, Way],
    gated: dict[int, Way] | None = None,
    tolerances: dict[int, float] = LINEARISED,
    why_not_fewer: str = "a network has one layer or more",
    source: str = "Table 3",
    paper: tuple[int | None, int | None] = (1, 1),
) -> Target:
    """Register the constructions of one target, by source and layers; `paper` has Table 3's two entries for it."""
    ways = {(ATTENTION, layers): way for layers, way in attention.items()}
    ways |= {(GATED, layers): way for layers, way in (gated or {}).items()}
    in_paper = {GATED: paper[0], ATTENTION: paper[1]}
    exact = tolerances is ROUNDING_ONLY
    return TARGETS.register(name)(Target(name, exact, tolerances, ways, why_not_fewer, source, in_paper))


def source_kind(source: object) -> str:
    """Which column of Table 3 a source belongs to."""
    if isinstance(source, LinearAttention):
        return ATTENTION
    if isinstance(source, GatedRNN):
        return GATED
    title = getattr(source, "kind", type(source).__name__)
    remedy = "Read its attention first: underhood decompile --out."
    raise UnderhoodError("compile expects a linear attention or a diagonal gated RNN", title, remedy)
