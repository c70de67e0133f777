"""Every model of the registry, and attention: the three ways agree with each other and with the paper."""

import ast
import dataclasses
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import underhood as uh
from tests.architectures.references import reference
from tests.tolerance import RELATIVE, agree, error, share
from underhood.core.model import ARCHITECTURES, Part, as_dtype

LENGTHS = (1, 2, 31, 32, 33, 1000)
NAMES = (*ARCHITECTURES, "linear-attention")
CASES = [
    *(
        (name, layers)
        for name in ARCHITECTURES
        for layers in (1, 2)
        if layers <= (ARCHITECTURES[name].most_layers or 2)
    ),
    ("linear-attention", 1),
]
# Compiling is what these tests spend their time on. Two layers differ from one only in what `Stack` hands on, whatever
# the layers: states that are arrays, pairs, and pairs with a convolution show that, at one length. 2, 31 and 32 steps
# make the programs of 33 but for a number, float32 those of float64.
FAST = {(1, np.float64, 1), (1, np.float64, 33), (1, np.float32, 1000), (2, np.float64, 33)}
STACKED = ("gru", "lstm", "mamba")


def fast(often, name, layers):
    return () if often and (layers == 1 or name in STACKED) else pytest.mark.slow


VALUE_CASES = [
    pytest.param(name, layers, length, dtype, marks=fast((layers, dtype, length) in FAST, name, layers))
    for name, layers in CASES
    for length in (LENGTHS if layers == 1 else (33,))
    for dtype in (np.float64, np.float32)
]
GRADIENT_CASES = [
    pytest.param(name, layers, length, marks=() if length == 33 and layers == 1 else pytest.mark.slow)
    for name, layers in CASES
    for length in ((1, 33, 1000) if layers == 1 else (33,))
]


def model_of(name, layers=1, dtype=np.float64, seed=0):
    if name == "linear-attention":
        drawn = uh.random_attention(4, heads=2, d_key=3, d_value=5, seed=seed)
        weights = (drawn.w_value, drawn.w_key, drawn.w_query)
        return as_dtype(uh.LinearAttention(*weights, decay=np.array([1.0, 0.9])), dtype)
    return uh.make_model(name, 4, d_out=5, hidden=7, layers=layers, seed=seed, dtype=dtype)


def sequence(length, seed=1):
    # Short enough inputs for a state that does not grow out of range over 1000 steps.
    return np.random.default_rng(seed).normal(size=(length, 4))


def step_by_step(model, xs):
    state, ys = model.initial_state(), []
    for x in xs:
        state, y = model.step(state, x)
        ys.append(y)
    return jnp.stack(ys) if isinstance(ys[0], jax.Array) else np.stack(ys)


def split_in_two(model, xs):
    half = len(xs) // 2
    first, state = model.scan(xs[:half])
    second, _ = model.scan(xs[half:], state)
    return jnp.concatenate([first, second]) if isinstance(first, jax.Array) else np.concatenate([first, second])


@pytest.mark.parametrize(("name", "layers", "length", "dtype"), VALUE_CASES)
def test_values_agree_with_the_equations(name, layers, length, dtype):
    model, xs = model_of(name, layers, dtype), sequence(length)
    ways = {"call": model(xs), "scan": model.scan(xs)[0]}
    if length < 1000 or dtype == np.float64:  # a thousand calls take a second or two
        ways["steps"] = step_by_step(model, xs)
    if length > 1:
        ways["split"] = split_in_two(model, xs)
    expected = reference(model, xs)
    for way, ys in ways.items():
        assert ys.dtype == dtype, way
        assert agree(ys, expected, dtype), (way, error(ys, expected))


