"""What a probed callable is given, and what it may do with it: copies, batches, torch; one line for each mistake."""

import numpy as np
import pytest

import underhood as uh
from underhood.core.memory import NotEnoughMemory
from underhood.decompiler.from_outputs.closeness import closeness
from underhood.decompiler.from_outputs.functions import as_numpy_function

torch = pytest.importorskip("torch")


def _attention(xs: np.ndarray) -> np.ndarray:
    return np.tril(xs @ xs.T) @ xs


def test_a_function_may_work_in_place() -> None:
    """It gets a copy: what it does to its input changes neither the answer nor the next question."""

    class Doubles(torch.nn.Module):
        def forward(self, xs):
            xs.mul_(2.0)
            return torch.tril(xs @ xs.T) @ xs

    found = uh.probe(Doubles(), d=3)
    assert found.verdict == "linear-attention" and found.attention is not None
    xs = np.random.default_rng(0).standard_normal((6, 3))
    np.testing.assert_allclose(found.attention(xs), 8 * _attention(xs), atol=1e-9)

    def forgets(xs: np.ndarray) -> np.ndarray:
        ys = _attention(xs)
        xs[:] = 0
        return ys

    assert uh.probe(forgets, d=3).verdict == "linear-attention"


class OneByOne(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.read = torch.nn.Linear(3, 3, bias=False, dtype=torch.float64)

    def forward(self, xs):
        return torch.tril(self.read(xs) @ xs.mT) @ xs


class BatchesOnly(OneByOne):
    def forward(self, xs):
        batch, _, _ = xs.shape
        return super().forward(xs).reshape(batch, -1, 3)


class TimeFirst(OneByOne):
    """(t, b, d), as torch has it by default: a batch of one sequence looks like another thing."""

    def forward(self, xs):
        return super().forward(xs.transpose(0, 1)).transpose(0, 1)[:, :, :]


@pytest.mark.parametrize("module", [OneByOne, BatchesOnly])
def test_batches_are_used_where_they_are_taken(module) -> None:
    shapes = []
    network = module().eval()

    def watched(xs):
        shapes.append(xs.shape)
        return network(torch.as_tensor(xs))

    assert uh.probe(watched, d=3).verdict == "linear-attention"
    assert len(shapes) < 60 and len(shapes[-1]) == 3


def test_batches_that_mix_sequences_are_not_used() -> None:
    """Sums over the batch: right for one sequence at a time."""

    def mixes(xs: np.ndarray) -> np.ndarray:
        return _attention(xs) if xs.ndim == 2 else np.stack([_attention(x) for x in xs]) + xs.sum(axis=0)

    assert uh.probe(mixes, d=3).verdict == "linear-attention"
    assert uh.probe(mixes, d=3, batched=False).verdict == "linear-attention"


def test_a_lambda_around_a_module_works() -> None:
    network = OneByOne().float().eval()
    assert uh.probe(lambda xs: network(xs[None])[0], d=3).verdict == "linear-attention"


def _ends(xs: np.ndarray) -> np.ndarray:
    raise SystemExit(0)


@pytest.mark.parametrize(
    "function, message",
    [
        (OneByOne, r"not the class OneByOne\. Use OneByOne\(\.\.\.\)"),
        (lambda xs: xs * 1j, "expected real outputs; got complex"),
        (lambda xs: torch.as_tensor(xs) * 1j, "expected real outputs; got complex"),
        (_ends, r"failed on inputs of shape \(t, 3\): SystemExit: 0"),
        (TimeFirst().eval(), "failed on inputs|maps|other sequences"),
        (lambda xs: {"ys": xs}, "one array of outputs"),
    ],
)
def test_each_mistake_has_its_line(function, message: str) -> None:
    with pytest.raises(uh.UnderhoodError, match=message) as error:
        as_numpy_function(function, 3)(np.ones((4, 5, 3)))
    assert "\n" not in str(error.value)


def test_ctrl_c_is_not_caught() -> None:
    def stopped(xs: np.ndarray) -> np.ndarray:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        uh.probe(stopped, d=3)


@pytest.mark.parametrize("length", [1, 2])
def test_sequences_too_short_to_tell_are_refused(length: int) -> None:
    with pytest.raises(uh.UnderhoodError, match="expected length of 3 or more"):
        uh.probe(_attention, d=3, length=length)
    assert uh.probe(_attention, d=3, length=3).heads == 1


@pytest.mark.parametrize("settings", [{"d": 10**6}, {"d": 3, "length": 10**9}])
def test_sizes_are_checked_before_anything_is_asked(settings: dict[str, int]) -> None:
    with pytest.raises(NotEnoughMemory, match="not enough memory for 512 sequences"):
        uh.probe(lambda xs: pytest.fail("it was called"), **settings)


@pytest.mark.parametrize("ask", [uh.probe, uh.decompile])
def test_one_thread_for_small_sizes_and_the_users_own_afterwards(ask) -> None:
    from threadpoolctl import threadpool_info

    before, inside = torch.get_num_threads(), []

    class Watched(OneByOne):
        def forward(self, xs):
            inside.append((torch.get_num_threads(), *(one["num_threads"] for one in threadpool_info())))
            return super().forward(xs)

    torch.set_num_threads(2)
    try:
        ask(Watched().eval())
        assert set().union(*inside) == {1}
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_against_the_attention_of_the_packages_own_task() -> None:
    """Eq. 4's attention gives zeros before the prediction; a network of the task gives the prediction alone."""
    task = uh.LinearRegression(examples=6, d_x=2, d_y=1)
    teacher = task.optimal_attention()

    def predicts(xs: np.ndarray) -> np.ndarray:
        return np.asarray(teacher(xs))[:, -1:]

    found = uh.probe(predicts, d=3, against=teacher)
    assert found.scores.polynomial_distance is not None and found.scores.polynomial_distance < 1e-9
    other = uh.random_attention(3, seed=0)  # whose first outputs are not zero
    with pytest.raises(uh.UnderhoodError, match="3 inputs and 1 outputs"):
        uh.probe(predicts, d=3, against=other)


@pytest.mark.parametrize("d", [3, 12])
def test_closeness_on_inputs_of_ones_own(d: int) -> None:
    """Attention where inputs are positive, something else where they are not."""
    plain = uh.random_attention(d, seed=1)

    def half(xs: np.ndarray) -> np.ndarray:
        return np.asarray(plain(np.abs(xs)))

    xs = np.random.default_rng(0).standard_normal((256, 12, d))
    inside, outside = closeness(half, np.abs(xs)), closeness(half, xs)
    assert inside > 0.99 > 0.9 > outside
