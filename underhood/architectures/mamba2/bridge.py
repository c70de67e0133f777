"""Mamba-2 ↔ transformers' `Mamba2Mixer`."""

from __future__ import annotations

from typing import Any

import numpy as np

from underhood.architectures.mamba2.cell import Mamba2
from underhood.core.errors import UnderhoodError
from underhood.interop.bridges import (
    KERNEL,
    MATRIX,
    VECTOR,
    Settings,
    Shape,
    bridge,
    expand_to,
    expect,
    named_tensors,
    needed,
    norm_settings,
    public_module,
    read_cell,
    require_square,
    whole,
)
from underhood.interop.tensors import Tensors

HUGE = 1e30  # a step that no layer takes

_MAMBA2: dict[str, Shape] = {
    "in_proj.weight": MATRIX,
    "in_proj.bias": VECTOR,
    "conv1d.weight": KERNEL,
    "conv1d.bias": VECTOR,
    "dt_bias": VECTOR,
    "A_log": VECTOR,
    "D": VECTOR,
    "norm.weight": VECTOR,
    "out_proj.weight": MATRIX,
    "out_proj.bias": VECTOR,
}
_MAMBA2_BIASES = ("in_proj.bias", "out_proj.bias")


def _read_mamba2(tensors: Tensors, settings: Settings) -> Mamba2:
    expect(settings, hidden_act=("silu", "swish"), rms_norm=(True,))
    groups, (least, most) = whole(settings, "n_groups"), _limits(needed(settings, "time_step_limit"))
    cell = read_cell(
        Mamba2.kind,
        tensors,
        _MAMBA2,
        (*_MAMBA2_BIASES, "conv1d.bias"),
        norm=norm_settings(settings, "layer_norm_epsilon"),
        groups=groups,
        least_step=least,
        most_step=most if np.isfinite(most) else None,
    )
    expand_to(cell.out_proj.columns, cell.d, settings)
    return cell


def _limits(value: Any) -> tuple[float, float]:
    """JSON has no infinity: transformers writes {"__float__": "Infinity"}."""
    pair = value if isinstance(value, list | tuple) and len(value) == 2 else ()
    ends = [np.inf if one == {"__float__": "Infinity"} else one for one in pair]
    numbers = all(isinstance(one, int | float) and not isinstance(one, bool) for one in ends)
    if not ends or not numbers or not -HUGE < ends[0] <= min(ends[1], HUGE):  # a NaN compares as false
        raise UnderhoodError("expected two numbers time_step_limit, the smaller one first", repr(value))
    return float(ends[0]), float(ends[1]) if ends[1] < HUGE else np.inf


def _write_mamba2(cell: Mamba2) -> tuple[dict[str, Any], Tensors]:
    require_square(cell)
    tensors = named_tensors(cell, _MAMBA2, _MAMBA2_BIASES)
    settings = {
        "hidden_size": cell.d,
        "num_heads": cell.heads,
        "head_dim": cell.out_proj.columns // cell.heads,
        "state_size": cell.state_size,
        "n_groups": cell.groups,
        "conv_kernel": cell.conv1d.width,
        "layer_norm_epsilon": cell.norm.eps,
        "use_bias": "in_proj.bias" in tensors,
        "use_conv_bias": "conv1d.bias" in tensors,
        "time_step_limit": (cell.least_step, np.inf if cell.most_step is None else cell.most_step),
    }
    return settings, tensors


def _build_mamba2(settings: Settings) -> Any:
    public = public_module("transformers.models.mamba2.modeling_mamba2")
    inner, hidden = settings["num_heads"] * settings["head_dim"], settings["hidden_size"]
    fits = inner % hidden == 0
    sizes = {**settings, "hidden_size": hidden if fits else inner, "expand": inner // hidden if fits else 1}
    layer = public.Mamba2Mixer(public.Mamba2Config(**sizes, num_hidden_layers=1, vocab_size=1), 0)
    if not fits:  # the configuration wants a whole multiple of hidden_size; the layer takes any projections
        linear, bias = type(layer.in_proj), settings["use_bias"]
        layer.in_proj = linear(hidden, layer.in_proj.out_features, bias)
        layer.out_proj, layer.hidden_size = linear(inner, hidden, bias), hidden
    return layer


bridge(
    "transformers.models.mamba2.modeling_mamba2.Mamba2Mixer",
    kind=Mamba2.kind,
    read=_read_mamba2,
    write=_write_mamba2,
    build=_build_mamba2,
    describe=lambda module: {
        "hidden_act": module.activation,
        "n_groups": module.n_groups,
        "layer_norm_epsilon": module.norm.variance_epsilon,
        "time_step_limit": module.time_step_limit,
    },
    model_type="mamba2",
    # The norm stands behind the gate whatever norm_before_gate says.
    ignores=frozenset(["time_step_floor", "time_step_max", "time_step_min", "time_step_rank", "norm_before_gate"]),
    prefix="backbone.layers.{layer}.mixer.",
    mark="A_log",
    defaults={
        "hidden_size": 4096,
        "num_heads": 128,
        "head_dim": 64,
        "state_size": 128,
        "n_groups": 8,
        "conv_kernel": 4,
        "layer_norm_epsilon": 1e-5,
        "use_bias": False,
        "use_conv_bias": True,
        "time_step_limit": (0.0, np.inf),
    },
)
