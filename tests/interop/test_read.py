"""`uh.read`: files of other programs against independent forward passes; what cannot be right is refused."""

import json

import h5py
import jax
import numpy as np
import onnx
import pytest
import safetensors.numpy
import torch

import underhood as uh
from tests.tolerance import error
from underhood.interop.read import reading

helper = onnx.helper


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


def sequence(d, length=20):
    return np.random.default_rng(1).normal(size=(length, d))


def drawn(*shapes, scale=0.4):
    random = np.random.default_rng(0)
    return [np.float32(random.normal(size=shape) * scale) for shape in shapes]


def keras_lstm(xs, kernel, recurrent, bias):
    """Keras's own equations: gates i, f, c, o."""
    h = c = np.zeros(len(recurrent))
    ys = []
    for x in xs:
        i, f, g, o = np.split(x @ kernel + h @ recurrent + bias, 4)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        ys.append(h)
    return np.array(ys)


def keras_gru(xs, kernel, recurrent, bias):
    """Gates z, r, h; the reset gate after the product where there are two biases."""
    n = len(recurrent)
    h, ys, (b, c) = np.zeros(n), [], bias if bias.ndim == 2 else (bias, np.zeros(3 * n))
    for x in xs:
        a, r = x @ kernel + b, h @ recurrent[:, : 2 * n] + c[: 2 * n]
        z, reset = sigmoid(a[:n] + r[:n]), sigmoid(a[n : 2 * n] + r[n:])
        if bias.ndim == 2:
            candidate = np.tanh(a[2 * n :] + reset * (h @ recurrent[:, 2 * n :] + c[2 * n :]))
        else:
            candidate = np.tanh(a[2 * n :] + (reset * h) @ recurrent[:, 2 * n :])
        h = z * h + (1 - z) * candidate
        ys.append(h)
    return np.array(ys)


def keras_file(path, names, groups):
    with h5py.File(path, "w") as file:
        file.attrs["layer_names"] = names
        for layer, arrays in groups.items():
            for name, array in arrays.items():
                file[f"{layer}/{layer}/{name}:0"] = array
    return path


@pytest.mark.parametrize("shape", [(12,), (2, 12)], ids=["before", "after"])
def test_keras_gru(shape, tmp_path):
    kernel, recurrent, bias = drawn((3, 12), (4, 12), shape)
    path = keras_file(
        tmp_path / "w.h5", ["gru"], {"gru": {"kernel": kernel, "recurrent_kernel": recurrent, "bias": bias}}
    )
    with pytest.warns(UserWarning, match="GRU 4"):
        model = uh.read(path)
    xs = sequence(3)
    assert error(model(xs), keras_gru(xs, kernel, recurrent, bias)) <= 1e-5
    assert error(model(xs), keras_gru(xs, kernel[:, ::-1], recurrent, bias)) > 1e-2


def test_keras_lstm_with_embedding_and_dense(tmp_path):
    table, kernel, recurrent, bias, dense, offset = drawn((7, 3), (3, 16), (4, 16), (16,), (4, 2), (2,))
    groups = {
        "embedding": {"embeddings": table},
        "lstm": {"kernel": kernel, "recurrent_kernel": recurrent, "bias": bias},
        "dense": {"kernel": dense, "bias": offset},
    }
    path = keras_file(tmp_path / "w.h5", list(groups), groups)
    found, tokens = reading(path), np.array([3, 1, 4, 1, 5, 2])
    assert found.mapping["embedding"] == "embedding" and found.mapping["readout"] == "dense"
    assert not found.left_out
    wanted = keras_lstm(table[tokens], kernel, recurrent, bias) @ dense + offset
    assert error(found.model(np.eye(7)[tokens]), wanted) <= 1e-5
    assert error(reading(path, part="lstm").model(table[tokens]), (wanted - offset) @ np.linalg.pinv(dense)) > 1e-3
    assert reading(path, part="lstm").model.kind == "lstm-cell"


def test_cudnn_kernels_are_turned(tmp_path):
    kernel, recurrent, bias = drawn((3, 16), (4, 16), (32,))
    path = keras_file(tmp_path / "w.h5", ["a"], {"a": {"kernel": kernel, "recurrent_kernel": recurrent, "bias": bias}})
    as_keras = [gate.T.reshape(gate.shape, order="F") for gate in np.split(kernel, 4, axis=1)]
    turned = [gate.T for gate in np.split(recurrent, 4, axis=1)]
    xs = sequence(3)
    wanted = keras_lstm(xs, np.hstack(as_keras), np.hstack(turned), bias[:16] + bias[16:])
    assert error(reading(path).model(xs), wanted) <= 1e-5


