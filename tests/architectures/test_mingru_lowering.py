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
    holds(source, "mingru", 1e-5, layers=3)
    with pytest.raises(uh.NotConstructible, match="decay"):
        uh.compile(source, to="mingru", layers=2)
    assert uh.compile(source, to="mingru", horizon=20).layers == 3  # as many as it needs, unless told


@pytest.mark.parametrize(
    ("decay", "promised"), [(0.5, True), (0.1, True), (0.05, True), (1e-3, False), (2**-23, False)]
)
def test_small_decays_are_within_the_bound_or_refused(decay, promised):
    """h = (P − F)/λ: what the two sums err by counts 1/λ times."""
    weights = np.random.default_rng(0).normal(size=(3, 1, 2, 2))
    source = uh.LinearAttention(*weights, np.array([decay]))
    if not promised:
        with pytest.raises(uh.UnderhoodError, match="No horizon can be promised"):
            uh.compile(source, to="mingru", horizon=50)
        return
    compiled = uh.compile(source, to="mingru", horizon=50)
    assert compiled.max_abs_error <= compiled.error_bound
    xs = np.random.default_rng(1).uniform(-4, 4, (50, 2))
    assert np.abs(compiled.model(xs) - source(xs)).max() <= compiled.error_bound


def test_a_gated_rnn_takes_three():
    assert holds(gated_source(), "mingru", 1e-5).layers == 3
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
    model = attention_to_mingru(attention(4, 1), Envelope(4.0, 10, np.dtype(np.float64)), 1).model
    assert model.hidden == 8 * 16 + 9


@pytest.mark.slow
@pytest.mark.parametrize("layers", [2, 3])
@pytest.mark.parametrize("source", MANY)
def test_many_attentions(source, layers):
    holds(source, "mingru", 1e-5, layers=layers)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_bound_of_three_layers_is_within_reach(dtype):
    """Inputs that turn their sign at every step move the queries most, and find errors that constant ones do not."""
    compiled = uh.compile(attention(8, 2), to="mingru", layers=3, horizon=200, dtype=dtype, tolerance=1.0)
    assert compiled.max_abs_error <= compiled.error_bound <= 1000 * compiled.max_abs_error
