"""Layers of transformers with random weights, into our cells and back; and config.json fuzzed against the tensors.

A config.json that says something else than the tensors is refused, or the layer is what transformers makes of the two.
"""

import dataclasses
import json
import random
import re

import jax
import numpy as np
import pytest
from safetensors.torch import save_file

import underhood as uh
from benchmarks.transformers_layers import SETTINGS, bridge_for, drawn, errors, model_types, source_of
from underhood.interop.bridges import BRIDGES, UNSUPPORTED
from underhood.interop.config import ELSEWHERE, Watched, with_defaults
from underhood.interop.torch import from_module
from underhood.interop.torch_parts import as_callable, state_dict_of

VALUES = (
    0,
    1,
    2,
    3,
    5,
    8,
    16,
    -1,
    0.5,
    1e-3,
    1e30,
    True,
    False,
    None,
    "silu",
    "gelu",
    "sigmoid",
    [0.1, 0.2],
    [],
    "auto",
)
NAMES = ("use_rotation", "second_gate", "hidden_act", "mamba_hidden_act", "expand", "norm_before_gate", "use_bias")


@pytest.mark.parametrize("model_type", SETTINGS)
def test_a_layer_and_back(model_type):
    found = errors(bridge_for(model_type), SETTINGS[model_type], seed=3)
    assert found["error"] <= 4e-6  # float32; 1e-6 with the seed of the table
    assert found["error_back"] <= 4e-6
    assert found["control"] > 1e-2


def test_every_recurrent_model_type_works_or_has_its_reason():
    found = model_types()
    assert len(found) == 21
    assert {name for name in found if bridge_for(name) is None} == {name for name in UNSUPPORTED if name in found}
    assert sum(bridge_for(name) is not None for name in found) >= 14


@pytest.mark.parametrize("model_type", SETTINGS)
def test_what_the_public_layer_reads_of_its_configuration_is_read(model_type):
    """A field that changes the layer may not be passed over as one about something else."""
    bridge = bridge_for(model_type)
    module = drawn(bridge.build(SETTINGS[model_type]))
    tensors = state_dict_of(module)
    settings = Watched(with_defaults(bridge, {**SETTINGS[model_type], **bridge.describe(module)}))
    told = bridge.write(bridge.read(tensors, settings))[0]
    # Those that only draw initial weights, or choose among programs that compute the same.
    drawing = r"time_step_(rank|init_scheme|scale|floor|max|min)|linear_(a_log|dt)_\w+|\w*chunk_size|use_\w+"
    drawing += r"|layer_types|w_init\w+"
    names = set(re.findall(r"config\.(\w+)", source_of(bridge))) - {"intermediate_size"}
    unread = {name for name in names - settings.read - told.keys() if not re.fullmatch(drawing, name)}
    assert unread <= bridge.ignores | {"hidden_size", "time_step_min", "_is_quantized"}
    assert not {name for name in settings.read | told.keys() if ELSEWHERE.fullmatch(name)} - PASSED


# Names that other layers of a model use, too; the layers here read them, so that they are checked where they matter.
PASSED = {"num_attention_heads", "intermediate_size", "head_dim", "output_gate_type"}


def folder_of(path, model_type, config, module):
    prefix = bridge_for(model_type).prefixes[0].format(layer=0)
    save_file(
        {prefix + name: one.contiguous() for name, one in module.state_dict().items()}, path / "model.safetensors"
    )
    (path / "config.json").write_text(json.dumps(config))


def told_by_transformers(config, module, xs):
    """What the layer of this config.json computes with these tensors; None where it cannot be made."""
    bridge = bridge_for(config.get("model_type"))
    settings = {name: one for name, one in config.items() if name not in ("model_type", "num_hidden_layers")}
    whole = [name for name, one in settings.items() if type(one) is int and re.search("eps|min|multiplier", name)]
    settings |= {name: float(settings[name]) for name in whole}
    try:
        other = bridge.build(settings)
        other.load_state_dict(module.state_dict(), strict=True)
        return as_callable(other.eval())(xs)
    except Exception:
        return None


def difference(config, module, path):
    """Of what is read from what transformers computes, over the largest output."""
    cell = uh.read(path, layer=0)
    xs = np.random.default_rng(0).normal(size=(5, cell.d)).astype(np.float32)
    wanted = told_by_transformers(config, module, xs)
    wanted = as_callable(module)(xs) if wanted is None else wanted
    with jax.disable_jit():
        return float(np.max(np.abs(np.asarray(cell(xs)) - wanted)) / np.max(np.abs(wanted)))


def silent_errors(cases, path, seed=0):
    """How many were read, refused, and read as something else; the last with what was changed."""
    choose, counts, wrong = random.Random(seed), {"read": 0, "refused": 0}, []
    modules = {name: drawn(bridge_for(name).build(settings)) for name, settings in SETTINGS.items()}
    for _ in range(cases):
        model_type = choose.choice(list(SETTINGS))
        module = modules[model_type]
        own = bridge_for(model_type).write(from_module(module))[0]
        own = {name: list(one) if isinstance(one, tuple) else one for name, one in own.items()}
        config = {**own, "model_type": model_type, "num_hidden_layers": 1}
        for _ in range(choose.choice((1, 1, 2, 3))):
            others = [name for name in config if type(own.get(name)) is not int]  # sizes are refused, nearly always
            name = choose.choice([*config, *others, *others, *NAMES])
            if name == "model_type":
                config[name] = choose.choice(list(SETTINGS))
            elif choose.random() < 0.15:
                config.pop(name, None)
            else:
                config[name] = choose.choice(VALUES)
        folder_of(path, model_type, config, module)
        try:
            off = difference(config, module, path)
        except uh.UnderhoodError as error:
            assert "\n" not in str(error)
            counts["refused"] += 1
            continue
        counts["read"] += 1
        if not off <= 1e-4:
            wrong.append((model_type, {name: one for name, one in config.items() if one != own.get(name)}, off))
    return counts, wrong


@pytest.mark.parametrize("cases", [25, pytest.param(500, marks=pytest.mark.slow)])
def test_no_configuration_is_read_as_another_layer(cases, tmp_path):
    counts, wrong = silent_errors(cases, tmp_path)
    assert not wrong
    assert counts["read"] > 0 and counts["refused"] > 0


def test_the_fuzz_notices_a_silent_error(tmp_path, monkeypatch):
    """Negative control: a bridge that does not look at ε."""
    bridge = bridge_for("jamba")

    def blind(tensors, settings):
        return bridge.read(tensors, {**settings, "rms_norm_eps": 1e-6})

    monkeypatch.setitem(BRIDGES._things, bridge.public, dataclasses.replace(bridge, read=blind))
    module = drawn(bridge.build(SETTINGS["jamba"]))
    config = {
        **bridge.write(from_module(module))[0],
        "model_type": "jamba",
        "num_hidden_layers": 1,
        "rms_norm_eps": 0.5,
    }
    folder_of(tmp_path, "jamba", config, module)
    assert difference(config, module, tmp_path) > 1e-3
