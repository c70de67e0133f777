"""`uh.compile(source, to=…)`: check → form → lower → cast → verify.

Approximation is chosen in one place: the scales of the copies, in the lowering. Everything else is exact.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np

from underhood.architectures.gated_rnn.cell import GatedRNN
from underhood.attention.linear import LinearAttention
from underhood.attention.softmax import AbstractAttention
from underhood.compiler.envelope import Envelope
from underhood.compiler.lowered import Lowered
from underhood.compiler.products import gated_products
from underhood.compiler.softmax import compile_average
from underhood.compiler.targets import TARGETS, DenseOrSparse, Target, Way, source_kind
from underhood.compiler.verify import Measured, measure
from underhood.core.arrays import require_finite
from underhood.core.costs import COSTS, estimate_cost
from underhood.core.errors import NotConstructible, NotFinite, UnderhoodError
from underhood.core.memory import NotEnoughMemory
from underhood.core.model import AbstractModel, as_dtype

DTYPES = ("float64", "float32")
MOST_STEPS = 2**53  # beyond it, float64 cannot count
MOST_ORDERS = 4  # beyond it, rounding of the coefficients eats what the cancellation gains
# A bound holds for the worst of all inputs; the tolerance is for what is met. The bound may be this much larger
# before a compile is refused unseen.
SLACK = 10
# Other inputs than the probes may err more: a construction this near to its tolerance is tried in another way, too.
MARGIN = 0.3
TELLING = 300  # and so is one whose bound is this many times the error that is met


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
    """How many probe sequences were run."""


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A network that computes what its source does, and the evidence."""

    model: Any
    """The network, in the dtype asked for."""
    target: str
    """Its kind: what `to` said."""
    layers: int
    """How many recurrent layers it has."""
    exact: bool
    """Whether it equals its source in exact arithmetic; otherwise in a limit, at the scales chosen."""
    verified: bool
    """Whether the errors measured are within the tolerance and within the bound."""
    evidence: CompileEvidence
    """What `verified` rests on."""

    @property
    def hidden(self) -> int:
        """Hidden neurons of the network."""
        return self.model.hidden

    @property
    def parameters(self) -> int:
        """How many numbers its weights are."""
        return self.model.parameters

    @property
    def max_abs_error(self) -> float:
        """Largest |y_network − y_source| on the probes."""
        return self.evidence.max_abs_error

    @property
    def max_rel_error(self) -> float:
        """The same, over the largest output."""
        return self.evidence.max_rel_error

    @property
    def error_bound(self) -> float:
        """On |y_network − y_source| for every input within the bound, up to the horizon."""
        return self.evidence.error_bound

    @property
    def tolerance(self) -> float:
        """Largest `max_rel_error` that counts as verified."""
        return self.evidence.tolerance

    @property
    def report(self) -> dict[str, Any]:
        """Everything but the model, as plain data."""
        seen = self.evidence
        return {
            "target": self.target,
            "layers": self.layers,
            "hidden": self.hidden,
            "parameters": self.parameters,
            "dtype": str(self.model.dtype),
            "exact": self.exact,
            "max_abs_error": seen.max_abs_error,
            "max_rel_error": seen.max_rel_error,
            "error_bound": seen.error_bound,
            "input_bound": seen.input_bound,
            "horizon": seen.horizon,
            "order": seen.order,
            "tolerance": seen.tolerance,
            "verified": self.verified,
            "measured_steps": seen.measured_steps,
            "probes": seen.probes,
        }


