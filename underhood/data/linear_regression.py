"""Section 4: in-context linear regression: (x_1, W*x_1) … (x_T, W*x_T), (x, 0) → W*x.

One step of gradient descent from W = 0, ŷ = η Σ_t y_t (x_t · x), is best at η* = 1/(T + d_x − 1/5), where it
costs ½ σ_W² d_x (1 − η* T) a coordinate (Appendix C.2). The −1/5 is the fourth moment of the uniform
distribution, 9/5, less the Gaussian one's two pairings: Σ_t E[x⁴] + T(T−1) + T(d_x−1) = T (T + d_x − 1/5).
"""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from underhood.arrays import DType
from underhood.attention.linear import LinearAttention
from underhood.attention.teachers import gradient_descent_attention
from underhood.data.task import TASKS, AbstractTask, Batch, SecondOrder, Signs
from underhood.errors import UnderhoodError

SQRT_3 = 3.0**0.5  # uniform on (−√3, √3) has variance 1


class LinearRegression(AbstractTask):
    """Each sequence is a task: W* ~ N(0, 1/d_x), x uniform with variance 1; validation tasks N(0, 2/d_x)."""

    name: ClassVar[str] = "linear-regression"
    last_only: ClassVar[bool] = True
    width: ClassVar[int] = 80  # Section 4.2
    # The loss has a floor: what a finite number of tasks adds to it falls as their number grows.
    second_order: ClassVar[SecondOrder | None] = SecondOrder(sequences=200_000, tests=20_000)
    probes: ClassVar[int] = 16_384
    tolerance: ClassVar[float | None] = 1e-2  # that noise leaves a network that is attention to a thousandth or so

    examples: int = 12
    d_x: int = 3
    d_y: int = 3

    def __check_init__(self) -> None:
        for name in ("examples", "d_x", "d_y"):
            if getattr(self, name) < 1:
                raise UnderhoodError(f"expected {name} of 1 or more", getattr(self, name))

    @property
    def d(self) -> int:
        return self.d_x + self.d_y

    @property
    def d_out(self) -> int:
        return self.d_y

    @property
    def steps(self) -> int:
        return self.examples + 1

    def batch(self, key: Array, size: int, *, validation: bool = False, dtype: DType = jnp.float32) -> Batch:
        # One draw for x and W*, as a draw costs more in calls than in numbers: u is uniform on (−1, 1), and
        # √2 erf⁻¹(u) is normal.
        lowest = jnp.nextafter(jnp.asarray(-1, dtype), jnp.asarray(0, dtype))
        u = jax.random.uniform(key, (size, (self.steps + self.d_y) * self.d_x), dtype, minval=lowest, maxval=1)
        x = SQRT_3 * u[:, : self.steps * self.d_x].reshape(size, self.steps, self.d_x)
        spread = (2 * self.w_variance(validation=validation)) ** 0.5
        w_star = spread * jax.lax.erf_inv(u[:, self.steps * self.d_x :]).reshape(size, self.d_y, self.d_x)
        # The small sum is written out: as a batched product of 3×3 matrices it takes the compiler's slow road.
        y = jnp.zeros((size, self.steps, self.d_y), dtype)
        for j in range(self.d_x):
            y = y + w_star[:, None, :, j] * x[:, :, None, j]
        shown = jnp.concatenate([y[:, :-1], jnp.zeros_like(y[:, -1:])], axis=1)
        return jnp.concatenate([x, shown], axis=-1), y[:, -1]

    def w_variance(self, *, validation: bool = False) -> float:
        """σ_W² of the entries of W*."""
        return (2.0 if validation else 1.0) / self.d_x

    @property
    def optimal_eta(self) -> float:
        """η* = 1/(T + d_x − 1/5) (Eq. 36)."""
        return 1.0 / (self.examples + self.d_x - 0.2)

    def gradient_descent_loss(self, eta: float, *, validation: bool = False) -> float:
        """½ σ_W² Tr E[(I − η X Xᵀ)²] a coordinate: the loss of one step with rate η, exactly."""
        t, d_x = self.examples, self.d_x
        trace = d_x * (1 - 2 * eta * t + eta**2 * t * (t + d_x - 0.2))
        return 0.5 * self.w_variance(validation=validation) * trace

    def optimal_loss(self, *, validation: bool = False) -> float:
        """The loss of one step with η*: 7/74 for T = 12 and d_x = 3, twice that on validation tasks."""
        return self.gradient_descent_loss(self.optimal_eta, validation=validation)

    def optimal_attention(self) -> LinearAttention:
        """The attention that takes the optimal step (Eq. 4)."""
        return gradient_descent_attention(self.d_x, self.d_y, self.optimal_eta)

    def optimal_prediction(self, xs: Any) -> Any:
        """ŷ = η* Σ_t y_t (x_t · x) for a batch (b, t, d) of NumPy or jax, in its own precision."""
        x, y = xs[..., : self.d_x], xs[..., self.d_x :]
        likeness = (x[:, :-1] * x[:, -1:]).sum(axis=-1, keepdims=True)
        return self.optimal_eta * (likeness * y[:, :-1]).sum(axis=1)

    def symmetry(self) -> Signs:
        return regression_signs(self.d_x, self.d_y)


TASKS.register(LinearRegression.name)(LinearRegression)


def regression_signs(d_x: int, d_y: int) -> Signs:
    """A coordinate of x or of y changes sign throughout, or the query alone, or every example alone.

    Averaged over them, the noise of finitely many tasks is below a thousandth of the loss.
    """
    d = d_x + d_y
    flip_coordinate = 1.0 - 2.0 * np.eye(d)  # x_k: W* loses the sign of a column; y_i: of a row
    examples = np.concatenate([flip_coordinate, -np.ones((1, d)), np.ones((1, d))])
    query = np.concatenate([flip_coordinate, np.ones((1, d)), -np.ones((1, d))])
    outputs = np.concatenate([np.ones((d_x, d_y)), 1.0 - 2.0 * np.eye(d_y), np.ones((1, d_y)), -np.ones((1, d_y))])
    return Signs(examples, query, outputs)
