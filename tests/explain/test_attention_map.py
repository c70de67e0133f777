"""Attention maps: the attention that compiled networks hold, completeness, one value at a time, finite differences."""

import importlib
import inspect
import pickle
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import underhood as uh
from tests.tolerance import error
from underhood.compiler.targets import TARGETS
from underhood.core.model import ARCHITECTURES, AbstractModel
from underhood.explain import attention_map as maps
from underhood.layers.norm import Norm

LENGTH, D = 20, 3
EXACT = 1e-10  # completeness in float64
GATES_READ_THE_STATE = {"lstm", "gru", "gru-after"}  # whose maps are deletions unless asked
KINDS = {"lstm", "gru", "gru-after", "lru", "lru-in-out"}  # frozen in one layer: an activation reads the past


def sequence(length=LENGTH, d=D):
    return np.random.default_rng(0).uniform(-1, 1, (length, d))


def attention(heads=1, **options):
    random = np.random.default_rng(1)
    return uh.LinearAttention(*(random.normal(size=(heads, D, D)) for _ in range(3)), **options)


def contributions(model, xs):
    """c[t, s] = Σ_heads (W_V x_s)(k_s · q_t), s ≤ t, in NumPy."""
    values, keys, queries = (
        np.einsum("hkd,td->htk", np.asarray(weight), xs) for weight in (model.w_value, model.w_key, model.w_query)
    )
    return np.einsum("hsv,hsk,htk->tsv", values, keys, queries) * np.tri(len(xs))[:, :, None]


def all_contributions(found):
    length = found.weights.shape[1]
    rows = [found.contributions(t) for t in range(length)]
    return np.stack([np.pad(row, ((0, length - len(row)), (0, 0))) for row in rows])


def random_model(name, layers=1, dtype=np.float64):
    return uh.make_model(name, D, hidden=8, d_out=2, layers=layers, dtype=dtype)


@pytest.mark.parametrize("target", TARGETS)
def test_a_compiled_network_shows_the_attention_that_it_holds(target):
    source, xs = attention(), sequence()
    compiled = uh.compile(source, to=target)
    expected = contributions(source, xs)
    own = max(error(compiled.model(xs), source(xs)), compiled.report["max_rel_error"], 1e-14)
    found, signed = uh.attention_map(compiled.model, xs), uh.attention_map(compiled.model, xs, reduce="sum")
    assert found.completeness <= 10 * own
    if target in GATES_READ_THE_STATE:
        # Entries are differences of outputs, each within ε of the source's: here, the worst over the sequences that a
        # deletion map runs (max_abs_error of the report is that of long probes with outputs of 10⁵). For earlier steps,
        # y_t − y_t({s}) is within 2ε. The own share is what they leave, (1 − t) y_t + Σ_{s<t} y_t({s}): within 2tε for
        # t > 0. A length of D entries is off by at most √D of that, and their sum by D.
        deleted = np.where(np.eye(LENGTH, dtype=bool)[:, :, None], 0, xs)
        worst = max(np.max(np.abs(compiled.model(one) - source(one))) for one in (xs, *deleted))
        assert worst <= 10 * own * np.max(np.abs(source(xs)))
        limit = 2 * worst * (1 + np.diag(np.arange(LENGTH)))
        assert found.kind == "deletion"
        assert np.all(np.abs(all_contributions(found) - expected) <= limit[:, :, None])
        assert np.all(np.abs(found.weights[0] - np.linalg.norm(expected, axis=2)) <= np.sqrt(D) * limit)
        assert np.all(np.abs(signed.weights[0] - expected.sum(axis=2)) <= D * limit)
        return
    assert error(all_contributions(found), expected) <= 10 * own
    assert error(found.weights[0], np.linalg.norm(expected, axis=2)) <= 10 * own
    assert error(signed.weights[0], expected.sum(axis=2)) <= 10 * own


@pytest.mark.parametrize("target", ["gated-rnn", "gated-rnn-compact", "lru"])
def test_a_disguise_does_not_change_the_map(target):
    source, xs = attention(), sequence()
    hidden = uh.disguise(uh.compile(source, to=target).model, seed=3)
    own = max(error(hidden(xs), source(xs)), 1e-14)
    assert error(all_contributions(uh.attention_map(hidden, xs)), contributions(source, xs)) <= 10 * own


