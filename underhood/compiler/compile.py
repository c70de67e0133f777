"""`uh.compile(source, to=…)`: check → form → lower → cast → measure → (a second form, where the first comes near its
limits) → verify.

Approximation is chosen in one place: the scales of the copies, in the lowering. Everything else is exact.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import numpy as np

from underhood.architectures.gated_rnn.cell import GatedRNN
from underhood.attention.linear import LinearAttention
from underhood.attention.softmax import AbstractAttention
from underhood.compiler.envelope import Envelope
from underhood.compiler.forms import deviation, to_gated_rnn
from underhood.compiler.products import gated_products
from underhood.compiler.result import Compiled, CompileEvidence
from underhood.compiler.settings import SETTINGS
from underhood.compiler.softmax import compile_average
from underhood.compiler.targets import TARGETS, Lowered, Target, Way, source_kind
from underhood.compiler.verify import Measured, measure
from underhood.core.arrays import require_finite
from underhood.core.costs import COSTS, estimate_cost
from underhood.core.errors import NotFinite, UnderhoodError
from underhood.core.model import AbstractModel, as_dtype

DTYPES = ("float64", "float32")


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
    """Turn attention, or a gated RNN of Eq. 2, into a network of the architecture `to`, verified up to the horizon.

    **Arguments:**

    - `source`: A `uh.LinearAttention`, a diagonal `uh.GatedRNN`, or normalised attention, as `uh.SoftmaxAttention`.
    - `to`: The target, such as `"gated-rnn"`, `"lstm"` or `"mamba"`; an unknown name lists them all.
    - `layers`: Recurrent layers; by default the fewest with which the target is built from this source.
    - `input_bound`: Largest |input|. Scales are chosen for it, and the error bound holds within it.
    - `horizon`: Longest sequence that the error bound holds for.
    - `order`: Scales at which neurons are copied to linearise σ; 1 is the paper's trick.
    - `dtype`: `"float64"` or `"float32"`.
    - `tolerance`: Largest error, over the largest output, that counts as verified; each target has its own default.
    - `sparse`: Whether the matrices of `gated-rnn`, of the LRUs and of `mamba` are kept sparse; by default where dense
      ones would be large.

    **Returns:**

    A [`Compiled`][underhood.Compiled]: the network, and what was measured and is promised about it.

    **Raises:**

    `uh.NotConstructible` where the target is not built with so many layers, with the reason; `uh.UnderhoodError` for
    bad settings, and where no network within the tolerance can be promised.
    """
    target, envelope = TARGETS[to], _check(source, input_bound, horizon, order, dtype)
    if isinstance(source, AbstractAttention):
        return _average(source, to, layers, envelope, tolerance)
    layers, way = target.choose(source, layers)
    request = _Request(source, target, way, envelope, order, _tolerance(target, order, dtype, tolerance), sparse)
    compile_cost(source, to, layers, sparse)
    if request.is_sparse:
        attempt = _attempt(request, None)
    else:
        attempt = _attempt(request, way.form)
        if way.second is not None and _is_near_its_limits(attempt, request):
            attempt = _better(attempt, request)
    return _verify(attempt, request, layers)


class _Request(NamedTuple):
    """What is to be compiled, how, and how well."""

    source: Any
    target: Target
    way: Way
    envelope: Envelope
    order: int
    tolerance: float
    sparse: bool | None

    @property
    def is_sparse(self) -> bool:
        return self.way.takes_sparse(self.source, self.sparse)

    @property
    def most(self) -> float:
        """The largest relative bound that is let pass."""
        return SETTINGS.slack * self.tolerance


class _Attempt(NamedTuple):
    """A network in its dtype, what is promised of it, and what was measured."""

    model: Any
    lowered: Lowered
    measured: Measured


def _attempt(request: _Request, form: Any) -> _Attempt:
    """Form → lower → cast → measure."""
    try:
        lowered = _lower(request, form, request.envelope)
        model = as_dtype(lowered.model, request.envelope.dtype)
    except NotFinite:
        raise _overflows(request) from None
    if np.isnan(lowered.relative_bound):
        raise _overflows(request)
    if not lowered.relative_bound <= request.most:
        raise _too_far(request, form, lowered)
    measured = measure(request.source, model, request.envelope)
    if not np.isfinite(measured.max_abs_error):
        raise _overflows(request)
    if measured.max_abs_error > lowered.error_bound:
        rule = f"expected errors within the bound {lowered.error_bound:.3g} that was derived for {request.target.name}"
        raise UnderhoodError(rule, f"{measured.max_abs_error:.3g}", "This is a defect of underhood: please report it.")
    return _Attempt(model, lowered, measured)


def _lower(request: _Request, form: Any, envelope: Envelope) -> Lowered:
    """The source in the form that the construction takes, and the network made of that."""
    source, way = request.source, request.way
    if request.is_sparse and way.sparse is not None:
        return way.sparse(source, envelope, request.order)
    if form is None:
        return way.lower(source, envelope, request.order)
    written = form(source)
    lowered = way.lower(to_gated_rnn(written) if way.gated else written, envelope, request.order)
    return dataclasses.replace(lowered, errors=lowered.errors + deviation(written, source, envelope))


def _is_near_its_limits(attempt: _Attempt, request: _Request) -> bool:
    """Whether other inputs may err more than is tolerated, or the bound says little."""
    measured = attempt.measured
    telling = attempt.lowered.error_bound <= SETTINGS.telling * measured.max_abs_error
    return not telling or measured.max_rel_error > SETTINGS.margin * request.tolerance


def _better(first: _Attempt, request: _Request) -> _Attempt:
    """The second form where that errs less, if there is the memory for it."""
    try:
        second = _attempt(request, request.way.second)
    except UnderhoodError:  # it is the larger one, and may promise less
        return first
    return second if second.measured.max_rel_error < first.measured.max_rel_error else first


def _verify(attempt: _Attempt, request: _Request, layers: int) -> Compiled:
    """The network with its evidence."""
    model, lowered, measured = attempt
    evidence = CompileEvidence(
        max_abs_error=measured.max_abs_error,
        max_rel_error=measured.max_rel_error,
        error_bound=lowered.error_bound,
        tolerance=request.tolerance,
        input_bound=request.envelope.input_bound,
        horizon=request.envelope.horizon,
        order=request.order,
        measured_steps=measured.steps,
        probes=measured.probes,
    )
    verified = measured.max_rel_error <= request.tolerance
    return Compiled(model, request.target.name, layers, request.target.exact, verified, evidence)


def _average(
    source: AbstractAttention, to: str, layers: int | None, envelope: Envelope, tolerance: float | None
) -> Compiled:
    """Softmax attention, and normalised attention with polynomial features (softmax.py)."""
    made = compile_average(source, to, layers, envelope, tolerance)
    settings = {"input_bound": envelope.input_bound, "horizon": envelope.horizon, "order": 1}
    evidence = CompileEvidence(**made.evidence, **settings)
    return Compiled(made.model, to, made.layers, False, evidence.max_rel_error <= evidence.tolerance, evidence)


def compile_cost(source: Any, to: str, layers: int | None = None, sparse: bool | None = None) -> str | None:
    """What compiling will take, in a line, where that is much; refused where there is not the memory for it."""
    if isinstance(source, LinearAttention):
        products = source.heads * min(source.d, source.d_out) * source.w_key.shape[1]
    elif isinstance(source, GatedRNN):
        products = max(source.hidden, source.pre_readout)
    else:
        return None  # refused for what it is
    name = "compile" if to == "gated-rnn" else f"compile {to}"
    way = TARGETS[to].choose(source, layers)[1]
    if sparse and way.sparse is None:
        where = f"{to} from a {source_kind(source)} in {layers} layers"
        raise UnderhoodError(f"{where} has no sparse form", remedy="Leave sparse out.")
    if way.takes_sparse(source, sparse):
        name = way.sparse_cost
    elif getattr(source, "heads", 1) > 1 and f"{name}, heads" in COSTS:
        name = f"{name}, heads"
    return estimate_cost(name, max(source.d, products**0.5), f"compiling {source.kind} with d = {source.d} to {to}")


def _tolerance(target: Target, order: int, dtype: str, tolerance: float | None) -> float:
    if tolerance is None:
        return target.tolerance(order, dtype == "float32")
    if not 0 < tolerance < np.inf:
        raise UnderhoodError("expected a tolerance above 0 and below infinity", tolerance)
    return tolerance


def _check(source: Any, input_bound: float, horizon: int, order: int, dtype: str) -> Envelope:
    """Settings and weights that a network can be promised for."""
    if not isinstance(source, AbstractAttention):
        source_kind(source)
    if not (np.isfinite(input_bound) and input_bound > 0):
        raise UnderhoodError("expected an input_bound above 0 and below infinity", input_bound)
    if not 1 <= horizon <= SETTINGS.most_steps or int(horizon) != horizon:
        raise UnderhoodError(f"expected a horizon from 1 to {SETTINGS.most_steps} steps", horizon)
    if not 1 <= order <= SETTINGS.most_orders or int(order) != order:
        raise UnderhoodError(f"expected an order from 1 to {SETTINGS.most_orders}", order)
    if dtype not in DTYPES:
        raise UnderhoodError("expected the dtype float64 or float32", repr(dtype))
    for path, leaf in jax.tree_util.tree_leaves_with_path(source):
        require_finite(jax.tree_util.keystr(path, simple=True, separator="."), leaf)
    decay = getattr(source, "decay", None)
    if decay is not None and not np.all((np.asarray(decay) >= 0) & (np.asarray(decay) <= 1)):
        raise UnderhoodError("expected decays from 0 to 1", np.asarray(decay).tolist())
    envelope = Envelope(float(input_bound), int(horizon), np.dtype(dtype))
    if not isinstance(source, AbstractAttention):
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
        rule = f"expected outputs below 1e{limit:.0f} up to the horizon, as {envelope.dtype} has them"
        got = f"up to about 1e{digits:.0f}" if np.isfinite(digits) else "more than float64 holds"
        raise UnderhoodError(rule, got, "Scale the weights down, or lower input_bound.")


def _overflows(request: _Request) -> UnderhoodError:
    """Numbers on the way may be larger than the outputs, as where a norm is undone."""
    rule = f"the numbers inside {request.target.name} would be beyond what {request.envelope.dtype} holds"
    return UnderhoodError(rule, remedy="Scale the weights down, or lower input_bound.")


def _too_far(request: _Request, form: Any, lowered: Lowered) -> UnderhoodError:
    """No scale meets the tolerance: name the longest horizon at which one does, by bisection."""
    envelope = request.envelope

    def meets(horizon: int) -> bool:
        return _lower(request, form, dataclasses.replace(envelope, horizon=horizon)).relative_bound <= request.most

    within, beyond = 0, envelope.horizon
    while beyond - within > max(1, within // 100):
        middle = (within + beyond) // 2
        within, beyond = (middle, beyond) if meets(middle) else (within, middle)
    limit = f"The longest horizon that can be promised is {within}" if within else "No horizon can be promised"
    remedy = f"{limit} at tolerance {request.tolerance:g}; raise the order, the tolerance, or the precision."
    limit_of = f"{SETTINGS.slack:g} × the tolerance {request.tolerance:g}"
    rule = f"expected an error bound within {limit_of} from {request.target.name} at order {request.order}"
    got = f"{lowered.relative_bound:.2g} in {envelope.dtype} at horizon {envelope.horizon}"
    return UnderhoodError(rule, got, remedy)
