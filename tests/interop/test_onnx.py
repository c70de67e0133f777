"""ONNX in onnxruntime: one file for every batch and length, and step by step with the state handed over."""

import numpy as np
import onnxruntime
import pytest

import underhood as uh
from tests.interop.networks import NAMES, network, sequence
from tests.tolerance import agree, error
from underhood.core.model import as_dtype
from underhood.interop.onnx import as_callable, export, input_size

TOLERANCE = {"float32": 1e-4, "float64": 1e-11}  # over the largest output
TYPES = {"tensor(float)": np.float32, "tensor(double)": np.float64}


def session(path):
    onnxruntime.disable_telemetry_events()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def stream(path, xs):
    """(batch, time, d) through the step graph, from a state of zeros."""
    graph, ys = session(path), []
    given = graph.get_inputs()
    state = {one.name: np.zeros((len(xs), *one.shape[1:]), TYPES[one.type]) for one in given[1:]}
    for x in xs.swapaxes(0, 1):
        y, *following = graph.run(None, {"x": np.ascontiguousarray(x), **state})
        state = dict(zip(state, following, strict=True))
        ys.append(y)
    return np.stack(ys, axis=1)


def batch(count, length, d, dtype):
    return np.stack([sequence(length, d, seed) for seed in range(count)]).astype(dtype)


@pytest.mark.parametrize("weights", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["gated-rnn", "lru-in-skip", "lstm", "gru-after"])
def test_one_file_serves_every_batch_and_length(name, weights, tmp_path):
    model = network(name, weights)
    report = export(model, tmp_path / "w.onnx")
    assert report["verified"]
    whole = session(tmp_path / "w.onnx")
    for count in (1, 7):
        for length in (1, 32, 1000):
            xs = batch(count, length, model.d, np.float32)
            (ys,) = whole.run(["y"], {"x": xs})
            assert (ys.shape, ys.dtype) == ((count, length, model.d_out), np.float32)
            for one in (0, count - 1):
                expected = model(xs[one])
                assert error(ys[one], expected) <= TOLERANCE["float32"], (count, length)
                # Negative control: the outputs of another sequence are not within the tolerance.
                assert error(ys[one], model(-xs[one] + 0.5)) > TOLERANCE["float32"]


# Which operations a graph is made of does not depend on the dtype: a third of the networks at a time.
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if index % 3 else ()) for index, name in enumerate(NAMES)]
)
def test_float32_networks_of_every_kind(name, tmp_path):
    model = network(name, np.float32)
    # MesaNet solves a system of equations at each step, which magnifies rounding.
    most = 1e-4 if name == "mesanet" else 1e-5
    assert export(model, tmp_path / "w.onnx")["max_rel_error"] <= most
    xs = batch(7, 100, model.d, np.float32)
    (ys,) = session(tmp_path / "w.onnx").run(["y"], {"x": xs})
    assert error(ys[6], model(xs[6])) <= TOLERANCE["float32"]


@pytest.mark.parametrize("name", NAMES)
def test_streaming_equals_whole(name, tmp_path):
    model = network(name)
    export(model, tmp_path / "w.onnx", dtype="float64")
    xs = batch(3, 100, model.d, np.float64)
    (whole,) = session(tmp_path / "w.onnx").run(["y"], {"x": xs})
    assert agree(stream(tmp_path / "w.step.onnx", xs), whole)
    assert error(whole[2], model(xs[2])) <= TOLERANCE["float64"]


@pytest.mark.parametrize("target", ["gated-rnn", "gated-rnn-minimal", "lru-in-skip", "lstm", "gru"])
def test_compiled_networks_stay_attention(target, tmp_path):
    """Their weights are float64 and matter to the last digit: the graph keeps them, whatever x and y are."""
    attention = uh.random_attention(3, seed=2)
    compiled = uh.compile(attention, to=target, horizon=200)
    report = export(compiled.model, tmp_path / "w.onnx")
    assert (report["computes_in"], report["verified"]) == ("float64", True)
    xs = batch(2, 200, 3, np.float32)
    (ys,) = session(tmp_path / "w.onnx").run(["y"], {"x": xs})
    assert error(ys[1], attention(xs[1])) <= TOLERANCE["float32"]
    assert error(stream(tmp_path / "w.step.onnx", xs)[1], attention(xs[1])) <= TOLERANCE["float32"]


def test_gates_that_are_nearly_shut_stay_ajar(tmp_path):
    """onnxruntime's own σ(−42) is zero; what a GRU sums through such a gate would be lost."""
    random = np.random.default_rng(0)
    u, v, b = random.normal(size=(3, 4, 2)), np.zeros((3, 4, 4)), np.zeros((3, 4))
    b[2] = -42
    model = uh.GRU(u, v, b)
    xs = batch(1, 50, 2, np.float64)
    export(model, tmp_path / "w.onnx", dtype="float64")
    (ys,) = session(tmp_path / "w.onnx").run(None, {"x": xs})
    assert np.max(np.abs(model(xs[0]))) < 1e-15
    assert error(ys[0], model(xs[0])) < 1e-12


def test_float32_weights_widen_with_x(tmp_path):
    model = network("lstm", np.float32)
    assert export(model, tmp_path / "w.onnx", dtype="float64")["computes_in"] == "float64"
    xs = batch(2, 30, 4, np.float64)
    (ys,) = session(tmp_path / "w.onnx").run(["y"], {"x": xs})
    assert ys.dtype == np.float64
    assert agree(ys[1], as_dtype(model, np.float64)(xs[1]))
    assert agree(stream(tmp_path / "w.step.onnx", xs), ys)


def test_a_graph_as_a_function(tmp_path):
    model = network("lstm", np.float32)
    export(model, tmp_path / "w.onnx")
    function, xs = as_callable(tmp_path / "w.onnx"), sequence(20)
    assert input_size(tmp_path / "w.onnx") == 4
    assert function(xs).shape == (20, 5)
    assert agree(function(xs), model(xs), np.float32)
    with pytest.raises(uh.UnderhoodError, match=r"failed on a sequence of shape \(1, 20, 3\)"):
        function(sequence(20, 3))
    with pytest.raises(uh.UnderhoodError, match="Use the graph of the whole sequence"):
        as_callable(tmp_path / "w.step.onnx")
    (tmp_path / "bad.onnx").write_bytes(b"not a graph")
    with pytest.raises(uh.UnderhoodError, match="onnxruntime cannot run") as caught:
        as_callable(tmp_path / "bad.onnx")
    assert "\n" not in str(caught.value)
    with pytest.raises(uh.UnderhoodError, match="float32 or float64"):
        export(model, tmp_path / "x.onnx", dtype="float16")


def test_the_graphs_carry_no_unused_constants_and_our_names(tmp_path):
    import onnx

    export(network("lru"), tmp_path / "w.onnx")
    step = onnx.load(tmp_path / "w.step.onnx").graph
    assert [one.name for one in step.input] == ["x", "state_0", "state_1", "state_2", "state_3"]
    assert [one.name for one in step.output] == ["y", *(f"next_state_{index}" for index in range(4))]
    read = {name for node in step.node for name in node.input}
    assert all(one.name in read for one in step.initializer)
    assert not any(node.op_type == "Sigmoid" for node in step.node)