@pytest.mark.parametrize(("name", "layers"), [pytest.param(*case, marks=fast(True, *case)) for case in CASES])
def test_a_perturbed_weight_is_noticed(name, layers):
    """Negative control: one weight moved by one part in a million fails the comparison above."""
    model, xs = model_of(name, layers), sequence(32)
    leaves, treedef = jax.tree.flatten(model)
    for index, leaf in enumerate(leaves):
        moved = np.array(leaf)
        moved.flat[0] = moved.flat[0] * (1 + 1e-6) + 1e-6
        with jax.enable_x64(True):
            wrong = jax.tree.unflatten(treedef, [*leaves[:index], jnp.asarray(moved), *leaves[index + 1 :]])
        assert not agree(wrong(xs), reference(model, xs)), f"leaf {index}"


@pytest.mark.parametrize(("name", "layers", "length"), GRADIENT_CASES)
def test_gradients_agree(name, layers, length):
    """Gradients of a random projection of the outputs, in the weights and in the inputs."""
    model, xs = model_of(name, layers), sequence(length)
    weights = np.random.default_rng(2).normal(size=(length, model.d_out))
    ways = [lambda model, xs: model.scan(xs)[0], split_in_two if length > 1 else _scanned_steps]
    with jax.enable_x64(True):
        both = (model, jnp.asarray(xs))

        def gradients(way):
            def loss(both):
                return jnp.sum(jnp.asarray(weights) * way(*both))

            return jax.tree.leaves(eqx.filter_jit(eqx.filter_grad(loss))(both))

        expected = gradients(_scanned_steps)
        largest = max(float(jnp.max(jnp.abs(one))) for one in expected)
        for way in ways:
            for got, want in zip(gradients(way), expected, strict=True):
                assert error(got, want) * share(want, largest) <= RELATIVE[np.dtype(np.float64)], error(got, want)


def _scanned_steps(model, xs):
    return jax.lax.scan(lambda state, x: model.step(state, x), model.initial_state(), xs)[1]


@pytest.mark.parametrize(
    ("name", "layers"), [pytest.param(*case, marks=pytest.mark.slow if case[1] > 1 else ()) for case in CASES]
)
def test_gradients_match_finite_differences(name, layers):
    """An independent look at the gradient: central differences of the NumPy transcription, in the inputs."""
    model, xs = model_of(name, layers), sequence(9)
    weights = np.random.default_rng(2).normal(size=(9, model.d_out))
    with jax.enable_x64(True):
        gradient = jax.grad(lambda xs: jnp.sum(jnp.asarray(weights) * model(xs)))(jnp.asarray(xs))
    direction = np.random.default_rng(3).normal(size=xs.shape)
    step = 1e-6
    ahead, behind = reference(model, xs + step * direction), reference(model, xs - step * direction)
    slope = np.sum(weights * (ahead - behind)) / (2 * step)
    assert abs(np.sum(np.asarray(gradient) * direction) - slope) <= 1e-6 * max(1, abs(slope))


@pytest.mark.parametrize("name", NAMES)
def test_precision_is_the_weights_own(name):
    """float64 weights compute in float64 with jax's switch off: called, vmapped and jitted."""
    model, xs = model_of(name), sequence(5)
    assert not jax.config.read("jax_enable_x64")
    assert model(xs).dtype == np.float64
    batch = jnp.asarray(np.stack([xs, xs + 1]), jnp.float32)
    vmapped = jax.vmap(model)(batch)
    assert vmapped.dtype == np.float64
    assert agree(vmapped[1], reference(model, np.asarray(batch[1], np.float64)))
    with pytest.warns(RuntimeWarning, match="float64 inputs were rounded"):  # nobody there can tell whether they were
        jitted = eqx.filter_jit(model)(batch[0])
    assert agree(jitted, reference(model, np.asarray(batch[0], np.float64)))


@pytest.mark.parametrize("name", NAMES)
def test_wrong_shapes_are_refused_with_a_remedy(name):
    model = model_of(name)
    for shape, says in {(3, 5, 4): "jax.vmap", (5, 3): "(t, 4)", (4,): "one row", (0, 4): "t ≥ 1"}.items():
        with pytest.raises(uh.UnderhoodError, match=says.replace("(", r"\(").replace(")", r"\)")):
            model(np.zeros(shape))
    with pytest.raises(uh.UnderhoodError, match=r"shape \(4,\)"):
        model.step(model.initial_state(), np.zeros(3))


