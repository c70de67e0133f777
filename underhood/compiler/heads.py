"""What a matrix memory is to compute: y = Σ_heads out · Σ_s γ^{t−s} v_s (k_s·q_t), with bounds on every signal.

Attention is that already, with d_k·d_v numbers a head (`blocks`), or fewer where each product has a memory of its own
(`singles`): S = Σ x xᵀ is symmetric, and S_pq (q_p + q_q) serves two outputs at once. A gated RNN is that twice.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from underhood.algebra.key_values import Factors, KeyValueForm, smallest_head
from underhood.algebra.subspaces import factor, row_space
from underhood.architectures.gated_rnn.cell import GatedRNN
from underhood.attention.linear import LinearAttention
from underhood.compiler.envelope import Envelope, positive
from underhood.compiler.forms import EPS, factor_deviation, heads_of
from underhood.compiler.rounding import CHUNK, ELEMENTARY, WEIGHT, Arithmetic
from underhood.compiler.settings import SETTINGS
from underhood.layers.linear import dense

# Roundings of what the readout makes up for: σ in the gate, Δ or β, and a norm's 1/√ε are within ELEMENTARY units, and
# they are multiplied, or made of sixteen products and sums at most.
CONSTANTS = 3 * int(ELEMENTARY) + 16


@dataclasses.dataclass(frozen=True)
class Heads:
    """o = Σ_s γ^{t−s} v_s (k_s·q_t) for each head, y = out·o; v, k, q are rows over x̃, whose last entry is 1."""

    values: Float[np.ndarray, "h v inputs"]
    keys: Float[np.ndarray, "h k inputs"]
    queries: Float[np.ndarray, "h k inputs"]
    decay: Float[np.ndarray, " h"]
    out: Float[np.ndarray, "d_o hv"]
    input_bounds: Float[np.ndarray, " inputs"]  # |x̃|
    steps: Float[np.ndarray, " h"]  # how many inputs a memory adds up
    left_out: Float[np.ndarray, " d_o"] | float = 0.0  # |y − y_source| in exact arithmetic: ranks and bases are found

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Heads, d_k, d_v, inputs."""
        return len(self.values), self.keys.shape[1], *self.values.shape[1:]

    @property
    def value_bounds(self) -> Float[np.ndarray, "h v"]:
        return np.abs(self.values) @ self.input_bounds

    @property
    def key_bounds(self) -> Float[np.ndarray, "h k"]:
        return np.abs(self.keys) @ self.input_bounds

    @property
    def query_bounds(self) -> Float[np.ndarray, "h k"]:
        return np.abs(self.queries) @ self.input_bounds

    @property
    def score_bounds(self) -> Float[np.ndarray, " h"]:
        """max Σ_s Σ_i |k_i(x_s) q_i(x_t)|: with signs σ in place of | |, a bilinear form Kᵀ diag(σ) Q each."""
        d_key = self.keys.shape[1]
        apart = np.sum(self.key_bounds * self.query_bounds, axis=1)
        if not 1 < d_key <= SETTINGS.most_signs:
            return self.steps * apart
        keys, queries = self.keys * self.input_bounds, self.queries * self.input_bounds
        signs = np.array(list(itertools.product((1.0, -1.0), repeat=d_key - 1)))
        signs = np.concatenate([np.ones((len(signs), 1)), signs], axis=1)
        forms = np.abs(np.einsum("sk,hka,hkb->shab", signs, keys, queries, optimize=True))
        return self.steps * np.max(forms.sum(axis=(2, 3)), axis=0)

    @property
    def read_bounds(self) -> Float[np.ndarray, "h v"]:
        """|o|."""
        return self.score_bounds[:, None] * self.value_bounds

    @property
    def output_bounds(self) -> Float[np.ndarray, " d_o"]:
        return np.abs(self.out) @ self.read_bounds.ravel()

    @functools.cached_property
    def joint_bounds(self) -> Float[np.ndarray, " d_o"]:
        """max Σ_s Σ_ij |out_i v_i(x_s) k_j(x_s) q_j(x_t)|: of one x_s and one x_t, not each factor at its largest.

        a b ≤ ((a + b)/2)² with a = |v|/V and b = |k|/K is convex in x_s, as |q| is in x_t: both are largest at corners.
        Among many heads that is a third of `output_bounds`.
        """
        count, _, d_value, inputs = self.sizes
        if 2 ** (inputs - 1) > SETTINGS.most_corners:
            return self.output_bounds
        signs = np.array(list(itertools.product((1.0, -1.0), repeat=inputs - 1)))
        corners = np.concatenate([signs, np.ones((len(signs), 1))], axis=1) * self.input_bounds
        values, keys, queries = (np.abs(rows @ corners.T) for rows in (self.values, self.keys, self.queries))
        most_v, most_k = self.value_bounds[..., None], self.key_bounds[..., None]
        means = (values / positive(most_v))[:, :, None] + (keys / positive(most_k))[:, None]
        written = (means / 2) ** 2 * (self.steps[:, None, None, None] * most_v[:, :, None] * most_k[:, None])
        asked = queries.reshape(-1, len(corners))
        out = np.abs(self.out).reshape(-1, count, d_value)
        by_key = (np.einsum("hv,hvkc->chk", rows, written).reshape(len(corners), -1) for rows in out)
        return np.minimum(self.output_bounds, [np.max(each @ asked) for each in by_key])

    @property
    def constant(self) -> Float[np.ndarray, " inputs"]:
        """The row that reads the constant."""
        return np.eye(self.keys.shape[2])[-1]

    def errors(self, made: Made, envelope: Envelope) -> Float[np.ndarray, " d_o"]:
        """What rounding does to y, and what the limits leave.

        Sums round by a part of what they add up. A projection rounds by a part of its largest value, whatever its own,
        and what a limit leaves may mix keys of one step with values of another: each at its largest.
        """
        count, _, d_value, _ = self.sizes
        apart, adding = self._apart(made, envelope), self._adding(envelope)
        errors = apart * self.output_bounds + (1 + apart) * adding * self.joint_bounds
        if made.centred:  # the mean is 0 but for errors of all values, and goes into each
            share = np.kron(np.eye(count), np.full((1, d_value), 1 / d_value))
            mean = dataclasses.replace(self, out=share, left_out=0.0)
            subtracting = Arithmetic(envelope).gamma(d_value + CONSTANTS)
            wrong = apart * mean.output_bounds + (1 + apart) * (adding + subtracting) * mean.joint_bounds
            errors = errors + np.abs(self.out).reshape(-1, count, d_value).sum(axis=2) @ wrong
        return errors + self.left_out + self._underflow(made, envelope)

    def rounding(self, made: Made, envelope: Envelope) -> float:
        """The same as a part of `output_bounds`."""
        bounds = self.output_bounds
        errors = self.errors(made, envelope)
        return float(np.max(errors / positive(bounds), initial=0.0))

    def _apart(self, made: Made, envelope: Envelope) -> float:
        """Of projections, and of limits."""
        rows = np.concatenate([self.values, self.keys, self.queries], axis=1)
        arithmetic = Arithmetic(envelope)
        count = int(np.max(np.count_nonzero(rows, axis=2))) + WEIGHT
        return float(np.expm1(3 * (arithmetic.gamma(count) * made.mixing + arithmetic.cast) + made.left))

    def _adding(self, envelope: Envelope) -> float:
        """Activations of three factors; sums over time, keys and heads."""
        arithmetic = Arithmetic(envelope)
        summed = int(np.max(np.count_nonzero(self.out, axis=1)))
        parts = 3 * (ELEMENTARY + 2) * arithmetic.unit
        parts += arithmetic.gamma(self.keys.shape[1] + WEIGHT) + arithmetic.gamma(summed + CONSTANTS)
        # Step by step, or in chunks, whose sums are products of matrices: either way is within the larger.
        chunks = arithmetic.gamma(min(envelope.horizon, CHUNK) + 2 + envelope.horizon / CHUNK)
        return float(np.expm1(parts + max(np.max(arithmetic.summing(self.decay)), chunks)))

    def _underflow(self, made: Made, envelope: Envelope) -> Float[np.ndarray, " d_o"]:
        """Each signal, as it is scaled, and each product may lose the smallest normal number."""
        value, key, query, steps = self.value_bounds, self.key_bounds, self.query_bounds, self.steps
        keys, queries = key.sum(axis=1), query.sum(axis=1)
        in_v, in_k, in_q, read = (np.broadcast_to(scale, len(steps)) for scale in made.scales)
        d_key, inputs = key.shape[1], len(self.input_bounds)
        each = (steps * np.sum(key * query, axis=1) / in_v)[:, None] + value * (steps * (queries / in_k + keys / in_q))[
            :, None
        ]
        each = each + (steps * queries / (in_v * in_k) + steps * d_key / read)[:, None]
        lost = 8 * (inputs + ELEMENTARY) * Arithmetic(envelope).least
        return lost * (np.abs(self.out) @ each.ravel() + 1)


