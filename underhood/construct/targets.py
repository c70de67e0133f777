"""Table 3: which targets there are, how many layers each needs for which source, and why not fewer."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from underhood.construct.lowered import Lowered
from underhood.errors import NotConstructible
from underhood.registry import Registry

ATTENTION, GATED = "linear self-attention", "simplified gated RNN"  # the columns of Table 3


@dataclasses.dataclass(frozen=True)
class Target:
    """`ways`: (source, layers) → construction(source, envelope, order), fewest layers first."""

    name: str
    exact: bool
    tolerances: dict[int, float]  # order → largest error over largest output, in float64
    ways: dict[tuple[str, int], Callable[..., Lowered]]
    default_layers: dict[str, int]
    why_not_fewer: str
    source: str
    in_paper: dict[str, int | None]  # layers after Table 3; None is its dash

    def choose(self, source: str, layers: int | None) -> tuple[int, Callable[..., Lowered]]:
        """The construction with `layers` layers, the default ones if None; a refusal that says why otherwise."""
        if layers is None:
            layers = self.default_layers[source]
        if (source, layers) in self.ways:
            return layers, self.ways[source, layers]
        counts = sorted(count for kind, count in self.ways if kind == source)
        reason = self.why_not_fewer if layers < counts[0] else f"it is built with {counts[-1]}, and no more do more"
        needs = counts[0] if layers < counts[0] else counts[-1]
        raise NotConstructible(self.name, layers=layers, needs=needs, reason=reason, source=self.source)

    def tolerance(self, order: int, float32: bool) -> float:
        """What a compile must meet; in float32, what that precision leaves of it."""
        if float32:
            return 1e-4 if self.exact else {1: 1e-2, 2: 3e-3}.get(order, 1e-3)
        return self.tolerances[min(order, max(self.tolerances))]


_HOMES = (f"underhood.construct.{home}" for home in ("table3", "mamba", "griffin", "mingru"))
TARGETS: Registry[Target] = Registry("target", *_HOMES)
