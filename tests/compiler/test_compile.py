"""compile: every target on several attentions, bounds that hold, refusals that are data, and broken networks found."""

import itertools
import json
import warnings

import equinox as eqx
import jax
import numpy as np
import pytest

import underhood as uh
from tests.architectures.references import reference
from tests.tolerance import error
from underhood.architectures.gru.lowering import attention_to_gru, to_gru
from underhood.architectures.lstm.lowering import attention_to_lstm
from underhood.cli import main
from underhood.compiler.compile import TARGETS
from underhood.compiler.envelope import Envelope
from underhood.compiler.forms import compact, figure_1, rank_revealed, to_gated_rnn
from underhood.compiler.targets import GATED
from underhood.compiler.verify import measure
from underhood.core.model import as_dtype

LIMITS = {"gru": {1: 1e-4, 2: 1e-6}, "exact": {1: 1e-12}, "linearised": {1: 1e-7, 2: 1e-9, 3: 1e-10}}
LIMITS |= {"griffin": {1: 1e-6}, "mingru": {1: 1e-5}}
SOURCES = {
    "d1": {"d": 1},
    "d4": {"d": 4, "seed": 1},
    "rectangular": {"d": 3, "d_key": 2, "d_value": 4, "heads": 2, "seed": 2},
    "low-rank": {"d": 5, "rank": 2, "seed": 3},
}


def limits(target):
    return LIMITS.get(target) or LIMITS["exact" if TARGETS[target].exact else "linearised"]


def cases():
    for target in TARGETS:
        for source in SOURCES:
            if target == "gated-rnn-compact" and source in ("rectangular", "low-rank"):
                continue
            for order in limits(target) if source == "d4" else (1,):
                often = source in ("d4", "rectangular") and order < 3
                yield pytest.param(target, source, order, marks=() if often else pytest.mark.slow)


@pytest.mark.parametrize(("target", "source", "order"), list(cases()))
def test_attention_compiles_within_its_limits_and_its_bound(target, source, order):
    attention = uh.random_attention(**SOURCES[source])
    compiled = uh.compile(attention, to=target, order=order)
    assert compiled.verified
    assert compiled.layers == TARGETS[target].choose(attention, None)[0]
    assert compiled.max_rel_error <= limits(target)[order]
    # 1078 is measured for two layers of minGRU: rows over x and F are divided by λ, with roundings of one sign.
    factor = 1200 if target == "mingru" else 1000
    assert compiled.max_abs_error <= compiled.error_bound <= factor * compiled.max_abs_error
    # Other inputs than the probes, against the double loop.
    xs = np.random.default_rng(99).uniform(-4, 4, (300, attention.d))
    expected = reference(attention, xs)
    assert np.max(np.abs(compiled.model(xs) - expected)) <= compiled.error_bound
    assert error(compiled.model(xs), expected) <= limits(target)[order]


GATED_TARGETS = [target for target in TARGETS if any(column == GATED for column, _ in TARGETS[target].ways)]


def gated_source(d=3, hidden=5, seed=0):
    """A random network of Eq. 2 with λ at 0, at 1 and between, and linear terms from the constant."""
    random = np.random.default_rng(seed)
    lambda_ = np.array([0, 1, 0.5, 0.9, 1])[:hidden]
    w = random.normal(size=(2, hidden, d + 1)) / np.sqrt(d + 1)
    w[1, 0, :-1] = 0  # one neuron is linear in x
    return uh.GatedRNN.from_lambda(
        uh.Gating(*w), lambda_, uh.Gating(*random.normal(size=(2, 4, hidden))), random.normal(size=(2, 4))
    )


@pytest.mark.parametrize("target", GATED_TARGETS)
def test_gated_rnns_compile_as_the_first_column_of_table_3(target):
    source = gated_source()
    compiled = uh.compile(source, to=target, horizon=200)
    assert compiled.layers == min(layers for column, layers in TARGETS[target].ways if column == GATED)
    assert compiled.verified
    xs = np.random.default_rng(99).uniform(-4, 4, (200, 3))
    assert np.max(np.abs(compiled.model(xs) - reference(source, xs))) <= compiled.error_bound


def test_one_gru_layer_holds_attention():
    """Table 3 has a dash here."""
    attention = uh.random_attention(3, seed=4)
    compiled = uh.compile(attention, to="gru", layers=1)
    assert (compiled.layers, len(compiled.model.cells)) == (1, 1)
    assert compiled.verified
    assert compiled.max_rel_error <= 1e-7


