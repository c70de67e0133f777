"""Softmax attention out of a callable, head by head, from sequences of two steps.

    E(u, b) = f([b + u, b]) + f([b − u, b]) − 2 f([b]) = Σ_h tanh(z_h/2) V_h u,  z_h = uᵀ(M_h b + g_h)

M = W_KᵀW_Q. For small u and b this is a linear attention, ½ Σ_h V_h u (uᵀM_h b), whose heads are found as those of
one are. But there any A mixes them, V′ = A⁻¹V with z′ = Aᵀz. How tanh bends for larger scores, and f([b]) = Σ_h V_h b,
tell A.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy.optimize
from jaxtyping import Float

from underhood.algebra.heads import Heads
from underhood.algebra.quadratic import Array
from underhood.algebra.statistics import r_squared
from underhood.algebra.theta import compress, factored
from underhood.attention.softmax import SoftmaxAttention
from underhood.core.errors import UnderhoodError
from underhood.decompiler.from_outputs.functions import Batched
from underhood.decompiler.from_outputs.questions import ChosenInputs


@dataclass(frozen=True)
class Settings:
    """Tuning of the recovery."""

    small: tuple[float, ...] = (1e-5, 1e-2)
    """Scores at which tanh is linear: within 1e-7 for float64, and enough above the rounding of float32."""
    halvings: int = 40
    """Of inputs, until scores are that small."""
    bends: float = 1.5
    """Scores at which tanh bends."""
    pairs: int = 256
    """u and b that tell how heads mix,"""
    outputs: int = 8
    """and sums of outputs on which they are looked at."""
    linear: float = 1e-7
    """What is left of tanh's bend and of rounding, relative, among small scores."""
    starts: int = 8
    evaluations: int = 30
    """For each number of A, from each start."""
    most_heads: int = 4
    enough: float = 1e-9
    """1 − R² at which no other candidate is tried."""
    rank: float = 1e-6
    """Relative singular values of W_KᵀW_Q that count."""


SETTINGS = Settings()


class Recovered(NamedTuple):
    """The attention, and the share of the outputs on fresh sequences that it explains."""

    attention: SoftmaxAttention
    r2: float


class _Averages(ChosenInputs):
    """Θ(a) b = Σ_h V_h a (aᵀM_h b) out of E at small u and b; what is even in b is left out."""

    scale: float = 1.0

    def responses(self, inputs: Float[Array, "n d"], decays: tuple[float, ...]) -> Float[Array, "g n d_out d"]:
        """At two sizes, of which one and the other take tanh's first bend away."""
        once, half = (self._at(inputs, scale) for scale in (self.scale, self.scale / 2))
        return np.swapaxes((4 * half - once) / 3, 1, 2)[None]

    def _at(self, inputs: Float[Array, "n d"], scale: float) -> Float[Array, "n d d_out"]:
        u, b = inputs[:, None] * scale, self.queries[None] * scale
        return (bent(self.call, u, b) - bent(self.call, u, -b)) / scale**3


def bent(call: Batched, u: Float[Array, "... d"], b: Float[Array, "... d"]) -> Float[Array, "... d_out"]:
    """E(u, b)."""
    u, b = np.broadcast_arrays(u, b)
    shape, d = u.shape[:-1], u.shape[-1]
    u, b = u.reshape(-1, d), b.reshape(-1, d)
    outputs = [call(np.stack([first, b], axis=1))[:, 1] for first in (b + u, b - u, b)]
    return (outputs[0] + outputs[1] - 2 * outputs[2]).reshape(*shape, -1)


