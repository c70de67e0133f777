"""torch modules from outside: as functions of NumPy, as tensors, and as the parts that they run, in order."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from underhood.core.errors import UnderhoodError
from underhood.core.extras import require
from underhood.interop.bridges import BRIDGES, Bridge, qualified_name
from underhood.interop.recurrent import RECURRENT, Recurrent
from underhood.interop.tensors import as_float, torch_array

LENGTH = 6  # steps of the sequence that shows which parts run
AT_REST = ("Identity", "Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout", "FeatureAlphaDropout")


def as_callable(module: Any) -> Callable[[np.ndarray], np.ndarray]:
    """One sequence (t, d) → (t, d_out), NumPy in and out, in the module's dtype, on its device, without gradients.

    A module that returns a tuple, as torch.nn.LSTM does, is taken by its first entry.
    """
    torch = require("torch", "torch", "running a torch module")
    if not isinstance(module, torch.nn.Module):
        raise UnderhoodError("expected a torch.nn.Module", type(module).__name__)
    like = _like(module)
    public = public_bridge(module)

    def run(xs: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            given = torch.as_tensor(np.ascontiguousarray(xs), **like)
            ys = module(given) if public is None else public.run(module, given[None])[0]
        ys = ys[0] if isinstance(ys, tuple | list) else ys
        return torch_array("the module's output", ys).astype(np.float64)

    return run


def state_dict_of(module: Any) -> dict[str, np.ndarray]:
    """The module's weights in NumPy, as the readers give those of a file."""
    tensors = {name: torch_array(name, tensor) for name, tensor in module.state_dict().items()}
    return {name: as_float(name, tensor) for name, tensor in tensors.items()}


def public_bridge(module: Any) -> Bridge | None:
    """The bridge for the module's class."""
    return BRIDGES.get(qualified_name(module))


def recurrent_layer(module: Any) -> Recurrent | None:
    """torch's own LSTM, GRU or RNN, or one of their cells; a subclass may compute something else."""
    place, _, name = qualified_name(module).rpartition(".")
    if place != "torch.nn.modules.rnn":
        return None
    return next((layer for layer in RECURRENT.values() if name in (layer.torch, f"{layer.torch}Cell")), None)


@dataclasses.dataclass(frozen=True)
class Part:
    """A module that computes, without children that a caller would have to know."""

    name: str
    module: Any

    @property
    def title(self) -> str:
        """ "GRU gru"."""
        return f"{type(self.module).__name__} {self.name}".strip()


def parts_of(module: Any) -> list[Part]:
    """The parts of a module in the order in which they run on a sequence, those that change nothing left out.

    The order of definition is not that of use, so the module is run once on random numbers and watched.
    """
    torch = require("torch", "torch", "running a torch module")
    parts = list(_leaves(module))
    if len(parts) < 2:
        return _at_work(parts)
    seen: list[Part] = []
    handles = [part.module.register_forward_pre_hook(lambda *_, part=part: seen.append(part)) for part in parts]
    try:
        for xs in _inputs(torch, module, parts):
            seen.clear()
            try:
                with torch.no_grad():
                    module(xs)
            except (RuntimeError, ValueError, TypeError, IndexError, AssertionError):
                continue
            return _at_work(seen)
    finally:
        for handle in handles:
            handle.remove()
    return _at_work(parts)  # in the order of definition: it runs on no sequence (t, d) or batch (b, t, d)


def _at_work(parts: list[Part]) -> list[Part]:
    drawing = [part for part in parts if _draws(part.module)]
    if drawing:
        what = f"{drawing[0].title} draws at random, for the module is in training mode"
        raise UnderhoodError(what, remedy="Call module.eval() first.")
    return [part for part in parts if type(part.module).__name__ not in AT_REST]


def _draws(module: Any) -> bool:
    rate = getattr(module, "p", getattr(module, "dropout", 0.0))
    is_dropout = "Dropout" in type(module).__name__ or (hasattr(module, "num_layers") and hasattr(module, "dropout"))
    return bool(is_dropout and module.training and isinstance(rate, float | int) and rate > 0)


def _leaves(module: Any, name: str = "") -> Iterator[Part]:
    children = list(module.named_children())
    if not children or public_bridge(module) is not None or recurrent_layer(module) is not None:
        yield Part(name, module)
        return
    for child_name, child in children:
        yield from _leaves(child, f"{name}.{child_name}" if name else child_name)


def _inputs(torch: Any, module: Any, parts: list[Part]) -> Iterator[Any]:
    """Sequences of every size that a part may read, alone and in a batch; tokens where a part embeds them."""
    like, generator = _like(module), torch.Generator().manual_seed(0)
    for size in dict.fromkeys(filter(None, (input_size(part.module) for part in parts))):
        xs = torch.randn(LENGTH, size, generator=generator).to(**like)
        yield from (xs, xs[None])
    for part in parts:
        if type(part.module).__name__ == "Embedding":
            tokens = torch.randint(part.module.num_embeddings, (LENGTH,), generator=generator)
            yield from (tokens, tokens[None])


def input_size(module: Any) -> int | None:
    """What a part reads at each step, where it tells."""
    for name in ("in_features", "input_size", "hidden_size", "d", "dim"):
        size = getattr(module, name, None)
        if isinstance(size, int) and not isinstance(size, bool) and size > 0:
            return size
    return next((tensor.shape[1] for tensor in module.parameters() if tensor.ndim == 2), None)


def _like(module: Any) -> dict[str, Any]:
    weight = next((tensor for tensor in module.parameters() if tensor.is_floating_point()), None)
    return {} if weight is None else {"dtype": weight.dtype, "device": weight.device}