def test_attention_itself():
    source, xs = attention(heads=2, decay=np.array([0.9, 1.0])), sequence()
    found = uh.attention_map(source, xs, reduce="none")
    keys, queries = (np.einsum("hkd,td->htk", np.asarray(w), xs) for w in (source.w_key, source.w_query))
    lag = np.maximum(np.arange(LENGTH)[:, None] - np.arange(LENGTH), 0)
    decays = np.tri(LENGTH) * np.array([0.9, 1.0])[:, None, None] ** lag
    assert found.names == ("head 0", "head 1")
    assert error(found.weights, decays * np.einsum("htk,hsk->hts", queries, keys)) <= 1e-12
    assert found.kind == "exact"
    assert found.completeness <= EXACT


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_maps_tell_all(name):
    """A random network of every architecture, one layer, and a stack of two."""
    xs, layers = sequence(), 1 if ARCHITECTURES[name].most_layers == 1 else 2
    model = random_model(name, layers)
    kind = "frozen" if name in GATES_READ_THE_STATE else None
    whole, last = (uh.attention_map(model, xs, kind=kind, layer=layer) for layer in (None, layers - 1))
    assert whole.kind == ("exact" if layers == 1 else "frozen")
    assert last.kind == ("frozen" if name in KINDS else "exact")
    assert uh.attention_map(model, xs, rows=[-1]).kind == ("deletion" if kind else whole.kind)
    for found in (whole, last):
        assert found.completeness <= EXACT
        assert np.all(found.completeness.steps <= EXACT)
        assert np.all(found.weights[:, ~np.tri(LENGTH, dtype=bool)] == 0)
    outputs = model(xs)
    assert error(whole.contributions(7).sum(axis=0), outputs[7]) <= EXACT
    signed = uh.attention_map(model, xs, reduce="sum", kind=kind)
    assert error(signed.weights[0].sum(axis=1), outputs.sum(axis=1)) <= EXACT


@pytest.mark.parametrize("name", ["mamba", "gla", "gated-deltanet", "lstm", "gru"])
def test_a_changed_gate_is_noticed(name):
    """Negative control: the shares of a network with one gate moved do not add up to the outputs of the other."""
    xs, model = sequence(), random_model(name)
    gates = {"mamba": "dt_bias", "gla": "gk_proj.bias", "gated-deltanet": "dt_bias", "lstm": "b", "gru": "b"}

    def weight(model):
        found = model.cells[0]
        for step in gates[name].split("."):
            found = getattr(found, step)
        return found

    with jax.enable_x64(True):
        other = eqx.tree_at(weight, model, weight(model).at[(0,) * weight(model).ndim].add(1.0))
    with maps.settings_of(model):
        found = maps._reduced(maps._Rows(other, xs, None), model(xs), "norm")
    assert found.completeness > 1e-6


MEMORIES = ["mamba2", "gla", "gated-deltanet", "mlstm", "rwkv7", "mesanet", "griffin", "mingru", "mamba"]


@pytest.mark.parametrize("name", MEMORIES)
def test_one_value_at_a_time(name, monkeypatch):
    """Brute force: the cell's own scan with its gates and norms as they were, and all values but one at zero."""
    cell = random_model(name).cells[0]
    xs = np.random.default_rng(2).normal(size=(8, cell.d))
    replay = Replay(name, monkeypatch)
    with jax.enable_x64(True):
        real = replay.outputs(cell, xs, kept=None)
        base = replay.outputs(cell, xs, kept=())
        alone = np.stack([replay.outputs(cell, xs, kept=(s,)) - base for s in range(len(xs))], axis=1)
    alone[np.arange(8), np.arange(8)] += base
    assert error(alone.sum(axis=1), real) <= 1e-12
    monkeypatch.undo()
    assert error(all_contributions(uh.attention_map(cell, xs)), alone) <= 1e-12


