"""Name → thing, with errors that list the names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from underhood.errors import UnderhoodError

T = TypeVar("T")


class Registry(Generic[T]):
    """Things of one sort by name; iterating gives the names in the order of registration."""

    def __init__(self, sort: str) -> None:
        self.sort = sort
        self._things: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator: `@ARCHITECTURES.register("lstm")`."""

        def add(thing: T) -> T:
            if name in self._things:
                raise UnderhoodError(f"each {self.sort} has a name of its own", f"{name!r} twice")
            self._things[name] = thing
            return thing

        return add

    def __getitem__(self, name: str) -> T:
        try:
            return self._things[name]
        except KeyError:
            known = ", ".join(self._things)
            raise UnderhoodError(f"unknown {self.sort}", repr(name), f"Known: {known}.") from None

    def __contains__(self, name: object) -> bool:
        return name in self._things

    def __iter__(self) -> Iterator[str]:
        return iter(self._things)

    def __len__(self) -> int:
        return len(self._things)
