"""y(t) = Σ_heads Σ_{s≤t} decay^{t-s} (W_V x_s)(x_sᵀ M x_t): the attention that a callable computes, if any.

Candidates come from few questions: a linear regression where d is small (`regression`), chosen inputs where it is not
(`chosen`, `factors`, `compressed`). Fresh random sequences tell whether one of them is right, whatever it came from.
Where none is, the nearest attention without decay is the answer, and how near it is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from underhood.algebra.quadratic import Array
from underhood.attention.linear import LinearAttention
from underhood.core.errors import UnderhoodError
from underhood.core.foreign import as_function
from underhood.core.memory import require_memory
from underhood.core.threads import threads_for
from underhood.decompiler.from_outputs.answer import PIECE, Fit, found_of, reason
from underhood.decompiler.from_outputs.closeness import closeness_of, own_sequences
from underhood.decompiler.from_outputs.diagnosis import FUNCTION, diagnose, objection
from underhood.decompiler.from_outputs.functions import Batched, as_numpy_function
from underhood.decompiler.from_outputs.hypotheses import Subject, is_rough
from underhood.decompiler.from_outputs.questions import ChosenInputs
from underhood.decompiler.from_outputs.regression import unknowns
from underhood.decompiler.from_outputs.search import (
    CHECKED,
    SMALL,
    Candidate,
    Sampled,
    Search,
    Settings,
    Watch,
)
from underhood.decompiler.result import DECAYED, LINEAR, NOT, Found
from underhood.training.tasks.make import make_task
from underhood.training.tasks.task import draw

LENGTH = 32  # Section 3.1
INPUT_BOUND = 4.0  # N(0, 1) clipped here: compiled LSTM, GRU and LRU networks keep their promise within a bound
TOLERANCE = 1e-4  # relative root mean square error on fresh sequences: R² ≥ 1 − 1e-8
OF_TASK = 2048  # sequences of a task
MAX_HEADS = 2  # of the nearest attention to what is none
DISTRIBUTIONS = ("normal", "uniform")
POOLINGS = ("each", "together")


@dataclass(frozen=True)
class Limits:
    """Tuning of the test on fresh sequences."""

    # Fresh sequences are added until the 95 % interval of R² is this narrow on either side: outputs grow with t, so
    # that few sequences weigh much, and 512 of them leave 0.008 open on a trained LSTM.
    held_out: int = 512
    most_held_out: int = 8192
    half_width: float = 0.0025
    shortest: int = 3
    """Steps: of two, no decay can be told from a factor."""
    earned: float = 3.0
    """By how much one decay more, beyond two, must bring the error down."""
    asked_again: int = 10
    """Sequences of which a yes asks whether they come out the same: again, in another batch, with another future."""
    zero: float = 1e-13
    """Of the largest output, in what counts as an output of zero: rounding of float64."""
    small: float = 1e-3
    """Of the largest output, up to which one that is not attention may be rounding; a test tells."""


LIMITS = Limits()


@np.errstate(all="ignore")  # outputs that are not finite are refused
def probe(
    function: Any,
    d: Any = None,
    *,
    against: LinearAttention | None = None,
    inputs: Any = None,
    task: str | None = None,
    last: bool = False,
    seed: int = 0,
    length: int = LENGTH,
    input_bound: float = INPUT_BOUND,
    distribution: str = "normal",
    pooling: str = "each",
    tolerance: float = TOLERANCE,
    max_heads: int = MAX_HEADS,
    batched: bool | None = None,
    watch: Watch | None = None,
) -> Found:
    """The linear attention nearest to any callable (t, d) → (t, d_out), and how near it is on fresh sequences.

    The answer is about the sequences that were tried: random ones of `length` steps with inputs within `input_bound`.
    A function that differs elsewhere, on longer sequences or larger inputs, say, gets the same answer. Before a yes,
    the function is asked again: with the same sequences, beside others in a batch, and with other inputs later on.

    **Arguments:**

    - `function`: a NumPy, torch or jax function, a torch module, a model of this package, or the path of an ONNX file.
    - `d`: the input size; modules, models and files mostly tell it themselves.
    - `against`: an attention to compare with.
    - `inputs`: sequences of your own, (b, t, d), on which R² of the best attention *for them* is measured as well:
        `.evidence.r2_on_inputs`. It is fitted on the first half of them and tested on the second.
    - `task`: the name of a task whose sequences take the place of `inputs`.
    - `last`: whether only the last outputs count, in that measurement; a task knows.
    - `seed`: of the random sequences.
    - `length`: their steps.
    - `input_bound`: the largest |input|.
    - `distribution`: of each input, independent of all others: "normal", N(0, 1) clipped at ±`input_bound`, or
        "uniform" between ±`input_bound`.
    - `pooling`: "each" wants every output within the tolerance of its own size; "together" sums the errors of all
        outputs and compares with the sum of their sizes, so that large outputs hide small ones.
    - `tolerance`: the relative root mean square error up to which the answer is yes.
    - `max_heads`: of the nearest attention, where the answer is no and d is above 8.
    - `batched`: whether the function takes (b, t, d), if known; tried out otherwise.
    - `watch`: called with what is being done and the share of it that is.

    **Returns:**

    A [`Found`][underhood.Found], without a certificate.
    """
    inputs, last = _own(inputs, task, last, seed)
    function, d = as_function(function, inputs.shape[2] if d is None and inputs is not None else d)
    if d is None:
        raise UnderhoodError("cannot tell the input size", remedy="Give `d`.")
    if inputs is not None:
        inputs = own_sequences(inputs, whole("d", d, 1))
    settings = Settings(
        d=whole("d", d, 1),
        length=whole("length", length, LIMITS.shortest),
        input_bound=input_bound,
        tolerance=tolerance,
        max_heads=whole("max_heads", max_heads, 1),
        seed=whole("seed", seed, 0),
        watch=watch or (lambda what, share: None),
        distribution=distribution,
        pooling=pooling,
    )
    _check_settings(settings)
    with threads_for(settings.d):
        call = as_numpy_function(function, settings.d, batched=batched)
        r2_on_inputs = None if inputs is None else closeness_of(call, inputs, last=last)
        found = _probe(call, settings, against)
        return replace(found, evidence=replace(found.evidence, r2_on_inputs=r2_on_inputs))


def _own(inputs: Any, task: str | None, last: bool, seed: int) -> tuple[Any, bool]:
    """The sequences of the user's own, and whether only their last outputs count."""
    if inputs is not None and task is not None:
        raise UnderhoodError("expected `inputs` or `task`, not both")
    if task is None:
        return None if inputs is None else own_sequences(inputs), last
    about = make_task(task)
    return draw(about, whole("seed", seed, 0), OF_TASK)[0], about.last_only


