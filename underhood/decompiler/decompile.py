"""network ──forms──▶ attention + rest ──heads──▶ W_V, W_KᵀW_Q ──▶ smallest network, scores, certificate."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from typing import Any

import numpy as np

from underhood.algebra.heads import Heads, head_outputs, key_and_query
from underhood.algebra.quadratic import decayed_sums, pair_products, unfold
from underhood.algebra.statistics import r_squared
from underhood.architectures.gated_rnn.cell import GatedRNN
from underhood.attention.linear import LinearAttention
from underhood.core.costs import estimate_cost
from underhood.core.errors import UnderhoodError
from underhood.core.foreign import as_function, converter_of
from underhood.core.model import AbstractModel
from underhood.core.threads import threads_for
from underhood.decompiler.from_outputs.diagnosis import FUNCTION, diagnose
from underhood.decompiler.from_outputs.functions import require_instance
from underhood.decompiler.from_outputs.hypotheses import LENGTH
from underhood.decompiler.from_outputs.probe import TOLERANCE as BLACK_BOX_TOLERANCE
from underhood.decompiler.from_outputs.probe import check_against, probe
from underhood.decompiler.from_weights.certificate import certify
from underhood.decompiler.from_weights.merge import Terms
from underhood.decompiler.from_weights.neurons import Neurons, study_neurons
from underhood.decompiler.from_weights.polynomial import Polynomial, instantaneous, polynomial_distance
from underhood.decompiler.from_weights.reading import MOST_DENSE, NotDiagonalisable, Reading, is_readable, read
from underhood.decompiler.from_weights.scores import kv_score, q_score, read_forms_score
from underhood.decompiler.from_weights.smallest import Smallest, find_smallest
from underhood.decompiler.from_weights.structure import (
    FADING,
    SETTINGS,
    Structure,
    attention_terms,
    find_structure,
    sample_inputs,
)
from underhood.decompiler.heads import recover
from underhood.decompiler.result import DECAYED, LINEAR, NOT, Evidence, Found, Scores

INPUT_BOUND, HORIZON = 4.0, 100
LONGEST = 10**15  # steps: beyond, λ^t is no longer what float64 says
SIZES = 1e-140, 1e140
NEAREST = 0.1  # up to this relative distance, the nearest attention is worth showing where the answer is no


@np.errstate(all="ignore")  # what overflows is refused by its size
def decompile(
    model: Any,
    *,
    against: LinearAttention | None = None,
    tolerance: float | None = None,
    input_bound: float = INPUT_BOUND,
    horizon: int = HORIZON,
    fine_tune: bool = False,
    seed: int = 0,
) -> Found:
    """Which linear attention does this network implement, if any?

    A gated RNN of Eq. 2 is read from its weights and gets a certificate; so is a torch module whose weights and outputs
    are those of such a network. The weights of all other networks say nothing by themselves: they are read as black
    boxes, by `probe`, without a certificate. Each output is judged against its own size.

    **Arguments:**

    - `model`: a model of this package, a torch module, or the path of an ONNX file.
    - `against`: an attention to compare with; without it, the scores compare with the one found.
    - `tolerance`: the share of each output, relative, that may be something else than attention. By default 1e-8 where
        the weights are exact (1e-4 in float32), and 1e-3 where they are noisy, as training leaves them.
    - `input_bound`: the largest |input| that the certificate covers.
    - `horizon`: the longest sequence that verdict and certificate cover. A memory that forgets a hundredth of
        the output within it is decayed.
    - `fine_tune`: whether to fit the readout of the smallest network again, where merging cost something.
    - `seed`: of the test sequences and starts.

    **Returns:**

    A [`Found`][underhood.Found]: `.verdict`, `.reason`, `.attention`, `.scores`, `.certificate`, and `.diagnosis` where
    the verdict is no. Raises `UnderhoodError` for weights that are not finite, and where no certificate exists because
    outputs within the bound and horizon leave float64.
    """
    require_instance(model)
    converter = converter_of(model)
    if converter is not None:
        if converter.as_model is not None:
            with contextlib.suppress(UnderhoodError):  # a module of another sort can still be probed
                model = converter.as_model(model)
        if not isinstance(model, AbstractModel):
            _check(tolerance, input_bound, horizon, seed)
            return _black_box(model, against, tolerance, seed)
    _require_network(model)
    _check(tolerance, input_bound, horizon, seed)
    if against is not None:
        against = check_against(against, model.d, model.d_out)
    with threads_for(model.d):
        try:
            reading = read(model) if is_readable(model) else None
        except NotDiagonalisable:
            reading = None
        if reading is None:
            return _through_probe(model, against, tolerance, seed)
        return _from_weights(model, reading, against, tolerance, (input_bound, horizon), fine_tune, seed)


def decompile_cost(model: Any, d: int | None = None) -> str | None:
    """What `decompile` or, of a callable with d inputs, `probe` will take, where that is known and much."""
    if isinstance(model, GatedRNN):
        # A network of the fewest neurons has d(d + 3)/2; one with more is as much work as that of a larger d.
        what = f"decompiling {model.hidden} neurons with d = {model.d}"
        return estimate_cost("decompile", max(model.d, (2 * model.hidden) ** 0.5), what)
    d = getattr(model, "d", None) if d is None else d
    return estimate_cost("probe", d, f"probing d = {d}") if isinstance(d, int) and d > 0 else None


def _from_weights(
    model: Any,
    reading: Reading,
    against: LinearAttention | None,
    tolerance: float | None,
    box: tuple[float, int],
    fine_tune: bool,
    seed: int,
) -> Found:
    """The answer for Eq. 2: forms, heads, smallest network, scores, certificate."""
    _require_size(reading)
    input_bound, horizon = box
    structure = find_structure(reading, tolerance, horizon)
    terms = [attention_terms(reading, group, structure.forget) for group in structure.memory]
    heads = _recovered(structure, terms, reading.d, seed)
    attention = _attention(heads, structure) if heads else None
    xs = np.random.default_rng(seed + 1).standard_normal((16, 32, reading.d))
    neurons = study_neurons(reading, xs[:4])
    smallest = find_smallest(model, reading, structure, heads, terms, neurons, fine_tune=fine_tune)
    r2 = r_squared(reading(xs), _attended(structure, terms, heads, xs))
    evidence = _evidence(reading, structure, terms, neurons, smallest, r2)
    scores = _scores(reading, structure, neurons, evidence.polynomial, against, attention)
    if not structure.is_attention:
        some = structure.others if 0 < len(structure.others) < reading.d_out else None
        diagnosis = diagnose(reading, reading.d, LENGTH, INPUT_BOUND, seed, some)
        for one in diagnosis:
            one.pop(FUNCTION, None)
        return Found(NOT, _why_not(reading, structure), attention, scores, None, diagnosis, evidence=evidence)
    assert attention is not None
    verdict = LINEAR if structure.decays == (1.0,) else DECAYED
    certificate = None
    if isinstance(model, GatedRNN):
        certificate = certify(model, reading, structure, attention, input_bound=input_bound, horizon=horizon)
        if not np.isfinite(certificate.max_abs_error):
            rule = "expected a bound and a horizon within which outputs are numbers of float64"
            got = f"input_bound = {input_bound:g}, horizon = {horizon:g}"
            raise UnderhoodError(rule, got, "Certify with a smaller `input_bound`.")
    return Found(verdict, _why(structure, attention), attention, scores, certificate, evidence=evidence)


def _evidence(
    reading: Reading, structure: Structure, terms: list[Terms], neurons: Neurons, smallest: Smallest, r2: float
) -> Evidence:
    network, is_small = smallest.network or reading, reading.d <= MOST_DENSE
    return Evidence(
        r2=r2,
        deviation=structure.deviation,
        tolerance=structure.tolerance,
        rest=structure.rest,
        tensor=unfold(np.sum([one.tensor for one in terms], axis=0), reading.d) if is_small else None,
        polynomial=instantaneous(reading) if is_small else None,
        neurons=neurons,
        smallest=smallest,
        hidden_before=reading.hidden,
        hidden_after=network.hidden,
        pre_readout_before=reading.pre_readout,
        pre_readout_after=network.pre_readout,
    )


def _recovered(structure: Structure, terms: list[Terms], d: int, seed: int) -> list[Heads]:
    """The heads of each decay; none where attention is too far off to be worth showing."""
    share = structure.rank_tolerance
    if not structure.is_attention:
        if structure.deviation >= NEAREST:
            return []
        share = max(share, structure.deviation)
    return [recover(one, d, share, seed=seed) for one in terms]


def _attended(structure: Structure, terms: list[Terms], heads: list[Heads], xs: np.ndarray) -> np.ndarray:
    """What the heads, or without any the part of the network that is attention's, make of sequences."""
    if heads:
        return head_outputs(heads, structure.decays, xs)
    pairs = pair_products(xs)
    sums = [decayed_sums(pairs, decay) for decay in structure.decays]
    return np.sum([one.outputs(past, xs) for one, past in zip(terms, sums, strict=True)], axis=0)


