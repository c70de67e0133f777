"""Libraries that only some need: imported on use, and named with their extra where they are missing."""

from __future__ import annotations

import importlib
from types import ModuleType

from underhood.core.errors import UnderhoodError


def require(module: str, extra: str, purpose: str) -> ModuleType:
    """The module, or one line on what to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        missing = getattr(error, "name", None) or module
        remedy = f"Install the extra: pip install 'underhood[{extra}]'."
        raise UnderhoodError(f"{purpose} needs the extra {extra!r}", f"no module {missing}", remedy) from None