def recover_softmax(
    call: Batched, d: int, held: tuple[Array, Array], random: np.random.Generator, input_bound: float
) -> Recovered | None:
    """The softmax attention nearest to a function of batches, or None where nothing comes of it."""
    bias = call(np.zeros((1, 1, d)))[0, 0]
    theta = _Averages(call, d, length=2, input_bound=input_bound, random=random)
    best: Recovered | None = None
    for small in SETTINGS.small:
        _choose_scale(theta, small)
        for heads in _candidates(theta):
            try:
                found = _fitted(call, heads, theta, bias, held, random)
            except (np.linalg.LinAlgError, UnderhoodError, ValueError):
                continue
            if best is None or found.r2 > best.r2:
                best = found
            if 1 - best.r2 < SETTINGS.enough:
                return best
    return best


def _choose_scale(theta: _Averages, small: float) -> None:
    """Halve inputs until E is so small beside f."""
    u, b = theta.normal(16, 0.5), theta.normal(16, 0.5)
    theta.scale = 1.0
    for _ in range(SETTINGS.halvings):
        here = theta.scale * np.stack([u, b])
        size = np.linalg.norm(theta.call(np.stack([here[0], here[1]], axis=1)))
        if np.linalg.norm(bent(theta.call, *here)) <= small * size:
            return
        theta.scale /= 2


def _candidates(theta: _Averages) -> Iterator[Heads]:
    """Heads of the linear attention for small inputs, split in any way, the fewest first: bends look like more."""
    try:
        split = [groups[0] for groups in factored(theta, (1.0,), lambda what, share: None)]
        yield from sorted((heads for heads in split if heads.count <= SETTINGS.most_heads), key=lambda one: one.count)
        for part in compress(theta, (1.0,), SETTINGS.linear):
            heads = part.heads(SETTINGS.linear)
            if heads.count <= SETTINGS.most_heads:
                yield heads
    except (UnderhoodError, np.linalg.LinAlgError):
        return


def _fitted(
    call: Batched, heads: Heads, theta: _Averages, bias: Array, held: tuple[Array, Array], random: np.random.Generator
) -> Recovered:
    """Heads unmixed, with what queries have for an offset, tried on fresh sequences."""
    values, key_query = np.asarray(heads.values), np.asarray(heads.key_query)
    offsets = _offsets(call, values, theta, random)
    mixing = _mixing(call, values, key_query, offsets, random)
    values = np.einsum("hg,goa->hoa", mixing, values)
    key_query, offsets = (np.einsum("hg,h...->g...", np.linalg.inv(mixing), one) for one in (key_query, offsets))
    attention = _attention(values, key_query, offsets, bias)
    xs, ys = held
    return Recovered(attention, r_squared(ys, outputs(values, key_query, offsets, bias, xs)))


def _mixing(call: Batched, values: Array, key_query: Array, offsets: Array, random: np.random.Generator) -> Array:
    """A with E = Σ_h tanh(z_h/2) V_h u, z = A⁻ᵀz′ and V = A V′, from pairs at which tanh bends."""
    count, d = len(values), values.shape[2]
    u, b = random.standard_normal((2, SETTINGS.pairs, d))
    mixed = np.einsum("na,hac,nc->nh", u, key_query, b, optimize=True)
    grow = np.sqrt(SETTINGS.bends / max(np.sqrt(np.mean(mixed**2)), 1e-300))
    u, b, mixed = grow * u, grow * b, grow**2 * mixed + grow * u @ offsets.T
    seen = random.standard_normal((values.shape[1], min(values.shape[1], SETTINGS.outputs)))
    wanted, moved = bent(call, u, b) @ seen, np.einsum("hoa,na,op->nhp", values, u, seen, optimize=True)
    size = np.linalg.norm(wanted)
    alone = call(b[:, None])[:, 0] - call(np.zeros((1, 1, d)))[0]
    # f([b]) is what all heads add up to.
    steady, together = alone @ seen, np.einsum("hoa,na,op->nhp", values, b, seen, optimize=True)
    whole = np.linalg.norm(steady)
    whiten = np.linalg.cholesky(np.linalg.inv(np.atleast_2d(np.cov(mixed.T)))) * SETTINGS.bends

    def missed(flat: Array) -> Array:
        mixing = flat.reshape(count, count)
        scores = mixed @ np.linalg.pinv(mixing)
        bends = np.einsum("nh,hg,ngo->no", np.tanh(scores / 2), mixing, moved, optimize=True) - wanted
        sums = np.einsum("g,ngo->no", mixing.sum(axis=0), together) - steady
        return np.concatenate([(bends / size).ravel(), (sums / whole).ravel()])

    best, least = np.eye(count), np.inf
    shares = np.linalg.lstsq(together.transpose(0, 2, 1).reshape(-1, count), steady.ravel(), rcond=None)[0]
    for index in range(SETTINGS.starts):
        turn = np.linalg.qr(random.standard_normal((count, count)))[0]
        start = np.linalg.inv(whiten @ turn)
        if index % 2 == 0:  # such that heads add up to what they should
            start = np.linalg.solve(start.T, shares)[:, None] * start
        try:
            most = SETTINGS.evaluations * (start.size + 1)
            found = scipy.optimize.least_squares(missed, start.ravel(), method="lm", xtol=1e-12, max_nfev=most)
        except (ValueError, np.linalg.LinAlgError):
            continue
        if found.cost < least:
            best, least = found.x.reshape(count, count), found.cost
        if least < 1e-16:
            break
    return best