@dataclasses.dataclass(frozen=True)
class Made:
    """A layer for heads, and what it leaves of them."""

    layer: Any
    heads: Heads
    """As the layer has them: with −Σ v as one more value, or with other keys."""
    left: float
    """What its limits leave, relative to the largest products."""
    scales: tuple[Any, Any, Any, Any] = (1.0, 1.0, 1.0, 1.0)
    """Of values, keys, queries and of what is read, in the layer."""
    centred: bool = False
    """Whether its norm subtracts a mean."""
    mixing: float = 1.0
    """How much larger the signals are that projections are made from, in several products."""


class _Cut(NamedTuple):
    """A head by its ranks."""

    values: np.ndarray
    keys: np.ndarray
    queries: np.ndarray
    out: np.ndarray
    decay: float
    left_out: np.ndarray


def blocks(source: LinearAttention, envelope: Envelope) -> Heads:
    """A head for each of the source's that is not zero, cut down to the ranks of W_V and of W_KᵀW_Q."""
    cut = [_cut(*head, envelope) for head in heads_of(source)]
    left_out = np.sum([head.left_out for head in cut], axis=0)
    cut = [head for head in cut if len(head.values) * len(head.keys)] or [_silent(source)]
    d_value, d_key = max(len(head.values) for head in cut), max(len(head.keys) for head in cut)

    def stacked(name: str, size: int) -> np.ndarray:
        rows = (np.asarray(getattr(head, name)) for head in cut)
        return np.stack([np.pad(each, ((0, size - len(each)), (0, 1))) for each in rows])

    out = np.concatenate([np.pad(head.out, ((0, 0), (0, d_value - head.out.shape[1]))) for head in cut], axis=1)
    rows = stacked("values", d_value), stacked("keys", d_key), stacked("queries", d_key)
    heads = _heads(*rows, np.array([head.decay for head in cut]), out, _input_bounds(source.d, envelope), envelope)
    return dataclasses.replace(heads, left_out=left_out)