@np.errstate(all="ignore")  # what overflows is refused
def compile(
    source: AbstractModel,
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
    `sparse` keeps the matrices of `gated-rnn`, of the LRUs and of `mamba` sparse; by default where dense ones would be
    large.
    """
    target = TARGETS[to]
    if isinstance(source, AbstractAttention):
        return _average(source, to, layers, _checked_settings(source, input_bound, horizon, order, dtype), tolerance)
    kind = source_kind(source)
    envelope = _checked_envelope(source, input_bound, horizon, order, dtype)
    if tolerance is not None and not 0 < tolerance < np.inf:
        raise UnderhoodError("expected a tolerance above 0 and below infinity", tolerance)
    chosen, lower = target.choose(kind, layers)
    tolerance = target.tolerance(order, dtype == "float32") if tolerance is None else tolerance
    options = {"sparse": sparse} if isinstance(lower, DenseOrSparse) else {}
    if sparse and not options:
        raise UnderhoodError(f"{to} from a {kind} in {chosen} layers has no sparse form", remedy="Leave sparse out.")
    compile_cost(source, to, chosen, sparse)
    try:
        lowered = lower(source, envelope, order, **options)
        if not lowered.relative_bound <= SLACK * tolerance:
            raise _too_far(target, lower, source, envelope, order, tolerance, lowered, options)
        model, lowered, measured = _measured(source, lowered, envelope, tolerance)
    except NotConstructible as refusal:
        if layers is not None:
            raise
        settings = {"input_bound": input_bound, "horizon": horizon, "order": order, "dtype": dtype}
        return compile(source, to, layers=refusal.needs, tolerance=tolerance, sparse=sparse, **settings)
    except NotFinite:
        raise _overflows(to, dtype) from None
    if not np.isfinite(measured.max_abs_error):
        raise _overflows(to, dtype)
    evidence = CompileEvidence(
        max_abs_error=measured.max_abs_error,
        max_rel_error=measured.max_rel_error,
        error_bound=lowered.error_bound,
        tolerance=tolerance,
        input_bound=float(input_bound),
        horizon=int(horizon),
        order=order,
        measured_steps=measured.steps,
        probes=measured.probes,
    )
    verified = measured.max_rel_error <= tolerance and measured.max_abs_error <= lowered.error_bound
    return Compiled(model, to, chosen, target.exact, verified, evidence)


def compile_cost(source: Any, to: str, layers: int | None = None, sparse: bool | None = None) -> str | None:
    """What compiling will take, in a line, where that is much; refused where there is not the memory for it."""
    if isinstance(source, LinearAttention):
        products = source.heads * min(source.d, source.d_out) * source.w_key.shape[1]
    elif isinstance(source, GatedRNN):
        products = max(source.hidden, source.pre_readout)
    else:
        return None  # refused for what it is
    name = "compile" if to == "gated-rnn" else f"compile {to}"
    _, lower = TARGETS[to].choose(source_kind(source), layers)
    if isinstance(lower, DenseOrSparse) and isinstance(source, LinearAttention) and lower.is_sparse(source, sparse):
        name = lower.cost
    elif getattr(source, "heads", 1) > 1 and f"{name}, heads" in COSTS:
        name = f"{name}, heads"
    return estimate_cost(name, max(source.d, products**0.5), f"compiling {source.kind} with d = {source.d} to {to}")


def _measured(source: Any, lowered: Lowered, envelope: Envelope, tolerance: float) -> tuple[Any, Lowered, Measured]:
    """The network in its dtype and its errors; where they are not well within their limits, the better way."""
    model = as_dtype(lowered.model, envelope.dtype)
    measured = measure(source, model, envelope)
    telling = lowered.error_bound <= TELLING * measured.max_abs_error
    if lowered.otherwise is None or (telling and measured.max_rel_error <= MARGIN * tolerance):
        return model, lowered, measured
    try:
        otherwise = lowered.otherwise()
    except NotEnoughMemory:  # the better way is the larger one
        return model, lowered, measured
    other = _measured(source, otherwise, envelope, tolerance)
    return other if other[2].max_rel_error < measured.max_rel_error else (model, lowered, measured)


def _average(
    source: AbstractAttention, to: str, layers: int | None, envelope: Envelope, tolerance: float | None
) -> Compiled:
    """Softmax attention, and normalised attention with polynomial features (softmax.py)."""
    made = compile_average(source, to, layers, envelope, tolerance)
    settings = {"input_bound": envelope.input_bound, "horizon": envelope.horizon, "order": 1}
    evidence = CompileEvidence(**made.evidence, **settings)
    return Compiled(made.model, to, made.layers, False, evidence.max_rel_error <= evidence.tolerance, evidence)


def _checked_envelope(source: Any, input_bound: float, horizon: int, order: int, dtype: str) -> Envelope:
    """Settings, weights, and outputs that the dtype has room for."""
    envelope = _checked_settings(source, input_bound, horizon, order, dtype)
    _require_room(source, envelope)
    return envelope


def _checked_settings(source: Any, input_bound: float, horizon: int, order: int, dtype: str) -> Envelope:
    if not (np.isfinite(input_bound) and input_bound > 0):
        raise UnderhoodError("expected an input_bound above 0 and below infinity", input_bound)
    if not 1 <= horizon <= MOST_STEPS or int(horizon) != horizon:
        raise UnderhoodError(f"expected a horizon from 1 to {MOST_STEPS} steps", horizon)
    if not 1 <= order <= MOST_ORDERS or int(order) != order:
        raise UnderhoodError(f"expected an order from 1 to {MOST_ORDERS}", order)
    if dtype not in DTYPES:
        raise UnderhoodError("expected the dtype float64 or float32", repr(dtype))
    for path, leaf in jax.tree_util.tree_leaves_with_path(source):
        require_finite(jax.tree_util.keystr(path, simple=True, separator="."), leaf)
    decay = getattr(source, "decay", None)
    if decay is not None and not np.all((np.asarray(decay) >= 0) & (np.asarray(decay) <= 1)):
        raise UnderhoodError("expected decays from 0 to 1", np.asarray(decay).tolist())
    return Envelope(float(input_bound), int(horizon), np.dtype(dtype))


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
        rule = f"expected outputs below 1e{limit:.0f} up to the horizon, as {envelope.dtype} has them"
        got = f"up to about 1e{digits:.0f}" if np.isfinite(digits) else "more than float64 holds"
        raise UnderhoodError(rule, got, "Scale the weights down, or lower input_bound.")


def _overflows(to: str, dtype: str) -> UnderhoodError:
    """Numbers on the way may be larger than the outputs, as where a norm is undone."""
    remedy = "Scale the weights down, or lower input_bound."
    return UnderhoodError(f"the numbers inside {to} would be beyond what {dtype} holds", remedy=remedy)


def _too_far(
    target: Target,
    lower: Way,
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
    rule = f"expected an error bound within {SLACK} × the tolerance {tolerance:g} from {target.name} at order {order}"
    got = f"{lowered.relative_bound:.2g} in {envelope.dtype} at horizon {envelope.horizon}"
    return UnderhoodError(rule, got, remedy)
