"""What a function is, if it is no attention: a record per diagnosis, with its name, meaning, remedy and test.

`what`, the name, stays as it is. Where no diagnosis explains the output as a whole, its parts are named, each with its
share.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from underhood.algebra.quadratic import Array
from underhood.core.errors import UnderhoodError
from underhood.decompiler.from_outputs import hypotheses, regression
from underhood.decompiler.from_outputs.functions import Batched
from underhood.decompiler.from_outputs.hypotheses import HELD, SETTINGS, Hypothesis, Subject, Test, by_regression
from underhood.decompiler.from_outputs.parts import CONSTANT, LINEAR, MEMORYLESS, REST, Parts, parts_of
from underhood.decompiler.from_outputs.questions import MOST_DECAYS
from underhood.decompiler.from_outputs.softmax_heads import Recovered, recover_softmax


@dataclass(frozen=True)
class Diagnosis:
    """One thing that a function may be instead of attention."""

    what: str
    meaning: str
    remedy: str
    test: Test | None = None  # none where the parts tell
    decides: bool = False  # where it holds, nothing else can be asked

    def as_data(self, hypothesis: Hypothesis) -> dict[str, Any]:
        """The contract's keys."""
        meaning = self.meaning + hypothesis.detail
        return {"what": self.what, "r2": hypothesis.r2, "remedy": self.remedy, "meaning": meaning}


NONE = "none-of-these"
SAME_AVERAGE = 1e-4  # 1 − R² of softmax attention found: averages with σ or elu + 1 as weights come within 1e-2
FUNCTION = "function"  # where a diagnosis has the fitted function itself
# Those that decide, in the order in which they are asked; then the simplest first.
DIAGNOSES: tuple[Diagnosis, ...] = (
    Diagnosis(
        "random",
        "the same input gives different outputs: dropout, noise, or a state kept between calls",
        "Call .eval() on the module, or fix its seed and reset its state.",
        hypotheses.is_random,
        decides=True,
    ),
    Diagnosis(
        "batch-dependent",
        "the output for a sequence depends on the other sequences of its batch",
        "Call .eval() on the module, or pass one sequence at a time: batched=False.",
        hypotheses.is_batch_dependent,
        decides=True,
    ),
    Diagnosis(
        "looks-ahead",
        "outputs depend on later inputs: attention here is causal",
        "Add a causal mask.",
        hypotheses.looks_ahead,
        decides=True,
    ),
    Diagnosis(
        "limited-precision",
        "attention, up to rounding to few digits",
        "Probe it in float64, or with a larger tolerance.",
        hypotheses.has_limited_precision,
        decides=True,
    ),
    Diagnosis(
        "linear-recurrence",
        "linear in its inputs: a recurrence or convolution without products",
        "Look at the recurrence itself: nothing here multiplies two inputs.",
        by_regression(regression.linear_recurrence),
    ),
    Diagnosis(
        "memoryless",
        "a function of the current input alone",
        "Look at the function itself: nothing here remembers an input.",
        hypotheses.is_memoryless,
    ),
    Diagnosis(
        "constant-output",
        "attention plus a constant output",
        "Subtract the output on zeros, or drop the output's bias.",
        by_regression(regression.constant_output),
    ),
    Diagnosis(
        "linear-term",
        "attention plus a linear term of the current input, such as a residual connection",
        "Probe it without the residual connection.",
        by_regression(regression.linear_term),
    ),
    Diagnosis(
        "strictly-causal",
        "attention over the inputs before the current one",
        "Let each step attend to itself too.",
        by_regression(regression.strictly_causal),
    ),
    Diagnosis(
        "constant-inputs",
        "attention with constant inputs (biases) in query, key or value",
        "Append 1 to x: probe it as a function of [x, 1].",
        by_regression(regression.constant_inputs),
    ),
    Diagnosis(
        "several-decays",
        f"attention whose memory fades at several rates: at most {MOST_DECAYS} are told apart from outputs",
        "Probe one head at a time, or decompile the weights, which finds the decay of each head.",
        by_regression(regression.several_decays),
    ),
    Diagnosis(
        "softmax",
        "softmax attention: weights are positive and add up to one",
        "Take the attention itself: `.function` of what was found is a `uh.SoftmaxAttention`.",
        hypotheses.is_softmax,
    ),
    Diagnosis(
        "other-average",
        "an average of values whose weights are not those of softmax attention with at most four heads",
        "Look at the feature map and at the normaliser: `uh.FeatureAttention` has the usual ones.",
    ),
    Diagnosis(
        "delta-rule",
        "the delta rule: a write first takes back what its key held",
        "Ask `underhood in-context` which rule it is.",
        hypotheses.is_delta_rule,
    ),
    Diagnosis(
        "degree",
        "not of degree three, as attention is",
        "Look for what attention multiplies: value, key and query.",
        lambda subject: subject.degree,
    ),
    Diagnosis(
        "constant-part",
        "much of the output is the same for every input",
        "Probe what varies: lambda xs: f(xs) - f(0 * xs).",
    ),
    Diagnosis(
        "linear-part",
        "much of the output is linear in the inputs so far",
        "Look at the recurrence: this part multiplies no two inputs.",
    ),
    Diagnosis(
        "memoryless-part",
        "much of the output is a function of the current input alone",
        "Look at the readout and at residual connections: this part remembers nothing.",
    ),
    Diagnosis(
        NONE,
        "none of the explanations that underhood knows",
        "Look at R²: close to 1 is a small defect, far from 1 another algorithm.",
    ),
)
OF_PART = {CONSTANT: "constant-part", LINEAR: "linear-part", MEMORYLESS: "memoryless-part", REST: NONE}