class Replay:
    """Runs a cell with some of its values; norms and normalisers are those of the first run, with all of them."""

    def __init__(self, name, monkeypatch):
        home = importlib.import_module(type(uh.make_model(name, 3, hidden=4).cells[0]).__module__)
        self.norms, self.kept = [], None
        if hasattr(home, "memory_scan"):
            self.scan = home.memory_scan
            monkeypatch.setattr(home, "memory_scan", self.memory_scan)
        elif hasattr(home, "selective_scan"):
            scan = home.selective_scan
            monkeypatch.setattr(home, "selective_scan", lambda a, b, h: scan(a, self.masked(b), h))
        else:
            selected = home.Mamba._selected
            monkeypatch.setattr(home.Mamba, "_selected", lambda cell, u: self.of_mamba(*selected(cell, u)))
        if hasattr(home, "_normaliser"):
            divides = home._normaliser
            monkeypatch.setattr(home, "_normaliser", lambda *given: self.same(divides(*given)))
        monkeypatch.setattr(Norm, "__call__", lambda norm, y: self.norm(norm, y))

    def outputs(self, cell, xs, kept):
        self.kept, self.called = kept, 0
        return np.asarray(cell._scan(jnp.asarray(xs), cell._initial_state())[0])

    def masked(self, values):
        if self.kept is None:
            return values
        mask = np.zeros((len(values), *[1] * (values.ndim - 1)))
        mask[list(self.kept)] = 1
        return mask * values

    def memory_scan(self, state, signals, **options):
        return self.scan(state, signals._replace(v=self.masked(signals.v)), **options)

    def of_mamba(self, step, driven, b, c):
        return step, self.masked(driven), b, c

    def same(self, value):
        """What it was in the first run."""
        if self.kept is None:
            self.norms.append(value)
        self.called += 1
        return self.norms[self.called - 1]

    def norm(self, norm, y):
        if norm.centred:
            y = y - jnp.mean(y, axis=-1, keepdims=True)
        y = y * self.same(1 / jnp.sqrt(jnp.mean(y * y, axis=-1, keepdims=True) + norm.eps))
        y = y * norm.weight.reshape(1, -1, y.shape[-1])
        return y if norm.bias is None else y + norm.bias.reshape(1, -1, y.shape[-1])


@pytest.mark.parametrize("name", ["lstm", "gru", "mamba"])
def test_the_jacobian_is_that_of_finite_differences(name):
    xs, model, step = sequence(9), random_model(name), 1e-6
    found = uh.attention_map(model, xs, kind="jacobian")
    expected = np.zeros((9, 9, 2))
    for s in range(9):
        moved = np.zeros_like(xs)
        moved[s] = step * xs[s]
        expected[:, s] = (model(xs + moved) - model(xs - moved)) / (2 * step)
    assert found.kind == "jacobian"
    assert error(all_contributions(found), expected) <= 1e-8
    gap = np.linalg.norm(model(xs) - expected.sum(axis=1)) / np.linalg.norm(model(xs))
    assert abs(found.completeness - gap) <= 1e-8
    assert gap > 1e-3  # it is not complete, and says so


class Doubling(AbstractModel):
    """A model of another package, which knows nothing of shares."""

    kind = "tests-doubling"

    gain: jax.Array

    @property
    def d(self):
        return 2

    @property
    def d_out(self):
        return 2

    def _initial_state(self):
        return jnp.zeros(2, self.dtype)

    def _step(self, state, x):
        state = self.gain * state + x
        return state, state


def test_a_foreign_model_has_its_jacobian():
    xs = sequence(6, 2)
    found = uh.attention_map(Doubling(jnp.full(2, 0.5, jnp.float32)), xs)
    assert found.kind == "jacobian"
    assert found.completeness <= 1e-6  # it is linear
    assert error(found.contributions(3)[1], 0.25 * xs[1]) <= 1e-6
    with pytest.raises(uh.UnderhoodError, match="has no frozen map"):
        uh.attention_map(Doubling(jnp.ones(2)), xs, kind="frozen")


def test_one_layer_of_a_stack_sees_its_own_inputs():
    xs, model = sequence(), random_model("mamba", layers=2)
    inputs = model.cells[0](xs @ np.asarray(model.embedding.weight).T + np.asarray(model.embedding.bias))
    found, alone = uh.attention_map(model, xs, layer=1), uh.attention_map(model.cells[1], inputs)
    assert error(found.weights, alone.weights) <= 1e-12
    assert error(found.weights, uh.attention_map(model, xs, layer=0).weights) > 0.1  # negative control


