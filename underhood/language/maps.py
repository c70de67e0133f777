"""Attention maps of a layer in a text: those of our cells, and those of softmax attention made the same way."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from underhood.core.errors import UnderhoodError
from underhood.core.memory import require_memory
from underhood.explain.attention_map import attention_map
from underhood.explain.maps import AttentionMap, Completeness, Reduce
from underhood.language.groups import only
from underhood.language.softmax import SoftmaxMixer


def map_of(reading: Any, layer: Any, head: Any, settings: dict[str, Any]) -> AttentionMap:
    """`Reading.map`."""
    mixer = reading.model._block(layer).mixer
    if mixer is None:
        raise UnderhoodError(f"layer {layer} mixes no steps: it is an MLP", remedy="Choose another layer.")
    if reading._patch.get(int(layer)):
        raise UnderhoodError("a map begins with an empty state", remedy="Read the text without `patch`.")
    xs = reading.inputs(layer)
    mixer = mixer if head is None else only(mixer, head)
    if isinstance(mixer, SoftmaxMixer):
        return softmax_map(mixer, xs, **settings)
    return attention_map(mixer, xs, **settings)


def softmax_map(mixer: SoftmaxMixer, xs: Float[np.ndarray, "t d"], reduce: Reduce = "norm", **settings: Any) -> Any:
    """c[t, s] = W_o (g_t ⊙ α[t, s] v_s) over the heads: exact, with the softmax weights and gates held."""
    if settings.get("kind") not in (None, "exact"):
        raise UnderhoodError("expected kind exact for softmax attention", repr(settings["kind"]))
    length = len(xs)
    require_memory(4 * length * length * (mixer.heads + 4), f"a map of {length} steps")
    weights, values, opened, outputs = (np.asarray(one) for one in _parts(mixer, jnp.asarray(xs)))
    heads = mixer.heads
    out = np.asarray(mixer.o_proj.weight).reshape(mixer.d_out, heads, -1)

    def row(t: int) -> Float[np.ndarray, "s d_out"]:
        moved = np.einsum("hs,shv,hv->shv", weights[:, t, : t + 1], values[: t + 1], opened[t])
        made = np.einsum("shv,dhv->sd", moved, out)
        if mixer.o_proj.bias is not None:
            made[t] += np.asarray(mixer.o_proj.bias)
        return made

    told = np.zeros_like(outputs)
    shown = weights if reduce == "none" else np.zeros((1, length, length), outputs.dtype)
    for t in range(length):
        contributions = row(t)
        told[t] = contributions.sum(axis=0)
        if reduce != "none":
            sizes = np.linalg.norm(contributions, axis=1) if reduce == "norm" else contributions.sum(axis=1)
            shown[0, t, : t + 1] = sizes
    names = tuple(f"head {index}" for index in range(heads)) if reduce == "none" else ("all",)
    return AttentionMap(shown, "exact", Completeness.of(outputs, told), reduce, names, row)


@eqx.filter_jit
def _parts(mixer: SoftmaxMixer, xs: Float[Array, "t d"]) -> tuple[Array, Array, Array, Array]:
    """Softmax weights, values of each head, the gates of its outputs, and the outputs."""
    weights, values, opened, _ = mixer._weights(xs, mixer._initial_state())
    values = jnp.repeat(values, mixer.heads // mixer.key_heads, axis=1)
    shape = (len(xs), *values.shape[1:])
    gates = jnp.ones(shape, xs.dtype) if opened is None else jax.nn.sigmoid(opened).reshape(shape)
    return weights, values, gates, mixer._scan(xs, mixer._initial_state())[0]
