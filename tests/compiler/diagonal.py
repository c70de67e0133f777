"""What the constructions of Mamba, Griffin and minGRU are tried on."""

import numpy as np

import underhood as uh


def attention(d, heads=1, seed=0, decay=None, **sizes):
    drawn = uh.random_attention(d, heads=heads, seed=seed, **sizes)
    weights = (drawn.w_value, drawn.w_key, drawn.w_query)
    return drawn if decay is None else uh.LinearAttention(*weights, decay=np.array(decay))


SOURCES = {
    "one head": attention(4, seed=1),
    "wide": attention(8, heads=3, seed=6),
    "rectangular": attention(3, heads=2, seed=3, d_key=2, d_value=4),
    "low rank": attention(5, seed=7, rank=2),
}
DECAYS = {
    "one head": attention(3, seed=8, decay=[0.9]),
    "heads": attention(2, heads=3, seed=9, decay=[0.0, 0.5, 1.0]),
}
# d from 2 to 8, heads from 1 to 3, seeds that no construction was tuned on.
MANY = [attention(2 + seed % 7, heads=1 + seed % 3, seed=1000 + seed) for seed in range(21)]


def holds(source, to, limit, horizon=200, factor=1000, **settings):
    """Compile, and look at inputs that are not the probes, too. The bound is at most `factor` × the error."""
    compiled = uh.compile(source, to=to, horizon=horizon, **settings)
    assert compiled.verified
    assert compiled.max_rel_error <= limit
    assert compiled.max_abs_error <= compiled.error_bound <= factor * compiled.max_abs_error
    xs = np.random.default_rng(99).uniform(-4, 4, (horizon, source.d))
    assert np.max(np.abs(compiled.model(xs) - source(xs))) <= compiled.error_bound
    return compiled