def whole(name: str, value: Any, least: int) -> int:
    """A size that a user gave, as an int."""
    number = None if isinstance(value, bool) else getattr(value, "__index__", None)
    if number is None:
        raise UnderhoodError(f"expected {name} to be a whole number", repr(value))
    if number() < least:
        raise UnderhoodError(f"expected {name} of {least} or more", value)
    return number()


def _probe(call: Batched, settings: Settings, against: LinearAttention | None) -> Found:
    random = np.random.default_rng(settings.seed)
    d, tolerance = settings.d, settings.tolerance

    def fresh(count: int) -> Sampled:
        xs = settings.drawn(random, count)
        return xs, call(xs)

    held = fresh(LIMITS.held_out)
    if against is not None:
        against = check_against(against, d, held[1].shape[-1])
    if not np.any(held[1] != held[1][:1, :1]):
        raise UnderhoodError("expected a function that varies with its input", "the same output for every sequence")
    chosen = ChosenInputs(call, d, length=settings.length, input_bound=settings.input_bound, random=random)
    candidate, objected = None, None
    for candidate in Search(settings, fresh, chosen, held).candidates():
        if not _is_far(candidate, held, tolerance) and _is_near(candidate, call, held, settings, random):
            some = tuple(part[: LIMITS.asked_again] for part in held)
            subject = Subject(call, d, settings.length, settings.input_bound, random, some)
            objected = objection(subject, to_attention=True)
            if objected is None:
                verdict = LINEAR if candidate.decays == (1.0,) else DECAYED
                return found_of(candidate, verdict, Fit.of(candidate, held, random), settings, against)
            break
    assert candidate is not None
    fit = Fit.of(candidate, held, random)
    while fit.width > 2 * LIMITS.half_width and len(held[0]) < LIMITS.most_held_out:
        more = fresh(len(held[0]))
        held = np.concatenate([held[0], more[0]]), np.concatenate([held[1], more[1]])
        fit = Fit.of(candidate, held, random)
    found = found_of(candidate, NOT, fit, settings, against)
    settings.watch("what it is instead", 1.0)
    if objected is None:
        far = np.flatnonzero(~(fit.errors <= tolerance))
        some = far if 0 < len(far) < len(fit.errors) else None
        diagnosis = diagnose(call, d, settings.length, settings.input_bound, settings.seed, some)
    else:
        diagnosis = [objected]
    functions = [one.pop(FUNCTION) for one in diagnosis if FUNCTION in one]
    why = reason(NOT, fit, settings, diagnosis, 0, ())
    return replace(found, diagnosis=diagnosis, reason=why, function=next(iter(functions), None))