def _require_network(model: Any) -> None:
    if isinstance(model, LinearAttention):
        raise UnderhoodError("a linear-attention has nothing to decompile", remedy="Give a recurrent network.")
    if not isinstance(model, AbstractModel):
        remedy = "Use uh.probe(fn, d=...) for any other callable." if callable(model) else ""
        remedy = "Read the file with uh.load." if isinstance(model, str | os.PathLike) else remedy
        remedy = "Use its .model." if isinstance(getattr(model, "model", None), AbstractModel) else remedy
        raise UnderhoodError("expected a network of this package", type(model).__name__, remedy)


def _check(tolerance: float | None, input_bound: float, horizon: int, seed: int) -> None:
    if not input_bound > 0 or not np.isfinite(input_bound):
        raise UnderhoodError("expected an input_bound above 0 and below infinity", input_bound)
    if not 1 <= horizon <= LONGEST or int(horizon) != horizon:
        raise UnderhoodError(f"expected a horizon of 1 to {LONGEST:g} steps", horizon)
    if tolerance is not None and not 0 < tolerance < 1:
        raise UnderhoodError("expected a tolerance between 0 and 1", tolerance)
    if seed < 0:
        raise UnderhoodError("expected a seed of 0 or more", seed)


def _require_size(reading: Reading) -> None:
    """Squares of the outputs are compared: they have to be numbers of float64, too."""
    largest = float(np.abs(reading(sample_inputs(reading.d))).max())
    least, most = SIZES
    if largest != 0 and not least <= largest <= most:
        rule = f"expected outputs that are zero, or between {least:g} and {most:g} at their largest"
        raise UnderhoodError(rule, f"{largest:.3g}", "Scale its readout.")


