"""Exports to torch: loaded strictly into plain torch, equal over 1000 steps, and back to the bit."""

import importlib.util
import json

import jax
import numpy as np
import pytest
import safetensors.torch
import torch

import underhood as uh
from tests.interop.networks import NAMES, network, same_bits, sequence
from tests.tolerance import agree, error
from underhood.interop.read import described_kind, from_state_dict, import_model
from underhood.interop.torch import MODULE, as_callable, export, to_torch
from underhood.interop.torch_names import to_program, to_state_dict

KIND = {"gru-after": "gru", "decayed-attention": "attention"}


def kind_of(name):
    name = name.removesuffix("-cell")
    return KIND.get(name, name)


def loaded_from(folder, name):
    """The module beside the weights, imported as a program without underhood would."""
    spec = importlib.util.spec_from_file_location("underhood_torch", folder / MODULE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.load(folder / name)


def plain_torch(path):
    """torch's own classes, with sizes read off the tensors; nothing of underhood's."""
    state = safetensors.torch.load_file(path)
    cell = "lstm" if any(name.startswith("lstm.") for name in state) else "gru"
    layers = sum(name.startswith(f"{cell}.weight_ih") for name in state)
    hidden, width = state[f"{cell}.weight_hh_l0"].shape[1], state[f"{cell}.weight_ih_l0"].shape[1]
    parts = torch.nn.ModuleDict(
        {
            "embedding": torch.nn.Linear(state["embedding.weight"].shape[1], width),
            cell: {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}[cell](width, hidden, layers),
            "readout": torch.nn.Linear(hidden, len(state["readout.weight"])),
        }
    ).to(state["readout.weight"].dtype)
    parts.load_state_dict(state, strict=True)

    def run(xs):
        with torch.no_grad():
            signal = parts["embedding"](torch.as_tensor(xs, dtype=state["readout.weight"].dtype))
            return parts["readout"](parts[cell](signal)[0]).numpy()

    return run


@pytest.mark.parametrize("steps", [200, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", NAMES)
def test_torch_computes_what_jax_does(name, steps, tmp_path):
    model = network(name)
    report = export(model, tmp_path / "w.safetensors")
    assert report["verified"]
    if (tmp_path / MODULE).exists():
        function = as_callable(loaded_from(tmp_path, "w.safetensors"))
    elif name.endswith("-cell"):
        module = (torch.nn.LSTM if name.startswith("lstm") else torch.nn.GRU)(7, 7, dtype=torch.float64)
        module.load_state_dict(safetensors.torch.load_file(tmp_path / "w.safetensors"), strict=True)
        function = as_callable(module)
    else:
        function = plain_torch(tmp_path / "w.safetensors")
    xs = sequence(steps, model.d)
    ys = function(xs)
    assert agree(ys, model(xs)), error(ys, model(xs))
    assert not agree(ys, network(name, seed=1)(xs))
    assert same_bits(import_model(tmp_path / "w.safetensors", kind_of(name)), model)


@pytest.mark.parametrize("name", NAMES)
def test_a_round_trip_keeps_every_bit_of_float32(name):
    model = network(name, np.float32)
    description, tensors = to_state_dict(model)
    assert all(tensor.dtype == np.float32 for tensor in tensors.values())
    back = from_state_dict(tensors, kind_of(name), json.loads(json.dumps(description)))
    assert same_bits(back, model)


def test_layers_of_different_sizes_share_one_torch_lstm(tmp_path):
    random = np.random.default_rng(0)

    def cell(d, n, reads=True):
        return uh.LSTM(random.normal(size=(4, n, d)), random.normal(size=(4, n, n)) if reads else None, np.ones((4, n)))

    linear = [uh.Linear(random.normal(size=size), random.normal(size=size[0])) for size in ((3, 4), (2, 5))]
    model = uh.Stack(linear[0], (cell(3, 6, reads=False), cell(6, 8), cell(8, 5)), linear[1])
    export(model, tmp_path / "w.safetensors")
    xs = sequence(200)
    assert agree(plain_torch(tmp_path / "w.safetensors")(xs), model(xs))
    back = import_model(tmp_path / "w.safetensors", "lstm")
    assert same_bits(back, model)
    # Trained on in torch, the neurons that filled a layer up are real ones, and are kept.
    state = safetensors.torch.load_file(tmp_path / "w.safetensors")
    with safetensors.safe_open(tmp_path / "w.safetensors", "pt") as file:
        header = file.metadata()
    state = {name: tensor + 0.01 for name, tensor in state.items()}
    safetensors.torch.save_file(state, tmp_path / "t.safetensors", metadata=header)
    trained = import_model(tmp_path / "t.safetensors", "lstm")
    assert [one.hidden for one in trained.cells] == [8, 8, 8]
    assert agree(plain_torch(tmp_path / "t.safetensors")(xs), trained(xs))


@pytest.mark.parametrize("seed", [0, 5])
@pytest.mark.parametrize("d", [2, 4])
def test_the_compiled_lstm_in_plain_torch_is_attention_within_its_bound(d, seed, tmp_path):
    attention = uh.random_attention(d, seed=seed)
    compiled = uh.compile(attention, to="lstm", horizon=300)
    export(compiled.model, tmp_path / "w.safetensors")
    xs = np.random.default_rng(seed).uniform(-4, 4, (300, d))
    expected = attention(xs)
    deviation = np.max(np.abs(plain_torch(tmp_path / "w.safetensors")(xs) - expected))
    assert deviation <= compiled.error_bound
    assert compiled.error_bound < 1e-3 * np.max(np.abs(expected)), "a bound that everything meets shows nothing"
    assert same_bits(import_model(tmp_path / "w.safetensors", "lstm"), compiled.model)


@pytest.mark.parametrize("target", ["gated-rnn", "gated-rnn-minimal", "lru", "lru-in-out", "lru-in-skip", "gru"])
def test_compiled_networks_run_in_torch(target, tmp_path):
    attention = uh.random_attention(3, seed=3)
    compiled = uh.compile(attention, to=target, horizon=200)
    assert export(compiled.model, tmp_path / "w.safetensors")["verified"]
    xs = np.random.default_rng(0).uniform(-4, 4, (200, 3))
    run = as_callable(loaded_from(tmp_path, "w.safetensors"))
    largest = np.max(np.abs(attention(xs)))
    assert np.max(np.abs(run(xs) - attention(xs))) <= compiled.error_bound + 1e-12 * largest


@pytest.mark.parametrize("target", ["mingru", "griffin", "gru"])
def test_forms_that_no_architecture_is_named_after_come_back(target):
    """A compiled minGRU has linear candidates; the file says so, and a GRU that resets after is another kind."""
    model = uh.compile(uh.random_attention(2, seed=1), to=target, horizon=50).model
    description, tensors = to_state_dict(model)
    assert described_kind(description) == target
    assert same_bits(from_state_dict(tensors, target, description), model)


def test_a_form_of_another_architecture_is_refused():
    cell = network("gru-after").cells[0]
    description, tensors = to_program(cell)
    with pytest.raises(uh.UnderhoodError, match="expected the weights of gru; got reset 'after'"):
        from_state_dict(tensors, "gru", description)
    mingru, tensors = to_program(uh.compile(uh.random_attention(2, seed=1), to="mingru", horizon=50).model)
    mingru["ours"]["cells"][0]["candidate"] = "of its own"
    with pytest.raises(uh.UnderhoodError, match="candidate"):
        from_state_dict(tensors, "mingru", mingru)


def test_a_gru_goes_into_torchs_own_only_where_that_is_the_same(tmp_path):
    u, v, b = np.ones((3, 2, 2)), np.ones((3, 2, 2)), np.zeros((3, 2))
    assert export(uh.GRU(u, v, b), tmp_path / "a")["loads_into"].endswith("Program")
    u[0], v[0], b[0] = 0, 0, 50
    report = export(uh.GRU(u, v, b), tmp_path / "b")
    assert (report["loads_into"], report["verified"]) == ("torch.nn.GRU", True)
    assert same_bits(import_model(tmp_path / "b", "gru"), uh.GRU(u, v, b))
    b[2] = -42  # a gate that torch's 1 − z would lose
    assert export(uh.GRU(u, v, b), tmp_path / "c")["loads_into"].endswith("Program")


def test_a_swapped_gate_is_noticed(monkeypatch, tmp_path):
    """Negative control of the check that every export makes."""
    from underhood.interop.recurrent import RECURRENT

    model, orders = network("lstm"), RECURRENT["lstm"].orders
    monkeypatch.setitem(orders, "torch", "figo")
    report = export(model, tmp_path / "w")
    assert not report["verified"]
    assert report["max_rel_error"] > 1e-3


@pytest.mark.parametrize("target", ["gated-rnn", "lru-in-out"])
def test_a_sparse_network_is_written_dense(target, tmp_path):
    compiled = uh.compile(uh.random_attention(3), to=target, sparse=True)
    assert export(compiled.model, tmp_path / "w")["verified"]
    back = import_model(tmp_path / "w", target)
    xs = sequence(50, 3)
    assert np.max(np.abs(back(xs) - compiled.model(xs))) <= compiled.error_bound


def test_the_module_overwrites_itself_but_nothing_else(tmp_path):
    for _ in range(2):
        export(network("gated-rnn"), tmp_path / "w")
    (tmp_path / MODULE).write_text("import this\n")
    with pytest.raises(uh.UnderhoodError, match="another file"):
        export(network("gated-rnn"), tmp_path / "new")
    assert not (tmp_path / "new").exists()
    assert (tmp_path / MODULE).read_text() == "import this\n"


def test_mixed_stacks_run_in_torch(tmp_path):
    lstm, gru = network("lstm"), network("gru")
    mixed = uh.Stack(lstm.embedding, (lstm.cells[0], gru.cells[0]), lstm.readout)
    assert export(mixed, tmp_path / "w")["verified"]
    xs = sequence(50)
    assert agree(as_callable(loaded_from(tmp_path, "w"))(xs), mixed(xs))


@pytest.mark.parametrize("name", NAMES)
def test_torch_and_back_keeps_every_bit(name):
    model = network(name)
    assert same_bits(uh.from_torch(uh.to_torch(model)), model)


def test_a_module_that_computes_something_else_is_no_model_of_ours():
    class Other(torch.nn.LSTM):
        def forward(self, xs):
            return 2 * super().forward(xs)[0]

    with pytest.raises(uh.UnderhoodError, match="no model of underhood computes what this Other does"):
        uh.from_torch(Other(4, 5))
    with pytest.raises(uh.UnderhoodError, match="expected a torch"):
        uh.from_torch(Other)


def test_modules_take_batches_and_gradients():
    for name in ("gated-rnn", "lru-in-skip", "gru", "lstm", "attention"):
        model = network(name, np.float32)
        module = to_torch(model)
        xs = torch.as_tensor(np.stack([sequence(20), sequence(20, seed=2)]), dtype=torch.float32)
        ys = module(xs)
        assert agree(ys[1].detach().numpy(), model(xs[1].numpy()), np.float32)
        ys.sum().backward()
        assert all(weight.grad is not None for weight in module.parameters())


def test_the_header_of_an_export_is_plain_json(tmp_path):
    export(network("lstm"), tmp_path / "w")
    with safetensors.safe_open(tmp_path / "w", "pt") as file:
        description = json.loads(file.metadata()["underhood"])
    assert (description["class"], description["hidden"], description["layers"]) == ("Recurrent", 7, 2)
    assert jax.config.read("jax_enable_x64") is False
