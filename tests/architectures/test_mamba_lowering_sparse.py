"""The sparse form of Mamba: the same function as the written-out one, everything that a model can do, in less room."""

import equinox as eqx
import jax
import numpy as np
import pytest

import underhood as uh
from tests.compiler.diagonal import DECAYS, attention, holds
from underhood.compiler.compile import compile_cost
from underhood.compiler.envelope import Envelope
from underhood.compiler.targets import TARGETS
from underhood.compiler.verify import measure
from underhood.layers.linear import Block, densified

PROJECTIONS = ("in_proj", "x_proj", "dt_proj", "out_proj")


def two_sizes():
    drawn = attention(4, heads=2, seed=2, d_key=3, d_value=5)
    values = np.array(drawn.w_value)
    values[1] = np.outer(values[1][:, 0], values[1][0])  # of rank 1: heads of two sizes
    return uh.LinearAttention(values, drawn.w_key, drawn.w_query)


@pytest.fixture(scope="module")
def pair():
    """The source, and its dense and its sparse network."""
    source = two_sizes()
    return source, *(uh.compile(source, to="mamba", sparse=sparse, horizon=200) for sparse in (False, True))


def test_the_sparse_form_computes_what_the_dense_one_does(pair):
    source, written_out, sparse = pair
    xs = np.random.default_rng(7).uniform(-4, 4, (200, source.d))
    for one in (written_out, sparse):
        assert one.verified and one.exact and one.layers == 1 and one.max_rel_error <= 1e-12
        assert one.max_abs_error <= one.error_bound <= 1000 * one.max_abs_error
        assert np.max(np.abs(one.model(xs) - source(xs))) <= one.error_bound
    assert np.max(np.abs(sparse.model(xs) - written_out.model(xs))) <= sparse.error_bound + written_out.error_bound
    for compiled, kept in ((written_out, False), (sparse, True)):
        (cell,) = compiled.model.cells
        assert all(isinstance(getattr(cell, name), uh.SparseMatrix) == kept for name in PROJECTIONS)


@pytest.mark.parametrize("source", [attention(3, seed=1), attention(6, heads=3, seed=6)], ids=["one head", "three"])
def test_any_number_of_heads(source):
    compiled = holds(source, "mamba", 1e-12, sparse=True)
    products = source.heads * source.d**2
    assert compiled.hidden == 8 * products + 2 * source.d + 1


def test_zero_attention_and_float32():
    assert uh.compile(attention(3, heads=2, rank=0), to="mamba", sparse=True, horizon=20).max_abs_error == 0
    compiled = uh.compile(attention(3, heads=2, seed=1), to="mamba", sparse=True, dtype="float32", horizon=200)
    assert compiled.verified and compiled.model.dtype == np.float32


@pytest.mark.parametrize("name", ["in_proj", "dt_proj", "out_proj"])
def test_a_block_in_the_wrong_place_is_found(pair, name):
    """Negative control: the last block that does so repeats its rows where it should repeat the whole, or reversed."""
    source, _, compiled = pair
    blocks = list(getattr(compiled.model.cells[0], name).blocks)
    last = max(index for index, block in enumerate(blocks) if block.repeats != block.tiles and block.rows > 1)
    old = blocks[last]
    blocks[last] = Block(old.base, old.start, old.width, old.tiles, old.repeats, old.transposed)
    with jax.enable_x64(True):
        broken = eqx.tree_at(lambda m: getattr(m.cells[0], name).blocks, compiled.model, tuple(blocks))
    envelope = Envelope(4.0, 50, np.dtype(np.float64))
    assert measure(source, compiled.model, envelope).max_rel_error <= 1e-12
    assert measure(source, broken, envelope).max_rel_error > 1e-3


def test_files_steps_and_splits(pair, tmp_path):
    source, _, compiled = pair
    model = compiled.model
    loaded = uh.load(uh.save(model, tmp_path / "m.safetensors"))
    assert jax.tree.structure(loaded) == jax.tree.structure(model)
    xs = np.random.default_rng(3).normal(size=(20, source.d))
    ys, state, stepped = model(xs), loaded.initial_state(), []
    for x in xs:
        state, y = loaded.step(state, x)
        stepped.append(y)
    before, middle = loaded.scan(xs[:7])
    after, _ = loaded.scan(xs[7:], middle)
    for found in (stepped, np.concatenate([before, after]), densified(model)(xs)):
        assert np.max(np.abs(np.asarray(found) - ys)) <= compiled.error_bound


def test_what_reads_networks_reads_the_sparse_form(pair):
    source, written_out, sparse = pair
    xs = np.random.default_rng(5).normal(size=(12, source.d))
    ours, theirs = (uh.attention_map(one.model, xs) for one in (sparse, written_out))
    assert np.max(np.abs(ours.weights - theirs.weights)) <= 1e-9 * np.max(np.abs(theirs.weights))
    with pytest.raises(uh.UnderhoodError, match="disguise cannot hide the weights of a mamba-cell"):
        uh.disguise(sparse.model, seed=1)


def test_large_sources_become_sparse_in_proportion_to_their_weights(monkeypatch):
    small, large = attention(20, heads=4), attention(64, heads=2)
    _, way = TARGETS["mamba"].choose(large, None)
    assert way.is_large(large) and not way.is_large(small)
    assert not way.is_large(attention(256)) and not way.is_large(attention(64, heads=2, decay=[1.0, 0.9]))
    model = way.sparse(large, Envelope(4.0, 10, np.dtype(np.float64)), 1).model
    assert isinstance(model.cells[0].in_proj, uh.SparseMatrix)
    assert model.parameters < 5 * large.parameters + 9 * model.hidden
    monkeypatch.setattr("underhood.layers.linear.MOST_DENSE", 2**20)
    for written_out in (densified, uh.to_torch):
        with pytest.raises(uh.UnderhoodError, match="expected a sparse matrix of at most"):
            written_out(model)


def test_what_it_takes_is_known_beforehand(monkeypatch):
    used = attention(512, heads=8, d_key=64, rank=64)
    monkeypatch.setattr("underhood.core.memory.available_memory", lambda: 4e9)
    assert compile_cost(used, "mamba") is None
    with pytest.raises(uh.UnderhoodError, match="not enough memory"):
        compile_cost(used, "mamba", sparse=False)


def test_heads_that_decay_have_no_sparse_form():
    with pytest.raises(uh.UnderhoodError, match="expected heads that do not decay for a sparse mamba"):
        uh.compile(DECAYS["heads"], to="mamba", sparse=True)
