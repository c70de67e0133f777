"""min_w ½ mean |ŷ − y|² by Levenberg–Marquardt in float64: a gated RNN from random weights to a loss of 1e-25.

It learns from sequences and outputs alone. A start that stalls is given up for another; a network that has
reached its target is made smaller while it stays there. Each iteration is a pure function of the state before it
and the data, so that a run that is resumed from a `Progress` ends with the same bits.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from underhood.cells.gated_rnn import GatedRNN
from underhood.errors import UnderhoodError
from underhood.fit.gauss_newton import FIRST_DAMPING, State, iterate, size, start
from underhood.fit.moments import check_sequences, reduce_data
from underhood.fit.problems import FixedLambda, FreeLambda, Problem, Weights, draw_weights, outputs_of, to_model
from underhood.fit.prune import drop_dead, without_weakest
from underhood.fit.symmetry import Signs, reduce_symmetric

COUPLING = 0.5  # weight decay against loss; at d=4 (4 to 8 seeds) 3 killed needed neurons, 0.01 left long tails
SETTLED = 1e-7  # of the targets' power: dead neurons are dropped from here on
PATIENCE, PROGRESS = 20, 0.3  # a start that does not fall to this share of its loss in so many iterations has stalled
MARGIN = 0.3  # the training loss aims below the held-out target by this factor
MOST_UNKNOWNS = 6000  # a Gauss–Newton matrix of 0.3 GB

TRIALS, LEAST_TRIALS = 2e8, 40  # iterations times unknowns² for reduction: 200 iterations at d=4, 40 at d=6

KINDS = ("pre_readout", "hidden")

Callback = Callable[[int, float, float, int], Any]


class Progress(NamedTuple):
    """Where a run stands between two iterations; enough to go on from."""

    state: State
    restart: int
    iterations: int
    recent: tuple[float, ...]
    reduced: State | None  # the smallest network so far that met the target, once one has
    pending: tuple[str, ...]  # kinds of neurons that reduction has still to try
    taken: int  # neurons taken away in the trial under way
    budget: int  # iteration at which reduction ends
    best: State | None  # of the starts before this one


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


def starting_sizes(d: int, hidden: int | None, pre_readout: int | None) -> tuple[int, int, int]:
    """(perfect memory, perfect forget, pre-readout) neurons to start with, for a network of at most these sizes.

    A start narrower than the default mostly fails where reducing a wide network succeeds; and more neurons of a
    kind than x̃x̃ᵀ has distinct entries add nothing but time. So narrow requests start wide, and wide ones are cut.
    """
    usual, usual_pre = default_sizes(d)
    hidden, pre_readout = usual if hidden is None else hidden, usual_pre if pre_readout is None else pre_readout
    if hidden < 2 or pre_readout < 1:
        raise UnderhoodError(
            "expected 2 hidden and 1 pre-readout neurons or more for levenberg", f"{hidden} and {pre_readout}"
        )
    entries = (d + 1) * (d + 2) // 2
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
    """A gated RNN for the sequences `xs` (b, t, d) and outputs `ys` (b, t, d_o), or (b, d_o) with targets_at="last".

    `lambdas` are fixed to 0 and 1, or free in [0, 1]. `max_iterations` holds for each start, `max_total_iterations` for
    all of them. `callback(iteration, loss, damping, restart)` may return True to stop; `checkpoint(progress)` sees what
    `resume` takes. `symmetry` are sign changes of the task to average over, as `task.symmetry()` gives them.
    """
    began = time.monotonic()
    xs, ys = check_sequences(xs, ys, targets_at)
    tests = check_sequences(*held_out, targets_at)
    if lambdas not in ("fixed", "free"):
        raise UnderhoodError("expected lambdas 'fixed' (to 0 and 1) or 'free'", lambdas)
    if symmetry is not None and (targets_at, lambdas) != ("last", "fixed"):
        raise UnderhoodError("expected fixed λ and targets_at='last' with a symmetry", f"{lambdas}, {targets_at}")
    if not 0 <= target_loss < math.inf or not max_seconds > 0:
        raise UnderhoodError(
            "expected target_loss of 0 or more and max_seconds above 0", f"{target_loss} and {max_seconds}"
        )
    problem = None
    if lambdas == "fixed":
        reduced = reduce_symmetric(xs, ys, symmetry) if symmetry else reduce_data(xs, ys, targets_at=targets_at)
        problem = FixedLambda(reduced)
    run = _Run(
        problem or FreeLambda(xs, ys, targets_at), tests, targets_at == "last", target_loss, callback, checkpoint
    )
    run.deadline = began + max_seconds
    run.most = math.inf if max_total_iterations is None else max_total_iterations
    run.widest = (hidden or math.inf, pre_readout or math.inf)
    memory, forget, pre = starting_sizes(run.problem.d, hidden, pre_readout)

    def fresh(restart: int) -> Progress:
        random = np.random.default_rng([seed, restart])
        lambda_ = np.concatenate([np.ones(memory), np.zeros(forget)])
        if run.problem.free:
            lambda_ = np.abs(lambda_ - random.uniform(0.01, 0.3, size=lambda_.shape))
        # Every third start reads all neurons with both branches: targets with products of two memories need it.
        weights = draw_weights(random, run.problem.d, pre, lambda_, split=restart % 3 != 2)
        return Progress(start(run.problem, weights), restart, 0, (), None, (), 0, 0, None)

    progress = resume or fresh(0)
    while True:
        progress, ended = run.descend(progress, max_iterations)
        if ended == "met" and (prune or not run.fits(progress.reduced or progress.state)):
            progress, ended = run.reduce(progress, max_iterations, prune)
        if ended != "stopped" and not run.fits(progress.reduced or progress.state):
            progress = run.cut(progress)
            continue
        if ended != "stalled" or progress.restart >= restarts:
            break
        best = run.better(progress.best, progress.state)
        progress = fresh(progress.restart + 1)._replace(iterations=progress.iterations, best=best)
    state = progress.reduced or run.better(progress.best, progress.state)
    if not run.fits(state):  # stopped before it was cut to size
        state = run.cut(progress._replace(state=state, reduced=None)).state
    model = to_model(run.problem, silenced(state.weights, xs, targets_at), state.readout)
    held_out_loss = run.held_out(state)
    return LevenbergResult(
        model=model,
        held_out_loss=held_out_loss,
        loss=run.problem.half_mean(state.loss),
        iterations=progress.iterations,
        restarts=progress.restart,
        seconds=time.monotonic() - began,
        hidden=model.hidden,
        pre_readout=model.pre_readout,
        history=tuple(run.history),
        met=held_out_loss <= target_loss,
        stopped=ended == "stopped",
        progress=progress,
    )


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


@dataclasses.dataclass
class _Run:
    """The data and the limits that all starts of one fit share."""

    problem: Problem
    tests: tuple[np.ndarray, np.ndarray]
    last: bool
    target: float
    callback: Callback | None
    checkpoint: Callable[[Progress], Any] | None
    deadline: float = math.inf
    most: float = math.inf
    widest: tuple[float, float] = (math.inf, math.inf)
    history: list[tuple[int, int, float, float]] = dataclasses.field(default_factory=list)

    def held_out(self, state: State) -> float:
        """½ · mean of the squared error on sequences that were not trained on, by the network itself."""
        outputs = outputs_of(to_model(self.problem, state.weights, state.readout), self.tests[0], last=self.last)
        return 0.5 * float(np.mean((outputs - self.tests[1]) ** 2))

    def met(self, progress: Progress) -> bool:
        """Below the target on held-out sequences, and by a margin as long as the loss still falls."""
        loss, recent = self.problem.half_mean(progress.state.loss), progress.recent
        if self.at_floor(progress.state, 1e-7):
            return True
        if loss > self.target:
            return False
        held_out = self.held_out(progress.state)
        falling = len(recent) < 2 or loss < 0.9 * self.problem.half_mean(recent[-2])
        return held_out <= (MARGIN if falling else 1.0) * self.target

    def at_floor(self, state: State, share: float) -> bool:
        """What no network of this kind explains is above the target, and this one has all but reached it."""
        floor = self.problem.half_mean(0.0)
        return floor > self.target and self.problem.half_mean(state.loss) <= (1 + share) * floor

    def passes(self, state: State) -> bool:
        return self.at_floor(state, 1e-5) or self.held_out(state) <= self.target

    def better(self, one: State | None, other: State) -> State:
        return other if one is None or self.held_out(other) < self.held_out(one) else one

    def advance(self, progress: Progress) -> tuple[Progress, bool]:
        """One iteration, told to the callbacks; True if one of them asks to stop, or time or iterations are over."""
        state = iterate(progress.state, self.problem, COUPLING)
        if state.loss < SETTLED:
            state = drop_dead(state, self.problem)
        recent = (*progress.recent, state.loss)[-PATIENCE - 1 :]
        progress = progress._replace(state=state, iterations=progress.iterations + 1, recent=recent)
        loss = self.problem.half_mean(state.loss)
        self.history.append((progress.restart, state.iteration, loss, state.damping))
        asked = self.callback is not None and self.callback(progress.iterations, loss, state.damping, progress.restart)
        if self.checkpoint is not None:
            self.checkpoint(progress)
        over = time.monotonic() > self.deadline or progress.iterations >= self.most
        return progress, bool(asked) or over

    def descend(self, progress: Progress, most: int) -> tuple[Progress, str]:
        """Iterate until the target is met, the start stalls, or the run is stopped."""
        if progress.reduced is not None:
            return progress, "met"
        while not self.met(progress):
            if stalled(progress) or progress.state.iteration >= most:
                return progress, "met" if self.passes(progress.state) else "stalled"
            progress, stop = self.advance(progress)
            if stop:
                return progress, "met" if self.met(progress) else "stopped"
        return progress, "met"

    def fits(self, state: State) -> bool:
        """No wider than asked for."""
        return len(state.weights.lambda_) <= self.widest[0] and len(state.weights.out_m) <= self.widest[1]

    def cut(self, progress: Progress) -> Progress:
        """Down to the sizes asked for, whatever it costs; to be trained on."""
        state = progress.reduced or progress.state
        surplus = (len(state.weights.out_m) - self.widest[1], len(state.weights.lambda_) - self.widest[0])
        for kind, count in zip(KINDS, surplus, strict=True):
            if count > 0:
                state = without_weakest(state, self.problem, kind, int(count))
        state = self._softened(state)
        return progress._replace(state=state, reduced=None, pending=(), recent=(), taken=0)

    def _softened(self, state: State) -> State:
        """Ready to be trained on after neurons were taken away."""
        decay = COUPLING * state.loss / max(size(state.weights), 1e-300)
        return state._replace(damping=FIRST_DAMPING * state.loss**0.5, decay=decay, iteration=0, moved=True)

    def reduce(self, progress: Progress, most: int, fully: bool) -> tuple[Progress, str]:
        """Take away the weakest neurons, several at a time and then fewer, as long as the target is met again.

        As far as it goes, or, if not `fully`, until the sizes asked for are reached.
        """
        if progress.reduced is None:
            unknowns = len(progress.state.weights.vector(self.problem.free))
            allowed = min(most, max(LEAST_TRIALS, round(TRIALS / unknowns**2))) if fully else most
            budget = progress.iterations + allowed
            progress = progress._replace(reduced=progress.state, pending=KINDS, recent=(), taken=0, budget=budget)
        last = min(progress.budget, self.most)
        while progress.pending and progress.iterations < last and time.monotonic() < self.deadline:
            base, kind = progress.reduced or progress.state, progress.pending[0]
            if not fully and self.fits(base):
                break
            wide = len(base.weights.out_m) if kind == "pre_readout" else len(base.weights.lambda_)
            count = progress.taken or max(1, wide // 8)
            if count >= wide - (kind == "hidden"):
                progress = progress._replace(pending=progress.pending[1:], taken=0)
                continue
            if progress.taken == 0 or not progress.recent:
                trial = without_weakest(base, self.problem, kind, count)
                trial = self._softened(trial)
                progress = progress._replace(state=trial, recent=(trial.loss,), taken=count)
            while not self.met(progress) and not stalled(progress) and progress.state.iteration < 1.5 * PATIENCE:
                progress, stop = self.advance(progress)
                if stop:
                    return progress, "stopped"
            if self.passes(progress.state):
                progress = progress._replace(reduced=progress.state, recent=(), taken=count)
            elif count > 1:
                progress = progress._replace(recent=(), taken=count // 2)
            else:
                progress = progress._replace(pending=progress.pending[1:], recent=(), taken=0)
        return progress, "met"


def stalled(progress: Progress) -> bool:
    """No accepted step any more, or too little gained in the last iterations."""
    state, recent = progress.state, progress.recent
    return (not state.moved and state.decay < 1e-40) or (
        len(recent) > PATIENCE and min(recent[1:]) > PROGRESS * recent[0]
    )
