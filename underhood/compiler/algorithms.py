"""In-context algorithms as networks, weights set by hand: `uh.algorithm_network("delta-rule", to="gated-deltanet")`.

Tokens are (x_1, y_1) … (x_T, y_T), (x, 0), and the network predicts y at x (explain/algorithms.py has the algorithms):

    gradient-step, decayed-gradient-step   attention with keys x, values η y (Eq. 4), in every target of compile
    delta-rule                             Gated DeltaNet, one layer: keys and values are of the token before, by its
                                           convolution
    least-squares                          MesaNet, two layers: the first hands on the token before, as its values have
                                           no convolution; ridge = Λ d_x
    k-gradient-steps                       k linear attentions or gated RNNs

The token before, because the layer writes before it reads: with a key of its own, the query would be learned as y = 0.
Keys of length 1 lose the length of x, so the delta rule and least squares hold for inputs on the sphere |x|² = d_x.

k steps of gradient descent are W_k x = η B s with s = Σ_{j<k} (I − ηA)^j x. Layers 1 to k−1 each take z ← z − ηA z and
s ← s + z: a head with keys and values x and the query z, less what the token itself adds. The last one reads B s. So k
layers give exactly k steps, and the loss falls with k as that of plain gradient descent does.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jaxtyping import Float

from underhood.architectures.deltanet.cell import GatedDeltaNet
from underhood.architectures.mesanet.cell import MesaNet
from underhood.architectures.stack.cell import Stack
from underhood.attention.linear import LinearAttention
from underhood.attention.teachers import gradient_descent_attention
from underhood.compiler.compile import compile
from underhood.compiler.decays import CLOSED, log_rate, logit
from underhood.compiler.memory import ONE
from underhood.compiler.targets import TARGETS
from underhood.core.errors import UnderhoodError
from underhood.core.memory import require_memory
from underhood.core.model import AbstractModel
from underhood.layers.convolution import Convolution
from underhood.layers.linear import Linear
from underhood.layers.norm import Norm
from underhood.layers.projection import Projection

ATTENTION = LinearAttention.kind
# SiLU(±s x) = ±s x/2 + s²x²/4 …: an error of s²|x|²/4 in products of keys, and ε/(s²|x|²/2) of their length.
KEY_SCALE = 2.0**-5
TINY = 2.0**-30  # at which SiLU is linear and a norm divides by √ε
UNIT_EPS = 1e-6  # of keys of length 1


def algorithm_network(
    name: str,
    *,
    to: str,
    d_x: int = 3,
    d_y: int = 3,
    eta: float = 1 / 14.8,
    decay: float = 0.9,
    beta: float | None = None,
    ridge: float | None = None,
    k: int = 2,
) -> AbstractModel:
    """A network that runs an in-context algorithm, in float64.

    `eta`: of gradient steps, by default the best one of the paper's task; `decay`: of decayed ones, for each step back
    in time; `k`: how many. `beta`: of the delta rule, at most and by default 1/d_x. `ridge`: of least squares, by
    default d_x/4, the least of MesaNet's own bound.
    """
    for size_name, size in {"d_x": d_x, "d_y": d_y, "k": k}.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise UnderhoodError(f"expected {size_name} to be a whole number of 1 or more", repr(size))
    given = {"eta": eta, "decay": decay, "beta": beta, "ridge": ridge}
    for what, value in given.items():
        if value is not None and not (isinstance(value, float | int) and 0 < value < np.inf):
            raise UnderhoodError(f"expected {what} above 0", repr(value))
    require_memory(64 * k * (d_x + d_y) ** 2, f"a network with d_x = {d_x}, d_y = {d_y}, k = {k}")
    makers = _makers()
    if (name, to) not in makers:
        names = list(dict.fromkeys(known for known, _ in makers))
        if name not in names:
            raise UnderhoodError(f"no algorithm {name!r} to construct", remedy=f"Known: {', '.join(names)}.")
        targets = ", ".join(target for known, target in makers if known == name)
        raise UnderhoodError(f"no construction of {name} in {to}", remedy=f"Known: {targets}.")
    return makers[name, to](d_x=d_x, d_y=d_y, k=k, **given)


def _makers() -> dict[tuple[str, str], Callable[..., AbstractModel]]:
    """(algorithm, target) → how to make it."""
    makers: dict[tuple[str, str], Callable[..., AbstractModel]] = {}
    for target in (ATTENTION, *TARGETS):
        makers["gradient-step", target] = _in(target, _step)
        makers["decayed-gradient-step", target] = _in(target, _decayed_step)
    for target in (ATTENTION, "gated-rnn"):
        makers["k-gradient-steps", target] = _in_layers(target)
    makers["delta-rule", "gated-deltanet"] = _delta_rule
    makers["least-squares", "mesanet"] = _least_squares
    return makers


def _in(target: str, make: Callable[..., LinearAttention]) -> Callable[..., AbstractModel]:
    return lambda **given: _compiled(make(**given), target)


def _compiled(attention: LinearAttention, target: str) -> AbstractModel:
    return attention if target == ATTENTION else compile(attention, to=target).model


def _step(*, d_x: int, d_y: int, eta: float, **_: object) -> LinearAttention:
    return gradient_descent_attention(d_x, d_y, eta)


def _decayed_step(*, d_x: int, d_y: int, eta: float, decay: float, **_: object) -> LinearAttention:
    """η counts for the last observation, which the query's step has decayed once."""
    if decay > 1:
        raise UnderhoodError("expected a decay of at most 1", decay)
    plain = gradient_descent_attention(d_x, d_y, eta / decay)
    return LinearAttention(plain.w_value, plain.w_key, plain.w_query, np.array([float(decay)]))