def _through_probe(model: Any, against: LinearAttention | None, tolerance: float | None, seed: int) -> Found:
    found = probe(model, d=model.d, against=against, seed=seed, tolerance=tolerance or BLACK_BOX_TOLERANCE)
    note = "its weights say nothing by themselves, so it was read as a black box, without a certificate"
    evidence = replace(found.evidence, hidden_before=getattr(model, "hidden", None))
    return replace(found, reason=f"{found.reason}; {note}", evidence=evidence)


def _black_box(network: Any, against: LinearAttention | None, tolerance: float | None, seed: int) -> Found:
    """Of somebody else's."""
    function, d = as_function(network)
    if d is None:
        name = type(network).__name__
        raise UnderhoodError(f"cannot tell the input size of {name}", remedy="Use uh.probe(module, d=...).")
    found = probe(function, d, against=against, seed=seed, tolerance=tolerance or BLACK_BOX_TOLERANCE)
    return replace(found, reason=f"{found.reason}; it was read as a black box, without a certificate")


def _attention(heads: list[Heads], structure: Structure) -> LinearAttention:
    values = np.concatenate([one.values for one in heads])
    keys, queries = key_and_query(np.concatenate([one.key_query for one in heads]))
    decays = np.repeat(structure.decays, [one.count for one in heads])
    return LinearAttention(values, keys, queries, None if (decays == 1).all() else decays)


def _scores(
    reading: Reading,
    structure: Structure,
    neurons: Neurons,
    polynomial: Polynomial | None,
    against: LinearAttention | None,
    found: LinearAttention | None,
) -> Scores:
    """Table 1 against the teacher, or else against what was found."""
    attention = against or found
    if attention is None:
        return Scores()
    memory = np.concatenate(structure.memory)
    # Neurons that were not pruned: enough of next to nothing would reconstruct anything.
    read = neurons.contribution > structure.tolerance / 10
    memory = memory[read[memory]]
    # The split of a found attention into several heads is arbitrary, and so would be its key-values.
    arbitrary = against is None and attention.heads > 1
    return Scores(
        (read_forms_score if arbitrary else kv_score)(reading, memory, attention),
        q_score(reading, structure.forget[read[structure.forget]], attention),
        polynomial_distance(reading, attention, polynomial),
    )


def _why(structure: Structure, attention: LinearAttention) -> str:
    if structure.signal == 0:
        return "the output is zero for every input: attention with zero weights"
    share = f"what attention does not have is {structure.deviation:.1e} of the output"
    reason = f"memory × query only: {share} (tolerance {structure.tolerance:.0e})"
    split = (
        "one head, identifiable up to one scalar"
        if attention.heads == 1
        else f"{attention.heads} heads, of which only the sum is identifiable"
    )
    fades = "" if attention.decay is None else f", decay {_listed(structure.decays)}"
    return f"{reason}; {split}{fades}"


def _why_not(reading: Reading, structure: Structure) -> str:
    rates = np.unique(np.round(np.abs(reading.lambda_), 6))
    values = f"{len(rates)} values of λ between {rates.min():g} and {rates.max():g}"
    if not structure.lasts and structure.deviation <= structure.tolerance:
        share = f"with decay {_listed(structure.decays)} the output is off by {structure.faded:.1e} within the horizon"
        return f"{share}: {values}, of which at most {SETTINGS.most_decays} are told apart"
    name, size = structure.largest_rest()
    of = "the output" if reading.d_out == 1 else f"output {structure.output + 1} of {reading.d_out}"
    share = f"{structure.deviation:.1e} of {of} is not attention's (tolerance {structure.tolerance:.0e})"
    if name != FADING:
        return f"{share}; most of all {name}, {size:.1e} of it"
    limit = f" (at most {SETTINGS.most_decays} are told apart)" if len(rates) > SETTINGS.most_decays else ""
    return f"{share}; most of all {FADING}: {values}{limit}"


def _listed(values: tuple[float, ...]) -> str:
    return ", ".join(f"{value:.6g}" for value in values)
