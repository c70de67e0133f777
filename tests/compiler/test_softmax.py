"""Softmax attention compiled: bounds against random and hostile inputs, exactness of the polynomial, refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import underhood as uh
from underhood.compiler.kernels import average_error, kernel_error, score_bound


def attention(d, d_key, heads, *, seed=0, scores=2.0, biased=False, d_value=None):
    """Random heads with scores within ±`scores` for inputs within ±1."""
    random = np.random.default_rng(seed)
    w_value, w_key, w_query = (random.normal(size=(heads, rows, d)) for rows in (d_value or d, d_key, d_key))
    bias_query = random.normal(size=(heads, d_key)) if biased else None
    plain = uh.SoftmaxAttention(w_value, w_key, w_query, bias_query=bias_query)
    return uh.SoftmaxAttention(w_value, w_key, w_query, bias_query=bias_query, scale=scores / reached(plain))


def reached(model, input_bound=1.0):
    """The largest score, by all corners."""
    corners = input_bound * np.array(np.meshgrid(*[[-1.0, 1.0]] * model.d)).reshape(model.d, -1).T
    most = 0.0
    for head in range(model.heads):
        queries = corners @ np.asarray(model.w_query[head]).T
        queries = queries if model.bias_query is None else queries + np.asarray(model.bias_query[head])
        most = max(most, np.max(np.abs(model.scale * queries @ (corners @ np.asarray(model.w_key[head]).T).T)))
    return float(most)


def hostile(model, source, length, input_bound, seed=0, steps=30):
    """Gradient ascent on the error, from random corners; back into the box after each step."""
    random = np.random.default_rng(seed)

    @jax.jit
    def slope(xs):
        return jax.value_and_grad(lambda xs: jnp.max(jnp.abs(model(xs) - source(xs))))(xs)

    with jax.enable_x64(True):
        xs, worst = jnp.asarray(random.uniform(-1, 1, (length, source.d)) * input_bound), 0.0
        for _ in range(steps):
            error, gradient = slope(xs)
            worst = max(worst, float(error))
            xs = jnp.clip(xs + 0.1 * input_bound * jnp.sign(gradient), -input_bound, input_bound)
    return worst


def errors_met(compiled, source, input_bound=1.0, horizon=500, seed=1):
    random = np.random.default_rng(seed)
    shape = (horizon, source.d)
    sequences = [
        input_bound * random.uniform(-1, 1, shape),
        input_bound * random.choice([-1.0, 1.0], shape),
        np.tile(input_bound * random.choice([-1.0, 1.0], source.d), (horizon, 1)),
        input_bound * np.sign(np.sin(np.arange(horizon)[:, None] * random.uniform(0.1, 3, source.d))),
    ]
    found = [float(np.max(np.abs(compiled.model(xs) - source.naive(xs)))) for xs in sequences]
    return [*found, *(hostile(compiled.model, source, length, input_bound, seed) for length in (2, 6))]


@pytest.mark.parametrize(
    ("target", "d", "d_key", "heads", "tolerance"),
    [("gla", 2, 2, 1, 1e-3), ("gla", 4, 2, 2, 1e-6), ("mlstm", 3, 2, 1, 1e-3), ("mlstm", 2, 2, 2, 1e-6)],
)
def test_bound_holds_and_says_something(target, d, d_key, heads, tolerance):
    source = attention(d, d_key, heads)
    compiled = uh.compile(source, to=target, input_bound=1.0, horizon=500, tolerance=tolerance)
    met = max(errors_met(compiled, source))
    largest = np.max(np.abs(np.asarray(source.w_value)).sum(axis=(0, 2)))
    assert compiled.verified and compiled.evidence.max_rel_error <= tolerance
    assert met <= compiled.error_bound <= 1000 * met
    assert compiled.error_bound <= 1.01 * tolerance * largest


@pytest.mark.slow
@pytest.mark.parametrize("target", ["gla", "mlstm"])
@pytest.mark.parametrize(("d", "d_key", "heads"), [(4, 4, 1), (6, 4, 1), (6, 3, 2), (5, 2, 2), (6, 4, 2)])
@pytest.mark.parametrize("tolerance", [1e-3, 1e-6])
def test_bound_holds_at_every_size(target, d, d_key, heads, tolerance):
    test_bound_holds_and_says_something(target, d, d_key, heads, tolerance)


@pytest.mark.parametrize("target", ["gla", "mlstm"])
def test_polynomial_attention_is_held_exactly(target):
    source = attention(4, 2, 2, biased=True)
    near = uh.polynomial_attention(source, input_bound=1.0, tolerance=1e-2)
    compiled = uh.compile(near.attention, to=target, input_bound=1.0, horizon=500)
    met = max(errors_met(compiled, near.attention))
    assert 0 < met <= min(1e-10, compiled.error_bound)
    assert max(errors_met(compiled, source)) > 1e-5  # control: the softmax itself is further away


def test_features_by_hand_compile_too():
    source = attention(3, 2, 1, scores=1.0)
    features = uh.PolynomialFeatures.of(uh.exponential(5, 1.0), 2)
    by_hand = uh.FeatureAttention(source.w_value, source.w_key, source.scale * np.asarray(source.w_query), features)
    compiled = uh.compile(by_hand, to="gla", input_bound=1.0, horizon=100)
    assert max(errors_met(compiled, by_hand, horizon=100)) <= min(1e-10, compiled.error_bound)


@pytest.mark.parametrize("biased", [False, True])
def test_polynomial_attention(biased):
    source = attention(4, 3, 2, biased=biased)
    near = uh.polynomial_attention(source, input_bound=1.0, tolerance=1e-4)
    assert near.score_bound == pytest.approx(2.0, rel=1e-6)
    xs = np.random.default_rng(2).choice([-1.0, 1.0], (400, 4))
    error = np.max(np.abs(near.attention(xs) - source(xs)))
    assert near.error_bound / 1000 < error <= near.error_bound
    assert (
        near.features
        == near.attention.features.powers.shape[1]
        < uh.PolynomialFeatures.of(uh.exponential(near.degree, 2.0), 3).count(3)
    )


def test_a_given_degree():
    source = attention(4, 2, 1)
    errors = [uh.polynomial_attention(source, input_bound=1.0, degree=n).epsilon for n in (2, 4, 6)]
    assert errors == pytest.approx([uh.exponential(n, 2.0).error for n in (2, 4, 6)], rel=1e-2)


@pytest.mark.parametrize("d", [2, 5, 15])
def test_no_score_is_beyond_the_bound(d):
    """Exact at few inputs; a bound at many."""
    random = np.random.default_rng(d)
    keys, queries = random.normal(size=(2, 3, d))
    offset = random.normal(size=(3, 1))
    rows = np.concatenate([queries, offset], axis=1)
    bound = score_bound(rows, np.pad(keys, ((0, 0), (0, 1))), 0.7)
    corners = 0.7 * random.choice([-1.0, 1.0], (4000, d))
    seen = np.max(np.abs((corners @ queries.T + offset.T) @ (corners @ keys.T).T))
    assert seen <= bound * (1 + 1e-12)
    if d < 6:
        assert bound == pytest.approx(seen)


@pytest.mark.parametrize("error", [1e-6, 0.01, 0.5, 0.99])
def test_averages_move_no_further_and_as_far(error):
    """2 (1 − √(1 − ε²))/ε is met by two values ±1 with factors 1 ± ε, and by no weights exceeded."""
    bound, random = average_error(error), np.random.default_rng(0)
    share = (1 + (-1 + np.sqrt(1 - error**2)) / error) / 2

    def moved(weights, factors, values):
        weighted = weights * factors
        return np.sum(weighted * values) / np.sum(weighted) - np.sum(weights * values) / np.sum(weights)

    assert moved(np.array([share, 1 - share]), 1 + np.array([error, -error]), np.array([1, -1])) == pytest.approx(
        bound, rel=1e-6
    )
    assert error <= bound <= 2 * error / (1 - error)
    assert kernel_error(bound) == pytest.approx(error)
    for _ in range(200):
        weights, values = random.exponential(size=5), random.uniform(-1, 1, 5)
        assert abs(moved(weights, 1 + error * random.choice([-1, 1], 5), values)) <= bound * (1 + 1e-9)


def test_low_rank_keys_take_fewer_features():
    source = attention(6, 2, 1)
    wide = uh.SoftmaxAttention(
        source.w_value,
        *(np.concatenate([w, w, w], axis=1) for w in (source.w_key, source.w_query)),
        scale=source.scale / 3,
    )
    settings = {"input_bound": 1.0, "tolerance": 1e-3}
    assert uh.polynomial_attention(wide, **settings).features <= uh.polynomial_attention(source, **settings).features


def test_no_scores_at_all():
    """Keys of zero: the average of all values so far."""
    source = uh.SoftmaxAttention(np.eye(2), np.zeros((1, 2)), np.ones((1, 2)))
    compiled = uh.compile(source, to="gla", input_bound=1.0, horizon=50)
    xs = np.random.default_rng(0).uniform(-1, 1, (50, 2))
    assert compiled.layers == 1
    assert np.allclose(compiled.model(xs), np.cumsum(xs, axis=0) / np.arange(1, 51)[:, None], atol=1e-9)


def test_the_memory_layer_in_xlstm_itself():
    torch = pytest.importorskip("torch")
    pytest.importorskip("xlstm")
    source = attention(3, 2, 1)
    compiled = uh.compile(source, to="mlstm", input_bound=1.0, horizon=100, tolerance=1e-3)
    *below, last = compiled.model.cells
    xs = np.random.default_rng(0).uniform(-1, 1, (100, 3))
    with jax.enable_x64(True):
        signal = compiled.model.embedding(jnp.asarray(xs))
        for cell in below:
            signal = cell(signal)
    module = uh.to_torch(uh.compile(source, to="mlstm", input_bound=1.0, horizon=100, tolerance=1e-3).model.cells[-1])
    with torch.no_grad():
        ys = module.float()(torch.tensor(np.asarray(signal)[None], dtype=torch.float32))[0].numpy()
    assert type(module).__name__ == "mLSTMLayer" and last.d == module.config.embedding_dim
    assert np.max(np.abs(ys[:, :3] - source(xs))) <= compiled.error_bound + 1e-4


@pytest.mark.parametrize("target", ["gated-rnn", "gated-rnn-minimal", "lru", "lru-in-skip"])
def test_polynomials_cannot_divide(target):
    with pytest.raises(uh.NotConstructible, match="in no number of layers") as refusal:
        uh.compile(attention(2, 2, 1), to=target)
    assert refusal.value.needs is None
    assert refusal.value.as_data()["refused"]["source"] == "docs/softmax.md"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"to": "lstm"}, "no construction of lstm from normalised attention. Use `to` of 'gla', 'mlstm'"),
        ({"to": "gla", "layers": 1}, "gla needs 3 layers here"),
        ({"to": "gla", "input_bound": 6.0}, r"scores up to 72, which .* What fits: an input_bound of"),
        ({"to": "gla", "input_bound": float("nan")}, "input_bound above 0"),
        ({"to": "gla", "tolerance": 0.0}, "a tolerance above 0"),
        ({"to": "gla", "dtype": "float32", "tolerance": 1e-7}, "an error bound within 10 × the tolerance"),
        ({"to": "gla", "horizon": 0}, "a horizon from 1"),
        ({"to": "spam"}, "unknown target"),
    ],
)
def test_refusals(change, says):
    with pytest.raises(uh.UnderhoodError, match=says):
        uh.compile(attention(2, 2, 1), **{"input_bound": 1.0, **change})


def test_what_would_be_too_large_is_named():
    with pytest.raises(
        uh.UnderhoodError, match=r"[\d,]+ features in each head, .* for degree \d+ .* What fits: .*input_bound"
    ):
        uh.compile(attention(7, 7, 1, scores=3.0), to="gla", input_bound=1.0, tolerance=1e-6)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (uh.SoftmaxAttention(*np.ones((3, 2, 2)), window=3), "expected attention to all steps"),
        (uh.FeatureAttention(*np.ones((3, 2, 2)), uh.EluFeatures()), "polynomial features with a normaliser; got elu"),
        (
            uh.FeatureAttention(*np.ones((3, 2, 2)), uh.PolynomialFeatures.of([1.0, 1.0], 2), normalised=False),
            "got no division",
        ),
        (uh.FeatureAttention(*np.ones((3, 2, 2)), uh.PolynomialFeatures.of([1.0, 1.0], 2)), "stays positive"),
    ],
)
def test_sources_refused(source, says):
    with pytest.raises(uh.UnderhoodError, match=says):
        uh.compile(source, to="gla", input_bound=1.0)
