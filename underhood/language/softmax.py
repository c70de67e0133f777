"""y_t = W_o Σ_{s≤t} softmax_s(q_t·k_s · scale) v_s: the softmax attention of language models.

Rotary positions, grouped keys, a sliding window, norms of queries and keys, and a gate on the outputs, as Llama and the
attention layers of hybrids have them. It keeps the contract of a cell; its state is the keys and values so far.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from underhood.language.blocks import Affine
from underhood.layers.held import gate, gated
from underhood.layers.norm import Norm


class Rotary(eqx.Module):
    """Pairs of channels turned by the angle position · frequency: x cos + rotate_half(x) sin."""

    frequencies: tuple[float, ...] = eqx.field(static=True)
    """Of the first 2 · len channels; the rest pass."""
    scale: float = eqx.field(static=True, default=1.0)
    """Of cos and sin."""

    def __call__(self, x: Float[Array, "t h k"], start: int) -> Float[Array, "t h k"]:
        # The angles as float32 has them: that is how the public models were trained.
        positions = np.arange(start, start + len(x), dtype=np.float32)
        angles = positions[:, None] * np.asarray(self.frequencies, np.float32)
        angles = np.concatenate([angles, angles], axis=1)[:, None]
        cos, sin = (jnp.asarray(self.scale * f(angles), x.dtype) for f in (np.cos, np.sin))
        turned, passed = x[..., : angles.shape[2]], x[..., angles.shape[2] :]
        first, second = jnp.split(turned, 2, axis=2)
        turned = turned * cos + jnp.concatenate([-second, first], axis=2) * sin
        return jnp.concatenate([turned, passed], axis=2) if passed.shape[2] else turned


class SoftmaxMixer(eqx.Module):
    """Heads of queries, in groups that share keys and values."""

    q_proj: Affine
    k_proj: Affine
    v_proj: Affine
    o_proj: Affine
    heads: int = eqx.field(static=True)
    key_heads: int = eqx.field(static=True)
    scale: float = eqx.field(static=True)
    rotary: Rotary | None = None
    window: int | None = eqx.field(static=True, default=None)
    q_norm: Norm | None = None
    k_norm: Norm | None = None
    gated: bool = eqx.field(static=True, default=False)
    """Each head's queries come with a gate of its outputs, σ(·), as rows of `q_proj`."""
    key_scale: float = eqx.field(static=True, default=1.0)
    kind: str = eqx.field(static=True, default="softmax-attention")

    @property
    def d(self) -> int:
        return self.q_proj.weight.shape[1]

    @property
    def d_out(self) -> int:
        return self.o_proj.weight.shape[0]

    def _initial_state(self) -> tuple[Array, Array]:
        keys = self.k_proj.weight.shape[0] // self.key_heads
        values = self.v_proj.weight.shape[0] // self.key_heads
        dtype = self.k_proj.weight.dtype
        return jnp.zeros((0, self.key_heads, keys), dtype), jnp.zeros((0, self.key_heads, values), dtype)

    def _scan(self, xs: Float[Array, "t d"], state: Any) -> tuple[Float[Array, "t d"], Any]:
        weights, v, opened, state = self._weights(xs, state)
        read = jnp.einsum("hts,shv->thv", gate(weights), jnp.repeat(v, self.heads // self.key_heads, axis=1))
        read = read.reshape(len(xs), -1)
        if opened is not None:
            read = gated(read, jax.nn.sigmoid, opened)
        return self.o_proj(read), state

    def _weights(self, xs: Float[Array, "t d"], state: Any) -> tuple[Array, Array, Array | None, Any]:
        """Softmax weights (h, t, s), values, the outputs' gate before σ, and the next state."""
        length, start = len(xs), len(state[0])
        q, opened = self.q_proj(xs).reshape(length, self.heads, -1), None
        if self.gated:
            q, opened = jnp.split(q, 2, axis=2)
            opened = opened.reshape(length, -1)
        k, v = (one(xs).reshape(length, self.key_heads, -1) for one in (self.k_proj, self.v_proj))
        q, k = (x if norm is None else norm(x) for x, norm in ((q, self.q_norm), (k, self.k_norm)))
        k = k if self.key_scale == 1 else k * self.key_scale
        if self.rotary is not None:
            q, k = self.rotary(q, start), self.rotary(k, start)
        k, v = (jnp.concatenate([before, now]) for before, now in zip(state, (k, v), strict=True))
        groups = jnp.repeat(k, self.heads // self.key_heads, axis=1)
        scores = jnp.einsum("thk,shk->hts", q, groups) * self.scale
        seen = np.tri(length, len(k), start, dtype=bool)
        if self.window is not None:
            seen &= ~np.tri(length, len(k), start - self.window, dtype=bool)
        return jax.nn.softmax(jnp.where(seen[None], scores, -jnp.inf), axis=2), v, opened, (k, v)


class SideBySide(eqx.Module):
    """Σ_i b_i · mixer_i(a_i · x): mixers that read the same inputs, and whose outputs are added."""

    mixers: tuple[Any, ...]
    entering: tuple[float, ...] = eqx.field(static=True)
    leaving: tuple[float, ...] = eqx.field(static=True)
    kind: str = eqx.field(static=True, default="side-by-side")

    @property
    def d(self) -> int:
        return self.mixers[0].d

    @property
    def d_out(self) -> int:
        return self.mixers[0].d_out

    def _initial_state(self) -> tuple[Any, ...]:
        return tuple(mixer._initial_state() for mixer in self.mixers)

    def _scan(self, xs: Float[Array, "t d"], state: tuple[Any, ...]) -> tuple[Float[Array, "t d"], tuple[Any, ...]]:
        together, states = jnp.zeros_like(xs), []
        for mixer, inside, outside, before in zip(self.mixers, self.entering, self.leaving, state, strict=True):
            ys, after = mixer._scan(xs * inside, before)
            together = together + ys * outside
            states.append(after)
        return together, tuple(states)
