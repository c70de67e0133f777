"""minGRU: one layer cannot hold attention, two do, and three hold gated RNNs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import underhood as uh
from tests.compiler.diagonal import DECAYS, MANY, SOURCES, attention, holds
from tests.compiler.test_compile import gated_source
from underhood.architectures.mingru.cell import MinGRU
from underhood.architectures.mingru.lowering import attention_to_mingru, to_mingru
from underhood.compiler.envelope import Envelope
from underhood.compiler.forms import rank_revealed
from underhood.layers.convolution import Convolution


def swapped(run, d=3, seed=0):
    """|E(x, x′) − E(x′, x)| / |E|, where E is how the last output differs after two different pasts.

    0 for every layer with diagonal factors and a static readout: the obstruction of docs/theory.md.
    """
    random = np.random.default_rng(seed)
    past, other, (one, two) = random.normal(size=(6, d)), random.normal(size=(6, d)), random.normal(size=(2, d))

    def differs(first, second):
        ends = [run(np.vstack([before, first, second]))[-1] for before in (past, other)]
        return ends[0] - ends[1]

    there, back = differs(one, two), differs(two, one)
    return np.max(np.abs(there - back)) / np.max(np.abs(there))


@pytest.mark.parametrize("candidate", ["positive", "linear"])
def test_the_swap_test_tells_one_layer_from_attention(candidate):
    random = np.random.default_rng(1)
    cell = MinGRU(random.normal(size=(40, 3)), random.normal(size=(3, 20)), candidate)
    assert swapped(cell) <= 1e-12
    assert swapped(attention(3, 1)) > 0.1
    # Two layers have no such law, nor has one behind a convolution.
    assert swapped(uh.make_model("mingru", 3, hidden=20, layers=2, dtype=np.float64)) > 0.1
    convolution = Convolution(random.normal(size=(3, 4)))

    def behind(xs):
        with jax.enable_x64(True):
            return cell(np.asarray(convolution.scan(jnp.asarray(xs), convolution.initial_past())[0]))

    assert swapped(behind) > 0.1


def test_one_layer_is_refused_as_data():
    with pytest.raises(uh.NotConstructible) as refused:
        uh.compile(attention(3, 1), to="mingru", layers=1)
    assert refused.value.as_data()["refused"] == {
        "target": "mingru",
        "layers": 1,
        "needs": 2,
        "reason": "what one layer keeps of the past does not change when the last two inputs are swapped",
        "source": "docs/theory.md",
    }


@pytest.mark.parametrize("layers", [2, 3])
@pytest.mark.parametrize("source", [SOURCES["one head"], SOURCES["rectangular"], SOURCES["low rank"]])
def test_two_layers_hold_attention_and_so_do_three(source, layers):
    compiled = holds(source, "mingru", 1e-6, layers=layers)
    assert (compiled.layers, len(compiled.model.cells)) == (layers, layers)


@pytest.mark.parametrize("source", [DECAYS["one head"]])
def test_decays_take_three(source):
    holds(source, "mingru", 1e-5, layers=3, horizon=120)
    # The bound adds up what every step may round, over the decay: at 200 steps it is 0.0012 of the largest output.
    with pytest.raises(uh.UnderhoodError, match="The longest horizon that can be promised is 129 "):
        uh.compile(source, to="mingru", layers=3, horizon=200)
    with pytest.raises(uh.NotConstructible, match="decay"):
        uh.compile(source, to="mingru", layers=2)
    assert uh.compile(source, to="mingru", horizon=20).layers == 3  # as many as it needs, unless told


@pytest.mark.parametrize(
    ("decay", "horizon", "refused"),
    [
        (0.5, 50, None),
        (0.1, 25, None),
        (0.05, 15, None),
        (0.1, 50, "The longest horizon that can be promised is 29 "),
        (0.05, 50, "The longest horizon that can be promised is 20 "),
        (1e-3, 50, "No horizon can be promised"),
        (2**-23, 50, "No horizon can be promised"),
    ],
)
def test_small_decays_are_within_the_bound_or_refused(decay, horizon, refused):
    """h = (P − F)/λ: what the two sums err by counts 1/λ times, and the more so the longer they are."""
    weights = np.random.default_rng(0).normal(size=(3, 1, 2, 2))
    source = uh.LinearAttention(*weights, np.array([decay]))
    if refused:
        with pytest.raises(uh.UnderhoodError, match=refused):
            uh.compile(source, to="mingru", horizon=horizon)
        return
    compiled = uh.compile(source, to="mingru", horizon=horizon)
    assert compiled.max_abs_error <= compiled.error_bound
    xs = np.random.default_rng(1).uniform(-4, 4, (horizon, 2))
    assert np.abs(compiled.model(xs) - source(xs)).max() <= compiled.error_bound


def test_a_gated_rnn_takes_three():
    # 1.5e4 measured: the largest output met is a sixth of the largest possible, and roundings met are of either sign.
    assert holds(gated_source(), "mingru", 1e-5, factor=2e4).layers == 3
    with pytest.raises(uh.NotConstructible, match="mingru needs 3 layers here"):
        uh.compile(gated_source(), to="mingru", layers=2)


def test_a_product_that_is_forgotten_at_once_is_refused():
    source, envelope = gated_source(), Envelope(4.0, 10, np.dtype(np.float64))
    random = np.random.default_rng(0)
    gating = uh.Gating(random.normal(size=(5, 4)), random.normal(size=(5, 4)))
    bent = uh.GatedRNN.from_lambda(gating, np.asarray(source.lambda_), source.output_gating, source.readout)
    with pytest.raises(uh.UnderhoodError, match="forget at once"):
        to_mingru(bent, envelope, 1)


def test_numbers_of_the_state():
    """Eight neurons a product, and 2 d + 1 that hand on."""
    model = attention_to_mingru(rank_revealed(attention(4, 1)), Envelope(4.0, 10, np.dtype(np.float64)), 1).model
    assert model.hidden == 8 * 16 + 9


@pytest.mark.slow
@pytest.mark.parametrize(("layers", "factor"), [(2, 1200), (3, 2000)])
@pytest.mark.parametrize("source", MANY)
def test_many_attentions(source, layers, factor):
    """The factors measured are up to 1070 and 1690: bounds have every step of two sums and a difference round alike."""
    holds(source, "mingru", 1e-5, layers=layers, factor=factor)


@pytest.mark.parametrize(("dtype", "factor"), [("float64", 2000), ("float32", 7e4)])
def test_the_bound_of_three_layers_is_within_reach(dtype, factor):
    """Inputs that turn their sign at every step move the queries most, and find errors that constant ones do not.

    The factors measured are 1750 and 5.8e4. The bound is made of roundings that all have one sign, divided by λ; in
    float64 the error is mostly 2 λ. In float32 parts of the bound add up to 3.07, and e^3.07 − 1 = 20 times the largest
    output possible says no more than that it is finite.
    """
    compiled = uh.compile(attention(8, 2), to="mingru", layers=3, horizon=200, dtype=dtype, tolerance=1.0)
    assert compiled.max_abs_error <= compiled.error_bound <= factor * compiled.max_abs_error
