"""Mamba-2 ↔ the layers of transformers that compute it: Mamba2, Bamba, GraniteMoeHybrid, Zamba2, NemotronH, Falcon-H1.

They differ in the names of their settings, in whether the norm runs over all channels or over each group of them, and
in where a bound of Δ comes from. Falcon-H1 also scales the rows of its projection, which goes into the weights here.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from underhood.architectures.mamba2.cell import Mamba2
from underhood.core.errors import UnderhoodError
from underhood.core.extras import require
from underhood.interop.bridges import (
    KERNEL,
    MATRIX,
    VECTOR,
    Renamed,
    Settings,
    Shape,
    bridge,
    expand_to,
    expect,
    named_tensors,
    needed,
    norm_settings,
    positive,
    public_layer,
    public_module,
    read_cell,
    renamed,
    require_square,
    take,
    whole,
)
from underhood.interop.tensors import Tensors
from underhood.layers.projection import Projection

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


def _read_mamba2(tensors: Tensors, settings: Settings, *, grouped: bool = False, **options: Any) -> Mamba2:
    """`grouped`: the norm runs over each group of channels."""
    expect(settings, hidden_act=("silu", "swish"), rms_norm=(True,))
    groups, (least, most) = whole(settings, "n_groups"), _limits(needed(settings, "time_step_limit"))
    cell = read_cell(
        Mamba2.kind,
        tensors,
        _MAMBA2,
        (*_MAMBA2_BIASES, "conv1d.bias", *(["norm.weight"] if options.get("norm", 0) is None else [])),
        groups=groups,
        least_step=least,
        most_step=most if np.isfinite(most) else None,
        **{"norm": norm_settings(settings, "layer_norm_epsilon"), "norm_groups": groups if grouped else 1, **options},
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


def _write_mamba2(
    cell: Mamba2, *, grouped: bool = False, biases: tuple[str, ...] = _MAMBA2_BIASES
) -> tuple[dict[str, Any], Tensors]:
    require_square(cell)
    norms = (cell.groups if grouped else 1, False, False)
    if (cell.norm_groups, cell.norm_first, cell.norm is None) != norms:
        got = f"{cell.norm_groups} groups, norm_first={cell.norm_first}, {'no' if cell.norm is None else 'a'} norm"
        raise UnderhoodError(f"expected a norm of {norms[0]} groups behind the gate for the public layer", got)
    return _written(cell, named_tensors(cell, _MAMBA2, biases))


def _written(cell: Mamba2, tensors: Tensors) -> tuple[dict[str, Any], Tensors]:
    settings = {
        "hidden_size": cell.d,
        "num_heads": cell.heads,
        "head_dim": cell.out_proj.columns // cell.heads,
        "state_size": cell.state_size,
        "n_groups": cell.groups,
        "conv_kernel": cell.conv1d.width,
        "layer_norm_epsilon": 1e-5 if cell.norm is None else cell.norm.eps,
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
    ignores="time_step_floor time_step_max time_step_min time_step_rank norm_before_gate",
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


def _variant(
    module: str,
    layer: str,
    config: str,
    names: dict[str, str],
    *,
    more: dict[str, Any],
    fixed: dict[str, Any] | None = None,
    least: str | None = None,
    grouped: bool = False,
    expand: bool = True,
    **bridge_fields: Any,
) -> None:
    """Another class with the same equations: its names of the settings, and what it leaves out of them.

    `fixed`: settings that it does not have. `least`: its setting for the least Δ, where there is no most. `expand`:
    whether its inner size is a multiple of `hidden_size`. `more`: further settings to build it with.
    """
    fixed = fixed or {}

    def read(tensors: Tensors, settings: Settings) -> Mamba2:
        limit = {} if least is None else {"time_step_limit": (needed(settings, least), np.inf)}
        return _read_mamba2(tensors, Renamed(settings, names, {**fixed, **limit}), grouped=grouped)

    def write(cell: Mamba2) -> tuple[dict[str, Any], Tensors]:
        ours, tensors = _write_mamba2(cell, grouped=grouped)
        inner, hidden = ours["num_heads"] * ours["head_dim"], ours["hidden_size"]
        if expand and inner % hidden:
            raise UnderhoodError(f"expected an inner size that is a multiple of {hidden} for {layer}", inner)
        least_step, most_step = ours["time_step_limit"]
        if least is not None and most_step < HUGE:
            raise UnderhoodError(f"expected no most_step for {layer}, which has no such setting", most_step)
        for name, value in fixed.items():
            if name in ours and ours[name] != value:
                raise UnderhoodError(f"expected {name} {value} for {layer}", ours[name])
        said = {name: value for name, value in ours.items() if name not in fixed}
        if least is not None:
            del said["time_step_limit"]
            said[least] = least_step
        said |= {"expand": inner // hidden} if expand else {}
        return renamed(said, names), tensors

    def describe(found: Any) -> dict[str, Any]:
        limit = found.time_step_limit
        said = {
            "hidden_act": found.activation,
            "n_groups": found.n_groups,
            "layer_norm_epsilon": found.norm.variance_epsilon,
            **({"time_step_limit": limit} if least is None else {least: limit[0]}),
        }
        return renamed(said, names)

    bridge(
        f"transformers.models.{module}.{layer}",
        kind=Mamba2.kind,
        read=read,
        write=write,
        build=lambda settings: public_layer(module, config, layer, settings, num_hidden_layers=1, vocab_size=1, **more),
        describe=describe,
        mark="A_log",
        **bridge_fields,
    )


_BAMBA_NAMES = {
    "num_heads": "mamba_n_heads",
    "head_dim": "mamba_d_head",
    "state_size": "mamba_d_state",
    "n_groups": "mamba_n_groups",
    "conv_kernel": "mamba_d_conv",
    "layer_norm_epsilon": "rms_norm_eps",
    "use_bias": "mamba_proj_bias",
    "use_conv_bias": "mamba_conv_bias",
    "expand": "mamba_expand",
}
_BAMBA_DEFAULTS = {
    "hidden_size": 4096,
    "mamba_n_heads": 128,
    "mamba_d_head": lambda settings: _inner(settings) // whole(settings, "mamba_n_heads"),
    "mamba_d_state": 256,
    "mamba_n_groups": 1,
    "mamba_d_conv": 4,
    "rms_norm_eps": 1e-5,
    "mamba_proj_bias": False,
    "mamba_conv_bias": True,
    "mamba_expand": 2,
    "time_step_limit": (0.0, np.inf),
}


def _inner(settings: Settings) -> int:
    return int(positive(settings, "mamba_expand") * whole(settings, "hidden_size"))


_variant(
    "bamba.modeling_bamba",
    "BambaMixer",
    "BambaConfig",
    _BAMBA_NAMES,
    more={},
    model_type="bamba",
    prefix="model.layers.{layer}.mamba.",
    defaults=_BAMBA_DEFAULTS,
)
_variant(
    "granitemoehybrid.modeling_granitemoehybrid",
    "GraniteMoeHybridMambaLayer",
    "GraniteMoeHybridConfig",
    _BAMBA_NAMES,
    more={"layer_types": ["mamba"]},
    model_type="granitemoehybrid",
    prefix="model.layers.{layer}.mamba.",
    defaults={**_BAMBA_DEFAULTS, "rms_norm_eps": 1e-6},
)
_variant(
    "zamba2.modeling_zamba2",
    "Zamba2MambaMixer",
    "Zamba2Config",
    {
        "num_heads": "n_mamba_heads",
        "head_dim": "mamba_headdim",
        "state_size": "mamba_d_state",
        "n_groups": "mamba_ngroups",
        "conv_kernel": "mamba_d_conv",
        "use_bias": "add_bias_linear",
        "expand": "mamba_expand",
    },
    fixed={"layer_norm_epsilon": 1e-5, "use_conv_bias": True, "hidden_act": "silu"},
    least="time_step_min",
    grouped=True,
    more={"layers_block_type": ["mamba"], "num_attention_heads": 1, "num_key_value_heads": 1},
    model_type="zamba2",
    prefix="model.layers.{layer}.mamba. model.layers.{layer}.mamba_decoder.mamba.",
    # It has a bias in its convolution, SiLU and ε = 1e-5 whatever these say.
    ignores="time_step_floor time_step_max use_conv_bias rms_norm_eps hidden_act use_mem_eff_path",
    defaults={
        "hidden_size": 2560,
        "n_mamba_heads": 8,
        "mamba_headdim": lambda settings: _inner(settings) // whole(settings, "n_mamba_heads"),
        "mamba_d_state": 64,
        "mamba_ngroups": 1,
        "mamba_d_conv": 4,
        "add_bias_linear": False,
        "mamba_expand": 2,
        "time_step_min": 0.001,
    },
)
_variant(
    "nemotron_h.modeling_nemotron_h",
    "NemotronHMamba2Mixer",
    "NemotronHConfig",
    {
        "num_heads": "mamba_num_heads",
        "head_dim": "mamba_head_dim",
        "state_size": "ssm_state_size",
        "hidden_act": "mamba_hidden_act",
    },
    least="time_step_min",
    grouped=True,
    expand=False,
    more={"layers_block_type": ["mamba"]},
    model_type="nemotron_h",
    prefix="model.layers.{layer}.mixer.",
    # The layer reads `use_bias`, and no upper limit of Δ; its inner size is heads times head_dim.
    ignores="time_step_floor time_step_max time_step_limit expand mamba_proj_bias mamba_ssm_cache_dtype",
    defaults={
        "hidden_size": 4096,
        "mamba_num_heads": 128,
        "mamba_head_dim": 64,
        "ssm_state_size": 128,
        "n_groups": 8,
        "conv_kernel": 4,
        "use_bias": False,
        "use_conv_bias": True,
        "layer_norm_epsilon": 1e-5,
        "time_step_min": 0.001,
    },
)

_FALCON_H1 = {name: shape for name, shape in _MAMBA2.items() if name != "norm.weight"}
_FALCON_H1_ONES = [1.0] * 5  # multipliers of z, x, B, C and Δ


def _read_falcon_h1(tensors: Tensors, settings: Settings) -> Mamba2:
    flags = {name: needed(settings, name) for name in ("mamba_rms_norm", "mamba_norm_before_gate", "projectors_bias")}
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise UnderhoodError(f"expected the setting {name} to be true or false", repr(value))
    # Where config.json gives the inner size itself, it need not be a multiple of anything.
    own = settings.get("mamba_d_ssm")
    ours = Renamed(settings, {**_BAMBA_NAMES, "expand": "expand" if own is not None else "mamba_expand"})
    options: dict[str, Any] = {"norm": None}
    if flags["mamba_rms_norm"]:
        options = {"norm_groups": whole(ours, "n_groups"), "norm_first": flags["mamba_norm_before_gate"]}
    else:
        take(tensors, _FALCON_H1, ("in_proj.bias", "out_proj.bias", "conv1d.bias"))
    cell = _read_mamba2(tensors, ours, **options)
    if own is not None and own != cell.out_proj.columns:
        raise UnderhoodError(f"expected mamba_d_ssm {cell.out_proj.columns}, as the tensors have it", repr(own))
    return _scaled(cell, settings)


def _scaled(cell: Mamba2, settings: Settings) -> Mamba2:
    """The multipliers of the input and of z, x, B, C and Δ in the rows of `in_proj`."""
    each = needed(settings, "ssm_multipliers")
    if not isinstance(each, list | tuple) or len(each) != len(_FALCON_H1_ONES):
        raise UnderhoodError("expected five numbers ssm_multipliers", repr(each))
    factors = [positive({"ssm_multipliers": one}, "ssm_multipliers") for one in each]
    inner, state = cell.out_proj.columns, cell.groups * cell.state_size
    rows = np.repeat(factors, (inner, inner, state, state, cell.heads))
    weight, bias = np.asarray(cell.in_proj.weight), cell.in_proj.bias
    total = rows * positive(settings, "ssm_in_multiplier")
    scaled = Projection(
        (total[:, None] * weight).astype(weight.dtype),
        None if bias is None else (rows * np.asarray(bias)).astype(weight.dtype),
    )
    return dataclasses.replace(cell, in_proj=scaled)


def _write_falcon_h1(cell: Mamba2) -> tuple[dict[str, Any], Tensors]:
    require_square(cell)
    if cell.norm is not None and cell.norm_groups != cell.groups:
        got = f"{cell.norm_groups} and {cell.groups}"
        raise UnderhoodError("expected as many groups in the norm as in B and C for Falcon-H1", got)
    tensors = named_tensors(cell, _MAMBA2 if cell.norm is not None else _FALCON_H1)
    ours, tensors = _written(cell, tensors)
    settings = {
        **renamed(ours, _BAMBA_NAMES),
        "mamba_d_ssm": cell.out_proj.columns,
        "mamba_rms_norm": cell.norm is not None,
        "mamba_norm_before_gate": cell.norm is None or cell.norm_first,
        "projectors_bias": "out_proj.bias" in tensors,
        "ssm_in_multiplier": 1.0,
        "ssm_multipliers": _FALCON_H1_ONES,
    }
    return settings, tensors


def _build_falcon_h1(settings: Settings) -> Any:
    torch = require("torch", "torch", "a torch module")
    layer = public_layer(
        "falcon_h1.modeling_falcon_h1", "FalconH1Config", "FalconH1Mixer", settings, num_hidden_layers=1, vocab_size=1
    )
    layer.register_buffer("mup_vector", torch.ones(1, 1, layer.in_proj.out_features), persistent=False)
    return layer


def _describe_falcon_h1(module: Any) -> dict[str, Any]:
    inner, state, heads = module.intermediate_size, module.groups_time_state_size, module.num_heads
    vector = getattr(module, "mup_vector", None)
    sections = np.ones(5) if vector is None else vector.reshape(-1)[np.cumsum([0, inner, inner, state, state])].tolist()
    return {
        "hidden_act": module.activation,
        "mamba_n_groups": module.n_groups,
        "rms_norm_eps": module.layer_norm_epsilon,
        "time_step_limit": module.time_step_limit,
        "mamba_rms_norm": module.mamba_rms_norm,
        "mamba_norm_before_gate": not module.mamba_rms_norm or module.norm.norm_before_gate,
        "projectors_bias": module.out_proj.bias is not None,
        "ssm_in_multiplier": module.ssm_in_multiplier,
        "ssm_multipliers": list(sections),
        "mamba_n_heads": heads,
    }


bridge(
    "transformers.models.falcon_h1.modeling_falcon_h1.FalconH1Mixer",
    kind=Mamba2.kind,
    read=_read_falcon_h1,
    write=_write_falcon_h1,
    build=_build_falcon_h1,
    describe=_describe_falcon_h1,
    model_type="falcon_h1",
    prefix="model.layers.{layer}.mamba.",
    mark="A_log",
    ignores="mamba_expand ssm_out_multiplier attention_out_multiplier key_multiplier",
    defaults={
        **_BAMBA_DEFAULTS,
        "mamba_d_head": lambda settings: whole(settings, "mamba_d_ssm") // whole(settings, "mamba_n_heads"),
        "mamba_d_ssm": 1024,
        "mamba_rms_norm": False,
        "mamba_norm_before_gate": True,
        "projectors_bias": False,
        "ssm_in_multiplier": 1.0,
        "ssm_multipliers": _FALCON_H1_ONES,
    },
)
