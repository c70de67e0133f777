"""x ← x + scale · after(layer(norm(x))): the residual branches that language models are made of.

A branch's layer either mixes steps (a cell with a state, or softmax attention) or acts on each step alone (an MLP).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from underhood.layers.held import factor, gate, gated
from underhood.layers.norm import Norm

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "silu": jax.nn.silu,
    "swish": jax.nn.silu,
    "gelu": lambda u: jax.nn.gelu(u, approximate=False),
    "gelu_pytorch_tanh": jax.nn.gelu,
    "relu": jax.nn.relu,
    "relu2": lambda u: jnp.square(jax.nn.relu(u)),
}


def normed(norm: Norm | None, x: Float[Array, "t d"]) -> Float[Array, "t d"]:
    """The norm of each step's vector."""
    return x if norm is None else norm(x[:, None])[:, 0]


class Affine(eqx.Module):
    """W x + b."""

    weight: Float[Array, "rows columns"]
    bias: Float[Array, " rows"] | None = None

    def __call__(self, x: Float[Array, "t columns"]) -> Float[Array, "t rows"]:
        y = x @ self.weight.T
        return y if self.bias is None else y + self.bias[None]


class GatedMLP(eqx.Module):
    """y = W_down (f(W_gate x) ⊙ W_up x)."""

    gate: Affine
    up: Affine
    down: Affine
    activation: str = eqx.field(static=True, default="silu")
    gate_scale: float = eqx.field(static=True, default=1.0)
    scale: float = eqx.field(static=True, default=1.0)

    def __call__(self, x: Float[Array, "t d"]) -> Float[Array, "t d"]:
        opened = self.gate(x) * self.gate_scale
        return self.down(gated(self.up(x), ACTIVATIONS[self.activation], opened)) * self.scale


class PlainMLP(eqx.Module):
    """y = W_down f(W_up x)."""

    up: Affine
    down: Affine
    activation: str = eqx.field(static=True, default="silu")

    def __call__(self, x: Float[Array, "t d"]) -> Float[Array, "t d"]:
        return self.down(factor(ACTIVATIONS[self.activation], self.up(x)))


class Experts(eqx.Module):
    """y = Σ_e p_e(x) expert_e(x) over the few experts that the router chooses, and a shared expert beside them.

    All experts see all steps, and what the router did not choose is multiplied by 0: exact, and simple at the sizes
    that fit on a laptop.
    """

    route: Callable[[Float[Array, "t d"]], Float[Array, "t e"]]
    up: Float[Array, "e two_m d"]  # f-branch first, then the other, where the experts are gated
    down: Float[Array, "e d m"]
    shared: Any = None
    shared_gate: Affine | None = None
    activation: str = eqx.field(static=True, default="silu")
    plain: bool = eqx.field(static=True, default=False)

    def __call__(self, x: Float[Array, "t d"]) -> Float[Array, "t d"]:
        weights, function = gate(self.route(x)), ACTIVATIONS[self.activation]

        def expert(total: Array, one: tuple[Array, Array, Array]) -> tuple[Array, None]:
            up, down, weight = one
            inner = x @ up.T
            if self.plain:
                inner = factor(function, inner)
            else:
                opened, value = jnp.split(inner, 2, axis=1)
                inner = gated(value, function, opened)
            return total + weight[:, None] * (inner @ down.T), None

        y, _ = jax.lax.scan(expert, jnp.zeros_like(x), (self.up, self.down, weights.T))
        if self.shared is not None:
            beside = self.shared(x)
            y = y + (beside if self.shared_gate is None else gate(jax.nn.sigmoid(self.shared_gate(x))) * beside)
        return y


class SoftmaxRouter(eqx.Module):
    """Weights of the `most` likeliest experts, each softmax(W x)_e, or these over their sum."""

    weight: Float[Array, "e d"]
    most: int = eqx.field(static=True)
    normalised: bool = eqx.field(static=True, default=True)

    def __call__(self, x: Float[Array, "t d"]) -> Float[Array, "t e"]:
        likely = jax.nn.softmax(x @ self.weight.T, axis=1)
        chosen, which = jax.lax.top_k(likely, self.most)
        if self.normalised:
            chosen = chosen / jnp.sum(chosen, axis=1, keepdims=True)
        return scattered(chosen, which, likely)


