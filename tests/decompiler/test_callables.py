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


def test_a_buffer_that_is_used_again_is_copied() -> None:
    ys = np.empty((32, 3))
    buffers: dict[tuple[int, ...], np.ndarray] = {ys.shape: ys}

    def call(xs: np.ndarray) -> np.ndarray:
        buffer = buffers.setdefault(xs.shape, np.empty(xs.shape))
        buffer[:] = _attention(xs)
        return buffer

    assert uh.probe(call, d=3, batched=False).verdict == "linear-attention"

    def tensors(xs: np.ndarray):
        return torch.from_numpy(call(xs))

    assert uh.probe(tensors, d=3, batched=False).verdict == "linear-attention"


@pytest.mark.parametrize("d", ["3", 3.0, True, None, 2.5])
def test_a_size_is_a_whole_number(d) -> None:
    with pytest.raises(uh.UnderhoodError, match=r"expected d to be a whole number|cannot tell the input size"):
        uh.probe(_attention, d)
    assert uh.probe(_attention, np.int64(3)).verdict == "linear-attention"


def test_tensors_with_gradients_and_in_bfloat16_are_read() -> None:
    weight = torch.nn.Parameter(torch.eye(3, dtype=torch.float64))

    def graded(xs):
        return torch.tril(torch.as_tensor(xs) @ torch.as_tensor(xs).mT) @ (torch.as_tensor(xs) @ weight)

    assert uh.probe(graded, 3).verdict == "linear-attention"
    half = uh.probe(lambda xs: graded(xs).to(torch.bfloat16), 3)
    assert half.diagnosis[0]["what"] == "limited-precision"


@pytest.mark.parametrize("count", [2, 4, 8, 20, 63])
def test_few_sequences_of_ones_own_are_refused_with_the_number_needed(count: int) -> None:
    xs = np.random.default_rng(0).standard_normal((count, 32, 4))
    with pytest.raises(uh.UnderhoodError, match="expected 64 sequences or more of 32 steps") as error:
        closeness(_attention, xs)
    assert f"got {count}" in str(error.value)
    with pytest.raises(uh.UnderhoodError, match="expected 64 sequences"):
        uh.probe(_attention, inputs=xs)


def test_few_sequences_give_about_what_many_do() -> None:
    attention = uh.random_attention(4, seed=0)

    def call(xs: np.ndarray) -> np.ndarray:
        return np.tanh(np.asarray(attention(xs)) / 8) * np.abs(xs).sum(axis=-1, keepdims=True)

    xs = np.random.default_rng(0).standard_normal((1000, 32, 4))
    assert closeness(call, xs[:64]) == pytest.approx(closeness(call, xs), abs=0.15)


def test_own_inputs_in_python_are_those_of_the_command_line() -> None:
    xs = np.abs(np.random.default_rng(0).standard_normal((128, 12, 3)))

    def positive(xs: np.ndarray) -> np.ndarray:
        return _attention(np.abs(xs))

    answer = uh.probe(positive, inputs=xs)
    assert answer.verdict == "not-attention" and answer.evidence.r2_on_inputs == pytest.approx(1.0, abs=1e-9)
    assert answer.as_data()["r2_on_inputs"] == answer.evidence.r2_on_inputs
    assert uh.probe(positive, task="linear-regression", d=6).evidence.r2_on_inputs is not None
    for settings in ({"inputs": xs, "task": "recall"}, {"inputs": xs, "d": 4}, {"inputs": xs[0]}):
        with pytest.raises(uh.UnderhoodError, match="expected"):
            uh.probe(positive, **settings)


@pytest.mark.parametrize("settings", [{"distribution": "uniform"}, {"pooling": "together"}, {"length": 9}])
def test_options_of_the_test_sequences(settings) -> None:
    assert uh.probe(_attention, 3, **settings).verdict == "linear-attention"
    for name in ("distribution", "pooling"):
        with pytest.raises(uh.UnderhoodError, match=f"expected {name}"):
            uh.probe(_attention, 3, **{name: "other"})
