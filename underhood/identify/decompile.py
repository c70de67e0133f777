"""network ──forms──▶ attention + rest ──heads──▶ W_V, W_KᵀW_Q ──▶ smallest network, scores, certificate."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from underhood.attention.linear import LinearAttention
from underhood.cells.gated_rnn import DenseGatedRNN, GatedRNN
from underhood.errors import UnderhoodError
from underhood.identify.blackbox import TOLERANCE as BLACK_BOX_TOLERANCE
from underhood.identify.blackbox import check_against, probe
from underhood.identify.certify import certify
from underhood.identify.forms import Reading, is_readable, read
from underhood.identify.found import DECAYED, LINEAR, NOT, Found, Scores
from underhood.identify.neurons import Neurons, study_neurons
from underhood.identify.polynomial import Polynomial, distance, instantaneous, of_attention
from underhood.identify.probes import kv_score, q_score, read_forms_score
from underhood.identify.recover import Heads, head_tensor, key_and_query, recover_heads
from underhood.identify.smallest import find_smallest
from underhood.identify.temporal import FADING, Structure, attention_outputs, find_structure, sample_inputs
from underhood.model import AbstractModel

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
    nothing by themselves, are read as black boxes (`probe`), without a certificate. `tolerance` is the share
    of the output, relative, that may be something else than attention: 1e-8 by default where the weights are
    exact, 1e-3 where they are noisy, as training leaves them.
    """
    _check(model, against, tolerance, input_bound, horizon)
    if not is_readable(model):
        return _through_probe(model, against, tolerance, seed)
    try:
        reading = read(model)
    except UnderhoodError as error:
        if isinstance(model, DenseGatedRNN) and "eigenvectors" in error.rule:
            return _through_probe(model, against, tolerance, seed)
        raise
    _require_size(reading)
    structure = find_structure(reading, tolerance)
    polynomial = instantaneous(reading)
    xs = np.random.default_rng(seed + 1).standard_normal((16, 32, reading.d))
    ys = reading(xs)
    share = structure.rank_tolerance
    heads: list[Heads] = []
    if structure.is_attention or structure.deviation < NEAREST:
        share = share if structure.is_attention else max(share, structure.deviation)
        heads = [recover_heads(tensor, share, seed=seed) for tensor in structure.tensors]
    attention = _attention(heads, structure) if heads else None
    attended = attention_outputs(structure.tensors, structure.decays, xs)
    if attention is not None:
        attended = attention_outputs(np.stack([one.tensor for one in heads]), structure.decays, xs)
    neurons = study_neurons(reading, xs[:4])
    smallest = find_smallest(model, reading, structure, heads, neurons, fine_tune=fine_tune)
    network = smallest.network
    common = {
        "attention": attention,
        "scores": _scores(reading, structure, neurons, polynomial, against, attention),
        "r2": _r2(ys, attended),
        "hidden_before": reading.hidden,
        "hidden_after": reading.hidden if network is None else network.hidden,
        "pre_readout_before": reading.pre_readout,
        "pre_readout_after": reading.pre_readout if network is None else network.pre_readout,
        "reduced": network,
        "reduced_change": smallest.change,
        "kernels": smallest.kernels,
        "tensor": structure.tensors.sum(axis=0),
        "deviation": structure.deviation,
        "tolerance": structure.tolerance,
        "rest": structure.rest,
        "neurons": neurons,
        "polynomial": polynomial,
    }
    if not structure.is_attention:
        return Found(NOT, _why_not(reading, structure), heads=None, **common)
    assert attention is not None
    verdict = LINEAR if structure.decays == (1.0,) else DECAYED
    certificate = None
    if isinstance(model, GatedRNN):
        certificate = certify(model, reading, structure, attention, input_bound=input_bound, horizon=horizon)
    return Found(verdict, _why(structure, attention), heads=attention.heads, certificate=certificate, **common)


