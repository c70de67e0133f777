"""The sparse form of an LRU: the same function as the written-out one, everything that a model can do, in less room."""

import equinox as eqx
import jax
import numpy as np
import pytest

import underhood as uh
from tests.tolerance import error
from underhood.compiler.compile import compile_cost
from underhood.compiler.envelope import Envelope
from underhood.compiler.targets import TARGETS
from underhood.compiler.verify import measure
from underhood.layers.linear import Block, densified

FORMS = ("lru", "lru-in-out", "lru-in-skip")


def attention(name):
    if name == "zero":
        return uh.random_attention(3, rank=0)
    drawn = uh.random_attention(4, heads=2, d_key=3, d_value=5, seed=2)
    values = np.array(drawn.w_value)
    values[1] = np.outer(values[1][:, 0], values[1][0])  # of rank 1: heads of two sizes
    return uh.LinearAttention(values, drawn.w_key, drawn.w_query, decay=np.array([1.0, 0.9]))


@pytest.fixture(scope="module")
def pairs():
    source = attention("heads")
    return source, {
        to: [uh.compile(source, to=to, sparse=sparse, horizon=200) for sparse in (False, True)] for to in FORMS
    }


@pytest.mark.parametrize("to", FORMS)
def test_the_sparse_form_computes_what_the_dense_one_does(pairs, to):
    source, compiled = pairs[0], pairs[1][to]
    xs = np.random.default_rng(7).uniform(-4, 4, (200, source.d))
    written_out, sparse = compiled
    for one in compiled:
        assert one.verified
        assert one.max_abs_error <= one.error_bound <= 1000 * one.max_abs_error
        assert np.max(np.abs(one.model(xs) - source(xs))) <= one.error_bound
    assert sparse.parameters < written_out.parameters / 4
    assert np.max(np.abs(sparse.model(xs) - written_out.model(xs))) <= sparse.error_bound + written_out.error_bound
    assert isinstance(sparse.model.readout.weight, uh.SparseMatrix)
    assert not any(isinstance(leaf, uh.SparseMatrix) for leaf in vars(written_out.model.cells[-1]).values())


@pytest.mark.parametrize("order", [2, 3])
def test_more_copies_err_less(order):
    source = uh.random_attention(4, seed=1)
    first, more = (uh.compile(source, to="lru-in-out", sparse=True, order=one) for one in (1, order))
    assert more.verified and more.max_rel_error < first.max_rel_error / 10
    assert more.max_abs_error <= more.error_bound <= 1000 * more.max_abs_error


@pytest.mark.parametrize("to", FORMS)
def test_zero_attention_and_float32(to):
    assert uh.compile(attention("zero"), to=to, sparse=True, horizon=20).max_abs_error == 0
    compiled = uh.compile(uh.random_attention(3, seed=1), to=to, sparse=True, dtype="float32")
    assert compiled.verified and compiled.model.dtype == np.float32


@pytest.mark.parametrize("to", FORMS)
def test_a_block_in_the_wrong_place_is_found(pairs, to):
    """Negative control: one block of a gate repeats its rows where it should repeat the whole."""
    source, model = pairs[0], pairs[1][to][1].model
    gating = model.cells[-1].output_gating
    first, *rest = gating.w_m.blocks
    turned = Block(first.base, first.start, first.width, repeats=first.tiles, tiles=first.repeats)
    with jax.enable_x64(True):
        broken = eqx.tree_at(lambda m: m.cells[-1].output_gating.w_m.blocks, model, (turned, *rest))
    assert measure(source, broken, Envelope(4.0, 50, np.dtype(np.float64))).max_rel_error > 1e-3


@pytest.mark.parametrize("to", FORMS)
def test_files_steps_and_splits(pairs, to, tmp_path):
    source, model = pairs[0], pairs[1][to][1].model
    loaded = uh.load(uh.save(model, tmp_path / "m.safetensors"))
    assert jax.tree.structure(loaded) == jax.tree.structure(model)
    xs = np.random.default_rng(3).normal(size=(20, source.d))
    ys, state, stepped = model(xs), loaded.initial_state(), []
    for x in xs:
        state, y = loaded.step(state, x)
        stepped.append(y)
    before, middle = loaded.scan(xs[:7])
    after, _ = loaded.scan(xs[7:], middle)
    # Copies nearly cancel: what rounds differently is as large as the error that is promised.
    bound = pairs[1][to][1].error_bound
    for found in (stepped, np.concatenate([before, after]), densified(model)(xs)):
        assert np.max(np.abs(np.asarray(found) - ys)) <= bound


def test_what_reads_networks_reads_the_sparse_form(pairs):
    source, (written_out, sparse) = pairs[0], pairs[1]["lru-in-out"]
    xs = np.random.default_rng(5).normal(size=(12, source.d))
    ours, theirs = (uh.attention_map(one.model, xs).weights for one in (sparse, written_out))
    assert np.max(np.abs(ours - theirs)) <= 1e-6 * np.max(np.abs(theirs))
    disguised = uh.disguise(sparse.model, seed=1)
    assert np.max(np.abs(disguised(xs) - source(xs))) <= sparse.error_bound


@pytest.mark.slow
def test_a_probe_finds_the_attention_in_the_sparse_form():
    source, xs = uh.random_attention(3, seed=0), np.random.default_rng(5).normal(size=(12, 3))
    found = uh.decompile(uh.compile(source, to="lru-in-out", sparse=True, horizon=50).model)
    assert found.verdict == "linear-attention"
    assert error(found.attention(xs), source(xs)) <= 1e-6


@pytest.mark.parametrize("to", FORMS)
def test_large_sources_become_sparse_in_proportion_to_their_weights(to):
    small, large = uh.random_attention(40, seed=0), uh.random_attention(64, heads=2, seed=0)
    _, way = TARGETS[to].choose(large, None)
    assert not way.is_large(small)
    model = way.sparse(large, Envelope(4.0, 10, np.dtype(np.float64)), 1).model
    assert isinstance(model.cells[-1].b_real, uh.SparseMatrix)
    assert model.parameters < 5 * large.parameters + 4 * model.hidden
    assert compile_cost(uh.random_attention(512, heads=8, d_key=64, rank=64, seed=0), to) is None
    with pytest.raises(uh.UnderhoodError, match="expected a sparse matrix of at most"):
        densified(model)


def test_two_layers_of_in_skip_have_no_sparse_form():
    with pytest.raises(uh.UnderhoodError, match="in 2 layers has no sparse form"):
        uh.compile(uh.random_attention(2), to="lru-in-skip", layers=2, sparse=True)
