"""jax → ONNX by jax2onnx, from the same `_step` that jax runs, and what its graphs need before they are right."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from underhood.core.arrays import DType, precision_of
from underhood.core.model import AbstractModel, as_dtype
from underhood.interop.program import trace


def to_graphs(model: AbstractModel, dtype: str = "float32") -> tuple[bytes, bytes]:
    """The whole graph and the step graph, serialised."""
    model = as_dtype(model, np.float64) if dtype == "float64" else model
    outer, inner = jnp.dtype(dtype), jnp.dtype(model.dtype)
    with precision_of(model), _x64(dtype == "float64"):
        program = trace(model).folded().without_displayed()
        step = program.step
        # A cell by itself puts out its state, and jax2onnx has one name for one value: y is then made from that.
        is_output = program.y == program.following[0]
        initial = jax.tree.leaves(model._initial_state())

        def whole(xs: Any) -> Any:
            states = [jnp.broadcast_to(one[None], (xs.shape[0], *one.shape)) for one in initial]

            def body(states: Any, x: Any) -> tuple[Any, Any]:
                return jax.vmap(step)(states, x)

            ys = jax.lax.scan(body, states, jnp.swapaxes(xs, 0, 1).astype(inner))[1]
            return jnp.swapaxes(ys, 0, 1).astype(outer)

        def one_step(x: Any, *states: Any) -> Any:
            following, y = jax.vmap(step)(list(states), x.astype(inner))
            return tuple(following) if is_output else (y.astype(outer), *following)

        shapes = [("batch", *one.shape) for one in initial]
        names = [f"state_{index}" for index in range(len(initial))]
        following = [f"next_{name}" for name in names]
        lower = _lowering(inner == np.float64, dtype)
        return (
            lower(whole, [("batch", "time", model.d)], ["x"], ["y"]),
            lower(one_step, [("batch", model.d), *shapes], ["x", *names], ([] if is_output else ["y"]) + following),
        )


def _lowering(double: bool, dtype: str) -> Callable[..., bytes]:
    """jax2onnx with our names; it makes every input as wide as the arithmetic, so that a narrower x gets a cast."""
    import jax2onnx
    import onnx

    def lower(function: Any, inputs: list[Any], input_names: list[str], output_names: list[str]) -> bytes:
        names = ["x_wide", *input_names[1:]] if double and dtype == "float32" else input_names
        made: Any = jax2onnx.to_onnx(
            function,
            inputs=inputs,
            model_name="underhood",
            enable_double_precision=double,
            input_names=names,
            output_names=output_names,
        )
        if output_names[0] != "y":
            _add_output(made.graph, output_names[0], onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
        if names[0] == "x_wide":
            given = made.graph.input[0]
            given.name, given.type.tensor_type.elem_type = "x", onnx.TensorProto.FLOAT
            made.graph.node.insert(0, onnx.helper.make_node("Cast", ["x"], ["x_wide"], to=onnx.TensorProto.DOUBLE))
        _correct(made.graph, np.float64 if double else np.float32)
        onnx.checker.check_model(made)
        return made.SerializeToString()

    return lower


def _add_output(graph: Any, source: str, dtype: int) -> None:
    """y as the first output, the same as `source` but for the dtype."""
    import onnx

    states = list(graph.output)
    graph.node.append(onnx.helper.make_node("Cast", [source], ["y"], to=dtype))
    del graph.output[:]
    shape = ["batch", states[0].type.tensor_type.shape.dim[1].dim_value]
    graph.output.extend([onnx.helper.make_tensor_value_info("y", dtype, shape), *states])


def _correct(graph: Any, dtype: DType) -> None:
    """Make σ precise near 0, and drop constants that nothing reads, on which onnxruntime would remark.

    onnxruntime computes σ(z) as 1 − σ(−z) for z < 0, and cuts z off at ±18 in float32: of the gates of a compiled
    GRU, σ(−42), nothing is left. 1/(1 + exp(−z)) keeps every digit.
    """
    import onnx

    nodes = list(graph.node)
    del graph.node[:]
    for node in nodes:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                _correct(attribute.g, dtype)
        graph.node.extend(_sigmoid(node, dtype) if node.op_type == "Sigmoid" else [node])
    used = _names_read(graph)
    kept = [one for one in graph.initializer if one.name in used]
    del graph.initializer[:]
    graph.initializer.extend(kept)


def _sigmoid(node: Any, dtype: DType) -> list[Any]:
    """σ(z) = 1 / (1 + exp(−z)), in place of the node."""
    import onnx

    (z,), (out,) = node.input, node.output
    one = onnx.numpy_helper.from_array(np.ones((), dtype))
    return [
        onnx.helper.make_node("Constant", [], [f"{out}_one"], value=one),
        onnx.helper.make_node("Neg", [z], [f"{out}_opposite"]),
        onnx.helper.make_node("Exp", [f"{out}_opposite"], [f"{out}_power"]),
        onnx.helper.make_node("Add", [f"{out}_power", f"{out}_one"], [f"{out}_below"]),
        onnx.helper.make_node("Div", [f"{out}_one", f"{out}_below"], [out]),
    ]


def _names_read(graph: Any) -> set[str]:
    """Names that the nodes of the graph, or of graphs within it, take as inputs or hand out."""
    names = {one.name for one in graph.output}
    for node in graph.node:
        names.update(node.input)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                names |= _names_read(attribute.g)
    return names


@contextlib.contextmanager
def _x64(on: bool) -> Iterator[None]:
    with jax.enable_x64(True) if on else contextlib.nullcontext():
        yield
