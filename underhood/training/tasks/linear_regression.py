"""Section 4: in-context linear regression: (x_1, W*x_1) … (x_T, W*x_T), (x, 0) → W*x.

One step of gradient descent from W = 0, ŷ = η Σ_t y_t (x_t · x), is best at η* = 1/(T − 1 + m₄), where it
costs ½ σ_W² d_x (1 − η* T) a coordinate (Appendix C.2). m₄ is the fourth moment of the inputs, E|x|² x xᵀ = m₄ I:
d_x + 4/5 for the paper's uniform ones, whose η* is 1/(T + d_x − 1/5); d_x on the sphere; d_x + 2 for normal ones.
"""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from underhood.attention.linear import LinearAttention
from underhood.attention.teachers import gradient_descent_attention
from underhood.core.arrays import DType
from underhood.core.errors import UnderhoodError
from underhood.training.tasks.task import TASKS, AbstractTask, Batch, SecondOrder, Signs

SQRT_2 = 2.0**0.5
SQRT_3 = 3.0**0.5  # uniform on (−√3, √3) has variance 1

# Inputs, all of variance 1 → m₄ − d_x − 1, which one step of gradient descent needs. On the sphere, |x|² = d_x.
INPUTS = {"uniform": -0.2, "sphere": -1.0, "normal": 1.0}


class LinearRegression(AbstractTask):
    """Each sequence is a task: W* ~ N(0, 1/d_x), x uniform with variance 1; validation tasks N(0, 2/d_x).

    `inputs` may be uniform, on the sphere of radius √d_x, or normal; `noise` is the standard deviation of what is added
    to the y that are shown. What to predict has none.
    """

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
    inputs: str = "uniform"
    noise: float = 0.0

    def __check_init__(self) -> None:
        for name in ("examples", "d_x", "d_y"):
            if getattr(self, name) < 1:
                raise UnderhoodError(f"expected {name} of 1 or more", getattr(self, name))
        if not (isinstance(self.inputs, str) and self.inputs in INPUTS):
            raise UnderhoodError(f"expected inputs {', '.join(INPUTS)}", repr(self.inputs))
        if not 0 <= self.noise < float("inf"):
            raise UnderhoodError("expected noise of 0 or more", self.noise)

    def settings(self) -> dict[str, Any]:
        """Settings that came later are left out while they have their default: an older run folder still fits."""
        usual = {"inputs": "uniform", "noise": 0.0}
        return {name: value for name, value in super().settings().items() if value != usual.get(name, ...)}

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
        # One draw for x, W* and noise, as a draw costs more in calls than in numbers: u is uniform on (−1, 1), and
        # √2 erf⁻¹(u) is normal.
        of_x, of_w = self.steps * self.d_x, self.d_y * self.d_x
        numbers = of_x + of_w + (self.examples * self.d_y if self.noise else 0)
        lowest = jnp.nextafter(jnp.asarray(-1, dtype), jnp.asarray(0, dtype))
        u = jax.random.uniform(key, (size, numbers), dtype, minval=lowest, maxval=1)
        x = self._placed(u[:, :of_x].reshape(size, self.steps, self.d_x))
        spread = (2 * self.w_variance(validation=validation)) ** 0.5
        w_star = spread * jax.lax.erf_inv(u[:, of_x : of_x + of_w]).reshape(size, self.d_y, self.d_x)
        # The small sum is written out: as a batched product of 3×3 matrices it takes the compiler's slow road.
        y = jnp.zeros((size, self.steps, self.d_y), dtype)
        for j in range(self.d_x):
            y = y + w_star[:, None, :, j] * x[:, :, None, j]
        told = y[:, :-1]
        if self.noise:
            told = told + self.noise * SQRT_2 * jax.lax.erf_inv(u[:, of_x + of_w :]).reshape(told.shape)
        shown = jnp.concatenate([told, jnp.zeros_like(y[:, -1:])], axis=1)
        return jnp.concatenate([x, shown], axis=-1), y[:, -1]

    def _placed(self, u: Float[Array, "b t d_x"]) -> Float[Array, "b t d_x"]:
        """Uniform numbers on (−1, 1) → inputs."""
        if self.inputs == "uniform":
            return SQRT_3 * u
        normal = SQRT_2 * jax.lax.erf_inv(u)
        if self.inputs == "normal":
            return normal
        return normal * (self.d_x**0.5 / jnp.linalg.norm(normal, axis=-1, keepdims=True))

    def w_variance(self, *, validation: bool = False) -> float:
        """σ_W² of the entries of W*."""
        return (2.0 if validation else 1.0) / self.d_x

    @property
    def fourth_moment(self) -> float:
        """m₄ of E|x|² x xᵀ = m₄ I."""
        return self.d_x + 1 + INPUTS[self.inputs]

    @property
    def optimal_eta(self) -> float:
        """η* = 1/(T − 1 + m₄ + d_x noise²) (Eq. 36)."""
        return 1.0 / (self.examples + self.d_x + INPUTS[self.inputs] + self.d_x * self.noise**2)

    def gradient_descent_loss(self, eta: float, *, validation: bool = False) -> float:
        """½ σ_W² Tr E[(I − η X Xᵀ)²] + ½ η² T d_x noise² a coordinate: the loss of one step with rate η, exactly."""
        t, d_x = self.examples, self.d_x
        trace = d_x * (1 - 2 * eta * t + eta**2 * t * (t + d_x + INPUTS[self.inputs]))
        return 0.5 * self.w_variance(validation=validation) * trace + 0.5 * eta**2 * t * d_x * self.noise**2

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
