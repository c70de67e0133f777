"""Networks that the exports are tested with, and sequences for them."""

import numpy as np

import underhood as uh
from underhood.core.model import ARCHITECTURES, as_dtype

SEEDS = {"one": 0, "two": 7}


def network(name, dtype=np.float64, seed=0):
    """A model of the registry with every weight random, biases too; two layers where it has layers."""
    if name == "attention":
        return as_dtype(uh.random_attention(4, heads=2, d_key=3, d_value=5, seed=seed), dtype)
    if name == "decayed-attention":
        drawn = uh.random_attention(4, heads=2, seed=seed)
        return as_dtype(uh.LinearAttention(drawn.w_value, drawn.w_key, drawn.w_query, np.array([0.9, 1.0])), dtype)
    if name in ("lstm-cell", "gru-cell", "gru-after-cell"):
        return network(name.removesuffix("-cell"), dtype, seed).cells[0]
    layers = 1 if name.startswith("gated-rnn") else 2
    return shaken(uh.make_model(name, 4, d_out=5, hidden=7, layers=layers, seed=seed, dtype=dtype), seed)


def shaken(model, seed=0):
    """Biases start at zero, where a lost or misplaced one would not show."""
    import equinox as eqx
    import jax

    random = np.random.default_rng(seed)

    def moved(leaf):
        noise = np.asarray(0.1 * random.normal(size=leaf.shape), leaf.dtype)
        return np.asarray(leaf) + noise if not np.any(np.asarray(leaf)) else leaf

    with jax.enable_x64(True):
        leaves, treedef = jax.tree.flatten(model)
        return jax.tree.unflatten(
            treedef, [jax.numpy.asarray(moved(leaf)) if eqx.is_inexact_array(leaf) else leaf for leaf in leaves]
        )


NAMES = (*ARCHITECTURES, "attention", "decayed-attention", "lstm-cell", "gru-cell", "gru-after-cell")


def sequence(length, d=4, seed=1):
    return np.random.default_rng(seed).uniform(-2, 2, (length, d))


def same_bits(one, other):
    import jax

    assert jax.tree.structure(one) == jax.tree.structure(other)
    for left, right in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert left.dtype == right.dtype
        assert np.asarray(left).tobytes() == np.asarray(right).tobytes()
    return True
