"""Named tensors, as files and modules of other programs have them: name → array of float32 or float64."""

from __future__ import annotations

import re
import unicodedata
from typing import Any

import ml_dtypes
import numpy as np

from underhood.core.arrays import require_finite
from underhood.core.errors import UnderhoodError
from underhood.core.extras import require

Tensors = dict[str, np.ndarray]
LISTED, LONGEST = 8, 80  # tensors that an error names, and how much of a name it shows
NARROW = (np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)  # float32 holds them exactly
# What training wrappers put before every name: torch.compile, peft, DataParallel.
WRAPPINGS = ("_orig_mod.", "base_model.model.", "module.")


def as_float(name: str, tensor: Any) -> np.ndarray:
    """The same values in float32 (narrower floats widen exactly) or float64, C-ordered and finite."""
    array = np.asarray(tensor)
    if array.dtype in NARROW:
        array = array.astype(np.float32)
    if array.dtype not in (np.float32, np.float64):
        rule = f"expected a dtype from float16 and bfloat16 to float64, or float8, for {printable(name)}"
        raise UnderhoodError(rule, array.dtype)
    require_finite(printable(name), array)
    return np.ascontiguousarray(array)


def part_of(tensors: Tensors, part: str) -> Tensors:
    """What stands under the prefix `part`, without it."""
    prefix = part if not part or part.endswith(".") else f"{part}."
    found = {name[len(prefix) :]: tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    if not found:
        raise UnderhoodError(f"no tensors under {prefix!r}", listed(tensors))
    return found


def unwrapped(tensors: dict[str, Any]) -> dict[str, Any]:
    """The same without what training wrappers put before every name; adapters of peft are refused."""
    for prefix in WRAPPINGS * 2:  # a wrapper may wrap a wrapper
        if tensors and all(name.startswith(prefix) for name in tensors):
            tensors = {name[len(prefix) :]: tensor for name, tensor in tensors.items()}
    adapters = [name for name in tensors if re.search(r"(^|\.)lora_[AB]\.|\.base_layer\.", name)]
    if adapters:
        what = f"these weights hold a LoRA adapter beside its base: {printable(adapters[0])}"
        raise UnderhoodError(what, remedy="Merge it first: model.merge_and_unload() in peft, then save.")
    return tensors


def printable(name: str) -> str:
    """A name out of a file for an error: cut short, without characters that steer a terminal."""
    name = name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"
    return "".join("�" if unicodedata.category(one) in ("Cc", "Cf", "Cs", "Zl", "Zp") else one for one in name)


def listed(tensors: dict[str, Any]) -> str:
    """Names and shapes for an error, cut short where there are many."""
    rows = [f"{printable(name)} {tuple(np.shape(tensors[name]))}" for name in sorted(tensors)[:LISTED]]
    more = f" and {len(tensors) - LISTED} more" if len(tensors) > LISTED else ""
    return ", ".join(rows) + more or "none"


def torch_array(name: str, tensor: Any) -> np.ndarray:
    """A torch tensor in NumPy, whatever its strides and device; bfloat16 and float8, which it lacks, widen here."""
    torch = require("torch", "torch", "reading torch tensors")
    if tensor.layout != torch.strided or not tensor.is_floating_point():
        rule = f"expected {printable(name)} to be a dense float tensor"
        raise UnderhoodError(rule, f"{tensor.layout} {tensor.dtype}")
    tensor = tensor.detach().cpu()
    narrow = tensor.dtype == torch.bfloat16 or tensor.itemsize < 2
    return (tensor.float() if narrow else tensor).numpy()
