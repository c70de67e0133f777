"""What recurrent networks do under the hood.

    attention ──compile──▶ gated RNN ──train──▶ trained RNN ──decompile──▶ attention + certificate
                                                     └────────report (tables, figures, HTML)

Names are imported on first use, so that `import underhood` costs nothing.
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from underhood.attention.linear import LinearAttention
    from underhood.attention.teachers import gradient_descent_attention, random_attention
    from underhood.cells import GRU, LRU, LSTM, DenseGatedRNN, GatedRNN, Gating, Linear, SparseMatrix, Stack
    from underhood.construct.algorithms import algorithm_network
    from underhood.construct.compile import Compiled, compile
    from underhood.data import LinearRegression, TeacherStudent, make_task
    from underhood.errors import NotConstructible, UnderhoodError
    from underhood.fit.config import FitConfig
    from underhood.fit.levenberg import LevenbergResult, fit_levenberg
    from underhood.fit.population import Member
    from underhood.fit.runs import Run, fit, fit_population
    from underhood.identify.attention_map import attention_map
    from underhood.identify.disguise import disguise
    from underhood.identify.found import Found
    from underhood.identify.in_context import Algorithm
    from underhood.identify.maps import AttentionMap, compare_maps
    from underhood.interop.foreign import decompile, in_context, probe
    from underhood.interop.pretrained import from_pretrained
    from underhood.interop.torch import from_torch, to_torch
    from underhood.model import make_model
    from underhood.report.attend import attend
    from underhood.report.explore import explore
    from underhood.report.portrait import draw
    from underhood.storage.files import load, save
    from underhood.sweep.store import query
    from underhood.sweep.sweep import run_sweep

__version__ = "0.1.0"

# Name → module, in the order of the folders.
_EXPORTS = {
    "UnderhoodError": "errors",
    "NotConstructible": "errors",
    "make_model": "model",
    "LinearAttention": "attention.linear",
    "random_attention": "attention.teachers",
    "gradient_descent_attention": "attention.teachers",
    "Gating": "cells",
    "GatedRNN": "cells",
    "DenseGatedRNN": "cells",
    "LRU": "cells",
    "LSTM": "cells",
    "GRU": "cells",
    "Stack": "cells",
    "Linear": "cells",
    "SparseMatrix": "cells",
    "compile": "construct.compile",
    "Compiled": "construct.compile",
    "algorithm_network": "construct.algorithms",
    "disguise": "identify.disguise",
    "Found": "identify.found",
    "attention_map": "identify.attention_map",
    "AttentionMap": "identify.maps",
    "compare_maps": "identify.maps",
    "Algorithm": "identify.in_context",
    "TeacherStudent": "data",
    "LinearRegression": "data",
    "make_task": "data",
    "FitConfig": "fit.config",
    "fit": "fit.runs",
    "fit_population": "fit.runs",
    "Member": "fit.population",
    "Run": "fit.runs",
    "fit_levenberg": "fit.levenberg",
    "LevenbergResult": "fit.levenberg",
    "save": "storage.files",
    "load": "storage.files",
    "decompile": "interop.foreign",
    "probe": "interop.foreign",
    "in_context": "interop.foreign",
    "from_torch": "interop.torch",
    "from_pretrained": "interop.pretrained",
    "to_torch": "interop.torch",
    "run_sweep": "sweep.sweep",
    "query": "sweep.store",
    "explore": "report.explore",
    "attend": "report.attend",
    "draw": "report.portrait",
}

__all__ = [
    "GRU",
    "LRU",
    "LSTM",
    "Algorithm",
    "AttentionMap",
    "Compiled",
    "DenseGatedRNN",
    "FitConfig",
    "Found",
    "GatedRNN",
    "Gating",
    "LevenbergResult",
    "Linear",
    "LinearAttention",
    "LinearRegression",
    "Member",
    "NotConstructible",
    "Run",
    "SparseMatrix",
    "Stack",
    "TeacherStudent",
    "UnderhoodError",
    "algorithm_network",
    "attend",
    "attention_map",
    "compare_maps",
    "compile",
    "decompile",
    "disguise",
    "draw",
    "explore",
    "fit",
    "fit_levenberg",
    "fit_population",
    "from_pretrained",
    "from_torch",
    "gradient_descent_attention",
    "in_context",
    "load",
    "make_model",
    "make_task",
    "probe",
    "query",
    "random_attention",
    "run_sweep",
    "save",
    "to_torch",
]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'underhood' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"underhood.{_EXPORTS[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_EXPORTS])


class _Package(types.ModuleType):
    """`import underhood.fit.config` would put the folder `fit` in place of the function: an export stays what it is."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _EXPORTS and isinstance(value, types.ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
