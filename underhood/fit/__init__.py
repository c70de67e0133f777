"""Training: AdamW as in the paper (runs.py) and a second-order solver (levenberg.py).

`underhood.fit(model, task, config)` is a function and this folder has the same name: importing anything from the
folder makes `underhood.fit` the folder, so that the folder can be called as well.
"""

from __future__ import annotations

import sys
import types
from typing import Any


class _CallableFolder(types.ModuleType):
    def __call__(self, *arguments: Any, **options: Any) -> Any:
        from underhood.fit.runs import fit

        return fit(*arguments, **options)


sys.modules[__name__].__class__ = _CallableFolder
