"""y_k(t) = Σ_{s,s'} Σ_gg' λ_g^{t-s} λ_g'^{t-s'} K_gg'(x̃_s x̃_sᵀ, x̃_s' x̃_s'ᵀ): what is attention's.

Linear attention is Σ_s (quadratic in x_s)(linear in x_t): memory neurons that hold quadratic forms, times
forget neurons (λ = 0) that hold linear ones. Every other product of kinds (memory×memory, memory alone,
linear or constant terms in memory, query×query and so on) is a term attention does not have. The terms are
summed over all neurons before they are judged, so that what cancels exactly counts as nothing, whatever the
weights look like.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from underhood.algebra.quadratic import Array, append_one, decayed_sums, pair_products
from underhood.decompiler.from_weights.merge import Terms, concatenate
from underhood.decompiler.from_weights.neurons import contributions
from underhood.decompiler.from_weights.reading import Reading, is_strictly_causal

SEQUENCES, LENGTH, SEED = 16, 32, 20230904

# Noise puts terms of its own size into six classes at once (memory×memory, query×query, linear parts, …), a single
# defect into two at most. So where the fifth largest class is at rounding level, the weights were constructed, or
# fitted to the end, and what is not attention in them is meant, however small. Otherwise they are noisy, and less
# than a thousandth of the output cannot be told from noise.
NOISE_RANK, EXACT_NOISE, EXACT_TOLERANCE, NOISY_TOLERANCE = 5, 1e-11, 1e-8, 1e-3


@dataclass(frozen=True)
class Settings:
    """What a split is decided by, beside the tolerance."""

    most_decays: int = 32
    """Distinct decays that are told apart, each a head of its own: some seconds of work at d = 8."""
    faded: float = 1e-2
    """Share of the output that ideal decays may miss at the horizon: a memory that fades more is not one with λ = 1."""
    least_decays: tuple[float, ...] = (1e-3, 1e-12)
    """λ above which a neuron is a memory: trained neurons that forget keep 1e-4; constructed ones nothing."""
    of_noise: float = 10.0
    """Times the noise that counts as zero in a small output of a noisy network."""
    of_rounding: float = 64.0
    """Times the rounding unit of all that is summed, likewise, in one that is exact."""


SETTINGS = Settings()

_Candidate = tuple[Array, tuple[float, ...]]

FADING = "memory that fades at its own rate"
_KINDS = ("constant", "linear", "quadratic")


@dataclass(frozen=True)
class Structure:
    """What a network computes, split into attention and the rest."""

    decays: tuple[float, ...]  # of the attention part
    memory: tuple[Array, ...]  # hidden neurons of each decay
    forget: Array  # hidden neurons read as λ = 0
    rest: dict[str, float]  # size of each class of terms that attention does not have, in the output that has most
    deviation: float  # ‖y_k − y_attention,k‖ / ‖y_k‖ on random sequences, in the output k that has most
    tolerance: float
    noise: float
    signal: float  # root mean square output
    output: int  # k
    others: Array  # outputs that are not attention
    faded: float  # the same for y with these decays against y with the network's own λ, over the horizon

    @property
    def is_attention(self) -> bool:
        return self.deviation <= self.tolerance and self.lasts

    @property
    def lasts(self) -> bool:
        """Whether the decays are those of the network up to the horizon."""
        return self.faded <= max(SETTINGS.faded, self.tolerance)

    @property
    def rank_tolerance(self) -> float:
        """Relative size below which a direction, a head or a term is taken for rounding or noise."""
        return self.tolerance if self.tolerance >= NOISY_TOLERANCE else self.tolerance / 10

    def largest_rest(self) -> tuple[str, float]:
        name = max(self.rest, key=lambda key: self.rest[key])
        return name, self.rest[name]


def sample_inputs(d: int, sequences: int = SEQUENCES, length: int = LENGTH) -> Float[Array, "b t d"]:
    """Inputs N(0, 1), always the same: a decision does not depend on a draw."""
    return np.random.default_rng(SEED).standard_normal((sequences, length, d))


def find_structure(reading: Reading, tolerance: float | None = None, horizon: int = LENGTH) -> Structure:
    """Split the function into attention and the rest, with the decays that leave the least rest up to the horizon."""
    xs = sample_inputs(reading.d)
    ys = reading(xs)
    best: Structure | None = None
    for memory_of, decays in _candidates(reading, xs, ys, horizon):
        structure = _split(reading, xs, ys, memory_of, decays, tolerance, horizon)
        if best is None or (structure.lasts, -structure.deviation) > (best.lasts, -0.5 * best.deviation):
            best = structure
        if best.is_attention:
            break
    assert best is not None
    return best


def attention_terms(reading: Reading, memory: Array, forget: Array) -> Terms:
    """T_i[p,c] = Σ_j D_ij A_jp B_jc: rows read quadratic forms A in memory and linear forms B in forget neurons."""
    quadratic, linear, forms = reading.degree == 2, reading.degree == 1, reading.forms
    sides = [
        (weights[:, memory] @ forms[memory][:, quadratic], weights[:, forget] @ forms[forget][:, linear])
        for weights in (reading.left, reading.right)
    ]
    (left_memory, left_query), (right_memory, right_query) = sides
    columns = reading.readout.T
    return concatenate([Terms(columns, left_memory, right_query), Terms(columns, right_memory, left_query)])


def _candidates(reading: Reading, xs: Array, ys: Array, horizon: int) -> list[_Candidate]:
    """Assignments of neurons to decays (−1: forget), the simplest first."""
    weight = contributions(reading, xs[:4])
    matters = weight > 1e-12 * max(weight.max(initial=0.0), 1e-300)
    candidates: list[_Candidate] = []
    for least in SETTINGS.least_decays:
        candidates += _by_decay(np.real(reading.lambda_), weight, matters, least, horizon)
    return (
        candidates
        if is_strictly_causal(ys, EXACT_TOLERANCE)
        else candidates + _with_instant(reading, candidates, matters)
    )


def _by_decay(lambda_: Array, weight: Array, matters: Array, least: float, horizon: int) -> list[_Candidate]:
    """One decay for all memories, 1 or one of the weightiest; then its own for each."""
    relevant = matters & (lambda_ > least)
    # λ that are alike up to the horizon are one.
    digits = int(np.clip(np.ceil(np.log10(horizon)) + 3, 9, 15))
    values, index = np.unique(np.round(lambda_[relevant], digits), return_inverse=True)
    means = [float(lambda_[relevant][index == g].mean()) for g in range(len(values))]
    decays = [1.0] if (lambda_[relevant] > 0.9).any() or not relevant.any() else []
    if means:
        by_size = np.argsort(-np.bincount(index, weights=weight[relevant] ** 2), kind="stable")
        decays += [means[g] for g in by_size[:3]]
    candidates: list[_Candidate] = [(np.where(lambda_ < decay / 2, -1, 0), (decay,)) for decay in dict.fromkeys(decays)]
    if 1 < len(values) <= SETTINGS.most_decays:
        nearest = np.argmin(np.abs(lambda_[:, None] - values[None]), axis=1)
        candidates.append((np.where(lambda_ < values.min() / 2, -1, nearest), tuple(means)))
    return candidates


def _with_instant(reading: Reading, candidates: list[_Candidate], matters: Array) -> list[_Candidate]:
    """The same beside a head of decay 0, whose memory are neurons that forget at once and hold products."""
    sizes = np.abs(reading.forms)
    products = (sizes * (reading.degree == 2)).max(axis=1, initial=0.0)
    instant = matters & (products > 1e-9 * sizes.max(axis=1, initial=0.0))
    beside: list[_Candidate] = []
    for memory_of, decays in candidates:
        if not (matters & (memory_of >= 0)).any():
            memory_of, decays = np.full_like(memory_of, -1), ()
        at_once = instant & (memory_of < 0)
        if at_once.any():
            beside.append((np.where(at_once, len(decays), memory_of), (*decays, 0.0)))
    return beside


def _split(
    reading: Reading,
    xs: Array,
    ys: Array,
    memory_of: Array,
    decays: tuple[float, ...],
    tolerance: float | None,
    horizon: int,
) -> Structure:
    groups = [np.flatnonzero(memory_of == g) for g in range(len(decays))]
    forget = np.flatnonzero(memory_of < 0)
    attended, classes = _classes(reading, xs, ys, groups, forget, decays)
    own, missed = _sizes(ys), _sizes(ys - attended)
    # What is at the level of noise, in each output: an output that is attention beside one that is not tells it.
    noises = np.sort(np.stack(list(classes.values())), axis=0)[-NOISE_RANK]
    heard = own > 0
    noise = float(np.min(noises[heard] / own[heard], initial=np.inf)) if heard.any() else 0.0
    if tolerance is None:
        tolerance = _tolerance(reading, noise, memory_of, decays)
    scale = np.maximum(own, SETTINGS.of_rounding * reading.unit * _gross(reading, xs[:4]) / tolerance)
    if tolerance >= NOISY_TOLERANCE and heard.any():
        scale = np.maximum(scale, min(SETTINGS.of_noise * float(noises[heard].min()) / tolerance, float(own.max())))
    scale = np.where(scale > 0, scale, 1.0)
    output = int(np.argmax(missed / scale))
    rest = {name: float((sizes / scale).max()) for name, sizes in classes.items()}
    deviation, signal = float(missed[output] / scale[output]), float(np.sqrt(np.mean(ys**2)))
    faded = _faded(reading, xs, memory_of, decays, horizon, scale)
    others = np.flatnonzero(missed > tolerance * scale)
    return Structure(decays, tuple(groups), forget, rest, deviation, tolerance, noise, signal, output, others, faded)


def _sizes(ys: Array) -> Float[Array, " d_out"]:
    """Root mean square of each output."""
    return np.sqrt(np.mean(np.abs(ys) ** 2, axis=(0, 1)))


def _gross(reading: Reading, xs: Array) -> Float[Array, " d_out"]:
    """What each output would be if nothing cancelled: it rounds in proportion to this."""
    states = np.abs(reading.states(xs))
    return _sizes(((states @ np.abs(reading.left.T)) * (states @ np.abs(reading.right.T))) @ np.abs(reading.readout.T))


def _faded(
    reading: Reading, xs: Array, memory_of: Array, decays: tuple[float, ...], horizon: int, scale: Array
) -> float:
    """How far ideal decays take an output from that with the network's own λ, where inputs spread over the horizon."""
    ideal = np.where(memory_of >= 0, np.append(decays, 0.0)[memory_of], reading.lambda_)
    if np.array_equal(ideal, reading.lambda_):
        return 0.0
    half = xs.shape[1] // 2
    ages = np.append(np.linspace(horizon - 1, 0, half), np.geomspace(horizon, 1, xs.shape[1] - half) - 1).round()
    drive = reading.driven(xs)
    own, snapped = (
        reading.read(np.einsum("btn,tn->bn", drive, np.power(lambda_, ages[:, None])))
        for lambda_ in (reading.lambda_, ideal)
    )
    size = np.sqrt(np.mean(snapped**2, axis=0))
    gaps = np.sqrt(np.mean((own - snapped) ** 2, axis=0))
    return float(np.max(gaps / np.maximum(size, scale), initial=0.0))


