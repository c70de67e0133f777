"""Neurons that no longer matter:  strength of a pre-readout neuron = |D_j| |w_m^j| |w_x^j|.

A neuron may go when the network without it, its readout solved again, has a merit (error plus weight decay) that is
no higher. This is tested, not assumed: the weakest few at once, then fewer.
"""

from __future__ import annotations

import numpy as np

from underhood.training.second_order.gauss_newton import State, merit
from underhood.training.second_order.problems import Objective, Weights

WEAK = 0.03


def strengths(weights: Weights, readout: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of hidden and of pre-readout neurons, each against the strongest of its kind."""
    lengths = [
        np.linalg.norm(part, axis=1) for part in (weights.in_m, weights.in_x, weights.out_m, weights.out_x, readout)
    ]
    pre_readout = lengths[2] * lengths[3] * lengths[4]
    reads = (pre_readout > 0)[:, None] * (weights.out_m**2 + weights.out_x**2)
    hidden = lengths[0] * lengths[1] * np.sqrt(np.sum(reads, axis=0))
    return hidden / max(hidden.max(), 1e-300), pre_readout / max(pre_readout.max(), 1e-300)


def drop_dead(state: State, problem: Objective, *, slack: float = 1.0) -> State:
    """Without the neurons whose loss lowers the merit, or raises it by less than the factor `slack`."""
    here, _, _ = merit(problem, state.weights, state.decay)
    for kind in (1, 0):
        strength = strengths(state.weights, state.readout)[kind]
        weak = np.flatnonzero(strength < WEAK)
        weak = weak[np.argsort(strength[weak])]
        while len(weak):
            without = np.setdiff1d(np.arange(len(strength)), weak)
            everyone = np.arange(len(state.weights.lambda_)), np.arange(len(state.weights.out_m))
            chosen = (without, everyone[1]) if kind == 0 else (everyone[0], without)
            fewer = state.weights.kept(*chosen)
            there, loss, readout = merit(problem, fewer, state.decay)
            if len(without) and there <= slack * here:
                state, here = state._replace(weights=fewer, readout=readout, loss=loss), there
                break
            weak = weak[: len(weak) // 2]
    return state


def without_weakest(state: State, problem: Objective, kind: str, count: int) -> State:
    """The network less its weakest hidden or pre-readout neurons, with the readout solved again."""
    hidden, pre_readout = strengths(state.weights, state.readout)
    keep_hidden, keep_pre = np.arange(len(hidden)), np.arange(len(pre_readout))
    if kind == "hidden":
        keep_hidden = np.sort(np.argsort(hidden, kind="stable")[count:])
    else:
        keep_pre = np.sort(np.argsort(pre_readout, kind="stable")[count:])
    fewer = state.weights.kept(keep_hidden, keep_pre)
    _, loss, readout = merit(problem, fewer, state.decay)
    return state._replace(weights=fewer, readout=readout, loss=loss)