@pytest.mark.parametrize("way", ["attention", "gated"])
def test_the_grus_error_falls_with_the_leak(way):
    attention = uh.random_attention(2, seed=1)
    envelope = Envelope(4.0, 100, np.dtype(np.float64))
    lower, source = (
        (attention_to_gru, figure_1(attention)) if way == "attention" else (to_gru, to_gated_rnn(figure_1(attention)))
    )
    errors = [
        measure(attention, lower(source, envelope, 1, leak=leak).model, envelope).max_rel_error
        for leak in (1e-2, 1e-3, 1e-4, 1e-5)
    ]
    for larger, smaller in itertools.pairwise(errors):
        assert 3 < larger / smaller < 30
    assert lower(source, envelope, 1, leak=1e-4).relative_bound >= errors[2]


def test_decay_is_kept():
    attention = uh.random_attention(3, heads=2, seed=1)
    decayed = uh.LinearAttention(attention.w_value, attention.w_key, attention.w_query, decay=np.array([0.9, 1.0]))
    for target in ("gated-rnn", "gated-rnn-minimal", "lru-in-skip", "lstm", "gru"):
        assert uh.compile(decayed, to=target, horizon=100).verified, target
    with pytest.raises(uh.NotConstructible, match="do not decay"):
        uh.compile(decayed, to="gru", layers=1)


@pytest.mark.parametrize("target", TARGETS)
def test_an_attention_that_is_zero_compiles(target):
    if target == "gated-rnn-compact":
        with pytest.raises(uh.UnderhoodError, match="rank 0"):
            uh.compile(uh.random_attention(3, rank=0), to=target, horizon=20)
        return
    two = np.random.default_rng(0).normal(size=(3, 2, 3, 3)) * np.array([1.0, 0.0, 1.0])[:, None, None, None]
    for source in (uh.random_attention(3, rank=0), uh.LinearAttention(*two)):  # one head, and two without keys
        compiled = uh.compile(source, to=target, horizon=20)
        assert compiled.verified
        assert compiled.max_abs_error == 0


@pytest.mark.parametrize("target", ["gated-rnn", "gated-rnn-minimal", "lru-in-out", "lstm", "gru"])
def test_float32(target):
    compiled = uh.compile(uh.random_attention(3, seed=1), to=target, dtype="float32")
    assert compiled.model.dtype == np.float32
    assert compiled.verified
    assert compiled.max_abs_error <= compiled.error_bound
    if TARGETS[target].exact:
        assert compiled.max_rel_error <= 1e-4


# Two of several hundred random ones: what keys and queries make nearly takes itself away.
CANCELLING = [{"d": 2, "seed": 3}, {"d": 2, "seed": 40, "rank": 1}]


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("settings", CANCELLING)
def test_one_lstm_layer_holds_attention_that_nearly_cancels(settings, order):
    limit, attention = LIMITS["linearised"][order], uh.random_attention(**settings)
    compiled = uh.compile(attention, to="lstm", order=order)
    assert compiled.verified
    assert compiled.max_rel_error <= limit / 2
    assert compiled.max_abs_error <= compiled.error_bound <= 1000 * compiled.max_abs_error


def test_the_usual_lstm_layer_does_not_hold_it():
    """Negative control: as Figure 1 has it, the first of them misses."""
    attention, envelope = uh.random_attention(**CANCELLING[0]), Envelope(4.0, 1000, np.dtype(np.float64))
    usual = measure(attention, attention_to_lstm(rank_revealed(attention), envelope, 1).model, envelope)
    assert usual.max_rel_error > LIMITS["linearised"][1]


@pytest.mark.parametrize("target", ["gated-rnn", "gated-rnn-compact", "gated-rnn-minimal"])
@pytest.mark.parametrize(("d", "heads", "seed"), [(1, 2, 0), (2, 1, 3), (5, 3, 0), (8, 2, 1)])
def test_exact_targets_in_float32(target, d, heads, seed):
    compiled = uh.compile(uh.random_attention(d, heads=heads, seed=seed), to=target, dtype="float32")
    assert compiled.verified
    assert compiled.max_rel_error <= 1e-4
    assert compiled.max_abs_error <= compiled.error_bound <= 1000 * compiled.max_abs_error


