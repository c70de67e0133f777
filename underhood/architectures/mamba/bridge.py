"""Mamba ↔ the layers of transformers that compute it, Mamba, FalconMamba and Jamba, and mambapy's `MambaBlock`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from underhood.architectures.mamba.cell import Mamba
from underhood.core.errors import UnderhoodError
from underhood.interop.bridges import (
    Renamed,
    Settings,
    bridge,
    expand_to,
    expect,
    positive,
    public_layer,
    public_module,
    renamed,
    require_square,
    take,
    whole,
)
from underhood.interop.tensors import Tensors, listed
from underhood.layers.convolution import Convolution
from underhood.layers.linear import densified
from underhood.layers.norm import Norm


def _read_mamba(tensors: Tensors, settings: Settings, **norms: Norm) -> Mamba:
    expect(settings, hidden_act=("silu", "swish"), inner_layernorms=(False,), mup=(False,))
    names = {
        "in_proj.weight": (None, None),
        "conv1d.weight": (None, 1, None),
        "x_proj.weight": (None, None),
        "dt_proj.weight": (None, None),
        "dt_proj.bias": (None,),
        "A_log": (None, None),
        "D": (None,),
        "out_proj.weight": (None, None),
        "conv1d.bias": (None,),
        "in_proj.bias": (None,),
        "out_proj.bias": (None,),
    }
    given = take(tensors, names, optional=("conv1d.bias", "in_proj.bias", "out_proj.bias"))
    expand_to(len(given["A_log"]), given["in_proj.weight"].shape[1], settings)
    return Mamba(
        in_proj=given["in_proj.weight"],
        conv1d=Convolution(given["conv1d.weight"][:, 0], given.get("conv1d.bias")),
        x_proj=given["x_proj.weight"],
        dt_proj=given["dt_proj.weight"],
        dt_bias=given["dt_proj.bias"],
        a_log=given["A_log"],
        skip=given["D"],
        out_proj=given["out_proj.weight"],
        in_bias=given.get("in_proj.bias"),
        out_bias=given.get("out_proj.bias"),
        **norms,
    )


def _write_mamba(cell: Mamba, *, norms: bool = False) -> tuple[dict[str, Any], Tensors]:
    cell = densified(cell)
    require_square(cell)
    there = [norm is not None for norm in (cell.dt_norm, cell.b_norm, cell.c_norm)]
    if any(there) != norms or all(there) != norms:
        which = "all three of" if norms else "no"
        raise UnderhoodError(f"expected {which} dt_norm, b_norm and c_norm for the public layer", there)
    if (cell.in_bias is None) != (cell.out_bias is None):
        raise UnderhoodError("expected both in_bias and out_bias, or neither, for the public Mamba", "one of them")
    channels, state = cell.a_log.shape
    settings = {
        "hidden_size": cell.d,
        "intermediate_size": channels,
        "state_size": state,
        "conv_kernel": cell.conv1d.width,
        "time_step_rank": cell.dt_proj.shape[1],
        "use_bias": cell.in_bias is not None,
        "use_conv_bias": cell.conv1d.bias is not None,
    }
    tensors = {
        "in_proj.weight": cell.in_proj,
        "conv1d.weight": cell.conv1d.weight[:, None],
        "x_proj.weight": cell.x_proj,
        "dt_proj.weight": cell.dt_proj,
        "dt_proj.bias": cell.dt_bias,
        "A_log": cell.a_log,
        "D": cell.skip,
        "out_proj.weight": cell.out_proj,
        "conv1d.bias": cell.conv1d.bias,
        "in_proj.bias": cell.in_bias,
        "out_proj.bias": cell.out_bias,
    }
    return settings, {name: np.asarray(tensor) for name, tensor in tensors.items() if tensor is not None}


def _build_mamba_mixer(settings: Settings) -> Any:
    public = public_module("transformers.models.mamba.modeling_mamba")
    sizes = {name: value for name, value in settings.items() if name != "intermediate_size"}
    config = public.MambaConfig(**sizes, num_hidden_layers=1, vocab_size=1)
    config.intermediate_size = settings["intermediate_size"]  # a whole multiple of hidden_size otherwise
    return public.MambaMixer(config, 0)


def _build_mambapy(settings: Settings) -> Any:
    public = public_module("mambapy.mamba")
    config = public.MambaConfig(
        d_model=settings["hidden_size"],
        n_layers=1,
        dt_rank=settings["time_step_rank"],
        d_state=settings["state_size"],
        d_conv=settings["conv_kernel"],
        bias=settings["use_bias"],
        conv_bias=settings["use_conv_bias"],
    )
    config.d_inner = settings["intermediate_size"]
    return public.MambaBlock(config)


def _expanded(settings: Settings) -> int:
    return int(positive({"expand": 2, **settings}, "expand") * whole(settings, "hidden_size"))


_MAMBA_DEFAULTS = {
    "hidden_size": 768,
    "intermediate_size": _expanded,
    "state_size": 16,
    "conv_kernel": 4,
    "time_step_rank": lambda settings: math.ceil(whole(settings, "hidden_size") / 16),
    "use_bias": False,
    "use_conv_bias": True,
}
_MAMBA = {"kind": Mamba.kind, "read": _read_mamba, "write": _write_mamba}

bridge(
    "transformers.models.mamba.modeling_mamba.MambaMixer",
    **_MAMBA,
    build=_build_mamba_mixer,
    describe=lambda module: {"hidden_act": module.activation},
    model_type="mamba",
    ignores="layer_norm_epsilon rms_norm time_step_floor time_step_max time_step_min time_step_scale",
    prefix="backbone.layers.{layer}.mixer.",
    mark="A_log",
    defaults=_MAMBA_DEFAULTS,
)
bridge(
    "mambapy.mamba.MambaBlock",
    **_MAMBA,
    build=_build_mambapy,
    describe=lambda module: {"inner_layernorms": module.config.inner_layernorms, "mup": module.config.mup},
)


NORMS = {"dt_layernorm": "dt_norm", "b_layernorm": "b_norm", "c_layernorm": "c_norm"}


def _norms(cell: Mamba) -> dict[str, Norm]:
    """The three, which must have one ε, and no more than a weight each."""
    norms = {public: getattr(cell, ours) for public, ours in NORMS.items()}
    if len({norm.eps for norm in norms.values()}) > 1 or any(
        norm.centred or norm.bias is not None for norm in norms.values()
    ):
        raise UnderhoodError("expected three RMS norms with one eps for the public layer", list(norms.values()))
    return norms


def _read_falcon(tensors: Tensors, settings: Settings) -> Mamba:
    rank, state = _sizes(tensors)
    dtype, eps = np.asarray(tensors["A_log"]).dtype, positive(settings, "mixer_rms_eps")
    sizes = {"dt_norm": rank, "b_norm": state, "c_norm": state}
    return _read_mamba(tensors, settings, **{name: Norm(np.ones(n, dtype), eps=eps) for name, n in sizes.items()})


def _sizes(tensors: Tensors) -> tuple[int, int]:
    """Rank of Δ and size of the state."""
    shapes = [np.shape(tensors.get(name, ())) for name in ("dt_proj.weight", "A_log")]
    if any(len(shape) != 2 for shape in shapes):
        raise UnderhoodError("expected matrices dt_proj.weight and A_log", listed(tensors))
    return shapes[0][1], shapes[1][1]


def _write_falcon(cell: Mamba) -> tuple[dict[str, Any], Tensors]:
    settings, tensors = _write_mamba(cell, norms=True)
    norms = _norms(cell)
    if any(np.any(np.asarray(norm.weight) != 1) for norm in norms.values()):
        raise UnderhoodError("expected norms without weights for FalconMamba", "weights other than 1")
    return {**settings, "mixer_rms_eps": norms["dt_layernorm"].eps}, tensors


def _build_falcon(settings: Settings) -> Any:
    more = {name: value for name, value in settings.items() if name != "intermediate_size"}
    public = public_module("transformers.models.falcon_mamba.modeling_falcon_mamba")
    config = public.FalconMambaConfig(**more, num_hidden_layers=1, vocab_size=1)
    config.intermediate_size = settings["intermediate_size"]
    return public.FalconMambaMixer(config, 0, initialize_mixer_weights=False)


bridge(
    "transformers.models.falcon_mamba.modeling_falcon_mamba.FalconMambaMixer",
    kind=Mamba.kind,
    read=_read_falcon,
    write=_write_falcon,
    build=_build_falcon,
    describe=lambda module: {"hidden_act": module.activation, "mixer_rms_eps": module.rms_eps},
    model_type="falcon_mamba",
    prefix="backbone.layers.{layer}.mixer.",
    mark="A_log",
    ignores="layer_norm_epsilon rms_norm time_step_floor time_step_max time_step_min time_step_scale",
    defaults={**_MAMBA_DEFAULTS, "mixer_rms_eps": 1e-6},
)

_JAMBA_NAMES = {
    "state_size": "mamba_d_state",
    "conv_kernel": "mamba_d_conv",
    "time_step_rank": "mamba_dt_rank",
    "use_bias": "mamba_proj_bias",
    "use_conv_bias": "mamba_conv_bias",
    "expand": "mamba_expand",
}


def _read_jamba(tensors: Tensors, settings: Settings) -> Mamba:
    eps, left, norms = positive(settings, "rms_norm_eps"), dict(tensors), {}
    for public, ours in NORMS.items():
        if f"{public}.weight" not in left:
            raise UnderhoodError(f"no tensor {public}.weight among {listed(tensors)}")
        norms[ours] = Norm(left.pop(f"{public}.weight"), eps=eps)
    return _read_mamba(left, Renamed(settings, _JAMBA_NAMES), **norms)


def _write_jamba(cell: Mamba) -> tuple[dict[str, Any], Tensors]:
    settings, tensors = _write_mamba(cell, norms=True)
    norms, inner = _norms(cell), settings.pop("intermediate_size")
    if inner % cell.d:
        raise UnderhoodError(f"expected an inner size that is a multiple of {cell.d} for Jamba", inner)
    settings |= {"expand": inner // cell.d, "rms_norm_eps": norms["dt_layernorm"].eps}
    weights = {f"{name}.weight": np.asarray(norm.weight) for name, norm in norms.items()}
    return renamed(settings, _JAMBA_NAMES), {**tensors, **weights}


bridge(
    "transformers.models.jamba.modeling_jamba.JambaMambaMixer",
    kind=Mamba.kind,
    read=_read_jamba,
    write=_write_jamba,
    build=lambda settings: public_layer(
        "jamba.modeling_jamba", "JambaConfig", "JambaMambaMixer", settings, num_hidden_layers=1, vocab_size=1
    ),
    describe=lambda module: {"hidden_act": module.activation, "rms_norm_eps": module.dt_layernorm.variance_epsilon},
    model_type="jamba",
    prefix="model.layers.{layer}.mamba.",
    mark="A_log",
    defaults={
        "hidden_size": 4096,
        "mamba_d_state": 16,
        "mamba_d_conv": 4,
        "mamba_dt_rank": lambda settings: math.ceil(whole(settings, "hidden_size") / 16),
        "mamba_proj_bias": False,
        "mamba_conv_bias": True,
        "mamba_expand": 2,
        "rms_norm_eps": 1e-6,
    },
)