def _cut(w_value: np.ndarray, w_key: np.ndarray, w_query: np.ndarray, decay: float, envelope: Envelope) -> _Cut:
    """Full ranks stay as they are: a change of basis would only cost accuracy."""
    rows, eye = row_space(w_value), np.eye(len(w_value))
    keys, queries = factor(w_key.T @ w_query)
    whole_values, whole_keys = len(rows) >= len(w_value), len(keys) >= len(w_key)
    values, out = (w_value, eye) if whole_values else (rows, w_value @ rows.T)
    keys, queries = (w_key, w_query) if whole_keys else (keys, queries)
    left_out = np.zeros(len(w_value))
    if not (whole_values and whole_keys):
        left_out = factor_deviation(Factors(out, values, keys, queries), w_value, w_key, w_query)
    return _Cut(values, keys, queries, out, decay, left_out * envelope.input_bound**3 * envelope.steps(decay))


def _silent(source: LinearAttention) -> _Cut:
    nothing = np.zeros((1, source.d))
    return _Cut(nothing, nothing, nothing, np.zeros((source.d_out, 1)), 1.0, np.zeros(source.d_out))


def singles(source: LinearAttention, envelope: Envelope) -> Heads | None:
    """A memory of size 1 for each product of the smallest form of each head; none if all heads are zero."""
    left_out, cut, cube = np.zeros(source.d_out), [], envelope.input_bound**3
    for w_value, w_key, w_query, decay in heads_of(source):
        form = smallest_head(w_value, w_key.T @ w_query, decay)
        products = _products(form)
        values, keys, queries, out, _ = products
        # Rows of keys that read more than one memory are added up in float64.
        added = EPS * (np.count_nonzero(form.reads, axis=1) - 1)
        added = added * (np.abs(form.reads) @ (np.abs(form.keys) + np.abs(form.values)).sum(axis=1))
        each = np.abs(values).sum(axis=1) * np.abs(queries).sum(axis=1) * added
        factors = form.factors[0] if form.factors else None
        deviation = factor_deviation(factors, w_value, w_key, w_query) if factors else 0.0
        left_out += cube * envelope.steps(decay) * (deviation + np.abs(out) @ each)
        cut.append(products)
    values, keys, queries, out, decay = (
        np.concatenate(parts, axis=1 if index == 3 else 0) for index, parts in enumerate(zip(*cut, strict=True))
    )
    if len(values) == 0:
        return None
    values, keys, queries = (np.pad(rows, ((0, 0), (0, 1)))[:, None] for rows in (values, keys, queries))
    heads = _heads(values, keys, queries, decay, out, _input_bounds(source.d, envelope), envelope)
    return dataclasses.replace(heads, left_out=left_out)