def test_compact_takes_no_inverse_that_would_cost_too_much():
    """d = 5, heads 3, seed 0: a W_V so near to singular that its inverse costs float32 two digits too many."""
    attention, envelope = uh.random_attention(5, heads=3, seed=0), Envelope(4.0, 1000, np.dtype(np.float32))
    compiled = uh.compile(attention, to="gated-rnn-compact", dtype="float32")
    assert compiled.hidden == 3 * (15 + 5)
    inverted = as_dtype(to_gated_rnn(compact(attention)), np.dtype(np.float32))
    assert inverted.hidden == compiled.hidden
    assert measure(attention, inverted, envelope).max_rel_error > 1e-4 > 5 * compiled.max_rel_error
    # A well-conditioned one keeps Section 2.2's queries, W_V^{-T} W_Kᵀ W_Q.
    attention = uh.LinearAttention(np.eye(3) + 0.1, *np.random.default_rng(0).normal(size=(2, 3, 3)))
    queries = uh.compile(attention, to="gated-rnn-compact").model.input_gating.w_m[-3:, :-1]
    w_value, w_key, w_query = (np.asarray(w[0]) for w in (attention.w_value, attention.w_key, attention.w_query))
    np.testing.assert_allclose(queries, np.linalg.inv(w_value).T @ w_key.T @ w_query, rtol=1e-12)


@pytest.mark.parametrize("target", ["gated-rnn", "lru", "lstm", "gru"])
def test_a_broken_network_is_not_verified(target):
    """Negative control: one weight off by a thousandth shows in the measurement."""
    attention = uh.random_attention(3, seed=1)
    compiled = uh.compile(attention, to=target, horizon=50)
    where = (lambda m: m.readout) if target == "gated-rnn" else (lambda m: m.readout.weight)
    with jax.enable_x64(True):
        broken = eqx.tree_at(where, compiled.model, replace_fn=lambda w: w * 1.001)
    measured = measure(attention, broken, Envelope(4.0, 50, np.dtype(np.float64)))
    assert measured.max_rel_error > 1e3 * compiled.tolerance or measured.max_rel_error > 9e-4


@pytest.mark.parametrize(
    ("target", "layers", "source"),
    [("lru", 1, "docs/theory.md"), ("lru-in-out", 2, "Table 3"), ("gated-rnn", 2, "Section 2.1")],
)
def test_wrong_layers_are_refused_as_data(target, layers, source):
    with pytest.raises(uh.NotConstructible) as caught:
        uh.compile(uh.random_attention(2), to=target, layers=layers)
    refusal = caught.value.as_data()["refused"]
    assert (refusal["target"], refusal["layers"], refusal["source"]) == (target, layers, source)
    assert refusal["reason"]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"to": "transformer"}, "Known: gated-deltanet, gated-rnn"),
        ({"horizon": 0}, "expected a horizon from 1 to"),
        ({"horizon": 10**20}, "expected a horizon from 1 to"),
        ({"input_bound": -1.0}, "expected an input_bound above 0"),
        ({"input_bound": float("nan")}, "expected an input_bound above 0"),
        ({"input_bound": float("inf")}, "expected an input_bound above 0 and below infinity; got inf"),
        ({"tolerance": -1.0}, "expected a tolerance above 0"),
        ({"tolerance": float("nan")}, "expected a tolerance above 0"),
        ({"layers": 0}, "expected layers of 1 or more; got 0"),
        ({"order": 9}, "expected an order from 1 to"),
        ({"dtype": "float16"}, "expected the dtype float64 or float32"),
        ({"to": "lstm", "horizon": 10**15}, "longest horizon that can be promised is"),
        ({"to": "lstm", "sparse": True}, "has no sparse form"),
    ],
)
def test_bad_settings_are_refused(wrong, says):
    with pytest.raises(uh.UnderhoodError, match=says):
        uh.compile(uh.random_attention(2), **{"to": "gated-rnn", **wrong})


def test_bad_sources_are_refused():
    with pytest.raises(uh.UnderhoodError, match="linear attention or a diagonal gated RNN"):
        uh.compile(uh.make_model("lstm", 2, hidden=3), to="gru")  # pyright: ignore
    with pytest.raises(uh.UnderhoodError, match="finite weights in w_key"):
        uh.compile(uh.LinearAttention(np.eye(2), np.full((2, 2), np.nan), np.eye(2)))