def test_products_of_two_memories_come_in_pairs():
    xs, model = sequence(), random_model("gated-rnn")
    found = uh.attention_map(model, xs)
    pairs, outputs = found.pairs(9), model(xs)
    assert pairs.shape == (10, 10, 2)
    assert error(pairs.sum(axis=(0, 1)), outputs[9]) <= EXACT
    credit = (pairs + pairs.swapaxes(0, 1)) / 2  # halves of memory × memory; all of now × memory is the memory's
    shares = credit[:9, :9].sum(axis=1) + 2 * credit[:9, 9]
    assert error(found.contributions(9)[:9], shares) <= EXACT
    assert error(found.contributions(9)[9], pairs[9, 9]) <= EXACT
    with pytest.raises(uh.UnderhoodError, match="no product of two readings"):
        uh.attention_map(attention(), xs).pairs(3)


@pytest.mark.parametrize("name", ["mamba", pytest.param("gla", marks=pytest.mark.slow), "rwkv7", "lru"])
def test_long_sequences_are_cut_into_tiles(name, monkeypatch):
    """Tiles of a few rows, and rows made when they are asked for, are the same numbers."""
    xs, model = sequence(70), random_model(name)
    whole = uh.attention_map(model, xs)
    monkeypatch.setattr("underhood.layers.scores.TILE", 2**13)
    monkeypatch.setattr("underhood.layers.shares.TILE", 2**13)
    monkeypatch.setattr(maps, "KEPT", 0)
    monkeypatch.setattr("underhood.explain.slopes.AT_ONCE", 4 * 4 * len(xs) * (D + 2) * 8)  # 4 steps at a time
    cut = uh.attention_map(model, xs)
    assert error(cut.weights, whole.weights) <= 1e-12
    for t in (0, 40, -1):
        assert error(cut.contributions(t), whole.contributions(t)) <= 1e-12
    done = []
    slopes = uh.attention_map(model, xs, kind="jacobian", progress=lambda *counts: done.append(counts)).weights
    assert done == [(min(steps, 70), 70) for steps in range(4, 73, 4)]  # the last has two steps
    monkeypatch.undo()
    assert error(slopes, uh.attention_map(model, xs, kind="jacobian").weights) <= 1e-12


def test_decays_that_underflow_leave_no_nan():
    """e^{-1000} a step: ratios of cumulative products would be 0/0."""
    model = uh.LinearAttention(np.eye(D), np.eye(D), np.eye(D), decay=np.array([1e-300]))
    found = uh.attention_map(model, sequence(100))
    assert np.all(np.isfinite(found.weights))
    assert found.completeness <= EXACT


def test_two_maps_are_compared():
    xs = sequence()
    one, other = (uh.attention_map(model, xs) for model in (attention(), uh.compile(attention(), to="mamba").model))
    same = uh.compare_maps(one, other)
    assert same.correlation > 1 - 1e-12
    assert same.largest_difference < 1e-12
    different = uh.compare_maps(uh.attention_map(random_model("mamba"), xs), other)
    assert different.correlation < 0.9
    assert different.largest_difference > 0.1
    with pytest.raises(uh.UnderhoodError, match="same shape and reduction"):
        uh.compare_maps(one, uh.attention_map(attention(), xs, reduce="sum"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"xs": np.ones((4, 2))}, r"shape \(t, 3\)"),
        ({"xs": np.ones((0, 3))}, r"shape \(t, 3\)"),
        ({"xs": np.ones((2, 4, 2))}, r"shape \(t, 3\)"),  # a batch
        ({"xs": np.ones((2, 2, 4, 3))}, r"shape \(t, 3\)"),
        ({"xs": np.full((4, 3), np.nan)}, "NaN or infinite"),
        ({"layer": 2}, "expected a layer from 0 to 1; got 2"),
        ({"layer": -1}, "expected a layer from 0 to 1"),
        ({"layer": True}, "expected a layer from 0 to 1; got True"),
        ({"xs": [[1, 2, 3], [4]]}, r"shape \(t, 3\), its rows numbers; got list"),
        ({"xs": [["a", "b", "c"]]}, "expected numbers as inputs"),
        ({"kind": "exact"}, "has no exact map"),
        ({"model": np.tanh}, "expected a model of this package"),
    ],
)
def test_bad_input_is_refused_in_one_line(options, message):
    given = {"model": random_model("gla", layers=2), "xs": sequence(), **options}
    with pytest.raises(uh.UnderhoodError, match=message) as refused:
        uh.attention_map(given.pop("model"), given.pop("xs"), **given)
    assert "\n" not in str(refused.value)


