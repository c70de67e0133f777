"""Every recurrent model type of transformers: its layer with random weights, and how far our cell is from it.

    python -m benchmarks.transformers_layers            writes results/bench/transformers.json

A layer is built by its public class, its weights are drawn anew (every bias and norm, too), and it goes through
`uh.from_torch` and back through `to_module`. Errors are the largest over a sequence, relative to the largest output,
in float32. As a negative control the same cell reads the sequence backwards.
"""

from __future__ import annotations

import importlib
import inspect
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import store
from underhood.interop.bridges import BRIDGES, UNSUPPORTED, Bridge
from underhood.interop.torch import from_module, to_module
from underhood.interop.torch_parts import as_callable

LENGTH, SEED = 37, 0
WORDS = re.compile(r"A_log|delta_rule|delta_attention|wkv|rg_lru|RgLru|mlstm|selective_scan|chunk_scan")
_MAMBA2 = {"hidden_size": 16, "mamba_n_heads": 8, "mamba_d_head": 4, "mamba_d_state": 6, "mamba_n_groups": 2}
_DELTA = {"hidden_size": 12, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 3}
_DELTA |= {"linear_value_head_dim": 5, "linear_conv_kernel_dim": 4}
_MAMBA = {"hidden_size": 12, "intermediate_size": 24, "state_size": 5, "conv_kernel": 4, "time_step_rank": 3}
SETTINGS: dict[str, dict[str, Any]] = {
    "mamba": {**_MAMBA, "use_bias": False, "use_conv_bias": True},
    "falcon_mamba": _MAMBA,
    "jamba": {"hidden_size": 12, "mamba_expand": 2, "mamba_d_state": 5, "mamba_d_conv": 4, "mamba_dt_rank": 3},
    "mamba2": {
        "hidden_size": 16,
        "num_heads": 8,
        "head_dim": 4,
        "state_size": 6,
        "n_groups": 2,
        "conv_kernel": 4,
        "layer_norm_epsilon": 1e-5,
        "use_bias": False,
        "use_conv_bias": True,
        "time_step_limit": (0.0, np.inf),
    },
    "bamba": {**_MAMBA2, "mamba_expand": 2},
    "granitemoehybrid": {**_MAMBA2, "mamba_expand": 2},
    "falcon_h1": {**_MAMBA2, "mamba_d_ssm": 32, "mamba_rms_norm": True, "ssm_in_multiplier": 1.3},
    "zamba2": {
        "hidden_size": 16,
        "n_mamba_heads": 8,
        "mamba_headdim": 4,
        "mamba_d_state": 6,
        "mamba_ngroups": 2,
        "mamba_expand": 2,
    },
    "nemotron_h": {
        "hidden_size": 16,
        "mamba_num_heads": 6,
        "mamba_head_dim": 4,
        "ssm_state_size": 5,
        "n_groups": 2,
        "conv_kernel": 4,
    },
    "recurrent_gemma": {
        "hidden_size": 12,
        "lru_width": 12,
        "num_attention_heads": 3,
        "conv1d_width": 4,
        "hidden_activation": "gelu_pytorch_tanh",
    },
    **dict.fromkeys(("qwen3_next", "qwen3_5", "qwen3_5_moe", "qwen4_exp", "olmo_hybrid"), _DELTA),
}


def model_types() -> list[str]:
    """The folders of transformers whose models are recurrent, by the words of their source."""
    import transformers

    folder = Path(transformers.__file__).parent / "models"
    found = []
    for path in sorted(folder.glob("*/modeling_*.py")):
        name = path.parent.name
        if name == "auto" or path.stem != f"modeling_{name}":
            continue
        if len(WORDS.findall(path.read_text("utf-8"))) > 2:
            found.append(name)
    return found


def bridge_for(model_type: str) -> Bridge | None:
    return next((bridge for bridge in BRIDGES.values() if model_type in bridge.model_types), None)


def drawn(module: Any, seed: int = SEED) -> Any:
    """The module with every weight drawn anew."""
    import torch

    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in module.named_parameters():
            noise = torch.randn(weight.shape, generator=random)
            if "A_log" in name:
                weight.copy_(torch.log(torch.rand(weight.shape, generator=random) * 4 + 0.2))
            elif weight.ndim == 1:
                weight.copy_(0.3 * noise + ("norm" in name))
            else:
                weight.copy_(noise / weight.shape[-1] ** 0.5)
    return module.eval()


def errors(bridge: Bridge, settings: dict[str, Any], seed: int = SEED) -> dict[str, float]:
    """Of the cell, of the module made from it, and of the cell on another sequence."""
    module = drawn(bridge.build(settings), seed)
    cell = from_module(module)
    xs = np.random.default_rng(seed).normal(size=(LENGTH, cell.d)).astype(np.float32)
    ys = as_callable(module)(xs)
    back = as_callable(to_module(cell, bridge.public))(xs)
    largest = float(np.max(np.abs(ys)))
    given = {"error": cell(xs), "error_back": back, "control": cell(xs[::-1])}
    return {name: float(np.max(np.abs(np.asarray(values) - ys))) / largest for name, values in given.items()}


def row(model_type: str) -> dict[str, Any]:
    bridge = bridge_for(model_type)
    if bridge is None:
        return {"model_type": model_type, "works": False, "reason": UNSUPPORTED.get(model_type, "")}
    found = errors(bridge, SETTINGS[model_type])
    works = {"works": found["error"] <= 1e-6, "cell": bridge.kind, "layer": bridge.name}
    return {"model_type": model_type, **works, **found}


def source_of(bridge: Bridge) -> str:
    """The source of the public layer, for tests of what it reads of its configuration."""
    module, _, name = bridge.public.rpartition(".")
    return inspect.getsource(getattr(importlib.import_module(module), name))


def main() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rows = [row(model_type) for model_type in model_types()]
    for one in rows:
        said = f"{one['cell']:22} {one['error']:.1e}" if "cell" in one else one["reason"]
        print(f"{one['model_type']:18} {'works' if one['works'] else 'refused':8} {said}")
    store("transformers", rows, {"works": sum(one["works"] for one in rows), "of": len(rows)})


if __name__ == "__main__":
    main()
