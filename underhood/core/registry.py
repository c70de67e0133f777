"""Name → thing, with errors that list the names; filled by the package's own folders and by entry points.

A package of yours adds architectures and tasks without a change here: it names a module in its pyproject.toml, and
importing that module registers them.

    [project.entry-points.underhood]
    mine = "my_package.cells"
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import importlib.util
import pkgutil
import warnings
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from underhood.core.errors import UnderhoodError, one_line

GROUP = "underhood"  # of entry points

T = TypeVar("T")


class Registry(Generic[T]):
    """Things of one sort by name, in the order of their names; in that of registration where not `by_name`.

    `homes` are the modules that register the package's own things: "underhood.training.tasks.*" is every file of that
    folder, "underhood.architectures.*.cell" the `cell` of every folder there. They are imported at the first look-up,
    and the modules of other packages after them.
    """

    def __init__(self, sort: str, *homes: str, by_name: bool = True) -> None:
        self.sort, self.homes, self.by_name = sort, homes, by_name
        self._things: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator: `@TASKS.register("teacher-student")`."""

        def add(thing: T) -> T:
            if name in self._things and _origin(self._things[name]) != _origin(thing):
                raise UnderhoodError(f"two {self.sort}s have the name {name!r}", remedy="Choose another name.")
            self._things[name] = thing  # a notebook's cell may be run twice
            return thing

        return add

    def __getitem__(self, name: str) -> T:
        try:
            return self._filled()[name]
        except KeyError:
            known = ", ".join(self._things)
            raise UnderhoodError(f"unknown {self.sort} {name!r}", remedy=f"Known: {known}.") from None

    def get(self, name: str) -> T | None:
        return self._filled().get(name)

    def __contains__(self, name: object) -> bool:
        return name in self._filled()

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._filled()))

    def __len__(self) -> int:
        return len(self._filled())

    def values(self) -> tuple[T, ...]:
        return tuple(self._filled().values())

    def _filled(self) -> dict[str, T]:
        for home in self.homes:
            import_all(home)
        _load_entry_points()
        if self.by_name and list(self._things) != (names := sorted(self._things)):
            things = {name: self._things[name] for name in names}
            self._things.clear()
            self._things.update(things)
        return self._things


@functools.cache
def import_all(home: str) -> None:
    """Import a module, or those that its name stands for where it has a `*`."""
    package, star, module = home.partition(".*")
    if not star:
        importlib.import_module(home)
        return
    for name in sorted(info.name for info in pkgutil.iter_modules(importlib.import_module(package).__path__)):
        if importlib.util.find_spec(f"{package}.{name}{module}") is not None:
            importlib.import_module(f"{package}.{name}{module}")


_loaded = False


def _load_entry_points() -> None:
    """Import what other packages registered. One that fails costs its own things, and a warning that names it."""
    global _loaded
    if _loaded:
        return
    _loaded = True  # before the loop: a module that is being imported may look something up
    for entry in importlib.metadata.entry_points(group=GROUP):
        try:
            entry.load()
        except Exception as error:
            origin = "" if entry.dist is None else f" of {entry.dist.name}"
            text = f"underhood could not load {entry.value}{origin}: {type(error).__name__}: {one_line(error)}"
            warnings.warn(text, RuntimeWarning, stacklevel=2)


def _origin(thing: object) -> tuple[object, object]:
    thing = getattr(thing, "make", thing)
    return getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
