"""min_w ½ mean |ŷ − y|² by Levenberg–Marquardt in float64: a gated RNN from random weights to a loss of 1e-25.

It learns from sequences and outputs alone: with the whole Gauss–Newton matrix at small d (gauss_newton.py), one branch
of the output gating at a time at larger d (alternating.py).
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from underhood.architectures.gated_rnn.cell import GatedRNN
from underhood.core.errors import UnderhoodError
from underhood.core.threads import threads_for
from underhood.decompiler.decompile import decompile
from underhood.training.second_order.alternating import ALWAYS_WIDE_FROM, WIDE_FROM, Wide
from underhood.training.second_order.descent import Callback, Descent, Progress
from underhood.training.second_order.gauss_newton import State
from underhood.training.second_order.moments import check_sequences, reduce_data
from underhood.training.second_order.problems import FixedLambda, FreeLambda, Problem, Weights
from underhood.training.second_order.symmetry import Signs, reduce_symmetric

MOST_UNKNOWNS = 6000  # a Gauss–Newton matrix of 0.3 GB


@dataclasses.dataclass(frozen=True)
class LevenbergResult:
    """The network found, and the evidence: losses are ½ · mean over batch, time and output coordinates."""

    model: GatedRNN
    held_out_loss: float
    loss: float
    iterations: int
    restarts: int
    seconds: float
    hidden: int
    pre_readout: int
    history: tuple[tuple[int, int, float, float], ...]  # (restart, iteration, loss, damping)
    met: bool
    stopped: bool
    progress: Progress


def default_sizes(d: int) -> tuple[int, int]:
    """Hidden and pre-readout neurons that a random start needs: d=4: 24 and 20; d=6: 41 and 42."""
    return (d + 1) * (d + 2) // 2 + 2 * d + 1, d * (d + 1)


def starting_sizes(
    d: int, hidden: int | None, pre_readout: int | None, d_out: int = 1, *, wide: bool = False
) -> tuple[int, int, int]:
    """(perfect memory, perfect forget, pre-readout) neurons to start with, for a network of at most these sizes.

    A start narrower than the default mostly fails where reducing a wide network succeeds; and more neurons of a
    kind than x̃x̃ᵀ has distinct entries add nothing but time. So narrow requests start wide, and wide ones are cut.
    A `wide` start has as many of both kinds as there are entries, and a product for each query and output.
    """
    usual, usual_pre = default_sizes(d)
    hidden, pre_readout = usual if hidden is None else hidden, usual_pre if pre_readout is None else pre_readout
    if hidden < 2 or pre_readout < 1:
        raise UnderhoodError(
            "expected 2 hidden and 1 pre-readout neurons or more for levenberg", f"{hidden} and {pre_readout}"
        )
    entries = (d + 1) * (d + 2) // 2
    if wide:
        products = max(d, d_out) * (d + 1)
        return entries, entries, min(max(pre_readout, products), 2 * products)
    forget = min(d + (max(hidden, usual) - d * (d + 3) // 2) // 2, 2 * d + 1)
    memory = min(max(hidden, usual) - forget, entries)
    room = MOST_UNKNOWNS // (memory + forget) - 2 * (d + 1)
    return memory, forget, max(1, min(max(pre_readout, usual_pre), room, 2 * usual_pre))


def fit_levenberg(
    xs: Any,
    ys: Any,
    *,
    held_out: tuple[Any, Any],
    hidden: int | None = None,
    pre_readout: int | None = None,
    seed: int = 0,
    lambdas: str = "fixed",
    targets_at: str = "every",
    symmetry: Signs | None = None,
    target_loss: float = 1e-20,
    max_seconds: float = math.inf,
    max_iterations: int = 200,
    max_total_iterations: int | None = None,
    restarts: int = 10,
    prune: bool = True,
    callback: Callback | None = None,
    checkpoint: Callable[[Progress], Any] | None = None,
    resume: Progress | None = None,
) -> LevenbergResult:
    """min_w ½ mean |f_w(x) − y|² over gated RNNs of Eq. 2, by Levenberg–Marquardt in float64.

    **Arguments:**

    - `xs`: sequences `(b, t, d)`.
    - `ys`: the outputs wanted, `(b, t, d_o)`, or `(b, d_o)` with `targets_at="last"`.
    - `held_out`: sequences and outputs that the result is tested with.
    - `seed`: of the random starts.
    - `lambdas`: "fixed" to 0 and 1, or "free" in [0, 1].
    - `hidden`, `pre_readout`: the most neurons of the network in the end; as few as are needed unless given.
    - `targets_at`: "every" step, or the "last" alone.
    - `symmetry`: sign changes of the task to average over, as `task.symmetry()` gives them.
    - `target_loss`: the held-out loss to stop at.
    - `max_seconds`: time after which the fit is given up.
    - `max_iterations`: of each start; `max_total_iterations`: of all of them.
    - `restarts`: how many starts may follow one that stalls.
    - `prune`: whether neurons are taken away once the target is met.
    - `callback`: `callback(iteration, loss, damping, restart)`, which may return True to stop.
    - `checkpoint`: called with what `resume` takes, after each iteration.
    - `resume`: where an earlier call stood.

    **Returns:**

    The network, its losses and sizes, and how the fit ended.
    """
    began = time.monotonic()
    xs, ys = check_sequences(xs, ys, targets_at)
    tests = check_sequences(*held_out, targets_at)
    _check_options(lambdas, targets_at, symmetry, target_loss, max_seconds)
    wide = xs.shape[-1] >= (WIDE_FROM if hidden is None and pre_readout is None else ALWAYS_WIDE_FROM)
    problem = _problem(xs, ys, targets_at, lambdas, symmetry, wide)
    descent = Descent(
        problem,
        tests,
        last=targets_at == "last",
        sizes=starting_sizes(problem.d, hidden, pre_readout, ys.shape[-1], wide=isinstance(problem, Wide)),
        widest=(hidden or math.inf, pre_readout or math.inf),
        seed=seed,
        target=target_loss,
        deadline=began + max_seconds,
        most=math.inf if max_total_iterations is None else max_total_iterations,
        each=max_iterations,
        callback=callback,
        checkpoint=checkpoint,
    )
    with threads_for(problem.d):
        progress, ended = descent.run(resume or descent.fresh(0), restarts, prune)
        state = descent.found(progress)
        state = state._replace(weights=silenced(state.weights, xs, targets_at))
        model = _smaller(descent, state, prune) if isinstance(problem, Wide) else descent.model_of(state)
    return _result(descent, model, state, progress, time.monotonic() - began, stopped=ended == "stopped")


def _result(
    descent: Descent, model: GatedRNN, state: State, progress: Progress, seconds: float, *, stopped: bool
) -> LevenbergResult:
    held_out_loss = descent.loss_of(model)
    return LevenbergResult(
        model=model,
        held_out_loss=held_out_loss,
        loss=descent.problem.half_mean(state.loss),
        iterations=progress.iterations,
        restarts=progress.restart,
        seconds=seconds,
        hidden=model.hidden,
        pre_readout=model.pre_readout,
        history=tuple(descent.history),
        met=held_out_loss <= descent.target,
        stopped=stopped,
        progress=progress,
    )


def _check_options(lambdas: str, targets_at: str, symmetry: Signs | None, target: float, seconds: float) -> None:
    if lambdas not in ("fixed", "free"):
        raise UnderhoodError("expected lambdas 'fixed' (to 0 and 1) or 'free'", lambdas)
    if symmetry is not None and (targets_at, lambdas) != ("last", "fixed"):
        raise UnderhoodError("expected fixed λ and targets_at='last' with a symmetry", f"{lambdas}, {targets_at}")
    if not 0 <= target < math.inf or not seconds > 0:
        raise UnderhoodError("expected target_loss of 0 or more and max_seconds above 0", f"{target} and {seconds}")


def _problem(
    xs: np.ndarray, ys: np.ndarray, targets_at: str, lambdas: str, symmetry: Signs | None, wide: bool
) -> Problem | Wide:
    if lambdas == "free":
        return FreeLambda(xs, ys, targets_at)
    if symmetry:
        return FixedLambda(reduce_symmetric(xs, ys, symmetry))
    if wide:
        return Wide(xs, ys, targets_at)
    return FixedLambda(reduce_data(xs, ys, targets_at=targets_at))


def _smaller(descent: Descent, state: State, prune: bool) -> GatedRNN:
    """The wide network, or the same function in fewer neurons (decompiler/…/smallest.py) where it is as good.

    One that is still wider than asked for loses its weakest neurons, and with them what it has learned.
    """
    model = descent.model_of(state)
    if not prune and descent.fits(state):
        return model
    smallest = decompile(model).evidence.smallest
    reduced = None if smallest is None else smallest.network
    if reduced is not None and descent.loss_of(reduced) <= max(descent.target, descent.loss_of(model)):
        model = reduced
    within = model.hidden <= descent.widest[0] and model.pre_readout <= descent.widest[1]
    return model if within else descent.model_of(descent.cut(descent.fresh(0)._replace(state=state)).state)


def silenced(weights: Weights, xs: np.ndarray, targets_at: str) -> Weights:
    """Zero where no data speaks: a forget neuron's weights for inputs that are zero whenever the output is asked for.

    In-context regression asks at the query, where y is 0. What such weights are changes nothing in any output that
    was asked for; an ever so small weight decay would have brought them to zero.
    """
    if targets_at != "last":
        return weights
    never = np.append(~np.any(xs[:, -1], axis=0), False)
    where = np.ix_(weights.lambda_ == 0, never)
    in_m, in_x = weights.in_m.copy(), weights.in_x.copy()
    in_m[where] = in_x[where] = 0.0
    return weights._replace(in_m=in_m, in_x=in_x)
