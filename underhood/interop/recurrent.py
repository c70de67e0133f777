"""LSTM, GRU and RNN layers as other programs keep them: gates stacked in one matrix, in an order of their own.

    torch, ONNX     weight_ih (gates · n, d), weight_hh (gates · n, n), and two biases, whose sum counts
    Keras           kernel (d, gates · n), recurrent_kernel (n, gates · n), and one bias, or two of them

Which letters the gates of an architecture have, and which order each program puts them in, its bridge.py says.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from underhood.core.errors import UnderhoodError
from underhood.core.registry import Registry
from underhood.interop.tensors import Tensors, printable


@dataclasses.dataclass(frozen=True)
class Recurrent:
    """One of our cells, and how the same cell lies in the files of others."""

    kind: str
    """Of our cell, "lstm-cell"."""
    model: str
    """What the user calls it, "lstm"."""
    torch: str
    """The class in torch.nn, "LSTM"."""
    gates: str
    """A letter for each gate, in our order."""
    orders: Mapping[str, str]
    """Program → the same letters in its order."""
    read: Callable[..., Any]
    """(w, v, b, b_recurrent, **options) of shapes (gates, n, …), in our order, to a cell."""
    write: Callable[[Any], tuple[np.ndarray, np.ndarray | None, np.ndarray, np.ndarray | None]]
    """The inverse: a cell to w, v, b and b_recurrent; an UnderhoodError where torch has no such cell."""
    negated: str = ""
    """Gates that keep where ours replace, 1 − z for z: σ(−a) = 1 − σ(a)."""
    trim: Callable[[Any, int, int, Mapping[str, Any]], Any | None] = lambda cell, n, inputs, said: None
    """A cell without the neurons that our export added, where they are still zero; None otherwise."""
    describe: Callable[[Any], dict[str, Any]] = lambda cell: {}
    """What the tensors do not tell of a cell."""
    options: Callable[[Any], dict[str, Any]] = lambda module: {}
    """A torch module to the options of `read` and to further settings of torch's class."""

    def ours(self, array: np.ndarray, program: str = "torch") -> np.ndarray:
        """(gates · n, …) in a program's order → (gates, n, …) in ours."""
        order = self.orders[program]
        stacked = array.reshape(len(order), -1, *array.shape[1:])[[order.index(gate) for gate in self.gates]]
        return stacked * self._signs(stacked)

    def theirs(self, array: np.ndarray, program: str = "torch") -> np.ndarray:
        """The inverse."""
        signed = array * self._signs(array)
        return signed[[self.gates.index(gate) for gate in self.orders[program]]].reshape(-1, *array.shape[2:])

    def _signs(self, array: np.ndarray) -> np.ndarray:
        signs = np.array([-1 if gate in self.negated else 1 for gate in self.gates], array.dtype)
        return signs.reshape(-1, *[1] * (array.ndim - 1))


RECURRENT: Registry[Recurrent] = Registry("recurrent layer", "underhood.architectures.*.bridge")


def recurrent(**fields: Any) -> Recurrent:
    """Register a cell that torch.nn has, by what the user calls it."""
    return RECURRENT.register(fields["model"])(Recurrent(**fields))


def by_kind(kind: str) -> Recurrent | None:
    """The layer for a cell of ours."""
    return next((layer for layer in RECURRENT.values() if layer.kind == kind), None)


def by_gates(gates: int) -> Recurrent | None:
    """The layer that has so many gates."""
    return next((layer for layer in RECURRENT.values() if len(layer.gates) == gates), None)


