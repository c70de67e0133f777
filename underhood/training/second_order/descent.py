"""One fit, start by start: iterate until the target is met or the start stalls, then take neurons away.

A start that stalls is given up for another; a network that has reached its target is made smaller while it stays
there. Each iteration is a pure function of the state before it and the data, so that a run that is resumed from a
`Progress` ends with the same bits.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from underhood.architectures.gated_rnn.cell import GatedRNN
from underhood.training.prune import drop_dead, without_weakest
from underhood.training.second_order.alternating import Wide
from underhood.training.second_order.gauss_newton import FIRST_DAMPING, State, iterate, size, start
from underhood.training.second_order.problems import Problem, draw_weights, outputs_of, to_model

COUPLING = 0.5  # weight decay against loss; at d=4 (4 to 8 seeds) 3 killed needed neurons, 0.01 left long tails
SETTLED = 1e-7  # of the targets' power: dead neurons are dropped from here on
PATIENCE, PROGRESS = 20, 0.3  # a start that does not fall to this share of its loss in so many iterations has stalled
MARGIN = 0.3  # the training loss aims below the held-out target by this factor

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


@dataclasses.dataclass
class Descent:
    """The data and the limits that all starts of one fit share."""

    problem: Problem | Wide
    tests: tuple[np.ndarray, np.ndarray]
    last: bool
    sizes: tuple[int, int, int]  # memory, forget and pre-readout neurons to start with
    widest: tuple[int | float, int | float]  # hidden and pre-readout neurons in the end
    seed: int
    target: int | float
    deadline: int | float  # on time.monotonic()
    most: int | float  # iterations of all starts together
    each: int  # iterations of one start
    callback: Callback | None
    checkpoint: Callable[[Progress], Any] | None
    history: list[tuple[int, int, float, float]] = dataclasses.field(default_factory=list)

    def fresh(self, restart: int) -> Progress:
        """A random start, a function of seed and number."""
        random, problem = np.random.default_rng([self.seed, restart]), self.problem
        memory, forget, pre = self.sizes
        if isinstance(problem, Wide):
            return Progress(problem.start(random, pre), restart, 0, (), None, (), 0, 0, None)
        lambda_ = np.concatenate([np.ones(memory), np.zeros(forget)])
        if problem.free:
            lambda_ = np.abs(lambda_ - random.uniform(0.01, 0.3, size=lambda_.shape))
        # Every third start reads all neurons with both branches: targets with products of two memories need it.
        weights = draw_weights(random, problem.d, pre, lambda_, split=restart % 3 != 2)
        return Progress(start(problem, weights), restart, 0, (), None, (), 0, 0, None)

    def run(self, progress: Progress, restarts: int, prune: bool) -> tuple[Progress, str]:
        """Start after start, until one has met the target at the sizes asked for; how the last one ended."""
        while True:
            progress, ended = self.descend(progress)
            if not isinstance(self.problem, Wide):  # what is wide is reduced exactly, in the end
                if ended == "met" and (prune or not self.fits(progress.reduced or progress.state)):
                    progress, ended = self.reduce(progress, prune)
                if ended != "stopped" and not self.fits(progress.reduced or progress.state):
                    progress = self.cut(progress)
                    continue
            elif progress.restart >= 1:  # two starts that stall do so at the same loss
                return progress, ended
            if ended != "stalled" or progress.restart >= restarts:
                return progress, ended
            best = self.better(progress.best, progress.state)
            progress = self.fresh(progress.restart + 1)._replace(iterations=progress.iterations, best=best)

    def found(self, progress: Progress) -> State:
        """The best network of all starts, cut to size where it was stopped before."""
        state = progress.reduced or self.better(progress.best, progress.state)
        if self.fits(state) or isinstance(self.problem, Wide):
            return state
        return self.cut(progress._replace(state=state, reduced=None)).state

    def model_of(self, state: State) -> GatedRNN:
        return to_model(self.problem, state.weights, state.readout)

    def loss_of(self, model: GatedRNN) -> float:
        """½ · mean of the squared error on sequences that were not trained on, by the network itself."""
        return 0.5 * float(np.mean((outputs_of(model, self.tests[0], last=self.last) - self.tests[1]) ** 2))

    def held_out(self, state: State) -> float:
        return self.loss_of(self.model_of(state))

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
        if isinstance(self.problem, Wide):
            state = self.problem.sweep(progress.state)
        else:
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

    def descend(self, progress: Progress) -> tuple[Progress, str]:
        """Iterate until the target is met, the start stalls, or the run is stopped."""
        if progress.reduced is not None:
            return progress, "met"
        while not self.met(progress):
            if stalled(progress) or progress.state.iteration >= self.each:
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

    def reduce(self, progress: Progress, fully: bool) -> tuple[Progress, str]:
        """Take away the weakest neurons, several at a time and then fewer, as long as the target is met again.

        As far as it goes, or, if not `fully`, until the sizes asked for are reached.
        """
        if progress.reduced is None:
            unknowns = len(progress.state.weights.vector(self.problem.free))
            allowed = min(self.each, max(LEAST_TRIALS, round(TRIALS / unknowns**2))) if fully else self.each
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
