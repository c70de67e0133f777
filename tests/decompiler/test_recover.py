"""Heads from T: as few as there are, for every shape and rank."""

import numpy as np
import pytest

from underhood.algebra.heads import fewest_heads, head_tensor, key_and_query


def _random(d: int, heads: int, rank: int, seed: int, d_out: int | None = None) -> np.ndarray:
    random = np.random.default_rng(seed)

    def low_rank(rows: int) -> np.ndarray:
        k = min(rank, rows, d)
        return random.standard_normal((heads, rows, k)) @ random.standard_normal((heads, k, d)) / k

    return head_tensor(low_rank(d_out or d), low_rank(d))


@pytest.mark.parametrize("d", [2, 3, 5])
@pytest.mark.parametrize("heads", [1, 2, 3])
@pytest.mark.parametrize("rank", [1, 2, 5])
def test_never_more_heads_than_went_in(d: int, heads: int, rank: int) -> None:
    for seed in range(3):
        tensor = _random(d, heads, rank, seed)
        found = fewest_heads(tensor, 1e-9)
        assert found.count <= heads
        assert np.linalg.norm(found.tensor - tensor) <= 1e-10 * np.linalg.norm(tensor)


@pytest.mark.parametrize("d_out", [1, 2, 7])
def test_rectangular_values(d_out: int) -> None:
    tensor = _random(4, 1, 4, seed=d_out, d_out=d_out)
    found = fewest_heads(tensor, 1e-9)
    assert found.count == 1
    assert found.values.shape == (1, d_out, 4)


def test_one_head_is_unique_up_to_a_scalar() -> None:
    random = np.random.default_rng(0)
    values, key_query = random.standard_normal((1, 5, 5)), random.standard_normal((1, 5, 5))
    found = fewest_heads(head_tensor(values, key_query), 1e-9)
    ratio = found.values / values
    np.testing.assert_allclose(ratio, ratio[0, 0, 0], rtol=1e-8)
    np.testing.assert_allclose(found.key_query * ratio[0, 0, 0], key_query, rtol=1e-7, atol=1e-9)


def test_a_small_second_head_is_seen() -> None:
    tensor = _random(4, 1, 4, seed=0) + 1e-5 * _random(4, 1, 1, seed=1)
    assert fewest_heads(tensor, 1e-9).count == 2
    assert fewest_heads(tensor, 1e-3).count == 1


def test_any_tensor_has_heads() -> None:
    tensor = np.random.default_rng(0).standard_normal((3, 3, 3, 3))
    tensor = tensor + tensor.transpose(0, 2, 1, 3)
    found = fewest_heads(tensor, 1e-9)
    assert 3 < found.count <= 9
    np.testing.assert_allclose(found.tensor, tensor, atol=1e-9)


def test_zero_is_one_silent_head() -> None:
    found = fewest_heads(np.zeros((2, 3, 3, 3)), 1e-9)
    assert found.count == 1
    assert not found.tensor.any()


def test_key_and_query_multiply_to_what_was_given() -> None:
    random = np.random.default_rng(0)
    key_query = random.standard_normal((2, 5, 2)) @ random.standard_normal((2, 2, 5))
    keys, queries = key_and_query(key_query)
    assert keys.shape == (2, 2, 5)
    np.testing.assert_allclose(np.einsum("hka,hkb->hab", keys, queries), key_query, atol=1e-12)