def test_unknown_names_are_refused():
    with pytest.raises(uh.UnderhoodError, match="expected reduce of norm, sum or none; got 'mean'"):
        maps._check(attention(), "mean", None)
    with pytest.raises(uh.UnderhoodError, match=r"expected a kind of exact, .*, integrated; got 'rollout'"):
        maps._check(attention(), "norm", "rollout")
    with pytest.raises(uh.UnderhoodError, match="expected a step from 0 to 19"):
        uh.attention_map(attention(), sequence()).contributions(20)


def test_wrong_types_have_their_line():
    """Without the checks of these tests, as a user calls them."""
    found = uh.attention_map(attention(), sequence())
    contributions, compare = inspect.unwrap(type(found).contributions), inspect.unwrap(uh.compare_maps)
    for step in (2.5, "a", True, None):
        with pytest.raises(uh.UnderhoodError, match=f"expected a step from 0 to 19; got {step!r}"):
            contributions(found, step)
    for pair in ((found, found.weights), (None, found)):
        with pytest.raises(uh.UnderhoodError, match="expected two attention maps; got"):
            compare(*pair)


def test_whole_numbers_of_numpy_are_steps_and_layers():
    model, xs = random_model("gla", layers=2), sequence()
    one, other = (uh.attention_map(model, xs, layer=layer) for layer in (1, np.int64(1)))
    assert np.array_equal(one.weights, other.weights)
    assert np.array_equal(one.contributions(np.int64(3)), other.contributions(3))


def test_contributions_are_the_callers_own():
    found = uh.attention_map(attention(), sequence())
    before = found.contributions(5).copy()
    found.contributions(5)[:] = 7
    assert np.array_equal(found.contributions(5), before)


def sizes(found, t):
    row = found.contributions(t)
    return row.sum(axis=1) if found.reduce == "sum" else np.linalg.norm(row, axis=1)


@pytest.mark.parametrize("name", ["gated-rnn", "lstm"])
@pytest.mark.parametrize(("kept", "options"), [(0, {}), (maps.KEPT, {}), (0, {"rows": [3, 7]}), (0, {"target": 1})])
def test_a_map_comes_back_from_a_pickle(name, kept, options, monkeypatch):
    monkeypatch.setattr(maps, "KEPT", kept)
    found = uh.attention_map(random_model(name), sequence(), **options)
    again = pickle.loads(pickle.dumps(found))
    assert np.array_equal(again.weights, found.weights)
    assert (again.kind, again.names, float(again.completeness)) == (found.kind, found.names, float(found.completeness))
    assert np.array_equal(again.completeness.steps, found.completeness.steps)
    assert np.array_equal(again.contributions(7), found.contributions(7))
    assert error(found.weights[0][-1 if "rows" in options else 7, :8], sizes(found, 7)) <= 1e-12
    if found.pair_source is not None:
        assert np.array_equal(again.pairs(7), found.pairs(7))


@pytest.mark.parametrize(
    ("model", "scale", "options", "message"),
    [
        (attention, 1e200, {}, "the outputs overflow for these inputs. Scale the sequence down."),
        (attention, 1e200, {"kind": "jacobian"}, "the outputs overflow"),
        (attention, 1e60, {}, "the map overflows for these inputs. Scale the sequence down."),  # squares of 1e180
        (attention, 1e60, {"reduce": "none"}, "the map overflows"),
        (lambda: random_model("gated-rnn"), 1e100, {}, "overflow"),
        (lambda: random_model("gla", dtype=np.float32), 1e30, {}, "the outputs overflow"),
        (lambda: random_model("gla", dtype=np.float32), 1e200, {}, "the inputs overflow in float32"),
        (lambda: random_model("mamba", layers=2), 1e200, {"layer": 1}, "the outputs overflow"),
    ],
)
def test_what_overflows_is_refused_without_a_warning(model, scale, options, message):
    with warnings.catch_warnings(), pytest.raises(uh.UnderhoodError) as refused:
        warnings.simplefilter("error")
        uh.attention_map(model(), scale * sequence(), **options)
    assert message in str(refused.value)