class TopRouter(eqx.Module):
    """Weights of the `most` experts with the largest W x, softmax among these alone."""

    weight: Float[Array, "e d"]
    most: int = eqx.field(static=True)

    def __call__(self, x: Float[Array, "t d"]) -> Float[Array, "t e"]:
        scores = x @ self.weight.T
        chosen, which = jax.lax.top_k(scores, self.most)
        return scattered(jax.nn.softmax(chosen, axis=1), which, scores)


def scattered(chosen: Float[Array, "t k"], which: Int[Array, "t k"], like: Float[Array, "t e"]) -> Float[Array, "t e"]:
    """The chosen weights at their experts, zeros elsewhere."""
    return jnp.zeros_like(like).at[jnp.arange(len(like))[:, None], which].set(chosen)


class Branch(eqx.Module):
    """x ← x + scale · after(layer(norm(x)))."""

    norm: Norm | None
    layer: Any
    after: Norm | None = None
    scale: float = eqx.field(static=True, default=1.0)

    @property
    def mixes(self) -> bool:
        """Whether its layer reads earlier steps."""
        return hasattr(self.layer, "_scan")

    def entering(self, x: Float[Array, "t d"]) -> Float[Array, "t d"]:
        return normed(self.norm, x)

    def leaving(self, x: Float[Array, "t d"], y: Float[Array, "t d"]) -> Float[Array, "t d"]:
        y = normed(self.after, y)
        return x + (y if self.scale == 1 else self.scale * y)

    def run(self, x: Float[Array, "t d"], state: Any) -> tuple[Float[Array, "t d"], Any, Float[Array, "t d"], Array]:
        """The stream after it, its layer's next state, and what the layer read and gave."""
        entered = self.entering(x)
        if self.mixes:
            given, state = self.layer._scan(entered, self.layer._initial_state() if state is None else state)
        else:
            given = self.layer(entered)
        return self.leaving(x, given), state, entered, given


class Block(eqx.Module):
    """One layer of a model, as config.json counts them: its branches in turn, at most one of which mixes steps."""

    branches: tuple[Branch, ...]

    @property
    def mixing(self) -> int | None:
        """Which branch mixes steps."""
        return next((index for index, branch in enumerate(self.branches) if branch.mixes), None)

    @property
    def mixer(self) -> Any:
        index = self.mixing
        return None if index is None else self.branches[index].layer

    def __call__(self, x: Float[Array, "t d"]) -> Float[Array, "t d"]:
        return self.run(x)[0]

    def run(self, x: Float[Array, "t d"], state: Any = None) -> tuple[Float[Array, "t d"], Any, tuple[Array, Array]]:
        """The stream after it, the mixer's next state, and what the mixer read and gave."""
        seen, after = (x, jnp.zeros_like(x)), state
        for index, branch in enumerate(self.branches):
            x, now, entered, given = branch.run(x, state)
            if index == self.mixing:
                seen, after = (entered, given), now
        return x, after, seen


class Network(eqx.Module):
    """Tokens (t,) → logits (t, vocabulary): embedding, blocks, norm, head."""

    embedding: Float[Array, "v d"]
    blocks: tuple[Block, ...]
    norm: Norm | None
    head: Float[Array, "v d"] | None = None
    """None: that of the embedding."""
    head_bias: Float[Array, " v"] | None = None
    entering_norm: Norm | None = None
    embedding_scale: float = eqx.field(static=True, default=1.0)
    logit_scale: float = eqx.field(static=True, default=1.0)
    logit_cap: float | None = eqx.field(static=True, default=None)

    @property
    def d(self) -> int:
        return self.embedding.shape[1]

    @property
    def vocabulary(self) -> int:
        return self.embedding.shape[0]

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(self, eqx.is_inexact_array)))

    def embedded(self, tokens: Int[Array, " t"]) -> Float[Array, "t d"]:
        x = self.embedding[tokens] * jnp.asarray(self.embedding_scale, self.embedding.dtype)
        return normed(self.entering_norm, x)

    def logits(self, x: Float[Array, "t d"]) -> Float[Array, "t v"]:
        """From the residual stream after the last block."""
        weight = self.embedding if self.head is None else self.head
        y = normed(self.norm, x) @ weight.T
        if self.head_bias is not None:
            y = y + self.head_bias[None]
        y = y if self.logit_scale == 1 else y * self.logit_scale
        return y if self.logit_cap is None else self.logit_cap * factor(jnp.tanh, y / self.logit_cap)

    def __call__(self, tokens: Int[Array, " t"]) -> Float[Array, "t v"]:
        x = self.embedded(tokens)
        for block in self.blocks:
            x = block(x)
        return self.logits(x)