def _tolerance(reading: Reading, noise: float, memory_of: Array, decays: tuple[float, ...]) -> float:
    aims = np.append(np.asarray(decays), 0.0)[memory_of]
    exact = np.count_nonzero(np.abs(reading.lambda_ - aims) <= 4 * reading.unit)
    mostly_exact = 2 * exact >= reading.hidden
    single = reading.unit > 1e-12
    if mostly_exact and noise <= (100 * reading.unit if single else EXACT_NOISE):
        return 1e-4 if single else EXACT_TOLERANCE
    return NOISY_TOLERANCE


def _classes(
    reading: Reading,
    xs: Array,
    ys: Array,
    groups: list[Array],
    forget: Array,
    decays: tuple[float, ...],
) -> tuple[Float[Array, "b t d_out"], dict[str, Float[Array, " d_out"]]]:
    """Attention's part of the output, and the size in each output of each class of terms that it does not have."""
    pairs = pair_products(append_one(xs))
    parts: dict[tuple[str, str], list[Any]] = {
        (name, kind): [0.0, 0.0] for name in ("memory", "query") for kind in _KINDS
    }
    for name, group, decay in [
        *(("memory", group, decay) for group, decay in zip(groups, decays, strict=True)),
        ("query", forget, 0.0),
    ]:
        sums = decayed_sums(pairs, decay)
        for degree, kind in enumerate(_KINDS):
            chosen = reading.degree == degree
            forms = reading.forms[group][:, chosen]
            for side, weights in enumerate((reading.left, reading.right)):
                parts[name, kind][side] = parts[name, kind][side] + _read(sums[..., chosen], forms, weights[:, group])

    def output(first: tuple[str, str], second: tuple[str, str]) -> Array:
        product = parts[first][0] * parts[second][1]
        if first != second:
            product = product + parts[second][0] * parts[first][1]
        return np.real(product @ reading.readout.T)

    classes: dict[str, Array] = {}
    snapped = np.zeros_like(ys)
    attended = np.zeros_like(ys)
    keys = list(parts)
    for i, first in enumerate(keys):
        for second in keys[i:]:
            value = output(first, second)
            snapped = snapped + value
            name = _class_name(first, second)
            if name is None:
                attended = attended + value
            else:
                classes[name] = classes.get(name, 0.0) + value
    classes[FADING] = ys - snapped
    return attended, {name: _sizes(value) for name, value in classes.items()}


def _read(sums: Float[Array, "b t p"], forms: Array, weights: Array) -> Array:
    """What rows read of neurons that hold these forms; the products in the order that costs least."""
    if not forms.size:
        return np.zeros((*sums.shape[:-1], len(weights)))
    flat = np.linalg.multi_dot([sums.reshape(-1, sums.shape[-1]), forms.T, weights.T])
    return flat.reshape(*sums.shape[:-1], len(weights))


def _class_name(first: tuple[str, str], second: tuple[str, str]) -> str | None:
    """A name for a product of two parts; None for attention's own. Query×query is one polynomial in x_t, which
    only its degree tells apart."""
    if first[0] == second[0] == "query":
        return f"query×query of degree {_KINDS.index(first[1]) + _KINDS.index(second[1])}"
    if first[0] == second[0] == "memory":
        return f"memory×memory ({first[1]}, {second[1]})"
    if (first[1], second[1]) == ("quadratic", "linear"):
        return None
    return f"memory×query ({first[1]}, {second[1]})"