@np.errstate(all="ignore")  # what is not finite explains nothing
def diagnose(
    call: Batched, d: int, length: int, input_bound: float, seed: int, outputs: Array | None = None
) -> list[dict[str, Any]]:
    """What a function of batches that is no attention is instead, the likeliest first: `what`, `r2` and `remedy`.

    `outputs`: those that are no attention, where others are.
    """
    if outputs is not None:
        whole = call
        call = lambda batch: whole(batch)[..., outputs]  # noqa: E731
    subject = Subject.in_subspace(call, d, length, input_bound, seed)
    decided = objection(subject)
    if decided is not None:
        return [decided]
    holding: dict[str, Hypothesis] = {}
    for diagnosis in DIAGNOSES:
        hypothesis = None if diagnosis.decides or diagnosis.test is None else diagnosis.test(subject)
        if hypothesis is not None and (hypothesis.certain or _explains(hypothesis.r2 or 0.0, subject.plain)):
            holding[diagnosis.what] = hypothesis
    fitted = None
    if "softmax" in holding:
        fitted = recovered(call, d, length, input_bound, seed)
        r2 = 0.0 if fitted is None else fitted.r2
        what = "softmax" if 1 - r2 <= SAME_AVERAGE else "other-average"
        holding.pop("softmax")
        holding[what] = Hypothesis(r2, certain=True)
    if not holding:
        return _by_parts(parts_of(subject.call, subject.fit, subject.held, subject.random))
    ranked = _ranked(holding)
    found = [diagnosis.as_data(holding[what]) for what in ranked for diagnosis in DIAGNOSES if diagnosis.what == what]
    for one in found:
        if one["what"] == "softmax" and fitted is not None:
            one[FUNCTION] = fitted.attention
    return found


def recovered(call: Batched, d: int, length: int, input_bound: float, seed: int) -> Recovered | None:
    """Softmax attention with one to four heads, out of the function itself."""
    random = np.random.default_rng(seed)
    xs = np.clip(random.standard_normal((HELD, length, d)), -input_bound, input_bound)
    try:
        return recover_softmax(call, d, (xs, call(xs)), random, input_bound)
    except (UnderhoodError, np.linalg.LinAlgError):
        return None


def objection(subject: Subject, *, to_attention: bool = False) -> dict[str, Any] | None:
    """The first of what forbids any other question, or, `to_attention`, a yes."""
    for diagnosis in DIAGNOSES:
        if not diagnosis.decides or diagnosis.test is None or (to_attention and diagnosis.what == "limited-precision"):
            continue
        if (hypothesis := diagnosis.test(subject)) is not None:
            return diagnosis.as_data(hypothesis)
    return None


def _by_parts(parts: Parts) -> list[dict[str, Any]]:
    """A part that is most of the output, what all of it is made of, and the smaller parts."""
    known = {diagnosis.what: diagnosis for diagnosis in DIAGNOSES}
    shares = {OF_PART[part]: share for part, share in parts.shares.items() if part in OF_PART and part != REST}
    named = [(what, share) for what, share in shares.items() if share >= SETTINGS.least_share]
    named = sorted([*named, (NONE, SETTINGS.most)], key=lambda each: -each[1])
    r2 = {OF_PART[part]: r2 for part, r2 in parts.r2.items() if part in OF_PART}
    details = [f": {parts}", *(f" ({100 * share:.3g} % of it)" if what != NONE else "" for what, share in named[1:])]
    return [
        known[what].as_data(Hypothesis(r2.get(what) if what != NONE else None, detail))
        for (what, _), detail in zip(named, details, strict=True)
    ]


def _explains(r2: float, plain: float) -> bool:
    return r2 >= SETTINGS.explains and 1 - r2 <= SETTINGS.closes * (1 - plain)


def _ranked(holding: dict[str, Hypothesis]) -> list[str]:
    """By what they leave open; those as good as the best in their own order, the simplest first."""
    misses = {what: max(1 - (hypothesis.r2 or 0.0), 1e-12) for what, hypothesis in holding.items()}
    best = min(misses.values())
    return sorted(misses, key=lambda what: misses[what] if misses[what] > SETTINGS.as_good * best else best)
