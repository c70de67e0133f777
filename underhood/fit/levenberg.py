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
from underhood.fit.problems import FixedLambda, FreeLambda, Problem, draw_weights, outputs_of, to_model
from underhood.fit.prune import drop_dead, without_weakest

COUPLING = 0.5  # weight decay against loss: 0.3 cancels and stalls, 3 kills neurons that are needed (d=4, 20 seeds)
SETTLED = 1e-7  # of the targets' power: dead neurons are dropped from here on
PATIENCE, PROGRESS = 20, 0.3  # a start that does not fall to this share of its loss in so many iterations has stalled
MARGIN = 0.3  # the training loss aims below the held-out target by this factor
MOST_UNKNOWNS = 6000  # a Gauss–Newton matrix of 0.3 GB

Callback = Callable[[int, float, float, int], Any]


class Progress(NamedTuple):
    """Where a run stands between two iterations; enough to go on from."""

    state: State
    restart: int
    iterations: int
    recent: tuple[float, ...]
    reduced: State | None  # the smallest network so far that met the target, once one has
    pending: tuple[str, ...]  # kinds of neurons that reduction has still to try
    count: int  # neurons taken away in the trial under way


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
    """(perfect memory, perfect forget, pre-readout) neurons to start with.

    More neurons of a kind than x̃x̃ᵀ has distinct entries add nothing but time, so wider requests are cut.
    """
    wanted_hidden, wanted_pre = default_sizes(d)
    hidden, pre_readout = hidden or wanted_hidden, pre_readout or wanted_pre
    if hidden < 2 or pre_readout < 1:
        raise UnderhoodError(
            "levenberg needs 2 hidden and 1 pre-readout neurons at least", f"{hidden} and {pre_readout}"
        )
    entries = (d + 1) * (d + 2) // 2
    forget = min(max(round(0.37 * hidden), min(d, hidden - 1)), entries, hidden - 1)
    memory = min(hidden - forget, entries)
    forget = min(forget if memory < entries else hidden - memory, 2 * d + 1 if memory == entries else entries)
    room = (MOST_UNKNOWNS - 2 * (d + 1) * (memory + forget)) // (memory + forget)
    return memory, forget, max(1, min(pre_readout, room, 2 * wanted_pre))


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
    target_loss: float = 1e-20,
    max_seconds: float = math.inf,
    max_iterations: int = 200,
    restarts: int = 10,
    prune: bool = True,
    callback: Callback | None = None,
    checkpoint: Callable[[Progress], Any] | None = None,
    resume: Progress | None = None,
) -> LevenbergResult:
    """A gated RNN for the sequences `xs` (b, t, d) and outputs `ys` (b, t, d_o), or (b, d_o) with targets_at="last".

    `lambdas` are fixed to 0 and 1, or free in [0, 1]. `max_iterations` holds for each start. `callback(iteration,
    loss, damping, restart)` may return True to stop; `checkpoint(progress)` sees what `resume` takes.
    """
    began = time.monotonic()
    xs, ys = check_sequences(xs, ys, targets_at)
    tests = check_sequences(*held_out, targets_at)
    if lambdas not in ("fixed", "free"):
        raise UnderhoodError("lambdas are 'fixed' (to 0 and 1) or 'free'", lambdas)
    problem = FixedLambda(reduce_data(xs, ys, targets_at=targets_at)) if lambdas == "fixed" else None
    run = _Run(
        problem or FreeLambda(xs, ys, targets_at), tests, targets_at == "last", target_loss, callback, checkpoint
    )
    run.deadline = began + max_seconds
    memory, forget, pre = starting_sizes(run.problem.d, hidden, pre_readout)

    def fresh(restart: int) -> Progress:
        random = np.random.default_rng([seed, restart])
        lambda_ = np.concatenate([np.ones(memory), np.zeros(forget)])
        if run.problem.free:
            lambda_ = np.abs(lambda_ - random.uniform(0.01, 0.3, size=lambda_.shape))
        # Every third start reads all neurons with both branches: targets with products of two memories need it.
        weights = draw_weights(random, run.problem.d, pre, lambda_, split=restart % 3 != 2)
        return Progress(start(run.problem, weights), restart, resume.iterations if resume else 0, (), None, (), 0)

    progress, best = resume or fresh(0), None
    while True:
        progress, ended = run.descend(progress, max_iterations)
        if best is None or run.held_out(progress.reduced or progress.state) < run.held_out(best.reduced or best.state):
            best = progress
        if ended != "stalled" or progress.restart >= restarts:
            break
        progress = fresh(progress.restart + 1)._replace(iterations=progress.iterations)
    if ended == "met" and prune:
        progress, ended = run.reduce(progress, max_iterations)
        best = progress
    state = best.reduced or best.state
    model = to_model(run.problem, state.weights, state.readout)
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
    history: list[tuple[int, int, float, float]] = dataclasses.field(default_factory=list)

    def held_out(self, state: State) -> float:
        """½ · mean of the squared error on sequences that were not trained on, by the network itself."""
        outputs = outputs_of(to_model(self.problem, state.weights, state.readout), self.tests[0], last=self.last)
        return 0.5 * float(np.mean((outputs - self.tests[1]) ** 2))

    def met(self, state: State) -> bool:
        near = self.problem.half_mean(state.loss) <= self.target
        return (near and self.held_out(state) <= MARGIN * self.target) or (
            near and not state.moved and (self.held_out(state) <= self.target)
        )

    def advance(self, progress: Progress) -> tuple[Progress, bool]:
        """One iteration, told to the callbacks; True if one of them asks to stop or time is over."""
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
        return progress, bool(asked) or time.monotonic() > self.deadline

    def descend(self, progress: Progress, most: int) -> tuple[Progress, str]:
        """Iterate until the target is met, the start stalls, or the run is stopped."""
        if progress.reduced is not None:
            return progress, "met"
        while not self.met(progress.state):
            if stalled(progress) or progress.state.iteration >= most:
                return progress, "met" if self.held_out(progress.state) <= self.target else "stalled"
            progress, stop = self.advance(progress)
            if stop:
                return progress, "met" if self.met(progress.state) else "stopped"
        return progress, "met"

    def reduce(self, progress: Progress, most: int) -> tuple[Progress, str]:
        """Take away the weakest neurons, several at a time and then fewer, as long as the target is met again."""
        if progress.reduced is None:
            pending = ("pre_readout", "hidden")
            progress = progress._replace(reduced=progress.state, pending=pending, count=0)
        budget = progress.iterations + most
        while progress.pending and progress.iterations < budget:
            base, kind = progress.reduced, progress.pending[0]
            wide = len(base.weights.out_m) if kind == "pre_readout" else len(base.weights.lambda_)
            count = progress.count or max(1, wide // 8)
            if count >= wide - (kind == "hidden"):
                progress = progress._replace(pending=progress.pending[1:], count=0)
                continue
            if progress.count == 0 or not progress.recent:
                trial = without_weakest(base, self.problem, kind, count)
                decay = COUPLING * trial.loss / max(size(trial.weights), 1e-300)
                trial = trial._replace(damping=FIRST_DAMPING * trial.loss**0.5, decay=decay, iteration=0)
                progress = progress._replace(state=trial, recent=(trial.loss,), count=count)
            while not self.met(progress.state) and not stalled(progress) and progress.state.iteration < 2 * PATIENCE:
                progress, stop = self.advance(progress)
                if stop:
                    return progress, "stopped"
            if self.held_out(progress.state) <= self.target:
                progress = progress._replace(reduced=progress.state, recent=(), count=count)
            elif count > 1:
                progress = progress._replace(recent=(), count=count // 2)
            else:
                progress = progress._replace(pending=progress.pending[1:], recent=(), count=0)
        return progress, "met"


def stalled(progress: Progress) -> bool:
    """No accepted step any more, or too little gained in the last iterations."""
    state, recent = progress.state, progress.recent
    return (not state.moved and state.decay < 1e-40) or (
        len(recent) > PATIENCE and min(recent[1:]) > PROGRESS * recent[0]
    )
