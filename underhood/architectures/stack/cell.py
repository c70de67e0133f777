"""Section 3.3: linear embedding → one or more cells → linear readout; no normalisation, dropout or skips."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ClassVar

import jax
from jaxtyping import Array, Float

from underhood.core.arrays import DType
from underhood.core.errors import UnderhoodError
from underhood.core.model import CELL, AbstractModel, architecture, part
from underhood.layers.linear import Linear

MakeCell = Callable[[int, int, Array, Any], AbstractModel]  # (inputs, hidden, key, dtype) → cell


class Stack(AbstractModel):
    """y = readout(cell_L(… cell_1(embedding(x)))); the state is the tuple of the cells' states."""

    kind: ClassVar[str] = "stack"

    embedding: Linear = part("linear")
    cells: tuple[AbstractModel, ...] = part(CELL)
    readout: Linear = part("linear")

    def _check(self) -> None:
        if not self.cells:
            raise UnderhoodError("expected one cell or more in a stack", "none")
        size = self.embedding.weight.shape[0]
        for index, cell in enumerate(self.cells):
            if cell.d != size:
                raise UnderhoodError(f"expected {size} inputs of cells.{index}, the outputs of the layer below", cell.d)
            size = cell.d_out
        if (columns := self.readout.weight.shape[1]) != size:
            raise UnderhoodError(f"expected {size} inputs of readout, the outputs of the last cell", columns)

    @property
    def d(self) -> int:
        return self.embedding.weight.shape[1]

    @property
    def d_out(self) -> int:
        return self.readout.weight.shape[0]

    @property
    def layers(self) -> int:
        return len(self.cells)

    @property
    def hidden(self) -> int:
        """Hidden neurons of all layers together."""
        return sum(getattr(cell, "hidden", 0) for cell in self.cells)

    @property
    def title(self) -> str:
        names = dict.fromkeys(cell.title for cell in self.cells)
        return f"{' and '.join(names)}, {self.layers} layer{'s' * (self.layers > 1)}"

    def _initial_state(self) -> tuple[Any, ...]:
        return tuple(cell._initial_state() for cell in self.cells)

    def _step(self, state: tuple[Any, ...], x: Float[Array, " d"]) -> tuple[tuple[Any, ...], Float[Array, " d_o"]]:
        signal, states = self.embedding(x), []
        for cell, cell_state in zip(self.cells, state, strict=True):
            cell_state, signal = cell._step(cell_state, signal)
            states.append(cell_state)
        return tuple(states), self.readout(signal)

    def _scan(self, xs: Float[Array, "t d"], state: tuple[Any, ...]) -> tuple[Float[Array, "t d_o"], tuple[Any, ...]]:
        signal, states = self.embedding(xs), []
        for cell, cell_state in zip(self.cells, state, strict=True):
            signal, cell_state = cell._scan(signal, cell_state)
            states.append(cell_state)
        return self.readout(signal), tuple(states)

    def propagate_contributions(self, x: Any) -> Any:
        signal = x.linear(self.embedding.weight, self.embedding.bias)
        for cell in self.cells:
            signal = cell.propagate_contributions(signal)
            if signal is None:
                return None
        return signal.linear(self.readout.weight, self.readout.bias)


def register_stack(name: str, **settings: Any) -> Callable[[MakeCell], MakeCell]:
    """Decorator: register a cell's maker as an architecture, a stack with every size equal to `hidden`.

    That is how Section 3.3 has it. `settings` are those of `architecture`.
    """

    def register(make: MakeCell) -> MakeCell:
        @functools.wraps(make)
        def stack(d: int, *, d_out: int, hidden: int, layers: int, key: Array, dtype: DType) -> Stack:
            keys = jax.random.split(key, layers + 2)
            return Stack(
                Linear.random(d, hidden, key=keys[0], dtype=dtype),
                tuple(make(hidden, hidden, one, dtype) for one in keys[2:]),
                Linear.random(hidden, d_out, key=keys[1], dtype=dtype),
            )

        architecture(name, **settings)(stack)
        return make

    return register