def _check(model: Any, against: Any, tolerance: float | None, input_bound: float, horizon: int) -> None:
    if isinstance(model, LinearAttention):
        raise UnderhoodError(
            "decompile takes a recurrent network", "a linear-attention, which has nothing to decompile"
        )
    if not isinstance(model, AbstractModel):
        raise UnderhoodError(
            "decompile reads networks of this package",
            type(model).__name__,
            "Use uh.probe(fn, d=...) for any other callable." if callable(model) else "",
        )
    if not input_bound > 0 or not np.isfinite(input_bound):
        raise UnderhoodError("input_bound is a positive number", input_bound)
    if horizon < 1:
        raise UnderhoodError("horizon is a whole number from 1 on", horizon)
    if tolerance is not None and not 0 < tolerance < 1:
        raise UnderhoodError("tolerance is between 0 and 1", tolerance)
    if against is not None:
        check_against(against, model.d, model.d_out)


def _require_size(reading: Reading) -> None:
    """Squares of the outputs are compared: they have to be numbers of float64, too."""
    largest = float(np.abs(reading(sample_inputs(reading.d))).max())
    least, most = SIZES
    if largest != 0 and not least <= largest <= most:
        rule = f"the outputs of a network to decompile are zero, or between {least:g} and {most:g} at their largest"
        raise UnderhoodError(rule, f"{largest:.3g}", "Scale its readout.")


def _through_probe(model: Any, against: LinearAttention | None, tolerance: float | None, seed: int) -> Found:
    found = probe(model, d=model.d, against=against, seed=seed, tolerance=tolerance or BLACK_BOX_TOLERANCE)
    note = "its weights say nothing by themselves, so it was read as a black box, without a certificate"
    return replace(found, hidden_before=getattr(model, "hidden", None), reason=f"{found.reason}; {note}")


def _attention(heads: list[Heads], structure: Structure) -> LinearAttention:
    values = np.concatenate([one.values for one in heads])
    keys, queries = key_and_query(np.concatenate([one.key_query for one in heads]))
    decays = np.repeat(structure.decays, [one.count for one in heads])
    return LinearAttention(values, keys, queries, None if (decays == 1).all() else decays)


def _scores(
    reading: Reading,
    structure: Structure,
    neurons: Neurons,
    polynomial: Polynomial,
    against: LinearAttention | None,
    found: LinearAttention | None,
) -> Scores:
    """Table 1 against the teacher, or else against what was found."""
    attention = against or found
    if attention is None:
        return Scores()
    tensor = head_tensor(np.asarray(attention.w_value, np.float64), attention.key_query)
    memory = np.concatenate(structure.memory)
    # Neurons that were not pruned: enough of next to nothing would reconstruct anything.
    read = neurons.contribution > structure.tolerance / 10
    memory = memory[read[memory]]
    # The split of a found attention into several heads is arbitrary, and so would be its key-values.
    arbitrary = against is None and attention.heads > 1
    return Scores(
        read_forms_score(reading, memory, tensor) if arbitrary else kv_score(reading, memory, attention),
        q_score(reading, structure.forget[read[structure.forget]], attention),
        distance(polynomial, of_attention(tensor)),
    )


def _r2(ys: np.ndarray, predicted: np.ndarray) -> float:
    total = float(np.sum((ys - ys.mean(axis=(0, 1))) ** 2))
    return 1.0 - float(np.sum((ys - predicted) ** 2)) / total if total else 1.0


def _why(structure: Structure, attention: LinearAttention) -> str:
    if structure.signal == 0:
        return "the output is zero for every input: attention with zero weights"
    share = f"what attention does not have is {structure.deviation:.1e} of the output"
    kind = f"memory × query only: {share} (tolerance {structure.tolerance:.0e})"
    split = (
        "one head, identifiable up to one scalar"
        if attention.heads == 1
        else f"{attention.heads} heads, whose sum is identifiable and whose split is not"
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