@dataclasses.dataclass
class Found:
    """The tensors of one layer in one direction, in a program's order, under the names that they had."""

    where: str
    """What its tensors' names have in common, "encoder.lstm"."""
    level: int
    """Its number in a stack of several."""
    w: np.ndarray
    v: np.ndarray
    b: np.ndarray | None = None
    b_recurrent: np.ndarray | None = None
    program: str = "torch"
    backward: bool = False
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    names: dict[str, str] = dataclasses.field(default_factory=dict)
    """What torch would call each tensor → its name in the file."""
    model: str | None = None
    """"lstm", where the file says it; the number of gates tells otherwise."""

    @property
    def d(self) -> int:
        return self.w.shape[1]

    @property
    def hidden(self) -> int:
        return self.v.shape[-1]

    @property
    def layer(self) -> Recurrent:
        """Which cell this is: by name, or by how many gates its recurrent matrix holds."""
        found = RECURRENT[self.model] if self.model else by_gates(len(self.v) // max(1, self.v.shape[-1]))
        if found is None:
            raise UnderhoodError(
                f"expected a recurrent matrix of 1, 3 or 4 gates in {self.where or 'the file'}", self.v.shape
            )
        return found

    def cell(self) -> Any:
        """The cell of ours."""
        layer, program = self.layer, self.program
        rows = len(layer.gates) * self.hidden
        if self.v.shape != (rows, self.hidden) or self.w.ndim != 2 or len(self.w) != rows:
            count = len(layer.gates)
            rule = f"expected weights of shape ({count}·n, inputs) and ({count}·n, n), as torch.nn.{layer.torch} has"
            fits = by_gates(len(self.v) // max(1, self.v.shape[-1])) if self.v.ndim == 2 else None
            remedy = f"This looks like `kind={fits.model!r}`." if fits not in (None, layer) else ""
            raise UnderhoodError(rule, f"{self.w.shape} and {self.v.shape}", remedy)
        biases = []
        for name, bias in (("bias_ih", self.b), ("bias_hh", self.b_recurrent)):
            bias = np.zeros(rows, self.w.dtype) if bias is None else bias
            if bias.shape != (rows,):
                told = printable(self.names.get(name, name))
                raise UnderhoodError(f"expected {told} of shape ({rows},)", bias.shape)
            biases.append(layer.ours(bias, program))
        return layer.read(layer.ours(self.w, program), layer.ours(self.v, program), *biases, **self.options)


# weight_ih_l0, enc_w_ih, lstm.bias_hh_l1_reverse, cell.weight_hh: torch's own names, and those that people derive.
_NAME = re.compile(r"(?P<where>.*?)(?P<what>weight|bias|w|b)_?(?P<side>ih|hh)(?:_?l(?P<level>\d+))?(?P<back>_reverse)?")
_WORDS = {"weight": "w", "bias": "b", "w": "w", "b": "b"}


def layers_in(tensors: Tensors) -> tuple[list[Found], set[str]]:
    """Recurrent layers by torch's names, or names derived from them; and the names that they take."""
    groups: dict[tuple[str, int, bool], dict[str, str]] = {}
    for name in tensors:
        if match := _NAME.fullmatch(name):
            key = match["where"], int(match["level"] or 0), match["back"] is not None
            groups.setdefault(key, {})[f"{_WORDS[match['what']]}_{match['side']}"] = name
    found, taken = [], set()
    for (where, level, backward), names in groups.items():
        if "w_ih" not in names and "w_hh" not in names:
            continue
        taken |= set(names.values())
        if len(names.keys() & {"w_ih", "w_hh"}) < 2:
            there = names.get("w_ih") or names["w_hh"]
            other = re.sub("(ih|hh)(?!.*(ih|hh))", lambda side: {"ih": "hh", "hh": "ih"}[side[1]], there)
            raise UnderhoodError(f"{printable(there)} is there without {printable(other)}")
        w, v = tensors[names["w_ih"]], tensors[names["w_hh"]]
        if w.ndim != 2 or v.ndim != 2 or not v.size:
            raise UnderhoodError(f"expected matrices {names['w_ih']} and {names['w_hh']}", f"{w.shape} and {v.shape}")
        b_ih, b_hh = (tensors[names[name]] if name in names else None for name in ("b_ih", "b_hh"))
        called = {f"{'weight' if key[0] == 'w' else 'bias'}_{key[2:]}": name for key, name in names.items()}
        found.append(Found(where.rstrip("._"), level, w, v, b_ih, b_hh, backward=backward, names=called))
    return found, taken