def onnx_file(path, operator, gates, *, layers=1, **attributes):
    d, n = 3, 4
    nodes, tensors, signal = [], [], "x"
    for index in range(layers):
        w, r, b = drawn((1, gates * n, d if index == 0 else n), (1, gates * n, n), (1, 2 * gates * n))
        names = [f"{one}{index}" for one in "wrb"]
        tensors += [onnx.numpy_helper.from_array(one, name) for one, name in zip((w, r, b), names, strict=True)]
        tensors.append(onnx.numpy_helper.from_array(np.array([1]), f"axis{index}"))
        nodes.append(helper.make_node(operator, [signal, *names], [f"y{index}"], hidden_size=n, **attributes))
        nodes.append(helper.make_node("Squeeze", [f"y{index}", f"axis{index}"], [f"out{index}"]))
        signal = f"out{index}"
    given = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["t", 1, d])
    gives = helper.make_tensor_value_info(signal, onnx.TensorProto.FLOAT, ["t", 1, n])
    graph = helper.make_graph(nodes, "g", [given], [gives], tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


@pytest.mark.parametrize(
    ("operator", "gates", "attributes"),
    [("LSTM", 4, {}), ("GRU", 3, {"linear_before_reset": 1}), ("GRU", 3, {"linear_before_reset": 0})],
)
@pytest.mark.parametrize("layers", [1, 2])
def test_operators_of_onnx(operator, gates, attributes, layers, tmp_path):
    import onnxruntime

    path = onnx_file(tmp_path / "w.onnx", operator, gates, layers=layers, **attributes)
    model, xs = reading(path).model, sequence(3).astype(np.float32)
    ys = onnxruntime.InferenceSession(path).run(None, {"x": xs[:, None]})[0][:, 0]
    assert error(model(xs), ys) <= 1e-5
    assert error(model(xs[::-1]), ys) > 1e-2


def test_options_of_an_operator_that_no_cell_has_are_named(tmp_path):
    with pytest.raises(uh.UnderhoodError, match="expected no direction of"):
        uh.read(onnx_file(tmp_path / "w.onnx", "LSTM", 4, direction="reverse"))
    with pytest.raises(uh.UnderhoodError, match="expected no clip of"):
        uh.read(onnx_file(tmp_path / "w.onnx", "LSTM", 4, clip=1.0))


def test_names_are_guessed_and_shown(tmp_path):
    w_ih, w_hh, b_ih, b_hh, table, out, bias = drawn((12, 3), (12, 4), (12,), (12,), (7, 3), (2, 4), (2,))
    arrays = {"enc_emb": table, "enc_w_ih": w_ih, "enc_w_hh": w_hh, "enc_b_ih": b_ih, "enc_b_hh": b_hh}
    np.savez(tmp_path / "one.npz", **arrays, fc_w=out, fc_b=bias, other=np.ones((9, 9)))
    found = reading(tmp_path / "one.npz")
    assert found.mapping["embedding"] == "enc_emb" and found.mapping["readout"] == "fc"
    assert "enc_w_ih" in found.remark and "Left out: other" in found.remark
    both = {**arrays, **{name.replace("enc", "dec"): array for name, array in arrays.items()}}
    np.savez(tmp_path / "two.npz", **both)
    with pytest.raises(uh.UnderhoodError, match=r"holds 2 recurrent networks: enc \(GRU 4\), dec \(GRU 4\)"):
        uh.read(tmp_path / "two.npz")
    gru = torch.nn.GRU(3, 4)
    weights = {"weight_ih": w_ih, "weight_hh": w_hh, "bias_ih": b_ih, "bias_hh": b_hh}
    gru.load_state_dict({f"{name}_l0": torch.from_numpy(weight) for name, weight in weights.items()})
    xs = sequence(3).astype(np.float32)
    assert error(uh.read(tmp_path / "two.npz", part="dec")(xs), gru(torch.from_numpy(xs))[0].detach().numpy()) <= 1e-5


@pytest.mark.parametrize("prefix", ["_orig_mod.", "base_model.model.", "module._orig_mod.", ""])
def test_prefixes_of_wrappers_and_narrow_floats(prefix, tmp_path):
    state = {f"{prefix}{name}": tensor for name, tensor in torch.nn.LSTM(3, 4).state_dict().items()}
    torch.save({"model": state, "step": 3}, tmp_path / "w.pt")
    assert reading(tmp_path / "w.pt").model.kind == "lstm-cell"
    narrow = {name: tensor.to(torch.float8_e4m3fn) for name, tensor in state.items()}
    safetensors_torch = pytest.importorskip("safetensors.torch")
    safetensors_torch.save_file(narrow, tmp_path / "w.safetensors")
    model = reading(tmp_path / "w.safetensors").model
    wanted = narrow[f"{prefix}weight_ih_l0"].float().numpy()
    assert model.dtype == np.float32
    assert sorted(np.ravel(model.u)) == sorted(np.ravel(wanted))


def test_an_adapter_and_gguf_name_the_way(tmp_path):
    names = {"base_model.model.lstm.lora_A.weight": np.ones((2, 2), np.float32)}
    safetensors.numpy.save_file(names, tmp_path / "w")
    with pytest.raises(uh.UnderhoodError, match=r"merge_and_unload\(\)"):
        uh.read(tmp_path / "w")
    (tmp_path / "m.gguf").write_bytes(b"GGUF" + bytes(40))
    with pytest.raises(uh.UnderhoodError, match="safetensors checkpoint that it was made from"):
        uh.read(tmp_path / "m.gguf")


def test_bombs_and_floods_stay_small(tmp_path):
    torch.save({"w": torch.zeros(1).expand(2**28)}, tmp_path / "bomb.pt")
    assert (tmp_path / "bomb.pt").stat().st_size < 3000
    with pytest.raises(uh.UnderhoodError, match="MB of tensors"):
        uh.read(tmp_path / "bomb.pt")
    np.savez_compressed(tmp_path / "bomb.npz", w=np.zeros(2**24, np.float64))
    with pytest.raises(uh.UnderhoodError, match="unpack to at most 64 MB"):
        uh.read(tmp_path / "bomb.npz")
    flood = {f"a\x1b[31m{index}": np.ones(1, np.float32) for index in range(20_000)}
    safetensors.numpy.save_file(flood, tmp_path / "flood")
    with pytest.raises(uh.UnderhoodError) as caught:
        uh.read(tmp_path / "flood", kind="lstm")
    assert len(str(caught.value)) < 2000
    assert "\x1b" not in str(caught.value)


def test_config_json_beside_a_file_is_believed(tmp_path):
    """falcon_mamba's tensors have mamba's names: read as mamba, the layer is another function."""
    from underhood.architectures.mamba.cell import Mamba
    from underhood.interop.bridges import BRIDGES
    from underhood.interop.torch import from_module

    falcon = next(bridge for bridge in BRIDGES.values() if bridge.name == "FalconMambaMixer")
    torch.manual_seed(0)
    settings = {"hidden_size": 6, "intermediate_size": 12, "state_size": 4, "conv_kernel": 4, "time_step_rank": 2}
    module = falcon.build(settings)  # with whatever stood in memory
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    state = {f"backbone.layers.0.mixer.{name}": tensor for name, tensor in module.state_dict().items()}
    torch.save(state, tmp_path / "pytorch_model.bin")
    (tmp_path / "config.json").write_text(
        json.dumps({**settings, "model_type": "falcon_mamba", "num_hidden_layers": 1})
    )
    wanted, xs = from_module(module), sequence(6)
    path, part = tmp_path / "pytorch_model.bin", "backbone.layers.0.mixer"
    assert error(uh.read(path, kind="mamba", part=part)(xs), wanted(xs)) <= 1e-6
    assert error(uh.read(path, part=part)(xs), wanted(xs)) <= 1e-6
    assert error(uh.read(tmp_path, layer=0)(xs), wanted(xs)) <= 1e-6
    with pytest.raises(uh.UnderhoodError, match="model type falcon_mamba; got kind='mamba2'"):
        uh.read(path, kind="mamba2", part=part)
    (tmp_path / "config.json").unlink()
    assert isinstance(uh.read(path, kind="mamba", part=part), Mamba)  # negative control: the tensors alone fit
    assert error(uh.read(path, kind="mamba", part=part)(xs), wanted(xs)) > 1e-2
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mamba", "hidden_act": "gelu"}))
    with pytest.raises(uh.UnderhoodError, match="hidden_act"):
        uh.read(path, kind="mamba", part=part)


def test_folders_of_mamba_ssm(tmp_path):
    from underhood.architectures.mamba.cell import Mamba
    from underhood.interop.bridges import bridge_of

    cell = Mamba.random(d=6, channels=12, d_out=6, state=5, key=jax.random.key(0))
    tensors = {name: torch.from_numpy(np.array(one)) for name, one in bridge_of(cell).write(cell)[1].items()}
    whole = {f"backbone.layers.0.mixer.{name}": tensor for name, tensor in tensors.items()}
    torch.save(whole, tmp_path / "pytorch_model.bin")
    config = {"d_model": 6, "n_layer": 1, "vocab_size": 9, "ssm_cfg": {"d_state": 5}, "rms_norm": True}
    config |= {"residual_in_fp32": True, "fused_add_norm": True, "pad_vocab_size_multiple": 8}
    (tmp_path / "config.json").write_text(json.dumps(config))
    xs = sequence(6)
    assert error(uh.read(tmp_path, layer=0)(xs), cell(xs)) <= 1e-6
    (tmp_path / "config.json").write_text(json.dumps({**config, "ssm_cfg": {"d_state": 5, "use_dance": True}}))
    with pytest.raises(uh.UnderhoodError, match=r"unknown field 'ssm_cfg.use_dance' true"):
        uh.read(tmp_path, layer=0)


def test_all_unknown_fields_are_named_at_once_and_harmless_ones_passed_over(tmp_path):
    test_folders_of_mamba_ssm(tmp_path)
    config = {"model_type": "mamba", "num_hidden_layers": 1, "hidden_size": 6, "intermediate_size": 12, "state_size": 5}
    config |= {"time_step_rank": 1, "vocab_size": 9, "time_step_init_scheme": "random", "use_mambapy": False}
    (tmp_path / "config.json").write_text(json.dumps(config))
    uh.read(tmp_path, layer=0)
    (tmp_path / "config.json").write_text(json.dumps({**config, "use_rotation": 2, "second_gate": "tanh"}))
    with pytest.raises(uh.UnderhoodError, match=r"unknown fields 'second_gate' \"tanh\", 'use_rotation' 2"):
        uh.read(tmp_path, layer=0)