def _in_layers(target: str) -> Callable[..., AbstractModel]:
    def make(*, d_x: int, d_y: int, eta: float, k: int, **_: object) -> AbstractModel:
        # The stream between layers: x, y, z, s and the constant 1.
        x, y = np.eye(d_x, 3 * d_x + d_y + 1), np.eye(d_y, 3 * d_x + d_y + 1, d_x)
        z, s = (np.eye(d_x, x.shape[1], start) for start in (d_x + d_y, 2 * d_x + d_y))
        one = np.eye(x.shape[1])[-1]
        widen = np.zeros((x.shape[1], d_x + d_y))
        widen[: d_x + d_y] = np.eye(d_x + d_y)
        widen += (z + s).T @ np.eye(d_x, d_x + d_y)
        power = _next_power(x, z, s, one, eta)
        last = LinearAttention(eta * y, x, s)
        layers = [*(power for _ in range(k - 1)), last]
        cells = tuple(_compiled(layer, target) for layer in layers)
        return Stack(Linear(widen, one), cells, Linear(np.eye(d_y), np.zeros(d_y)))

    return make


def _next_power(
    x: Float[np.ndarray, "d_x n"],
    z: Float[np.ndarray, "d_x n"],
    s: Float[np.ndarray, "d_x n"],
    one: Float[np.ndarray, " n"],
    eta: float,
) -> LinearAttention:
    """z ← z − ηA z, s ← s + z: three heads, which learn from all tokens, take away this one, and hand on the stream."""
    width = len(one)
    constant = np.pad(one[None], ((0, len(x) - 1), (0, 0)))
    down = -eta * (z + s).T @ x
    stream = np.eye(width) + s.T @ z
    return LinearAttention(
        np.stack([down, -down, stream]), np.stack([x, x, constant]), np.stack([z, z, constant]), np.array([1.0, 0, 0])
    )


