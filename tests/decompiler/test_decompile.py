"""Ground truth: what was compiled and hidden comes back; what is not attention is not called so."""

import warnings

import equinox as eqx
import jax
import numpy as np
import pytest

import underhood as uh
from underhood.algebra.heads import head_tensor
from underhood.architectures.gated_rnn.cell import GatedRNN, Gating
from underhood.core.model import as_dtype
from underhood.decompiler.from_weights.reading import read


def tensor_of(attention: uh.LinearAttention) -> np.ndarray:
    return head_tensor(np.asarray(attention.w_value, np.float64), attention.key_query)


def sizes(d: int, rank_value: int, rank_key_query: int, shared: int) -> tuple[int, int]:
    """docs/theory.md: memory + query neurons, and pre-readout neurons, of one head."""
    memory = rank_value * rank_key_query - shared * (shared - 1) // 2
    return memory + rank_key_query, memory


@pytest.mark.parametrize("seed", range(18))
def test_disguised_attention_comes_back(figure_1, seed: int) -> None:
    heads, rank = 1 + seed % 3, (None, 1, 2)[seed // 3 % 3]
    attention = uh.random_attention(2 + seed % 7, heads=heads, rank=rank, seed=seed)
    network = figure_1(attention)
    found = uh.decompile(uh.disguise(network, seed=seed))
    assert found.verdict == "linear-attention"
    assert found.attention is not None and found.reduced is not None
    assert found.heads is not None and found.heads <= heads
    tensor = tensor_of(attention)
    assert np.linalg.norm(tensor_of(found.attention) - tensor) <= 1e-8 * np.linalg.norm(tensor)
    assert found.hidden_after is not None and found.hidden_after <= network.hidden
    assert found.pre_readout_after is not None and found.pre_readout_after <= network.pre_readout
    assert found.hidden_before is not None and found.hidden_before > network.hidden
    xs = np.random.default_rng(seed).standard_normal((50, attention.d))
    ys = read(network)(xs)  # NumPy: one compilation by jax a network would be most of this test
    assert np.abs(read(found.reduced)(xs) - ys).max() <= 1e-8 * np.abs(ys).max()
    assert (found.reduced.hidden, found.reduced.pre_readout) == (found.hidden_after, found.pre_readout_after)
    if heads == 1:
        r = min(rank or attention.d, attention.d)
        expected = sizes(attention.d, r, r, max(0, 2 * r - attention.d))
        assert (found.hidden_after, found.pre_readout_after) == expected


@pytest.mark.parametrize("target", ["gated-rnn", "gated-rnn-compact", "gated-rnn-minimal"])
@pytest.mark.parametrize("seed", range(4))
def test_compiled_attention_comes_back_in_no_more_neurons(target: str, seed: int) -> None:
    rank = None if target == "gated-rnn-compact" else (None, 1, 2, None)[seed]
    attention = uh.random_attention(2 + seed, heads=1 + seed % 3, rank=rank, seed=seed)
    network = uh.compile(attention, to=target).model
    found = uh.decompile(uh.disguise(network, seed=seed))
    assert found.verdict == "linear-attention"
    assert found.heads is not None and found.heads <= attention.heads
    assert found.hidden_after is not None and found.hidden_after <= network.hidden
    assert found.pre_readout_after is not None and found.pre_readout_after <= network.pre_readout
    assert found.attention is not None
    tensor = tensor_of(attention)
    assert np.linalg.norm(tensor_of(found.attention) - tensor) <= 1e-8 * np.linalg.norm(tensor)


def test_sparse_gatings_are_read_as_well() -> None:
    attention = uh.random_attention(3, heads=2, seed=0)
    network = uh.compile(attention, to="gated-rnn", sparse=True).model
    for one in (network, uh.disguise(network, seed=0)):
        found = uh.decompile(one, against=attention)
        assert (found.verdict, found.heads) == ("linear-attention", 2)
        assert found.scores.polynomial_distance is not None and found.scores.polynomial_distance < 1e-10
        assert found.certificate is not None


@pytest.mark.parametrize("target", ["gated-rnn", "gated-rnn-minimal"])
def test_attention_of_rank_zero_comes_back_as_silence(target: str) -> None:
    network = uh.compile(uh.random_attention(3, rank=0), to=target).model
    for one in (network, uh.disguise(network, seed=0)):
        found = uh.decompile(one)
        assert found.verdict == "linear-attention"
        assert found.attention is not None and not tensor_of(found.attention).any()
        assert (found.hidden_after, found.pre_readout_after) == (0, 0)


def test_rectangular_attention(figure_1) -> None:
    attention = uh.random_attention(5, d_key=2, d_value=3, seed=1)
    found = uh.decompile(uh.disguise(figure_1(attention), seed=1))
    assert (found.verdict, found.heads) == ("linear-attention", 1)
    assert found.attention is not None
    assert found.attention.w_value.shape == (1, 3, 5)
    assert found.attention.w_key.shape == (1, 2, 5)


@pytest.mark.parametrize("decays", [(0.9, 0.9), (0.3, 0.3), (0.999, 0.999), (1.0, 0.8)])
def test_decay_is_recognised(figure_1, decays: tuple[float, float]) -> None:
    plain = uh.random_attention(3, heads=2, seed=4)
    weights = (np.asarray(weight) for weight in (plain.w_value, plain.w_key, plain.w_query))
    attention = uh.LinearAttention(*weights, np.array(decays))
    found = uh.decompile(uh.disguise(figure_1(attention), seed=2))
    assert found.verdict == "decayed-attention"
    assert found.heads == 2
    assert found.decay is not None and found.attention is not None
    np.testing.assert_allclose(sorted(found.decay), sorted(decays), rtol=1e-12)
    xs = np.random.default_rng(0).standard_normal((60, 3))
    np.testing.assert_allclose(found.attention(xs), attention(xs), atol=1e-9)


def test_gradient_descent_needs_twelve_neurons(figure_1) -> None:
    eta = 1 / 14.8
    found = uh.decompile(uh.disguise(figure_1(uh.gradient_descent_attention(3, 3, eta)), seed=0))
    assert (found.verdict, found.heads, found.hidden_after) == ("linear-attention", 1, 12)
    step = found.in_context(3, 3, 12)
    np.testing.assert_allclose(step.terms, eta, rtol=1e-12)
    assert step.optimum == pytest.approx(eta, rel=1e-12)
    assert step.learning_rate == pytest.approx(eta, rel=1e-12)
    assert step.residual_norm < 1e-12


def test_in_context_reading_sees_another_rate(figure_1) -> None:
    found = uh.decompile(figure_1(uh.gradient_descent_attention(3, 3, 0.1)))
    step = found.in_context(3, 3, 12)
    assert abs(step.learning_rate - step.optimum) > 0.03
    with pytest.raises(uh.UnderhoodError, match="in-context"):
        found.in_context(4, 3, 12)


def _in_memory(network: uh.GatedRNN) -> np.ndarray:
    """Memory neurons that hold something and are read."""
    reads = np.abs(network.output_gating.w_m).max(axis=0) + np.abs(network.output_gating.w_x).max(axis=0)
    holds = np.abs(network.input_gating.w_m).max(axis=1) * np.abs(network.input_gating.w_x).max(axis=1)
    return np.flatnonzero((np.asarray(network.lambda_) == 1) & (np.asarray(reads) > 0) & (np.asarray(holds) > 0))


@pytest.mark.parametrize("hide", [False, True])
@pytest.mark.parametrize("change", ["decay", "memory times memory", "linear term", "constant in query"])
def test_spoiled_attention_is_not_called_linear_attention(figure_1, changed, change: str, hide: bool) -> None:
    for seed in range(3):
        network = figure_1(uh.random_attention(3, seed=seed))
        network = uh.disguise(network, seed=seed) if hide else network
        assert uh.decompile(network).verdict == "linear-attention"
        one, other = _in_memory(network)[[0, -1]]
        if change == "decay":
            lambda_ = np.array(network.lambda_)
            lambda_[one] = 0.99
            spoiled = changed(network, lambda_=lambda_)
        elif change == "memory times memory":
            unit = np.eye(network.hidden)
            size = 0.01 * np.abs(np.asarray(network.readout)).max()
            spoiled = changed(
                network,
                left=np.vstack([network.output_gating.w_m, unit[one]]),
                right=np.vstack([network.output_gating.w_x, unit[other]]),
                readout=np.hstack([network.readout, np.full((network.d_out, 1), size)]),
            )
        else:
            row = one if change == "linear term" else int(np.flatnonzero(np.asarray(network.lambda_) == 0)[0])
            branch = np.array(network.input_gating.w_m)
            branch[row, -1] += 0.01 * np.abs(branch[row]).max()
            spoiled = changed(network, w_m=branch)
            if change == "constant in query":
                xs = np.random.default_rng(0).standard_normal((9, 3))
                if np.abs(spoiled(xs) - network(xs)).max() < 1e-9:
                    continue  # a dead neuron: still the same function
        found = uh.decompile(spoiled)
        assert found.verdict != "linear-attention" or (change == "constant in query" and found.heads == 1)
        assert found.reason


def test_one_weight_off_is_what_it_then_is(figure_1, changed) -> None:
    """A key-value neuron that reads a value 1 % off: more heads, never the head it was."""
    for seed in range(4):
        attention = uh.random_attention(4, seed=seed)
        network = figure_1(attention)
        branch = np.array(network.input_gating.w_m)
        branch[seed, 1] *= 1.01
        found = uh.decompile(changed(network, w_m=branch))
        assert found.verdict == "linear-attention"
        assert found.heads == 2


@pytest.mark.parametrize("seed", range(4))
def test_random_networks_are_not_attention(seed: int) -> None:
    found = uh.decompile(uh.GatedRNN.random(d=2 + seed, hidden=12 + 8 * seed, key=jax.random.key(seed)))
    assert found.verdict == "not-attention"
    assert found.heads is None and found.certificate is None
    assert "not attention's" in found.reason


def test_terms_that_cancel_count_as_nothing(figure_1, changed) -> None:
    """Two rows that add and take away the same memory×memory product: ugly weights, the same function."""
    network = figure_1(uh.random_attention(3, seed=5))
    random = np.random.default_rng(0)
    rows = random.standard_normal((2, 1, network.hidden))
    spoiled = changed(
        network,
        left=np.vstack([network.output_gating.w_m, rows[0], 2 * rows[1]]),
        right=np.vstack([network.output_gating.w_x, rows[1], rows[0]]),
        readout=np.hstack([network.readout, np.ones((3, 1)), -0.5 * np.ones((3, 1))]),
    )
    found = uh.decompile(spoiled)
    assert (found.verdict, found.heads) == ("linear-attention", 1)
    assert found.pre_readout_after is not None and found.pre_readout_after <= network.pre_readout


def test_scores_against_the_teacher_and_another(figure_1) -> None:
    attention, other = uh.random_attention(4, seed=0), uh.random_attention(4, seed=1)
    network = uh.disguise(figure_1(attention), seed=0)
    right, wrong = (uh.decompile(network, against=one).scores for one in (attention, other))
    assert right.kv_score is not None and right.kv_score < 1e-20
    assert right.q_score is not None and right.q_score < 1e-20
    assert right.polynomial_distance is not None and right.polynomial_distance < 1e-10
    assert wrong.polynomial_distance is not None and wrong.polynomial_distance > 0.5
    # Any key-values of a full-rank d=4 attention lie in the span of all ten products.
    assert wrong.kv_score is not None and wrong.kv_score < 1e-20


def test_kv_score_sees_what_memory_lacks(figure_1) -> None:
    narrow, wide = uh.random_attention(4, rank=1, seed=0), uh.random_attention(4, seed=1)
    scores = uh.decompile(figure_1(narrow), against=wide).scores
    assert scores.kv_score is not None and scores.kv_score > 0.1
    assert scores.q_score is not None and scores.q_score > 0.1


def test_noisy_weights_are_read_through_the_noise(figure_1, changed) -> None:
    """As training leaves them: every weight a little off, λ near but not at 0 and 1."""
    attention = uh.random_attention(3, seed=2)
    network, random = figure_1(attention), np.random.default_rng(0)

    def noisy(size: float) -> uh.GatedRNN:
        lambda_ = np.asarray(network.lambda_)
        return changed(
            network,
            **{
                name: np.asarray(array) + size * random.standard_normal(array.shape)
                for name, array in {
                    "w_m": network.input_gating.w_m,
                    "w_x": network.input_gating.w_x,
                    "left": network.output_gating.w_m,
                    "right": network.output_gating.w_x,
                    "readout": network.readout,
                }.items()
            },
            lambda_=np.abs(lambda_ - size * np.abs(random.standard_normal(len(lambda_)))),
        )

    found = uh.decompile(noisy(3e-6))
    assert (found.verdict, found.heads) == ("linear-attention", 1)
    assert found.certificate is not None and found.certificate.fading > 0
    assert found.r2 > 1 - 1e-6
    spoiled = uh.decompile(noisy(3e-3))
    assert spoiled.verdict == "not-attention"
    assert uh.decompile(noisy(3e-3), tolerance=0.5).verdict == "linear-attention"


def test_fine_tuning_wins_back_what_merging_cost(figure_1, changed) -> None:
    network, random = figure_1(uh.random_attention(3, seed=2)), np.random.default_rng(0)
    readout = np.asarray(network.readout)
    noisy = changed(network, readout=readout + 1e-4 * random.standard_normal(readout.shape))
    plain, tuned = uh.decompile(noisy, tolerance=1e-2), uh.decompile(noisy, tolerance=1e-2, fine_tune=True)
    assert plain.reduced_change is not None and tuned.reduced_change is not None
    assert tuned.hidden_after == plain.hidden_after
    assert tuned.reduced_change < plain.reduced_change < 1e-2


def test_useless_neurons_are_pruned_from_networks_that_are_not_attention(changed) -> None:
    network = uh.make_model("gated-rnn", 3, hidden=10, dtype=np.float64, seed=0)
    left, right = (np.array(branch) for branch in (network.output_gating.w_m, network.output_gating.w_x))
    left[:, :4] *= 1e-9
    right[:, :4] *= 1e-9
    found = uh.decompile(changed(network, left=left, right=right))
    assert found.verdict == "not-attention"
    assert found.hidden_after == 6
    assert found.reduced_change is not None and 0 < found.reduced_change < 1e-6


def test_float32_network(figure_1) -> None:
    network = as_dtype(uh.disguise(figure_1(uh.random_attention(4, seed=0)), seed=0), np.float32)
    found = uh.decompile(network)
    assert (found.verdict, found.heads) == ("linear-attention", 1)
    assert (found.hidden_after, found.pre_readout_after) == (14, 10)


def test_dense_recurrence_is_read_in_its_eigenvectors(figure_1) -> None:
    network = uh.disguise(figure_1(uh.random_attention(3, seed=0)), seed=0)
    dense = uh.DenseGatedRNN(
        network.input_gating,
        np.diag(np.asarray(network.lambda_)),
        network.output_gating,
        np.asarray(network.readout),
    )
    found = uh.decompile(uh.disguise(dense, seed=1))
    assert (found.verdict, found.heads) == ("linear-attention", 1)
    random = uh.make_model("gated-rnn-dense", 3, hidden=10, dtype=np.float64)
    assert uh.decompile(random).verdict == "not-attention"


def test_dense_recurrence_without_eigenvectors_goes_through_the_probe(figure_1) -> None:
    network = figure_1(uh.random_attention(2, seed=0))
    delay = np.diag(np.ones(network.hidden - 1), 1)
    found = uh.decompile(uh.DenseGatedRNN(network.input_gating, delay, network.output_gating, network.readout))
    assert found.verdict == "not-attention"
    assert "black box" in found.reason


def test_silent_network_is_attention_with_zero_weights(figure_1, changed) -> None:
    network = figure_1(uh.random_attention(3, seed=0))
    found = uh.decompile(changed(network, readout=0 * np.asarray(network.readout)))
    assert found.verdict == "linear-attention"
    assert "zero" in found.reason


def test_bad_input_says_what_to_do(figure_1, changed) -> None:
    network = figure_1(uh.random_attention(3, seed=0))
    with pytest.raises(uh.UnderhoodError, match="NaN"):
        uh.decompile(changed(network, readout=np.full(network.readout.shape, np.nan)))
    with pytest.raises(uh.UnderhoodError, match=r"uh\.probe"):
        uh.decompile(np.tanh)
    with pytest.raises(uh.UnderhoodError, match="network of this package"):
        uh.decompile("network")
    with pytest.raises(uh.UnderhoodError, match="nothing to decompile"):
        uh.decompile(uh.random_attention(3))
    with pytest.raises(uh.UnderhoodError, match="3 inputs and 3 outputs"):
        uh.decompile(network, against=uh.random_attention(4))
    for wrong in ({"input_bound": -1.0}, {"horizon": 0}, {"tolerance": 2.0}):
        with pytest.raises(uh.UnderhoodError):
            uh.decompile(network, **wrong)


@pytest.mark.parametrize("decays", [(0.0, 1.0), (0.0,), (0.5, 0.0), (0.0, 0.0)])
@pytest.mark.parametrize("target", ["gated-rnn", "gated-rnn-minimal"])
def test_a_head_that_forgets_at_once_is_attention_with_decay_0(decays, target) -> None:
    one = uh.random_attention(3, heads=len(decays), seed=2)
    attention = uh.LinearAttention(one.w_value, one.w_key, one.w_query, np.array(decays))
    network = uh.compile(attention, to=target, horizon=20).model
    xs = np.random.default_rng(0).standard_normal((10, 3))
    for model in (network, uh.disguise(network, seed=3)):
        found = uh.decompile(model)
        assert found.verdict == "decayed-attention"
        assert sorted(set(np.asarray(found.attention.decay).tolist())) == sorted(set(decays))
        np.testing.assert_allclose(found.attention(xs), attention(xs), rtol=1e-11, atol=1e-11)
        assert np.abs(found.attention(xs) - model(xs)).max() <= found.certificate.max_abs_error


def test_a_square_at_once_is_not_attention_with_decay_0() -> None:
    """(x_1 · 1)(x_1 · 1): of degree 2, which no head has."""
    one = np.array([[1.0, 0.0, 0.0]]), np.array([[0.0, 0.0, 1.0]])
    model = GatedRNN.from_lambda(Gating(*one), [0.0], Gating(np.eye(1), np.eye(1)), np.ones((2, 1)))
    assert uh.decompile(model).verdict == "not-attention"


@pytest.mark.parametrize("size", [1e200, 1e-200])
def test_outputs_whose_squares_are_no_numbers_are_refused(figure_1, size: float) -> None:
    network = figure_1(uh.random_attention(2))
    network = eqx.tree_at(lambda n: n.readout, network, size * np.asarray(network.readout))
    with warnings.catch_warnings(), pytest.raises(uh.UnderhoodError, match="between 1e-140 and 1e\\+140"):
        warnings.simplefilter("error")
        uh.decompile(network)
