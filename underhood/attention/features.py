"""y_t = S_tᵀ φ(q_t) / (n_t·φ(q_t)), S_t = Σ_{s≤t} φ(k_s) v_sᵀ, n_t = Σ φ(k_s): linear attention with a feature map.

φ(k)·φ(q) in place of e^{k·q} makes softmax's state finite: as many numbers as features, times d_v + 1. Maps known:

    elu + 1     φ_i(k) = elu(k_i) + 1                                 arXiv 2006.16236
    random      φ_i(k) = e^{ω_i·k − |k|²/2}/√m, ω_i normal            arXiv 2009.14794, unbiased
    polynomial  φ_α(k)·φ_α(q) = w_α k^α q^α, Σ_α = p(k·q)             to any error: polynomials.py
    your own    any function of (…, d_k) to (…, m)
"""

from __future__ import annotations

import itertools
import math
from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from underhood.attention.linear import with_heads
from underhood.attention.polynomials import Polynomial
from underhood.attention.softmax import AbstractAttention
from underhood.core.errors import UnderhoodError
from underhood.core.memory import require_memory
from underhood.core.model import Part, tensor
from underhood.layers.memory import Memory, Signals, empty_memory, memory_scan

FEATURE_KINDS = ("elu-features", "random-features", "polynomial-features")


class AbstractFeatures(Part):
    """φ of keys and of queries, (…, h, d_k) → (…, h, m)."""

    @abstractmethod
    def keys(self, k: Float[Array, "*t h k"]) -> Float[Array, "*t h m"]:
        """φ(k)."""

    def queries(self, q: Float[Array, "*t h k"]) -> Float[Array, "*t h m"]:
        """φ(q), that of keys unless the map says otherwise."""
        return self.keys(q)

    @abstractmethod
    def count(self, d_key: int) -> int:
        """m."""


class EluFeatures(AbstractFeatures):
    """φ_i(k) = elu(k_i) + 1, which is positive."""

    kind: ClassVar[str] = "elu-features"

    def keys(self, k: Float[Array, "*t h k"]) -> Float[Array, "*t h m"]:
        return jnp.where(k > 0, k + 1, jnp.exp(jnp.minimum(k, 0)))

    def count(self, d_key: int) -> int:
        return d_key


