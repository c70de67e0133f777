"""T_i[a,b,c] = Σ_heads sym_ab(W_V[i,a] M[b,c]), M = W_KᵀW_Q, read backwards with as few heads as there are.

As a matrix of quadratic forms, Θ(x)_ic = Σ_ab T_i[a,b,c] x_a x_b, the equation says Θ(x) = V(x) M(x): a matrix
of linear forms with one column a head, times one with one row a head. So the rank of Θ at a generic x is the
least number of heads there can be, and V(x) G, G⁻¹ M(x) is the same function for every invertible G: the sum
is identifiable, the split into heads is not. One head is, up to one scalar.

The equations are bilinear. Levenberg–Marquardt on the tensor compressed to its own ranks solves them to
rounding; measured over d = 2…6, 1 to 3 heads, ranks 1, 2 and full, the hardest cases (three heads at d = 3)
succeed from one random start in five, the others from most.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from underhood.algebra.quadratic import Array, pair_indices

RANDOM_SAMPLES = 8
LEAST_RESIDUAL = 1e-14


@dataclass(frozen=True)
class Heads:
    """W_V and M = W_KᵀW_Q of each head, and how far their tensor is from the one they were found in."""

    values: Float[Array, "h d_out d"]
    key_query: Float[Array, "h d d_q"]
    residual: float  # ‖T − T_heads‖ / ‖T‖

    @property
    def count(self) -> int:
        return len(self.values)

    @property
    def pairs(self) -> list[tuple[Float[Array, "d_out d"], Float[Array, "d d_q"]]]:
        """(W_V, M) of each head."""
        return list(zip(self.values, self.key_query, strict=True))

    @property
    def tensor(self) -> Float[Array, "d_out d d d_q"]:
        return head_tensor(self.values, self.key_query)


def head_tensor(values: Float[Array, "h d_out d"], key_query: Float[Array, "h d d_q"]) -> Float[Array, "d_out d d d_q"]:
    """T_i[a,b,c] = Σ_heads sym_ab(W_V[i,a] M[b,c])."""
    plain = np.einsum("hia,hbc->iabc", values, key_query, optimize=True)
    return 0.5 * (plain + np.swapaxes(plain, 1, 2))


def fewest_heads(
    tensor: Float[Array, "d_out d d d_q"], tolerance: float, *, seed: int = 0, search: bool = True
) -> Heads:
    """The fewest heads whose tensor is `tensor` within `tolerance` (relative); without `search`, some heads."""
    random = np.random.default_rng(seed)
    d_out, d, _, d_query = tensor.shape
    norm = np.linalg.norm(tensor)
    if norm == 0:
        return Heads(np.zeros((1, d_out, d)), np.zeros((1, d, d_query)), 0.0)
    core, outputs, inputs, queries = _compressed(tensor / norm, tolerance / 10)
    fewest, most = _generic_rank(core, tolerance, random), _flattened(core, tolerance)
    recovered = most
    for heads in range(fewest, most.count if search else fewest):
        attempt = _with_count(core, heads, tolerance, random)
        if attempt.residual <= tolerance:
            recovered = attempt
            break
        if core.size * heads > 40_000 or heads > fewest + 3:
            break  # the flattening, which always exists, is the answer where a search would take minutes
    values = np.einsum("hjk,ij,ak->hia", recovered.values, outputs, inputs, optimize=True) * norm
    key_query = np.einsum("hkl,ak,cl->hac", recovered.key_query, inputs, queries, optimize=True)
    values, key_query = balanced(values, key_query)
    residual = np.linalg.norm(head_tensor(values, key_query) - tensor) / norm
    return Heads(values, key_query, float(residual))


def head_outputs(heads: list[Heads], decays: tuple[float, ...], xs: Float[Array, "b t d"]) -> Float[Array, "b t d_out"]:
    """Σ_heads V Σ_{s≤t} decay^{t-s} x_s (x_sᵀ M x_t)."""
    lags = np.arange(xs.shape[1])[:, None] - np.arange(xs.shape[1])
    total = np.zeros((*xs.shape[:2], heads[0].values.shape[1]))
    for group, decay in zip(heads, decays, strict=True):
        kept = np.where(lags >= 0, decay ** np.maximum(lags, 0.0), 0.0)
        for values, key_query in group.pairs:
            scores = kept * ((xs @ key_query.T) @ xs.transpose(0, 2, 1))
            total += scores @ (xs @ values.T)
    return total


def key_and_query(
    key_query: Float[Array, "h d d_q"], tolerance: float = 1e-12
) -> tuple[Float[Array, "h d_k d"], Float[Array, "h d_k d_q"]]:
    """Some W_K and W_Q with W_KᵀW_Q = M: the singular vectors, since M alone is identifiable."""
    left, singular, right = np.linalg.svd(key_query, full_matrices=False)
    size = max(1, int((singular > tolerance * singular.max(initial=0.0)).sum(axis=1).max()))
    roots = np.sqrt(singular[:, :size])
    return np.swapaxes(left[:, :, :size] * roots[:, None, :], 1, 2), roots[:, :, None] * right[:, :size]


def balanced(values: Array, key_query: Array) -> tuple[Array, Array]:
    """One scalar a head is free: share its norm evenly."""
    first = np.linalg.norm(values, axis=(1, 2), keepdims=True)
    second = np.linalg.norm(key_query, axis=(1, 2), keepdims=True)
    scale = np.sqrt(np.divide(second, first, out=np.ones_like(first), where=(first > 0) & (second > 0)))
    return values * scale, key_query / scale


def _compressed(tensor: Array, tolerance: float) -> tuple[Array, Array, Array, Array]:
    """The tensor in orthonormal bases of its own outputs, inputs and queries."""

    def basis(axis: int) -> Array:
        unfolded = np.moveaxis(tensor, axis, 0).reshape(tensor.shape[axis], -1)
        vectors, singular, _ = np.linalg.svd(unfolded, full_matrices=False)
        return vectors[:, : max(1, int((singular > tolerance).sum()))]

    outputs, inputs, queries = basis(0), basis(1), basis(3)
    core = np.einsum("iabc,ij,ak,bl,cm->jklm", tensor, outputs, inputs, inputs, queries, optimize=True)
    return core, outputs, inputs, queries


def _generic_rank(tensor: Array, tolerance: float, random: np.random.Generator) -> int:
    """The rank of Θ(x) at random x: no factorisation through fewer heads exists."""
    xs = random.standard_normal((RANDOM_SAMPLES, tensor.shape[1]))
    xs /= np.linalg.norm(xs, axis=1, keepdims=True)
    theta = np.einsum("iabc,na,nb->nic", tensor, xs, xs, optimize=True)
    singular = np.linalg.svd(theta, compute_uv=False)
    return max(1, int((singular > 10 * tolerance).sum(axis=1).max()))


def _flattened(tensor: Array, tolerance: float) -> Heads:
    """Heads that always exist: the singular vectors of T as a matrix from (b, c) to (i, a)."""
    d_out, d, _, d_query = tensor.shape
    left, singular, right = np.linalg.svd(tensor.reshape(d_out * d, d * d_query), full_matrices=False)
    tails = np.sqrt(np.cumsum(singular[::-1] ** 2))[::-1]
    count = max(1, int((tails > tolerance).sum()))
    values = (left[:, :count] * singular[:count]).T.reshape(count, d_out, d)
    return Heads(values, right[:count].reshape(count, d, d_query), float(np.append(tails, 0.0)[count]))


def _with_count(tensor: Array, heads: int, tolerance: float, random: np.random.Generator) -> Heads:
    """The best of several starts with this many heads; stops at the first that is exact."""
    d_out, d, _, d_query = tensor.shape
    unknowns = heads * d * (d_out + d_query)
    best = Heads(np.zeros((1, d_out, d)), np.zeros((1, d, d_query)), np.inf)
    for _ in range(80 if unknowns <= 150 else 24 if unknowns <= 400 else 6):
        values = random.standard_normal((heads, d_out, d)) / np.sqrt(d)
        key_query = random.standard_normal((heads, d, d_query)) / np.sqrt(d)
        attempt = levenberg(tensor, values, key_query, enough=tolerance)
        best = min(best, attempt, key=lambda heads: heads.residual)
        if best.residual <= tolerance:
            break
    return best


def levenberg(tensor: Array, values: Array, key_query: Array, *, enough: float, iterations: int = 200) -> Heads:
    """Levenberg–Marquardt on sym_ab(V[i,a] M[b,c]) − T from a start.

    Down to rounding where T allows it; where it is noisy, until no step gains a thousandth within `enough`.
    """
    rows, columns = pair_indices(tensor.shape[1])
    # Each off-diagonal pair stands for two entries of the symmetric tensor.
    weights = np.where(rows == columns, 1.0, np.sqrt(2.0))
    target = tensor[:, rows, columns, :] * weights[None, :, None]
    norm = np.linalg.norm(target)

    def residual_of(values: Array, key_query: Array) -> Array:
        here = head_tensor(values, key_query)[:, rows, columns, :] * weights[None, :, None]
        return (here - target).ravel()

    residual, damping = residual_of(values, key_query), 1e-2
    loss = float(residual @ residual)
    for iteration in range(iterations):
        jacobian = _jacobian(values, key_query, weights)
        gradient, normal = jacobian.T @ residual, jacobian.T @ jacobian
        scale = np.trace(normal) / len(normal)
        for _ in range(8):
            step = -np.linalg.solve(normal + damping * scale * np.eye(len(normal)), gradient)
            new_values = values + step[: values.size].reshape(values.shape)
            new_key_query = key_query + step[values.size :].reshape(key_query.shape)
            new_residual = residual_of(new_values, new_key_query)
            new_loss = float(new_residual @ new_residual)
            if new_loss < loss:
                break
            damping *= 4
        else:
            break
        gain = 1 - new_loss / loss
        values, key_query, residual, loss = new_values, new_key_query, new_residual, new_loss
        damping = max(damping / 5, 1e-15)
        close = np.sqrt(loss) <= enough * norm
        if np.sqrt(loss) <= LEAST_RESIDUAL * norm or gain < (1e-3 if close else 1e-5 if iteration > 40 else 0):
            break
    return Heads(values, key_query, float(np.sqrt(loss) / norm))


def _jacobian(values: Array, key_query: Array, weights: Array) -> Array:
    """∂T/∂(V, M): both halves are a small matrix of linear forms, repeated along the other index."""
    d_out, d = values.shape[1:]
    d_query = key_query.shape[2]
    rows, columns = pair_indices(d)
    pairs, eye = np.arange(len(rows)), np.eye(d)
    half = 0.5 * weights[:, None, None, None]
    by_values = half * (
        eye[rows][:, None, :, None] * key_query.transpose(1, 2, 0)[columns][:, :, None, :]
        + eye[columns][:, None, :, None] * key_query.transpose(1, 2, 0)[rows][:, :, None, :]
    )  # pair c e h
    by_key_query = half * (
        eye[columns][:, None, :, None] * values.transpose(2, 1, 0)[rows][:, :, None, :]
        + eye[rows][:, None, :, None] * values.transpose(2, 1, 0)[columns][:, :, None, :]
    )  # pair i e h
    heads = len(values)
    first = np.zeros((d_out, len(pairs), d_query, heads, d_out, d))
    second = np.zeros((d_out, len(pairs), d_query, heads, d, d_query))
    for i in range(d_out):
        first[i, :, :, :, i, :] = by_values.transpose(0, 1, 3, 2)
    for c in range(d_query):
        second[:, :, c, :, :, c] = by_key_query.transpose(1, 0, 3, 2)
    size = d_out * len(pairs) * d_query
    return np.concatenate([first.reshape(size, -1), second.reshape(size, -1)], axis=1)