@pytest.mark.parametrize("name", NAMES)
def test_complex_numbers_are_refused(name):
    """A conversion to the model's dtype would drop half of them."""
    model = model_of(name)
    for call in (lambda: model(sequence(3) * 1j), lambda: model.step(model.initial_state(), sequence(3)[0] * 1j)):
        with pytest.raises(uh.UnderhoodError, match="expected real inputs; got complex numbers"):
            call()
    weights = np.ones((3, 2, 2))
    with pytest.raises(uh.UnderhoodError, match="expected real weights; got complex numbers"):
        uh.LinearAttention(weights[0] * 1j, *weights[1:])


def parts_of(value):
    if isinstance(value, Part):
        yield value
    for one in value if isinstance(value, tuple) else vars(value).values() if isinstance(value, Part) else ():
        yield from parts_of(one)


@pytest.mark.parametrize("name", NAMES)
def test_weights_that_are_not_numbers_are_refused(name):
    """By the constructor, whichever weight it is."""
    for part in parts_of(model_of(name)):
        weights = {key: value for key, value in vars(part).items() if isinstance(value, jax.Array)}
        dataclasses.replace(part, **weights)
        for key, value in weights.items():
            for wrong in (np.nan, np.inf):
                with pytest.raises(uh.UnderhoodError, match=f"finite weights in {key}"):
                    dataclasses.replace(part, **{key: np.full(value.shape, wrong)})


ORACLES = {"torch", "transformers", "xlstm", "mambapy", "minGRU_pytorch"}


def imported_at_the_top(source):
    for node in ast.parse(source).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.name.partition(".")[0] for alias in node.names)
            yield (getattr(node, "module", None) or "").partition(".")[0]


def test_transcriptions_need_no_oracles():
    """This file runs in environments without torch, and reads the transcriptions in the others."""
    transcriptions = [path for path in Path(__file__).parent.glob("*.py") if "lowering" not in path.name]
    assert len(transcriptions) > 10
    for path in transcriptions:
        assert not ORACLES & set(imported_at_the_top(path.read_text())), path.name
    assert {"torch", "xlstm"} <= set(imported_at_the_top("import torch.nn\nfrom xlstm.blocks import mLSTMLayer"))


def test_tolerance_follows_the_dtype():
    assert RELATIVE[np.dtype(np.float64)] == 1e-12
    assert not agree([1 + 1e-11], [1.0])
    assert agree([1 + 1e-5], [1.0], np.float32)


def test_unknown_names_and_sizes_list_the_remedy():
    with pytest.raises(uh.UnderhoodError, match=r"Known: .*gated-rnn, gated-rnn-dense"):
        uh.make_model("transformer", 4, hidden=3)
    with pytest.raises(uh.UnderhoodError, match="expected hidden of 1 or more"):
        uh.make_model("lstm", 4, hidden=0)
    with pytest.raises(uh.UnderhoodError, match="at most 1 layer"):
        uh.make_model("gated-rnn", 4, hidden=3, layers=2)
    with pytest.raises(uh.UnderhoodError, match="expected hidden below 2³¹"):
        uh.make_model("lstm", 4, hidden=10**400)


@pytest.mark.parametrize("name", ["lstm", "gated-rnn"])
def test_numbers_that_are_missing_in_a_sequence_are_refused(name):
    """One NaN would spread over all that comes after it. jax's own arrays, which need not be there yet, may hold it."""
    model, xs = model_of(name), np.ones((5, 4))
    assert np.isfinite(model(xs)).all()
    for wrong in (np.nan, np.inf):
        xs[2, 1] = wrong
        for call in (model, model.scan):
            with pytest.raises(uh.UnderhoodError, match="expected finite inputs; got 1 NaN or infinite of 20"):
                call(xs)
    assert not np.isfinite(model(jax.numpy.asarray(xs))).all()
