"""network ──forms──▶ attention + rest ──heads──▶ W_V, W_KᵀW_Q ──▶ smallest network, scores, certificate."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import numpy as np

from underhood.algebra.heads import Heads, head_outputs, key_and_query
from underhood.algebra.quadratic import decayed_sums, pair_products, unfold
from underhood.algebra.statistics import r_squared
from underhood.architectures.gated_rnn.cell import GatedRNN
from underhood.attention.linear import LinearAttention
from underhood.core.errors import UnderhoodError
from underhood.core.model import AbstractModel
from underhood.decompiler.from_outputs.diagnosis import LENGTH, diagnose
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
    Structure,
    attention_terms,
    find_structure,
    sample_inputs,
)
from underhood.decompiler.heads import recover
from underhood.decompiler.result import DECAYED, LINEAR, NOT, Evidence, Found, Scores

INPUT_BOUND, HORIZON = 4.0, 100
SIZES = 1e-140, 1e140
NEAREST = 0.1  # up to this relative distance, the nearest attention is worth showing to who was told "no"


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

    A gated RNN of Eq. 2 is read from its weights. Stacks of LSTM, GRU and LRU cells, whose weights say
    nothing by themselves, are read as black boxes (`probe`), without a certificate.

    `against` is an attention to compare with; without it, the scores compare with the one found. `tolerance` is the
    share of the output, relative, that may be something else than attention: 1e-8 by default where the weights are
    exact, 1e-3 where they are noisy, as training leaves them. The certificate holds for inputs within ± `input_bound`
    and sequences up to `horizon`. `fine_tune` fits the readout of the smallest network again, where merging cost
    something. `seed` draws the test sequences and the starts.
    """
    _check(model, tolerance, input_bound, horizon, seed)
    if against is not None:
        against = check_against(against, model.d, model.d_out)
    try:
        reading = read(model) if is_readable(model) else None
    except NotDiagonalisable:
        reading = None
    if reading is None:
        return _through_probe(model, against, tolerance, seed)
    _require_size(reading)
    structure = find_structure(reading, tolerance)
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
        diagnosis = diagnose(reading, reading.d, LENGTH, INPUT_BOUND, seed)
        return Found(NOT, _why_not(reading, structure), attention, scores, None, diagnosis, evidence=evidence)
    assert attention is not None
    verdict = LINEAR if structure.decays == (1.0,) else DECAYED
    certificate = None
    if isinstance(model, GatedRNN):
        certificate = certify(model, reading, structure, attention, input_bound=input_bound, horizon=horizon)
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


def _check(model: Any, tolerance: float | None, input_bound: float, horizon: int, seed: int) -> None:
    if isinstance(model, LinearAttention):
        raise UnderhoodError("a linear-attention has nothing to decompile", remedy="Give a recurrent network.")
    if not isinstance(model, AbstractModel):
        remedy = "Use uh.probe(fn, d=...) for any other callable." if callable(model) else ""
        remedy = "Read the file with uh.load." if isinstance(model, str | os.PathLike) else remedy
        remedy = "Use its .model." if isinstance(getattr(model, "model", None), AbstractModel) else remedy
        raise UnderhoodError("expected a network of this package", type(model).__name__, remedy)
    if not input_bound > 0 or not np.isfinite(input_bound):
        raise UnderhoodError("expected an input_bound above 0 and below infinity", input_bound)
    if not 1 <= horizon < float("inf") or int(horizon) != horizon:
        raise UnderhoodError("expected a horizon of 1 step or more", horizon)
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
    kind = f"memory × query only: {share} (tolerance {structure.tolerance:.0e})"
    split = (
        "one head, identifiable up to one scalar"
        if attention.heads == 1
        else f"{attention.heads} heads, of which only the sum is identifiable"
    )
    fades = "" if attention.decay is None else f", decay {_listed(structure.decays)}"
    return f"{kind}; {split}{fades}"


def _why_not(reading: Reading, structure: Structure) -> str:
    name, size = structure.largest_rest()
    share = f"{structure.deviation:.1e} of the output is not attention's (tolerance {structure.tolerance:.0e})"
    detail = f"{name}, {size:.1e} of it"
    if name == FADING:
        rates = np.unique(np.round(np.abs(reading.lambda_), 6))
        detail = f"{FADING}: {len(rates)} values of λ between {rates.min():g} and {rates.max():g}"
    return f"{share}; most of all {detail}"


def _listed(values: tuple[float, ...]) -> str:
    return ", ".join(f"{value:.6g}" for value in values)
