"""Table 3: which targets there are, how many layers each needs for which source, and why not fewer.

A construction is a function (source, envelope, order) → Lowered. Its file registers it:

    register_target("mine", attention={1: to_mine}, tolerances=LINEARISED, why_not_fewer="…", source="Table 3")
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from underhood.architectures.gated_rnn.cell import GatedRNN
from underhood.attention.linear import LinearAttention
from underhood.compiler.envelope import Envelope
from underhood.compiler.lowered import Lowered
from underhood.core.errors import NotConstructible, UnderhoodError
from underhood.core.registry import Registry

Source = LinearAttention | GatedRNN

ATTENTION, GATED = "linear self-attention", "simplified gated RNN"  # the columns of Table 3

Way = Callable[..., Lowered]
"""(source, envelope, order) → Lowered."""

# order → largest error over largest output, in float64
ROUNDING_ONLY = {1: 1e-12}
LINEARISED = {1: 1e-7, 2: 1e-9, 3: 1e-10}

LARGE = 10_000_000  # entries of a dense gating of the states, 80 MB in float64: sparse from here on


def large_gating(source: LinearAttention) -> bool:
    """Products of memories with queries, as many as memories, each of which could read every neuron."""
    queries = source.heads * source.d_key
    products = source.d_out * queries
    return products * (products + queries) > LARGE


@dataclasses.dataclass(frozen=True)
class DenseOrSparse:
    """One network from attention in two forms: matrices written out, and, where they would be large, kept as rules."""

    dense: Way
    sparse: Way
    cost: str
    """What the sparse form takes, in `COSTS`."""
    is_large: Callable[[LinearAttention], bool] = large_gating
    """Whether the source is to be kept sparse unless told otherwise."""

    def __call__(self, source: Any, envelope: Envelope, order: int, sparse: bool | None = None) -> Lowered:
        return (self.sparse if self.is_sparse(source, sparse) else self.dense)(source, envelope, order)

    def is_sparse(self, source: LinearAttention, sparse: bool | None) -> bool:
        return self.is_large(source) if sparse is None else sparse


@dataclasses.dataclass(frozen=True)
class Target:
    """A kind of network to compile to, and the constructions that lead there."""

    name: str
    """What the user types."""
    exact: bool
    """Whether the network equals its source in exact arithmetic, or in a limit only."""
    tolerances: dict[int, float]
    """order → largest error over largest output that counts as verified, in float64."""
    ways: dict[tuple[str, int], Way]
    """(source, layers) → construction."""
    default_layers: dict[str, int]
    """source → layers that `compile` takes unless told otherwise."""
    why_not_fewer: str
    """Why fewer layers are impossible, for the refusal."""
    source: str
    """Where that is said."""
    in_paper: dict[str, int | None]
    """source → layers after Table 3; None is its dash."""

    def choose(self, source: str, layers: int | None) -> tuple[int, Way]:
        """The construction with `layers` layers, the default ones if None; a refusal that says why otherwise."""
        counts = sorted(count for kind, count in self.ways if kind == source)
        if not counts:
            known = " or ".join(sorted({kind for kind, _ in self.ways}))
            raise UnderhoodError(f"no construction of {self.name} from a {source}", remedy=f"Start from a {known}.")
        if layers is None:
            layers = self.default_layers[source]
        if layers < 1:
            raise UnderhoodError("expected layers of 1 or more", layers)
        if (source, layers) in self.ways:
            return layers, self.ways[source, layers]
        reason = self.why_not_fewer if layers < counts[0] else f"it is built with {counts[-1]}, and no more do more"
        needs = counts[0] if layers < counts[0] else counts[-1]
        raise NotConstructible(self.name, layers=layers, needs=needs, reason=reason, source=self.source)

    def tolerance(self, order: int, float32: bool) -> float:
        """What a compile must meet; in float32, what that precision leaves of it."""
        if float32:
            return 1e-4 if self.exact else {1: 1e-2, 2: 3e-3}.get(order, 1e-3)
        return self.tolerances[min(order, max(self.tolerances))]


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
    default_attention: int | None = None,
) -> Target:
    """Register the constructions of one target, by source and layers; `paper` has Table 3's two entries for it."""
    ways = {(ATTENTION, layers): way for layers, way in attention.items()}
    ways |= {(GATED, layers): way for layers, way in (gated or {}).items()}
    default = {ATTENTION: default_attention or min(attention)} | ({GATED: min(gated)} if gated else {})
    in_paper = {GATED: paper[0], ATTENTION: paper[1]}
    exact = tolerances is ROUNDING_ONLY
    target = Target(name, exact, tolerances, ways, default, why_not_fewer, source, in_paper)
    return TARGETS.register(name)(target)


def source_kind(source: object) -> str:
    """Which column of Table 3 a source belongs to."""
    if isinstance(source, LinearAttention):
        return ATTENTION
    if isinstance(source, GatedRNN):
        return GATED
    kind = getattr(source, "kind", type(source).__name__)
    remedy = "Read its attention first: underhood decompile --out."
    raise UnderhoodError("compile expects a linear attention or a diagonal gated RNN", kind, remedy)
