"""The polynomial of the instantaneous function, against exact arithmetic in python-flint."""

from fractions import Fraction

import flint
import jax
import numpy as np
import pytest

import underhood as uh
from underhood.algebra.heads import head_tensor
from underhood.decompiler.from_weights.polynomial import distance, instantaneous, of_attention
from underhood.decompiler.from_weights.reading import read


def _exact(model: uh.GatedRNN, d: int) -> list[dict[tuple[int, ...], Fraction]]:
    """Every coefficient as a fraction: the weights are binary fractions, so nothing rounds."""
    names = tuple(f"x{i}" for i in range(d))
    context = flint.fmpq_mpoly_ctx.get(names, "lex")
    variables = [*context.gens(), context.from_dict({(0,) * d: 1})]

    def rational(value: float) -> flint.fmpq:
        fraction = Fraction(float(value))
        return flint.fmpq(fraction.numerator, fraction.denominator)

    def linear(weights: np.ndarray, of: list) -> list:
        zero = context.from_dict({})
        return [sum((rational(w) * one for w, one in zip(row, of, strict=True) if w), zero) for row in weights]

    def gated(gating: uh.Gating, of: list) -> list:
        branches = (linear(np.asarray(branch, np.float64), of) for branch in (gating.w_m, gating.w_x))
        return [first * second for first, second in zip(*branches, strict=True)]

    outputs = linear(
        np.asarray(model.readout, np.float64), gated(model.output_gating, gated(model.input_gating, variables))
    )
    return [
        {exponents: Fraction(int(c.p), int(c.q)) for exponents, c in output.to_dict().items()} for output in outputs
    ]


@pytest.mark.parametrize("d, hidden", [(2, 5), (3, 8)])
def test_coefficients_are_those_of_exact_arithmetic(d: int, hidden: int) -> None:
    model = uh.GatedRNN.random(d=d, hidden=hidden, pre_readout=4, key=jax.random.key(d))
    polynomial = instantaneous(read(model))
    for output, exact in enumerate(_exact(model, d)):
        found = dict(zip(map(tuple, polynomial.exponents.tolist()), polynomial.coefficients[output], strict=True))
        assert set(exact) <= set(found)
        largest = max(abs(float(value)) for value in exact.values())
        for exponents, value in found.items():
            assert abs(value - float(exact.get(exponents, 0))) <= 1e-13 * largest


def test_exact_check_sees_a_changed_weight() -> None:
    model = uh.GatedRNN.random(d=2, hidden=4, key=jax.random.key(0))
    other = uh.GatedRNN.random(d=2, hidden=4, key=jax.random.key(1))
    value = float(_exact(other, 2)[0][(2, 1)])
    assert abs(instantaneous(read(model)).coefficient(0, (2, 1)) - value) > 1e-3


def test_polynomial_is_the_network_on_one_step() -> None:
    model = uh.make_model("gated-rnn", 5, hidden=30, dtype=np.float64, seed=3)
    polynomial = instantaneous(read(model))
    for x in np.random.default_rng(0).standard_normal((4, 5)):
        np.testing.assert_allclose(polynomial(x), model(x[None])[0], rtol=1e-10)


def test_distance_is_zero_for_the_construction_and_one_for_silence(figure_1) -> None:
    attention = uh.random_attention(4, heads=2, seed=1)
    tensor = head_tensor(np.asarray(attention.w_value), attention.key_query)
    target = of_attention(tensor)
    assert distance(instantaneous(read(figure_1(attention))), target) < 1e-14
    assert distance(of_attention(0 * tensor), target) == pytest.approx(1.0)
    assert distance(of_attention(1.01 * tensor), target) == pytest.approx(0.01)


def test_output_that_attention_leaves_at_zero_counts_against_the_others() -> None:
    tensor = np.zeros((2, 2, 2, 2))
    tensor[0, 0, 0, 0] = 3.0
    other = tensor.copy()
    other[1, 1, 1, 1] = 0.3
    assert 0 < distance(of_attention(other), of_attention(tensor)) < 0.2
