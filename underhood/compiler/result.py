"""What `uh.compile` returns: a network, and the evidence for it."""

from __future__ import annotations

import dataclasses
from typing import Any

from underhood.core.display import Displayed, Summary


@dataclasses.dataclass(frozen=True)
class CompileEvidence:
    """What was measured, on what, and what is promised beyond it."""

    max_abs_error: float
    """Largest |y_network − y_source| on the probes."""
    max_rel_error: float
    """The same, over the largest output."""
    error_bound: float
    """On |y_network − y_source| for every input within `input_bound`, up to the horizon."""
    tolerance: float
    """Largest `max_rel_error` that counts as verified."""
    input_bound: float
    """Inputs are within ± this."""
    horizon: int
    """Longest sequence that the bound holds for."""
    order: int
    """Scales at which neurons are copied to linearise σ."""
    measured_steps: int
    """Length of the probes: the horizon, or as much of it as is measured."""
    probes: int
    """Number of probe sequences."""


@dataclasses.dataclass(frozen=True, repr=False)
class Compiled(Displayed):
    """|y_network − y_source| ≤ `error_bound`, for every input within `input_bound` and every step up to the horizon.

    Returned by [`compile`][underhood.compile].

    **Attributes:**

    - `model`: The network, in the dtype asked for.
    - `target`: Name of its architecture: what `to` said.
    - `layers`: Number of recurrent layers.
    - `exact`: Whether it equals its source in exact arithmetic; if not, it does in a limit, at the scales chosen.
    - `verified`: Whether the errors measured are within the tolerance. (A network that errs by more than its bound is
      never returned.)
    - `evidence`: What `verified` rests on, a `CompileEvidence`.
    """

    model: Any
    target: str
    layers: int
    exact: bool
    verified: bool
    evidence: CompileEvidence

    def _summary(self) -> Summary:
        layers = f"{self.layers} layer{'s' * (self.layers > 1)}"
        scope = f"|x| ≤ {self.evidence.input_bound:g}, t ≤ {self.evidence.horizon}"
        facts = {
            "hidden neurons": self.hidden,
            "parameters": f"{self.parameters:,}",
            "how": "exact, up to rounding" if self.exact else "in a limit",
            "error measured": f"{self.max_abs_error:.2g}, {self.max_rel_error:.2g} of the largest output",
            "error at most": f"{self.error_bound:.2g} for {scope}",
        }
        return Summary(f"{self.target}, {layers}, {'verified' if self.verified else 'NOT verified'}", facts)

    @property
    def hidden(self) -> int:
        """Number of hidden neurons.

        **Returns:** the hidden neurons of all layers together.
        """
        return self.model.hidden

    @property
    def parameters(self) -> int:
        """Number of parameters.

        **Returns:** the entries of all weights together.
        """
        return self.model.parameters

    @property
    def max_abs_error(self) -> float:
        """max |y_network − y_source| over the probes.

        **Returns:** the largest error measured.
        """
        return self.evidence.max_abs_error

    @property
    def max_rel_error(self) -> float:
        """max |y_network − y_source| / max |y_source| over the probes.

        **Returns:** the largest error measured, over the largest output.
        """
        return self.evidence.max_rel_error

    @property
    def error_bound(self) -> float:
        """|y_network − y_source| ≤ `error_bound` for every input within `input_bound`, up to the horizon.

        **Returns:** the bound (docs/theory.md, "Bounds").
        """
        return self.evidence.error_bound

    @property
    def tolerance(self) -> float:
        """`verified` means `max_rel_error` ≤ `tolerance`.

        **Returns:** the largest relative error that counts as verified.
        """
        return self.evidence.tolerance

    @property
    def report(self) -> dict[str, Any]:
        """Everything but the model, as plain data.

        **Returns:** what `underhood compile --json` prints.
        """
        evidence = self.evidence
        return {
            "target": self.target,
            "layers": self.layers,
            "hidden": self.hidden,
            "parameters": self.parameters,
            "dtype": str(self.model.dtype),
            "exact": self.exact,
            "max_abs_error": evidence.max_abs_error,
            "max_rel_error": evidence.max_rel_error,
            "error_bound": evidence.error_bound,
            "input_bound": evidence.input_bound,
            "horizon": evidence.horizon,
            "order": evidence.order,
            "tolerance": evidence.tolerance,
            "verified": self.verified,
            "measured_steps": evidence.measured_steps,
            "probes": evidence.probes,
        }
