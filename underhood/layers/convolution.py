"""y_t = Σ_j w_j ⊙ x_{t-k+1+j} + b, j = 0 … k−1: a causal convolution of each channel on its own.

Its state is the last k − 1 inputs, zeros before the first one. The kernel (0, …, 0, 1) switches it off.
"""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from underhood.core.arrays import DType
from underhood.core.model import Part, tensor
from underhood.layers.draws import uniform
from underhood.layers.held import constant

Past = Float[Array, "past c"]  # past = k − 1


class Convolution(Part):
    """A kernel of width k for each of c channels; torch's Conv1d with groups=c has weight (c, 1, k)."""

    kind: ClassVar[str] = "convolution"

    weight: Float[Array, "channels width"] = tensor()
    bias: Float[Array, " channels"] | None = tensor(optional=True, default=None)

    @classmethod
    def random(
        cls, channels: int, width: int, *, key: Array, bias: bool = True, dtype: DType = jnp.float32
    ) -> Convolution:
        """Uniform on ±1/√width, as torch draws them."""
        key_weight, key_bias = jax.random.split(key)
        bound = float(width) ** -0.5
        weight = uniform(key_weight, (channels, width), dtype, -bound, bound)
        return cls(weight, uniform(key_bias, (channels,), dtype, -bound, bound) if bias else None)

    @classmethod
    def off(cls, channels: int, width: int, *, bias: bool = True) -> Convolution:
        """y = x, in float64."""
        weight = np.zeros((channels, width))
        weight[:, -1] = 1.0
        return cls(weight, np.zeros(channels) if bias else None)

    @property
    def channels(self) -> int:
        return self.weight.shape[0]

    @property
    def width(self) -> int:
        return self.weight.shape[1]

    def __getitem__(self, channels: slice) -> Convolution:
        return Convolution(
            np.asarray(self.weight)[channels], None if self.bias is None else np.asarray(self.bias)[channels]
        )

    def initial_past(self) -> Past:
        return jnp.zeros((self.width - 1, self.channels), self.weight.dtype)

    def step(self, past: Past, x: Float[Array, " c"]) -> tuple[Past, Float[Array, " c"]]:
        window = jnp.concatenate([past, x[None]])
        y = jnp.sum(window * self.weight.T, axis=0)
        return window[1:], y if self.bias is None else y + self.bias

    def scan(self, xs: Float[Array, "t c"], past: Past) -> tuple[Float[Array, "t c"], Past]:
        # Shifted copies, which the compiler fuses into one pass; a general convolution is 30 times slower here.
        # The barrier keeps it from padding anew for each of them. Products first: shifts then need not be kept for
        # the gradient.
        padded: Array = jax.lax.optimization_barrier(jnp.concatenate([past, xs]))
        shifted = [(padded * self.weight[None, :, j])[j : j + len(xs)] for j in range(self.width)]
        ys = sum(shifted[1:], start=shifted[0])
        return ys if self.bias is None else ys + constant(self.bias[None]), padded[len(xs) :]