class RandomFeatures(AbstractFeatures):
    """φ_i(k) = e^{ω_i·k − |k|²/2}/√m: positive, and E φ(k)·φ(q) = e^{k·q} over normal ω."""

    kind: ClassVar[str] = "random-features"

    directions: Float[Array, "features d_key"] = tensor()

    @classmethod
    def random(cls, d_key: int, count: int, seed: int = 0) -> RandomFeatures:
        """Directions at right angles to one another, d_key at a time, with the lengths of normal vectors.

        **Arguments:**

        - `d_key`: size of a key.
        - `count`: m.
        - `seed`: of the draw.

        **Returns:**

        The map.
        """
        random = np.random.default_rng(seed)
        blocks = [_rotation(d_key, random) for _ in range(-(-count // d_key))]
        lengths = np.linalg.norm(random.normal(size=(count, d_key)), axis=1, keepdims=True)
        return cls(np.concatenate(blocks)[:count] * lengths)

    def keys(self, k: Float[Array, "*t h k"]) -> Float[Array, "*t h m"]:
        exponent = jnp.einsum("...hk,mk->...hm", k, self.directions) - 0.5 * jnp.sum(k * k, axis=-1, keepdims=True)
        return jnp.exp(exponent) * float(self.directions.shape[0]) ** -0.5

    def count(self, d_key: int) -> int:
        return self.directions.shape[0]


class PolynomialFeatures(AbstractFeatures):
    """φ_α(k) = k^α and φ_α(q) = w_α q^α, so that φ(k)·φ(q) = Σ_α w_α Π_i (k_i q_i)^{α_i}; each head has its own α."""

    kind: ClassVar[str] = "polynomial-features"

    powers: Float[Array, "heads features d_key"] = tensor()
    weights: Float[Array, "heads features"] = tensor()
    degree: int = eqx.field(static=True)

    def _check(self) -> None:
        if isinstance(self.powers, jax.Array) and not isinstance(self.powers, jax.core.Tracer):
            powers = np.asarray(self.powers)
            if np.any((powers < 0) | (powers != np.floor(powers)) | (powers > self.degree)):
                raise UnderhoodError(f"expected powers that are whole numbers from 0 to the degree {self.degree}")

    @classmethod
    def of(cls, polynomial: Polynomial | Iterable[float], d_key: int, heads: int = 1) -> PolynomialFeatures:
        """p(k·q) = Σ_n a_n Σ_{|α|=n} n!/α! k^α q^α: C(d_key + n, n) features.

        **Arguments:**

        - `polynomial`: p, or its coefficients a_0, a_1, …
        - `d_key`: size of a key.
        - `heads`: number of heads, which all get the same map.

        **Returns:**

        The map.
        """
        given = polynomial.coefficients if isinstance(polynomial, Polynomial) else tuple(polynomial)
        powers, weights = kernel_terms(given, d_key)
        return cls(np.tile(powers, (heads, 1, 1)), np.tile(weights, (heads, 1)), len(given) - 1)

    def keys(self, k: Float[Array, "*t h k"]) -> Float[Array, "*t h m"]:
        steps = np.arange(self.degree + 1, dtype=k.dtype)
        product = jnp.ones((), k.dtype)
        for i in range(self.powers.shape[2]):
            raised = [jnp.ones_like(k[..., i])]
            for _ in range(self.degree):
                raised.append(raised[-1] * k[..., i])
            chosen = (self.powers[:, :, i, None] == steps[None, None]).astype(k.dtype)
            factor = jnp.einsum("...hn,hmn->...hm", jnp.stack(raised, axis=-1), chosen)
            product = product * factor
        return product

    def queries(self, q: Float[Array, "*t h k"]) -> Float[Array, "*t h m"]:
        return self.keys(q) * jax.lax.expand_dims(self.weights, range(q.ndim - 2))

    def count(self, d_key: int) -> int:
        return self.powers.shape[1]


class OwnFeatures(AbstractFeatures):
    """φ as a function of yours, (…, d_k) → (…, m), made of jax's operations; it cannot be written to a file."""

    function: Callable[[Any], Any] = eqx.field(static=True)

    def keys(self, k: Float[Array, "*t h k"]) -> Float[Array, "*t h m"]:
        return self.function(k)

    def count(self, d_key: int) -> int:
        with jax.enable_x64(True):
            shape = jax.eval_shape(self.function, jax.ShapeDtypeStruct((1, 1, d_key), np.float64)).shape
        if len(shape) != 3 or shape[:2] != (1, 1):
            raise UnderhoodError(
                "expected a feature map from (…, d_key) to (…, features)", f"(1, 1, {d_key}) → {shape}"
            )
        return shape[2]


def _rotation(size: int, random: np.random.Generator) -> Float[np.ndarray, "n n"]:
    """Uniform over all: the decomposition alone has signs of its own."""
    rotation, triangle = np.linalg.qr(random.normal(size=(size, size)))
    return (rotation * np.sign(np.diagonal(triangle))).T


def _features(given: Any) -> Any:
    return given if isinstance(given, Part) or not callable(given) else OwnFeatures(given)


class FeatureAttention(AbstractAttention):
    """y_t = Σ_heads Σ_{s≤t} (φ(k_s)·φ(q_t)) v_s / Σ_{s≤t} φ(k_s)·φ(q_t) + b, with v, k, q = W_V x, W_K x, W_Q x + b_Q.

    The state is S = Σ φ(k) vᵀ and n = Σ φ(k) of each head: features × (d_v + 1) numbers.

    **Arguments:**

    - `w_value`: W_V, (d_v, d), or (heads, d_v, d).
    - `w_key`, `w_query`: W_K and W_Q, (d_k, d), or with a leading heads axis.
    - `features`: φ: `EluFeatures()`, `RandomFeatures`, `PolynomialFeatures`, or a function of (…, d_k) to (…, m).
    - `bias_query`: b_Q, (heads, d_k); none unless given.
    - `bias`: b, (d_v,); none unless given.
    - `normalised`: whether the sum is divided by that of the weights.
    """

    kind: ClassVar[str] = "feature-attention"
    name: ClassVar[str] = "Linear attention with features"

    w_value: Float[Array, "heads d_value d"] = tensor(converter=with_heads)
    w_key: Float[Array, "heads d_key d"] = tensor(converter=with_heads)
    w_query: Float[Array, "heads d_key d"] = tensor(converter=with_heads)
    features: AbstractFeatures = eqx.field(metadata={"kinds": FEATURE_KINDS}, converter=_features)
    bias_query: Float[Array, "heads d_key"] | None = tensor(optional=True, default=None)
    bias: Float[Array, " d_value"] | None = tensor(optional=True, default=None)
    normalised: bool = eqx.field(static=True, default=True)

    def _check(self) -> None:
        if not isinstance(self.features, AbstractFeatures):
            known = "EluFeatures(), RandomFeatures, PolynomialFeatures, or a function"
            raise UnderhoodError("expected a feature map", type(self.features).__name__, f"One of {known}.")

    @property
    def hidden(self) -> int:
        """Numbers of the state."""
        return self.heads * self.features.count(self.d_key) * (self.d_out + self.normalised)

    def _initial_state(self) -> Memory:
        columns = self.d_out + self.normalised
        return empty_memory(self.heads, self.features.count(self.d_key), columns, self.dtype)

    def _signals(self, xs: Float[Array, "t d"]) -> Signals:
        values, keys, queries = (jnp.einsum("td,hkd->thk", xs, w) for w in (self.w_value, self.w_key, self.w_query))
        if self.bias_query is not None:
            queries = queries + self.bias_query[None]
        still = jnp.zeros(keys.shape[:2], keys.dtype)
        return Signals(self.features.queries(queries), self.features.keys(keys), values, still)

    def _step(self, state: Memory, x: Float[Array, " d"]) -> tuple[Memory, Float[Array, " d_v"]]:
        ys, state = self._scan(x[None], state)
        return state, ys[0]

    def _scan(self, xs: Float[Array, "t d"], state: Memory) -> tuple[Float[Array, "t d_v"], Memory]:
        reads, state = memory_scan(state, self._signals(xs))
        reads = reads[:, :, :-1] / reads[:, :, -1:] if self.normalised else reads
        outputs = jnp.sum(reads, axis=1)
        return (outputs if self.bias is None else outputs + self.bias[None]), state

    def naive(self, xs: Any) -> Any:
        """The whole matrix of weights at once.

        **Arguments:**

        - `xs`: a sequence, (t, d).

        **Returns:**

        The outputs, (t, d_v).
        """
        return self._public(_naive, xs)

    def propagate_contributions(self, x: Any) -> Any:
        values = x.linear(np.asarray(self.w_value).reshape(-1, self.d))
        signals, inverse = self._gates(x.signal)
        read = values.remembered(*signals.gates)
        read = read.scaled(np.repeat(np.asarray(inverse), self.d_out, axis=1)) if self.normalised else read
        return read.linear(np.tile(np.eye(self.d_out, dtype=self.dtype), (1, self.heads)), self.bias)

    @eqx.filter_jit
    def _gates(self, xs: Float[Array, "t d"]) -> tuple[Signals, Float[Array, "t h"]]:
        """What goes into the memory, and what divides its outputs."""
        signals = self._signals(xs)
        return signals, 1 / jnp.sum(_scores(signals), axis=2).T


def _scores(signals: Signals) -> Float[Array, "h t s"]:
    steps = np.arange(len(signals.q))
    scores = jnp.einsum("thm,shm->hts", signals.q, signals.k)
    return jnp.where((steps[:, None] >= steps[None])[None], scores, 0)


def _naive(model: FeatureAttention, xs: Float[Array, "t d"]) -> Float[Array, "t d_v"]:
    signals = model._signals(xs)
    scores = _scores(signals)
    scores = scores / jnp.sum(scores, axis=2, keepdims=True) if model.normalised else scores
    outputs = jnp.einsum("hts,shv->tv", scores, signals.v)
    return outputs if model.bias is None else outputs + model.bias[None]


def feature_count(d_key: int, degree: int) -> int:
    """C(d_key + n, n): monomials of at most this degree."""
    return math.comb(d_key + degree, degree)


def kernel_terms(
    coefficients: tuple[float, ...], d_key: int
) -> tuple[Float[np.ndarray, "m d_k"], Float[np.ndarray, " m"]]:
    """All α with |α| ≤ n, and w_α = a_|α| |α|!/α!."""
    degree = len(coefficients) - 1
    require_memory(8 * d_key * feature_count(d_key, degree), f"{feature_count(d_key, degree):,} features")
    powers = list(monomials(d_key, degree))
    weights = [coefficients[sum(alpha)] * multinomial(alpha) for alpha in powers]
    return np.array(powers, float), np.array(weights)


def monomials(variables: int, degree: int) -> Iterable[tuple[int, ...]]:
    """All α with |α| ≤ degree, lower degrees first."""
    for total in range(degree + 1):
        for bars in itertools.combinations(range(total + variables - 1), variables - 1):
            edges = (-1, *bars, total + variables - 1)
            yield tuple(after - before - 1 for before, after in itertools.pairwise(edges))


def multinomial(alpha: Iterable[int]) -> int:
    """|α|!/α!: in how many orders a product of these factors can be written."""
    count, total = 1, 0
    for power in alpha:
        total += power
        count *= math.comb(total, power)
    return count
