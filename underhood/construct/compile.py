"""`uh.compile(source, to=…)`: check → form → lower → cast → verify.

Approximation is chosen in one place: the scales of the copies, in the lowering. Everything else is exact.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from underhood.arrays import require_finite
from underhood.attention.linear import LinearAttention
from underhood.cells import GatedRNN
from underhood.cells.linear import dense
from underhood.construct import table3  # noqa: F401  (registers the targets)
from underhood.construct.envelope import Envelope
from underhood.construct.lowered import Lowered
from underhood.construct.products import gated_products
from underhood.construct.targets import ATTENTION, GATED, TARGETS, Target
from underhood.construct.verify import Measured, measure
from underhood.errors import UnderhoodError
from underhood.model import as_dtype

DTYPES = ("float64", "float32")
MOST_ORDERS = 4  # beyond it, rounding of the coefficients eats what the cancellation gains
# A bound holds for the worst of all inputs; the tolerance is for what is met. The bound may be this much larger
# before a compile is refused unseen.
SLACK = 10
# Other inputs than the probes may err more: a construction this near to its tolerance is tried in another way, too.
MARGIN = 0.3
TELLING = 300  # and so is one whose bound is this many times the error that is met


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A network that computes what its source does, and the evidence."""

    model: Any
    target: str
    layers: int
    hidden: int
    parameters: int
    dtype: str
    exact: bool  # equal in exact arithmetic; otherwise equal in a limit, at the scales chosen
    max_abs_error: float  # on the probes
    max_rel_error: float  # on the probes, over the largest output
    error_bound: float  # on |y_network − y_source| for every input within input_bound, up to the horizon
    input_bound: float
    horizon: int
    order: int
    tolerance: float
    verified: bool
    measured_steps: int
    probes: int

    @property
    def report(self) -> dict[str, Any]:
        """Everything but the model, as plain data."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "model"}


@np.errstate(all="ignore")  # what overflows is refused
def compile(
    source: Any,
    to: str = "gated-rnn",
    *,
    layers: int | None = None,
    input_bound: float = 4.0,
    horizon: int = 1000,
    order: int = 1,
    dtype: str = "float64",
    tolerance: float | None = None,
    sparse: bool | None = None,
) -> Compiled:
    """Turn attention, or a gated RNN of Eq. 2, into a network of the kind `to`, verified up to the horizon.

    `order` counts the scales at which neurons are copied to linearise σ (1 is the paper's trick). `tolerance`
    is the largest error over the largest output that counts as verified; each target has its own default.
    `sparse` keeps the gatings of `gated-rnn` sparse; by default where the dense ones would be large.
    """
    target = TARGETS[to]
    envelope = _checked_envelope(source, input_bound, horizon, order, dtype)
    kind = ATTENTION if isinstance(source, LinearAttention) else GATED
    layers, lower = target.choose(kind, layers)
    tolerance = target.tolerance(order, dtype == "float32") if tolerance is None else tolerance
    options = {"sparse": sparse} if to == "gated-rnn" else {}
    if sparse and not options:
        raise UnderhoodError("sparse gatings are for the target gated-rnn", f"to={to!r}")
    lowered = lower(source, envelope, order, **options)
    if not lowered.relative_bound <= SLACK * tolerance:
        raise _too_far(target, lower, source, envelope, order, tolerance, lowered, options)
    model, lowered, measured = _measured(source, lowered, envelope, tolerance)
    return Compiled(
        model=model,
        target=to,
        layers=layers,
        hidden=model.hidden,
        parameters=model.parameters,
        dtype=dtype,
        exact=target.exact,
        max_abs_error=measured.max_abs_error,
        max_rel_error=measured.max_rel_error,
        error_bound=lowered.error_bound,
        input_bound=float(input_bound),
        horizon=int(horizon),
        order=order,
        tolerance=tolerance,
        verified=_is_verified(measured, lowered, tolerance),
        measured_steps=measured.steps,
        probes=measured.probes,
    )


def _measured(source: Any, lowered: Lowered, envelope: Envelope, tolerance: float) -> tuple[Any, Lowered, Measured]:
    """The network in its dtype and its errors; where they are not well within their limits, the better way."""
    model = as_dtype(lowered.model, envelope.dtype)
    measured = measure(source, model, envelope)
    telling = lowered.error_bound <= TELLING * measured.max_abs_error
    if lowered.otherwise is None or (telling and measured.max_rel_error <= MARGIN * tolerance):
        return model, lowered, measured
    other = _measured(source, lowered.otherwise(), envelope, tolerance)
    return other if other[2].max_rel_error < measured.max_rel_error else (model, lowered, measured)


def _is_verified(measured: Measured, lowered: Lowered, tolerance: float) -> bool:
    return measured.max_rel_error <= tolerance and measured.max_abs_error <= lowered.error_bound


def _checked_envelope(source: Any, input_bound: float, horizon: int, order: int, dtype: str) -> Envelope:
    if not isinstance(source, LinearAttention | GatedRNN):
        kind = getattr(source, "kind", type(source).__name__)
        raise UnderhoodError("compile takes a linear attention or a diagonal gated RNN", kind)
    if not (np.isfinite(input_bound) and input_bound > 0):
        raise UnderhoodError("input_bound is a positive number", input_bound)
    if int(horizon) != horizon or horizon < 1:
        raise UnderhoodError("horizon is a whole number of steps from 1 on", horizon)
    if int(order) != order or not 1 <= order <= MOST_ORDERS:
        raise UnderhoodError(f"order is a whole number from 1 to {MOST_ORDERS}", order)
    if dtype not in DTYPES:
        raise UnderhoodError("dtype is float64 or float32", repr(dtype))
    names = ("w_value", "w_key", "w_query", "decay") if isinstance(source, LinearAttention) else ("nu", "readout")
    for name in names:
        if getattr(source, name) is not None:
            require_finite(name, dense(getattr(source, name)))
    if isinstance(source, GatedRNN):
        for gating in ("input_gating", "output_gating"):
            for branch in ("w_m", "w_x"):
                require_finite(f"{gating}.{branch}", dense(getattr(getattr(source, gating), branch)))
    elif source.decay is not None and not np.all((np.asarray(source.decay) >= 0) & (np.asarray(source.decay) <= 1)):
        raise UnderhoodError("decay lies in [0, 1]", np.asarray(source.decay).tolist())
    envelope = Envelope(float(input_bound), int(horizon), np.dtype(dtype))
    _require_room(source, envelope)
    return envelope


def _require_room(source: Any, envelope: Envelope) -> None:
    """The outputs of the source, up to the horizon, are numbers of the network's dtype."""
    if isinstance(source, LinearAttention):
        sizes = [np.abs(w).sum(axis=2).max(axis=1) for w in (source.w_value, source.w_key, source.w_query)]
        # v, k and q of the largest head; in logarithms, which do not overflow.
        digits = np.max(sum(map(np.log10, sizes))) + 3 * np.log10(envelope.input_bound) + np.log10(envelope.horizon)
    else:
        digits = np.log10(np.max(gated_products(source, envelope).output_bounds, initial=0.0))
    limit = np.log10(np.finfo(envelope.dtype).max)
    if not digits < limit:
        rule = f"outputs up to the horizon are numbers of {envelope.dtype}, below 1e{limit:.0f}"
        got = f"up to about 1e{digits:.0f}" if np.isfinite(digits) else "more than float64 holds"
        raise UnderhoodError(rule, got, "Scale the weights down, or input_bound.")


def _too_far(
    target: Target,
    lower: Any,
    source: Any,
    envelope: Envelope,
    order: int,
    tolerance: float,
    lowered: Lowered,
    options: dict[str, Any],
) -> UnderhoodError:
    """No scale meets the tolerance: name the longest horizon at which one does, by bisection."""

    def meets(horizon: int) -> bool:
        shorter = dataclasses.replace(envelope, horizon=horizon)
        return lower(source, shorter, order, **options).relative_bound <= SLACK * tolerance

    within, beyond = 0, envelope.horizon
    while beyond - within > max(1, within // 100):
        middle = (within + beyond) // 2
        within, beyond = (middle, beyond) if meets(middle) else (within, middle)
    limit = f"The longest horizon that can be promised is {within}" if within else "No horizon can be promised"
    remedy = f"{limit} at tolerance {tolerance:g}; raise the order, the tolerance, or the precision."
    rule = f"{target.name} at order {order} in {envelope.dtype} stays within {SLACK} × the tolerance {tolerance:g}"
    return UnderhoodError(rule, f"a bound of {lowered.relative_bound:.2g} at horizon {envelope.horizon}", remedy)
