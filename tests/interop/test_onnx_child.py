"""Graphs of others run in a child with limits of memory and time; a bomb is one line, and the parent stays small."""

import resource

import numpy as np
import onnx
import pytest

import underhood as uh
from underhood.interop import onnx_child
from underhood.interop.onnx import as_callable

helper, FLOAT, INT = onnx.helper, onnx.TensorProto.FLOAT, onnx.TensorProto.INT64


def saved(path, nodes, tensors, gives):
    given = helper.make_tensor_value_info("x", FLOAT, ["t", 2])
    graph = helper.make_graph(nodes, "g", [given], [helper.make_tensor_value_info(gives, FLOAT, None)], tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def test_a_plain_graph(tmp_path):
    two = onnx.numpy_helper.from_array(np.float32(2), "two")
    run = as_callable(saved(tmp_path / "g.onnx", [helper.make_node("Mul", ["x", "two"], ["y"])], [two], "y"))
    xs = np.random.default_rng(0).normal(size=(5, 2))
    np.testing.assert_allclose(run(xs), 2 * np.float32(xs))


def test_a_graph_that_asks_for_much_memory(tmp_path):
    size = onnx.numpy_helper.from_array(np.array([2**33], np.int64), "size")
    zeros = helper.make_node("ConstantOfShape", ["size"], ["z"])
    total = helper.make_node("ReduceSum", ["z"], ["s"], keepdims=0)
    path = saved(tmp_path / "g.onnx", [zeros, total, helper.make_node("Add", ["x", "s"], ["y"])], [size], "y")
    assert path.stat().st_size < 300
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(uh.UnderhoodError) as caught:
        as_callable(path)(np.ones((3, 2)))
    assert "\n" not in str(caught.value)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**20  # kB


def test_a_graph_that_never_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_child, "SECONDS", 4.0)
    count = onnx.numpy_helper.from_array(np.array(2**62, np.int64), "count")
    yes = onnx.numpy_helper.from_array(np.array(True), "yes")
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Add", ["carried", "carried"], ["next"])],
        "body",
        [
            helper.make_tensor_value_info("i", INT, []),
            helper.make_tensor_value_info("go", onnx.TensorProto.BOOL, []),
            helper.make_tensor_value_info("carried", FLOAT, ["t", 2]),
        ],
        [
            helper.make_tensor_value_info("on", onnx.TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", FLOAT, ["t", 2]),
        ],
    )
    loop = helper.make_node("Loop", ["count", "yes", "x"], ["y"], body=body)
    run = as_callable(saved(tmp_path / "g.onnx", [loop], [count, yes], "y"))
    with pytest.raises(uh.UnderhoodError, match="longer than 4 seconds"):
        run(np.ones((3, 2)))
