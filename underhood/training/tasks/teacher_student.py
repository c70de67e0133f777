"""Section 3: a student is to give what a linear self-attention gives, at every step: y_t of Eq. 1."""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array

from underhood.attention.linear import LinearAttention, _naive, require_attention
from underhood.attention.teachers import random_attention
from underhood.core.arrays import DType
from underhood.core.errors import UnderhoodError
from underhood.core.memory import require_memory
from underhood.core.model import as_dtype
from underhood.training.tasks.task import TASKS, AbstractTask, Batch


class TeacherStudent(AbstractTask):
    """x_t ~ N(0, 1) entries, y_t = teacher(x_1 … x_t), sequences of 32 (Appendix B.1)."""

    name: ClassVar[str] = "teacher-student"

    teacher: LinearAttention
    length: int = 32

    def __check_init__(self) -> None:
        require_attention(self.teacher)
        if self.length < 1:
            raise UnderhoodError("expected length of 1 or more", self.length)

    @property
    def d(self) -> int:
        return self.teacher.d

    @property
    def d_out(self) -> int:
        return self.teacher.d_out

    @property
    def steps(self) -> int:
        return self.length

    def batch(self, key: Array, size: int, *, validation: bool = False, dtype: DType = jnp.float32) -> Batch:
        """Training and validation sequences have one distribution here."""
        # In rows of t·d: the same numbers as in rows of d. Rows of 6 are made one number at a time, which took half of
        # a small network's training step.
        xs = jax.random.normal(key, (size, self.length * self.d), dtype).reshape(size, self.length, self.d)
        teacher = as_dtype(self.teacher, dtype)
        return xs, jax.vmap(lambda x: _naive(teacher, x))(xs)

    def settings(self) -> dict[str, Any]:
        weights = {
            name: None if weight is None else weight.tolist()
            for name, weight in vars(self.teacher).items()
            if name in ("w_value", "w_key", "w_query", "decay")
        }
        return {"task": self.name, "length": self.length, "teacher": weights}


@TASKS.register("teacher-student")
def teacher_student(
    *, d: int = 4, length: int = 32, teacher_seed: int = 0, teacher: LinearAttention | None = None
) -> TeacherStudent:
    """A random teacher with N(0, 1/d) entries, unless one is given."""
    if teacher is None:
        require_memory(3 * 8 * d**2, f"a teacher with d = {d}")
        teacher = random_attention(d, seed=teacher_seed)
    return TeacherStudent(teacher, length)