def _delta_rule(*, d_x: int, d_y: int, beta: float | None, **_: object) -> AbstractModel:
    """β = 1 for keys of length 1 is 1/d_x for x."""
    share = 1.0 if beta is None else beta * d_x
    if share > 1 + 1e-12:
        raise UnderhoodError(f"expected beta of at most {1 / d_x:.6g}, 1/d_x", beta)
    width, d_key = d_x + d_y + 1, 2 * d_x
    keys, values, one = _keys(d_x, width), TINY * np.eye(d_y, width, d_x), np.eye(width)[-1]
    channels = 2 * d_key + d_y
    before = np.tile([1.0, 0.0], (channels, 1))
    before[:d_key] = [0.0, 1.0]  # queries are of now
    # SiLU halves the values, and the query is divided by √d_k.
    scale = TINY / 2 / np.sqrt(d_key) * ONE / np.sqrt(UNIT_EPS)
    cell = GatedDeltaNet(
        in_proj_qkvz=Projection(np.concatenate([keys, keys, values, np.tile(ONE * one, (d_y, 1))])),
        in_proj_ba=Projection(np.stack([logit(min(share, 1.0)) * one, 0 * one])),
        conv1d=Convolution(before),
        dt_bias=np.zeros(1),
        A_log=log_rate(np.ones(1)),
        norm=Norm(np.ones(d_y), eps=UNIT_EPS),
        out_proj=Projection(np.eye(d_y) / scale),
        key_heads=1,
    )
    return Stack(Linear(np.eye(width, d_x + d_y), one), (cell,), Linear(np.eye(d_y), np.zeros(d_y)))


def _least_squares(*, d_x: int, d_y: int, ridge: float | None, **_: object) -> AbstractModel:
    """The first layer's outputs are x_t, x_{t-1} and y_{t-1}."""
    diagonal = MesaNet.lambda_lower_bound if ridge is None else ridge / d_x
    width = 2 * d_x + d_y
    eps = 1e-5
    memory = MesaNet(
        q_proj=Projection(_keys(d_x, width)),
        k_proj=Projection(_keys(d_x, width, d_x)),
        v_proj=Projection(TINY * np.eye(d_y, width, 2 * d_x)),
        a_proj=Projection(np.zeros((1, width)), np.array([-CLOSED])),
        b_proj=Projection(np.zeros((1, width)), np.array([ONE])),
        q_conv1d=Convolution.off(2 * d_x, 1, bias=False),
        k_conv1d=Convolution.off(2 * d_x, 1, bias=False),
        lambda_params=np.full(2 * d_x, _inverse_softplus(max(diagonal - MesaNet.lambda_lower_bound, 0.0))),
        o_norm=Norm(np.ones(d_y), eps=eps),
        o_proj=Projection(np.eye(d_y) * np.sqrt(eps) / TINY),
        lambda_lower_bound=min(diagonal, MesaNet.lambda_lower_bound),
    )
    cells = (_delay(d_x, d_y, eps), memory)
    d = d_x + d_y
    return Stack(Linear(np.eye(d + 1, d), np.eye(d + 1)[d]), cells, Linear(np.eye(d_y), np.zeros(d_y)))


def _delay(d_x: int, d_y: int, eps: float) -> MesaNet:
    """(x, y, 1) → (x_t, x_{t-1}, y_{t-1}): memories of size 1 that hold the constant and are asked with the token."""
    d, width = d_x + d_y, 2 * d_x + d_y
    one = np.tile(np.eye(d + 1)[d], (width, 1))
    asked = np.concatenate([np.eye(d_x, d + 1), np.eye(d, d + 1)])
    before = np.tile([1.0, 0.0], (width, 1))
    before[:d_x] = [0.0, 1.0]
    # SiLU halves the query, which is divided by √ε, and by the memory 1 + Λ.
    scale = TINY / 2 / np.sqrt(UNIT_EPS) / (1 + MesaNet.lambda_lower_bound) / np.sqrt(eps)
    return MesaNet(
        q_proj=Projection(TINY * asked),
        k_proj=Projection(ONE * one),
        v_proj=Projection(one),
        a_proj=Projection(np.zeros((width, d + 1)), np.full(width, CLOSED)),
        b_proj=Projection(np.zeros((width, d + 1)), np.full(width, ONE)),
        q_conv1d=Convolution(before),
        k_conv1d=Convolution.off(width, 2, bias=False),
        lambda_params=np.full(width, CLOSED),
        o_norm=Norm(np.ones(1), eps=eps),
        o_proj=Projection(np.eye(width) / scale),
    )


def _keys(d_x: int, width: int, start: int = 0) -> Float[np.ndarray, "keys width"]:
    """±s x: after SiLU, products of two of them are those of s x/√2, up to s²."""
    rows = KEY_SCALE * np.eye(d_x, width, start)
    return np.concatenate([rows, -rows])


def _inverse_softplus(value: float) -> float:
    return float(np.log(np.expm1(value))) if value > 0 else CLOSED