def _is_near(
    candidate: Candidate, call: Batched, held: Sampled, settings: Settings, random: np.random.Generator
) -> bool:
    """Within the tolerance; each output by itself, unless it is zero up to rounding."""
    # Many exponentials come near to any way of fading: each beyond two has to earn its place.
    limit = settings.tolerance / LIMITS.earned ** max(0, len(candidate.decays) - 2)
    fit = Fit.of(candidate, held, random)
    if not fit.error <= limit:
        return False
    far = np.flatnonzero(fit.errors > limit)
    if settings.pooling == "together" or not len(far):
        return True
    xs, ys = (part[:PIECE] for part in held)
    sizes, missed = (np.sqrt(np.mean(part**2, axis=(0, 1))) for part in (ys, ys - candidate(xs)))
    far = far[missed[far] > LIMITS.zero * sizes.max()]
    if (sizes[far] > LIMITS.small * sizes.max()).any():
        return False

    def is_rounding(output: int) -> bool:
        def left(xs: Array, ys: Array) -> Array:
            return (ys - candidate(xs))[..., output]

        return is_rough(call, left, (xs, ys), random)

    return all(is_rounding(int(output)) for output in far)


def check_against(against: Any, d: int, d_out: int) -> LinearAttention:
    """The teacher, with the sizes of the network.

    Eq. 4's attention gives the whole element (x, y), zeros and then the prediction; a network that gives the prediction
    alone is compared with its last outputs.
    """
    if not isinstance(against, LinearAttention):
        raise UnderhoodError("expected a linear attention to compare with", getattr(against, "kind", against))
    first = against.d_out - d_out
    if against.d == d and first > 0 and not np.any(np.asarray(against.w_value)[:, :first]):
        values = np.asarray(against.w_value)[:, first:]
        return LinearAttention(values, against.w_key, against.w_query, against.decay)
    if (against.d, against.d_out) != (d, d_out):
        raise UnderhoodError(
            f"expected an attention with {d} inputs and {d_out} outputs to compare with, as the network has",
            f"{against.d} and {against.d_out}",
        )
    return against


def _check_settings(settings: Settings) -> None:
    d, length = settings.d, settings.length
    numbers = 4 * d * (LIMITS.held_out * length + d)
    numbers += LIMITS.held_out * length * unknowns(d) if d <= SMALL else 0
    require_memory(8 * numbers, f"{LIMITS.held_out} sequences of {length} steps with {d} inputs")
    if not 0 < settings.tolerance < 1:
        raise UnderhoodError("expected a tolerance between 0 and 1", settings.tolerance)
    if not 0 < settings.input_bound < np.inf:
        raise UnderhoodError("expected an input_bound above 0 and below infinity", settings.input_bound)
    for name, known in (("distribution", DISTRIBUTIONS), ("pooling", POOLINGS)):
        if getattr(settings, name) not in known:
            raise UnderhoodError(f"expected {name} {' or '.join(known)}", repr(getattr(settings, name)))


def _is_far(candidate: Candidate, held: Sampled, tolerance: float) -> bool:
    """Ten tolerances off on the first sequences: a candidate of many heads takes seconds to run on all of them."""
    xs, ys = (part[:CHECKED] for part in held)
    return bool(np.linalg.norm(ys - candidate(xs)) > 10 * tolerance * np.linalg.norm(ys - ys.mean(axis=(0, 1))))