def _products(form: KeyValueForm) -> tuple[np.ndarray, ...]:
    """Values, keys, queries, output and decay of each product, which reads S_pq or x_p (x_p − Σ_q x_q)."""
    values, keys = np.zeros((2, form.products, form.d))
    for product, reads in enumerate(form.reads):
        (own,) = np.nonzero(reads == 1)
        values[product] = form.values[own[0]]
        for memory in np.nonzero(reads)[0]:
            shared = np.array_equal(form.values[memory], values[product])
            keys[product] += reads[memory] * (form.keys if shared else form.values)[memory]
    return values, keys, form.asks @ form.queries, form.readout, form.decay


def norm_bounds(
    heads: Heads, of_values: float, of_keys: float, of_queries: float, rest: float
) -> tuple[Float[np.ndarray, " d_o"], Float[np.ndarray, " d_o"]]:
    """max Σ_i |out_i v_i| Σ_j |k_j q_j| over the horizon, and its error where values err by so much of V, and so on.

    A sum of many products is bounded by norms, too: Σ_j |k_j q_j| ≤ |k| |q| with |k| ≤ ‖W_K‖ |x|. For a random head of
    64 keys at d = 512, that is 20 times less than Σ_j K_j Q_j.
    """
    count, _, d_value, inputs = heads.sizes
    out = np.abs(heads.out).reshape(-1, count, d_value)

    def norms(rows: np.ndarray, bounds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        most = np.linalg.norm(bounds, axis=1)
        scaled = np.linalg.norm(rows * heads.input_bounds, ord=2, axis=(1, 2))
        return np.minimum(most, np.sqrt(inputs) * scaled), most

    v, _ = norms(heads.values, heads.value_bounds)
    k, most_k = norms(heads.keys, heads.key_bounds)
    q, most_q = norms(heads.queries, heads.query_bounds)
    apart = np.sum(heads.key_bounds * heads.query_bounds, axis=1)
    scores, by_key, by_query = (heads.steps * np.minimum(apart, size) for size in (k * q, most_k * q, k * most_q))
    by_value = np.einsum("ohv,hv->oh", out, heads.value_bounds)
    read = np.minimum(by_value, np.linalg.norm(out, axis=2) * v)
    errors = of_values * by_value @ scores + read @ (of_keys * by_key + of_queries * by_query)
    return read @ scores, errors + rest * (read @ scores)


def states(source: GatedRNN, envelope: Envelope) -> Heads:
    """(h, 1): a memory of size 1 for each neuron, and one for the constant, which forgets at once."""
    constant = np.eye(source.d + 1)[-1:]
    w_m, w_x = (np.concatenate([_float64(w), constant]) for w in (source.input_gating.w_m, source.input_gating.w_x))
    decay = np.append(np.asarray(source.lambda_, np.float64), 0.0)
    return _asked_with_one(w_m, w_x, decay, np.eye(len(w_m)), _input_bounds(source.d, envelope), envelope)


def state_products(source: GatedRNN, envelope: Envelope) -> Heads:
    """(A h) ⊙ (B h): memories that forget at once, over (h, 1)."""
    w_m, w_x = (np.pad(_float64(w), ((0, 0), (0, 1))) for w in (source.output_gating.w_m, source.output_gating.w_x))
    below = states(source, envelope).output_bounds
    return _asked_with_one(w_m, w_x, np.zeros(len(w_m)), _float64(source.readout), below, envelope)


def _asked_with_one(
    keys: np.ndarray, values: np.ndarray, decay: np.ndarray, out: np.ndarray, bounds: np.ndarray, envelope: Envelope
) -> Heads:
    constant = np.tile(np.eye(keys.shape[1])[-1], (len(keys), 1, 1))
    return _heads(values[:, None], keys[:, None], constant, decay, out, bounds, envelope)


def _heads(
    values: np.ndarray,
    keys: np.ndarray,
    queries: np.ndarray,
    decay: np.ndarray,
    out: np.ndarray,
    bounds: np.ndarray,
    envelope: Envelope,
) -> Heads:
    return Heads(values, keys, queries, decay, out, bounds, envelope.steps(decay))


def _input_bounds(d: int, envelope: Envelope) -> np.ndarray:
    return np.append(np.full(d, envelope.input_bound), 1.0)


def _float64(matrix: object) -> np.ndarray:
    return dense(matrix).astype(np.float64)