def _offsets(call: Batched, values: Array, theta: _Averages, random: np.random.Generator) -> Array:
    """g_h of E(u, 0) = Σ_h tanh(u·g_h/2) V_h u, at small u; zero unless there are some."""
    count, _, d = values.shape
    u = theta.scale * random.standard_normal((4 * d * count, d))
    once, half = (bent(call, one, np.zeros_like(one)) for one in (u, u / 2))
    given = (16 * half - once) / 3  # as in `responses`
    size = np.linalg.norm(np.einsum("hoa,na->nho", values, u))
    if not np.linalg.norm(given) > 1e-12 * size:
        return np.zeros((count, d))
    rows = 0.5 * np.einsum("na,hoc,nc->noha", u, values, u).reshape(-1, count * d)
    return np.linalg.lstsq(rows, given.ravel(), rcond=None)[0].reshape(count, d)


def _attention(values: Array, key_query: Array, offsets: Array, bias: Array) -> SoftmaxAttention:
    """Keys and queries of the rank of W_KᵀW_Q; an offset of keys is a bias of queries in a direction of its own."""
    whole = np.concatenate([key_query, offsets[:, :, None]], axis=2)
    left, sizes, right = np.linalg.svd(whole, full_matrices=False)
    rank = max(1, int(np.max(np.sum(sizes > SETTINGS.rank * sizes.max(initial=1e-300), axis=1))))
    root = np.sqrt(sizes[:, :rank, None])
    queries = root * right[:, :rank]
    biased = np.any(np.abs(queries[:, :, -1]) > 0) and np.any(offsets)
    return SoftmaxAttention(
        values,
        root * np.swapaxes(left[:, :, :rank], 1, 2),
        queries[:, :, :-1],
        bias_query=queries[:, :, -1] if biased else None,
        bias=bias if np.any(np.abs(bias) > 0) else None,
    )


def outputs(values: Array, key_query: Array, offsets: Array, bias: Array, xs: Float[Array, "b t d"]) -> Array:
    """Softmax attention of a batch."""
    total = np.zeros((*xs.shape[:2], values.shape[1])) + bias
    past = np.tril(np.ones((xs.shape[1],) * 2, bool))
    for value, form, offset in zip(values, key_query, offsets, strict=True):
        scores = np.where(past, (xs @ form.T + offset) @ np.swapaxes(xs, 1, 2), -np.inf)
        weights = np.exp(scores - scores.max(axis=2, keepdims=True))
        total += (weights / weights.sum(axis=2, keepdims=True)) @ (xs @ value.T)
    return total
