"""What a matrix memory is asked to compute is the attention, or the gated RNN, itself; and its bounds hold."""

import numpy as np
import pytest

import underhood as uh
from tests.architectures.references import reference
from tests.compiler.test_compile import gated_source
from tests.tolerance import agree, error
from underhood.compiler.envelope import Envelope
from underhood.compiler.heads import blocks, singles, state_products, states

ENVELOPE = Envelope(4.0, 30, np.dtype(np.float64))
SOURCES = {
    "square": {"d": 4, "seed": 1},
    "heads": {"d": 3, "heads": 3, "seed": 2},
    "rectangular": {"d": 3, "d_key": 2, "d_value": 4, "heads": 2, "seed": 2},
    "low rank": {"d": 5, "rank": 2, "heads": 2, "seed": 3},
}


def run(heads, xs):
    """The definition, in NumPy: outputs (t, d_o), and what each head reads."""
    with_one = np.append(xs, np.ones((len(xs), 1)), axis=1) if xs.shape[1] < heads.keys.shape[2] else xs
    values, keys, queries = (
        np.einsum("hnd,td->thn", rows, with_one) for rows in (heads.values, heads.keys, heads.queries)
    )
    memory, reads = np.zeros((len(heads.decay), keys.shape[2], values.shape[2])), []
    for v, k, q in zip(values, keys, queries, strict=True):
        memory = heads.decay[:, None, None] * memory + k[:, :, None] * v[:, None]
        reads.append(np.einsum("hkv,hk->hv", memory, q))
    return np.array([heads.out @ read.ravel() for read in reads]), np.array(reads)


@pytest.mark.parametrize("form", [blocks, singles])
@pytest.mark.parametrize("settings", SOURCES.values(), ids=SOURCES)
def test_both_forms_are_the_attention(form, settings):
    drawn = uh.random_attention(**settings)
    decay = np.linspace(0.4, 1.0, drawn.heads)
    source = uh.LinearAttention(drawn.w_value, drawn.w_key, drawn.w_query, decay=decay)
    heads = form(source, ENVELOPE)
    random = np.random.default_rng(0)
    for xs in (random.uniform(-4, 4, (30, source.d)), np.tile(4 * random.choice([-1.0, 1.0], source.d), (30, 1))):
        outputs, reads = run(heads, xs)
        assert agree(outputs, reference(source, xs))
        assert np.all(np.abs(reads) <= heads.read_bounds * (1 + 1e-12))
        assert np.all(np.abs(outputs) <= heads.output_bounds * (1 + 1e-12))
    assert error(run(heads, xs)[0], reference(drawn, xs)) > 1e-3 or drawn.heads == 1  # another decay is noticed


def test_a_symmetric_memory_takes_fewer_numbers():
    """r·s − o(o − 1)/2: keys and values share all of x."""
    for d in (2, 4, 6):
        assert len(singles(uh.random_attention(d, seed=1), ENVELOPE).decay) == d * (d + 1) // 2
    wide = blocks(uh.random_attention(4, heads=2, seed=1), ENVELOPE)
    assert wide.keys.shape == (2, 4, 5)


def test_heads_that_are_zero_are_left_out():
    two = uh.random_attention(3, heads=2, seed=1)
    silent = np.array(two.w_value)
    silent[1] = 0
    source = uh.LinearAttention(silent, two.w_key, two.w_query)
    assert len(blocks(source, ENVELOPE).decay) == 1
    assert singles(uh.random_attention(3, rank=0), ENVELOPE) is None
    assert np.all(blocks(uh.random_attention(3, rank=0), ENVELOPE).output_bounds == 0)


def test_all_signs_bound_the_scores_from_above_and_better_than_each_key_apart():
    heads = blocks(uh.random_attention(4, seed=1), ENVELOPE)
    apart = heads.steps * np.sum(heads.key_bounds * heads.query_bounds, axis=1)
    random = np.random.default_rng(0)
    corners = np.append(4 * random.choice([-1.0, 1.0], (2, 5000, 4)), np.ones((2, 5000, 1)), axis=2)
    scores = np.sum(np.abs((corners[0] @ heads.keys[0].T) * (corners[1] @ heads.queries[0].T)), axis=1)
    assert heads.steps[0] * scores.max() <= heads.score_bounds[0] < apart[0]


@pytest.mark.parametrize("form", [blocks, singles])
@pytest.mark.parametrize("settings", SOURCES.values(), ids=SOURCES)
def test_one_input_bounds_all_products_together(form, settings):
    """Σ |out v k q| of one x and one x′ anywhere in the box, corners and inside."""
    heads = form(uh.random_attention(**settings), ENVELOPE)
    random, shape = np.random.default_rng(0), (2, 4000, settings["d"])
    drawn = np.concatenate([4 * random.choice([-1.0, 1.0], shape), random.uniform(-4, 4, shape)], axis=1)
    now, then = np.pad(drawn, ((0, 0), (0, 0), (0, 1)), constant_values=1.0)
    values, keys = (np.abs(np.einsum("hnx,tx->thn", rows, then)) for rows in (heads.values, heads.keys))
    scores = np.sum(keys * np.abs(np.einsum("hnx,tx->thn", heads.queries, now)), axis=2)
    reads = heads.steps[:, None] * values * scores[:, :, None]
    most = np.max(reads.reshape(len(reads), -1) @ np.abs(heads.out).T, axis=0)
    assert np.all(most <= heads.joint_bounds * (1 + 1e-12))
    assert np.all(heads.joint_bounds <= heads.output_bounds)
    assert np.max(most) > 0.5 * np.max(heads.joint_bounds)  # half of it would be no bound


def test_beyond_ten_inputs_each_factor_is_bounded_by_itself():
    heads = blocks(uh.random_attention(11, rank=2, seed=1), ENVELOPE)
    assert np.array_equal(heads.joint_bounds, heads.output_bounds)


def test_two_layers_are_the_gated_rnn():
    source, xs = gated_source(), np.random.default_rng(0).uniform(-4, 4, (30, 3))
    hidden, _ = run(states(source, ENVELOPE), xs)
    assert np.all(hidden[:, -1] == 1)
    outputs, _ = run(state_products(source, ENVELOPE), hidden)
    assert agree(outputs, reference(source, xs))