def test_sparse_gatings_compile_and_verify():
    compiled = uh.compile(uh.random_attention(12, seed=1), to="gated-rnn", sparse=True, horizon=100)
    assert isinstance(compiled.model.readout, uh.SparseMatrix)
    assert compiled.verified
    assert compiled.max_rel_error <= 1e-12


CONTRACT = "target layers hidden parameters dtype exact max_abs_error max_rel_error error_bound input_bound horizon"


def test_the_command_writes_what_it_reports(tmp_path, capsys):
    source, out = tmp_path / "attn", tmp_path / "rnn"
    uh.save(uh.random_attention(2, seed=1), source)
    assert main(["compile", str(source), "--to", "lstm", "--out", str(out), "--horizon", "100", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert set(CONTRACT.split()) <= set(report)
    model = uh.load(out)
    assert (model.hidden, model.parameters) == (report["hidden"], report["parameters"])
    assert main(["compile", str(source), "--to", "lru", "--layers", "1", "--out", str(tmp_path / "no"), "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["refused"]["needs"] == 2
    assert not (tmp_path / "no").exists()


def test_the_command_says_by_how_much_it_missed(tmp_path, capsys):
    source, out = tmp_path / "attn", tmp_path / "rnn"
    uh.save(uh.random_attention(1), source)
    assert main(["compile", str(source), "--to", "lstm", "--tolerance", "1e-8", "--out", str(out)]) == 1
    assert "times the tolerance 1e-08" in capsys.readouterr().err


@pytest.mark.parametrize("horizon", [1, 2, 7])
def test_short_horizons(horizon):
    for target in ("gated-rnn-minimal", "lru", "lstm", "gru"):
        assert uh.compile(uh.random_attention(2, seed=3), to=target, horizon=horizon).verified, target


@pytest.mark.parametrize("target", ["gated-rnn", "gated-rnn-compact", "gated-rnn-minimal", "lru", "lstm", "gru"])
@pytest.mark.parametrize(("size", "dtype"), [(1e200, "float64"), (1e110, "float64"), (1e30, "float32")])
def test_outputs_beyond_the_dtype_are_refused_before_anything_overflows(target, size, dtype):
    one = uh.random_attention(2)
    large = uh.LinearAttention(*(size * np.asarray(w) for w in (one.w_value, one.w_key, one.w_query)))
    with (
        warnings.catch_warnings(),
        pytest.raises(uh.UnderhoodError, match=f"outputs below 1e.* as {dtype} has"),
    ):
        warnings.simplefilter("error")
        uh.compile(large, to=target, dtype=dtype, horizon=5)


@pytest.mark.parametrize(
    ("target", "size", "dtype"),
    [("mamba2", 1e8, "float32"), ("gru", 1e8, "float32"), ("gated-deltanet", 1e90, "float64")],
)
def test_numbers_on_the_way_that_are_beyond_the_dtype_are_refused(target, size, dtype):
    """The outputs would fit; what a norm or a small gate is undone with does not."""
    weights = size * np.random.default_rng(0).normal(size=(3, 1, 3, 3))
    with pytest.raises(uh.UnderhoodError, match=f"inside {target} would be beyond what {dtype} holds"):
        uh.compile(uh.LinearAttention(*weights), to=target, dtype=dtype, horizon=20)


def test_a_gated_rnn_with_outputs_beyond_float64_is_refused():
    network = uh.compile(uh.random_attention(2), to="gated-rnn", horizon=5).model
    large = eqx.tree_at(lambda n: (n.output_gating.w_m, n.readout), network, replace_fn=lambda w: 1e160 * np.asarray(w))
    with warnings.catch_warnings(), pytest.raises(uh.UnderhoodError, match="as float64 has them"):
        warnings.simplefilter("error")
        uh.compile(large, to="lru", horizon=5)


@pytest.mark.parametrize("target", ["gated-rnn-minimal", "gru"])
def test_a_head_of_rank_0_beside_another_is_no_hindrance(target):
    two = uh.random_attention(2, heads=2)
    silent = np.array(two.w_value)
    silent[1] = 0
    found = uh.compile(uh.LinearAttention(silent, two.w_key, two.w_query), to=target, horizon=12)
    alone = uh.compile(uh.LinearAttention(silent[:1], two.w_key[:1], two.w_query[:1]), to=target, horizon=12)
    assert found.verified
    assert target == "gru" or found.hidden == alone.hidden  # a GRU layer keeps one silent product for it
