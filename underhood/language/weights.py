"""Tensors of a checkpoint by name, read when they are asked for; what nobody asked for is noticed at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from underhood.core.errors import UnderhoodError
from underhood.interop.bridges import BRIDGES, needed
from underhood.language.blocks import Affine
from underhood.layers.norm import Norm

Read = Callable[[Iterable[str]], Mapping[str, Any]]  # names → arrays


class Weights:
    """The tensors under a prefix: `weights["norm.weight"]`, `weights.under("layers.3")`."""

    def __init__(self, names: Iterable[str], read: Read, prefix: str = "", asked: set[str] | None = None) -> None:
        self.names, self.prefix = frozenset(names), prefix
        self._read = read
        self.asked: set[str] = set() if asked is None else asked

    @classmethod
    def of(cls, tensors: Mapping[str, Any]) -> Weights:
        """Tensors that are in memory, or that jax traces."""
        return cls(tensors, lambda names: {name: tensors[name] for name in names})

    def under(self, prefix: str) -> Weights:
        return Weights(self.names, self._read, f"{self.prefix}{prefix}.", self.asked)

    def __contains__(self, name: str) -> bool:
        return self.prefix + name in self.names

    def __getitem__(self, name: str) -> Any:
        whole = self.prefix + name
        if whole not in self.names:
            raise UnderhoodError(f"no tensor {whole} in the checkpoint", remedy="Take all files of the model.")
        return self._take([whole])[whole]

    def sized(self, name: str, *shape: int) -> Array:
        """The tensor, of this shape."""
        tensor = self[name]
        if tuple(tensor.shape) != shape:
            got = f"shape {tuple(tensor.shape)}"
            raise UnderhoodError(f"expected {self.prefix}{name} of shape {shape}, as config.json has it", got)
        return jnp.asarray(tensor)

    def affine(self, name: str, rows: int, columns: int) -> Affine:
        """W, and b where there is one."""
        bias = self.sized(f"{name}.bias", rows) if f"{name}.bias" in self else None
        return Affine(self.sized(f"{name}.weight", rows, columns), bias)

    def norm(self, name: str, size: int, eps: float, *, plus_one: bool = False, centred: bool = False) -> Norm:
        """A norm over `size` channels; `plus_one`: the file has what is added to 1."""
        weight = self.sized(f"{name}.weight", size)
        bias = self.sized(f"{name}.bias", size) if f"{name}.bias" in self else None
        return Norm(weight + 1 if plus_one else weight, bias, eps=eps, centred=centred)

    def cell(self, public: str, settings: Mapping[str, Any], without: tuple[str, ...] = ()) -> Any:
        """The mixer under this prefix, through the bridge of a public class ("…MambaMixer")."""
        bridge = next(one for one in BRIDGES.values() if one.name == public)
        tensors = self.tensors(without)
        if not tensors:
            raise UnderhoodError(f"no tensor {self.prefix}{bridge.mark} in the checkpoint")
        try:
            return bridge.read(tensors, settings_of(public, settings))
        except UnderhoodError as error:
            what = f"{self.prefix.rstrip('.')} is no {bridge.name}: {error.rule}"
            raise UnderhoodError(what, error.got, error.remedy) from None

    def tensors(self, without: tuple[str, ...] = ()) -> dict[str, Any]:
        """All of them, by their names under this prefix, but for those that begin with one of `without`."""
        names = {name.removeprefix(self.prefix): name for name in self.names if name.startswith(self.prefix)}
        chosen = {short: name for short, name in names.items() if not without or not short.startswith(without)}
        found = self._take(list(chosen.values()))
        return {short: found[name] for short, name in chosen.items()}

    def left(self) -> list[str]:
        """Tensors that no one asked for."""
        return sorted(self.names - self.asked)

    def _take(self, names: list[str]) -> dict[str, Any]:
        self.asked.update(names)
        return dict(self._read(names))


def settings_of(public: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """config.json as the public class reads it: with the bridge's defaults, and sizes that follow from others."""
    bridge = next(one for one in BRIDGES.values() if one.name == public)
    full = {**bridge.defaults, **config}
    for name, default in bridge.defaults.items():
        if callable(default) and config.get(name) in (None, "auto"):
            full[name] = default(full)
    return full


def flag(config: Mapping[str, Any], name: str) -> bool:
    """A setting that is true or false."""
    value = needed(config, name)
    if not isinstance(value, bool):
        raise UnderhoodError(f"expected the setting {name} to be true or false", repr(value))
    return value


def stacked(tensors: Iterable[Any]) -> Array:
    return jnp.stack([jnp.asarray(one, getattr(one, "dtype", np.float32)) for one in tensors])
