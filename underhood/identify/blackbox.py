"""y_i(t) ≈ Σ_{s≤t} decay^{t-s} T_i[a,b,c] x_sa x_sb x_tc: the best attention for any callable, in closed form.

The outputs of linear attention are linear in T, with the features sym(Σ_s x_s x_sᵀ) ⊗ x_t. One least-squares
problem on sequences drawn at random finds the best T there is; fresh sequences tell how good it is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float

from underhood.attention.linear import LinearAttention
from underhood.errors import UnderhoodError
from underhood.identify.callables import as_numpy_function
from underhood.identify.forms import Array, decayed_sums, pair_indices, pair_products
from underhood.identify.found import DECAYED, LINEAR, NOT, Evidence, Found, Scores
from underhood.identify.polynomial import distance, of_attention
from underhood.identify.recover import head_tensor, key_and_query, recover_heads

LENGTH = 32  # Section 3.1
INPUT_BOUND = 4.0  # N(0, 1) clipped here: compiled LSTM, GRU and LRU networks keep their promise within a bound
TOLERANCE = 1e-4  # relative root mean square error on fresh sequences: R² ≥ 1 − 1e-8
# Fresh sequences are added until the 95 % interval of R² is this narrow on either side: outputs grow with t, so
# that few sequences weigh much, and 512 of them leave 0.008 open on a trained LSTM.
HELD_OUT, MOST_HELD_OUT, HALF_WIDTH = 512, 8192, 0.0025
MOST_ROWS = 40_000
DECAYS = (0.999, 0.99, 0.97, 0.95, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)


@np.errstate(all="ignore")  # outputs that are not finite are refused
def probe(
    function: Any,
    d: int,
    *,
    against: LinearAttention | None = None,
    seed: int = 0,
    length: int = LENGTH,
    input_bound: float = INPUT_BOUND,
    tolerance: float = TOLERANCE,
) -> Found:
    """The linear attention nearest to `function`, a map from (t, d) to (t, d_out), and how near that is."""
    for name, size in {"d": d, "length": length}.items():
        if size < 1:
            raise UnderhoodError(f"{name} is a whole number from 1 on", size)
    if seed < 0:
        raise UnderhoodError("seed is a whole number from 0 on", seed)
    if not (0 < tolerance < 1 and input_bound > 0):
        raise UnderhoodError("tolerance is between 0 and 1, input_bound positive", f"{tolerance}, {input_bound}")
    call = as_numpy_function(function, d)
    random = np.random.default_rng(seed)
    features = d * d * (d + 1) // 2
    fit_sequences = max(2048, 4 * features)

    def draw(count: int) -> tuple[Array, Array]:
        xs = np.clip(random.standard_normal((count, length, d)), -input_bound, input_bound)
        return xs, call(xs)

    fit, held = draw(fit_sequences), draw(HELD_OUT)
    if against is not None:
        check_against(against, d, held[1].shape[-1])
    weights = _fit(*fit, 1.0)
    r2, interval = _test(weights, held, 1.0, random)
    while interval[1] - interval[0] > 2 * HALF_WIDTH and len(held[0]) < MOST_HELD_OUT:
        more = draw(len(held[0]))
        held = np.concatenate([held[0], more[0]]), np.concatenate([held[1], more[1]])
        r2, interval = _test(weights, held, 1.0, random)
    verdict, decay = (LINEAR if 1 - r2 <= tolerance**2 else NOT), 1.0
    if verdict == NOT:
        decay = _search_decay(fit, held)
        faded = _fit(*fit, decay)
        r2_faded, interval_faded = _test(faded, held, decay, random)
        if 1 - r2_faded <= tolerance**2:
            verdict, weights, r2, interval = DECAYED, faded, r2_faded, interval_faded
    tensor = _unfolded(weights, d)
    error = float(np.sqrt(max(1 - r2, 0.0)))
    share = 1e-12 if verdict == NOT else min(max(1e-8, 30 * error), 0.1)
    heads = recover_heads(tensor, share, seed=seed, search=verdict != NOT)
    keys, queries = key_and_query(heads.key_query)
    decays = np.full(heads.count, decay) if verdict == DECAYED else None
    polynomial = of_attention(tensor)
    gap = None
    if against is not None:
        teacher = head_tensor(np.asarray(against.w_value, np.float64), against.key_query)
        gap = distance(polynomial, of_attention(teacher))
    return Found(
        verdict,
        _reason(verdict, error, tolerance, heads.count, decay),
        LinearAttention(heads.values, keys, queries, decays),
        Scores(polynomial_distance=gap),
        evidence=Evidence(r2, interval, error, tolerance, tensor=tensor, polynomial=polynomial),
    )


def closeness(function: Any, xs: Float[Array, "b t d"], *, last: bool = False) -> float:
    """R² of the best linear attention on sequences of your own, at every step or at the last one only.

    It is fitted on the first half of them and tested on the second. A network that is asked about one distribution
    of inputs, as in-context regression is, may be attention there and nowhere else.
    """
    call, at = as_numpy_function(function, xs.shape[-1]), slice(-1 if last else 0, None)
    ys = call(xs)[:, at]
    half = len(xs) // 2
    features = _features(xs, 1.0)[:, at]
    weights = _least_squares(features[:half], ys[:half])
    miss = ys[half:] - features[half:] @ weights
    spread = ys[half:] - ys[half:].mean(axis=(0, 1))
    return float(1.0 - np.sum(miss**2) / max(np.sum(spread**2), np.finfo(float).tiny))


def check_against(against: Any, d: int, d_out: int) -> None:
    """The teacher has the sizes of the network."""
    if not isinstance(against, LinearAttention):
        raise UnderhoodError("a network is compared with a linear attention", getattr(against, "kind", against))
    if (against.d, against.d_out) != (d, d_out):
        raise UnderhoodError(
            f"the attention to compare with has {d} inputs and {d_out} outputs, as the network has",
            f"{against.d} and {against.d_out}",
        )


def _features(xs: Float[Array, "b t d"], decay: float) -> Float[Array, "b t p"]:
    """sym(Σ_s decay^{t-s} x_s x_sᵀ) ⊗ x_t."""
    sums = decayed_sums(pair_products(xs), decay)
    return np.einsum("btp,btc->btpc", sums, xs).reshape(*xs.shape[:2], -1)


def _fit(xs: Array, ys: Array, decay: float) -> Float[Array, "p d_out"]:
    return _least_squares(_features(xs, decay), ys)


def _least_squares(features: Float[Array, "b t p"], ys: Float[Array, "b t d_out"]) -> Float[Array, "p d_out"]:
    """By QR with columns of equal size; where rows abound, every k-th does."""
    features, targets = features.reshape(-1, features.shape[2]), ys.reshape(-1, ys.shape[2])
    if len(features) > MOST_ROWS:
        stride = -(-len(features) // MOST_ROWS)
        features, targets = features[stride - 1 :: stride], targets[stride - 1 :: stride]
    scale = np.linalg.norm(features, axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    q, r = np.linalg.qr(features / scale)
    return np.linalg.lstsq(r, q.T @ targets, rcond=1e-12)[0] / scale[:, None]


def _test(
    weights: Array, held: tuple[Array, Array], decay: float, random: np.random.Generator
) -> tuple[float, tuple[float, float]]:
    """R² on fresh sequences, and its 95 % interval by bootstrap."""
    errors = np.sum((held[1] - _features(held[0], decay) @ weights) ** 2, axis=(1, 2))
    spread = np.sum((held[1] - held[1].mean(axis=(0, 1))) ** 2, axis=(1, 2))
    if spread.sum() == 0:
        raise UnderhoodError("a function to probe varies with its input", "the same output for every sequence")
    r2 = 1.0 - errors.sum() / spread.sum()
    # Whole sequences are resampled: the steps of one are not independent.
    draws = random.integers(len(errors), size=(400, len(errors)))
    resampled = 1.0 - errors[draws].sum(axis=1) / spread[draws].sum(axis=1)
    low, high = np.quantile(resampled, [0.025, 0.975])
    return float(r2), (float(low), float(high))


def _unfolded(weights: Float[Array, "p d_out"], d: int) -> Float[Array, "d_out d d d"]:
    rows, columns = pair_indices(d)
    folded = weights.T.reshape(-1, len(rows), d) * np.where(rows == columns, 1.0, 0.5)[None, :, None]
    tensor = np.zeros((len(folded), d, d, d))
    tensor[:, rows, columns] = folded
    tensor[:, columns, rows] = folded
    return tensor


def _search_decay(fit: tuple[Array, Array], held: tuple[Array, Array]) -> float:
    """A grid of decays, then golden section on the best interval."""
    d = fit[0].shape[2]
    enough = max(48, 8 * d * d * (d + 1) // 2 // fit[0].shape[1])
    small = fit[0][:enough], fit[1][:enough]
    check = held[0][:64], held[1][:64]

    def loss(decay: float) -> float:
        weights = _fit(*small, decay)
        return float(np.sum((check[1] - _features(check[0], decay) @ weights) ** 2))

    losses, spread = [loss(decay) for decay in DECAYS], float(np.sum(check[1] ** 2))
    best = int(np.argmin(losses))
    if losses[best] > 0.5 * spread:
        return DECAYS[best]  # no decay explains this function
    high = 1.0 if best == 0 else DECAYS[best - 1]
    low = DECAYS[best + 1] if best + 1 < len(DECAYS) else 0.02
    ratio = (np.sqrt(5) - 1) / 2
    left, right = high - ratio * (high - low), low + ratio * (high - low)
    at_left, at_right = loss(left), loss(right)
    while high - low > 1e-9 * high:
        if at_left < at_right:
            high, right, at_right = right, left, at_left
            left = high - ratio * (high - low)
            at_left = loss(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + ratio * (high - low)
            at_right = loss(right)
        if min(at_left, at_right) > 1e-3 * spread and high - low < 1e-3:
            break  # no decay explains this function
    return (low + high) / 2


def _reason(verdict: str, error: float, tolerance: float, heads: int, decay: float) -> str:
    if verdict == NOT:
        share = f"{error:.1e} of the output on fresh sequences (tolerance {tolerance:.0e})"
        return f"the best linear attention misses {share}"
    count = "one head" if heads == 1 else f"{heads} heads, of which the sum is identifiable and the split is not"
    fades = f", decay {decay:.6g}" if verdict == DECAYED else ""
    return f"linear attention explains all but {error:.1e} of the output on fresh sequences; {count}{fades}"
