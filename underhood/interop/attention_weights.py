"""W_V, W_K and W_Q out of named tensors: by their names, or split from a torch.nn.MultiheadAttention.

    in_proj_weight = [W_Q; W_K; W_V], each of H blocks of rows, one a head;  W_V of head h: W_O[:, block h] W_V[block h]

What is taken over is the weights. torch's softmax and its factor 1/√d_k are no part of linear attention, and
biases have no place in Eq. 1: a bias that is not zero is refused.
"""

from __future__ import annotations

import numpy as np

from underhood.attention.linear import LinearAttention
from underhood.attention.softmax import SoftmaxAttention
from underhood.core.errors import UnderhoodError
from underhood.interop.tensors import Tensors, listed

NAMES = {  # ours, the paper's
    "w_value": ("w_value", "W_V", "v_proj_weight"),
    "w_key": ("w_key", "W_K", "k_proj_weight"),
    "w_query": ("w_query", "W_Q", "q_proj_weight"),
}
BIASES = ("in_proj_bias", "out_proj.bias", "bias_k", "bias_v")


def attention_from(tensors: Tensors, heads: int = 1) -> LinearAttention:
    """A linear attention from matrices (rows, d), split into `heads`, or arrays with a leading heads axis."""
    if heads < 1:
        raise UnderhoodError("expected heads of 1 or more", heads)
    left = dict(tensors)
    for name in BIASES:
        bias = left.pop(name, None)
        if bias is not None and np.any(bias):
            what = f"{name} is not zero, and the attention of Eq. 1 has no biases"
            raise UnderhoodError(what, remedy="Train without biases.")
    value, key, query = _three(left)
    output, decay = left.pop("out_proj.weight", None), left.pop("decay", None)
    if left:
        remedy = "Known: in_proj_weight, out_proj.weight, or w_value, w_key, w_query and decay; see docs/format.md."
        raise UnderhoodError(f"unknown tensors for an attention: {listed(left)}", remedy=remedy)
    if value.ndim == key.ndim == query.ndim == 3:
        if output is not None or heads not in (1, len(value)):
            got = (
                f"{len(value)} heads in the arrays, heads={heads}, out_proj {'given' if output is not None else 'none'}"
            )
            raise UnderhoodError("expected no out_proj and no other heads beside arrays with a heads axis", got)
        return LinearAttention(value, key, query, decay)
    if not value.ndim == key.ndim == query.ndim == 2:
        raise UnderhoodError("expected three matrices, or three arrays with a heads axis", listed(tensors))
    key, query = _blocks("w_key", key, heads), _blocks("w_query", query, heads)
    return LinearAttention(_values(value, output, heads), key, query, decay)


def _three(left: Tensors) -> list[np.ndarray]:
    if "in_proj_weight" in left:
        joint = left.pop("in_proj_weight")
        if joint.ndim != 2 or len(joint) != 3 * joint.shape[1]:
            raise UnderhoodError("expected in_proj_weight of shape (3·d, d): queries, keys, values", joint.shape)
        query, key, value = np.split(joint, 3)
        return [value, key, query]
    found = []
    for name, spellings in NAMES.items():
        here = [spelling for spelling in spellings if spelling in left]
        if len(here) != 1:
            rule = f"expected {name} (or {', '.join(spellings[1:])}) once"
            raise UnderhoodError(rule, ", ".join(here) or listed(left), "See docs/format.md.")
        found.append(left.pop(here[0]))
    return found


def _values(value: np.ndarray, output: np.ndarray | None, heads: int) -> np.ndarray:
    """Heads of torch stand one after another in the output; Eq. 1 sums them, each with the output's size."""
    if heads == 1 and output is None:
        return value
    rows = len(value)
    output = np.eye(rows, dtype=value.dtype) if output is None else output
    if output.ndim != 2 or output.shape[1] != rows:
        raise UnderhoodError(f"expected out_proj.weight of shape (outputs, {rows})", output.shape)
    blocks = _blocks("w_value", value, heads)
    columns = np.split(output, heads, axis=1)
    return np.stack([column @ block for column, block in zip(columns, blocks, strict=True)])


def _blocks(name: str, weight: np.ndarray, heads: int) -> np.ndarray:
    if len(weight) % heads:
        raise UnderhoodError(f"expected rows of {name} that {heads} heads divide", f"{len(weight)} rows")
    return weight.reshape(heads, -1, weight.shape[1])


def softmax_from(tensors: Tensors, heads: int) -> SoftmaxAttention:
    """The tensors of a torch.nn.MultiheadAttention as causal softmax attention, with its biases and 1/√d_k."""
    if "in_proj_weight" not in tensors or any(name in tensors for name in ("bias_k", "bias_v")):
        remedy = "It needs one size of queries, keys and values, and no bias_k or bias_v."
        raise UnderhoodError("expected a torch.nn.MultiheadAttention with in_proj_weight", listed(tensors), remedy)
    query, key, value = np.split(np.asarray(tensors["in_proj_weight"], np.float64), 3)
    output = np.asarray(tensors["out_proj.weight"], np.float64)
    joint = np.asarray(tensors.get("in_proj_bias", np.zeros(3 * len(query))), np.float64)
    of_query, _, of_value = np.split(joint, 3)  # a bias of keys moves all scores of a query alike
    bias = output @ of_value + np.asarray(tensors.get("out_proj.bias", np.zeros(len(output))), np.float64)
    dtype = tensors["in_proj_weight"].dtype
    parts = (_values(value, output, heads), _blocks("w_key", key, heads), _blocks("w_query", query, heads))
    biases = (of_query.reshape(heads, -1), bias) if np.any(joint) or np.any(bias) else (None, None)
    arrays = (None if part is None else part.astype(dtype) for part in (*parts, *biases))
    return SoftmaxAttention(*arrays, scale=(len(query) // heads) ** -0.5)
