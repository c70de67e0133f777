"""Constructions made of others: attention through a form, through a gated RNN, or one way and then a better one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from underhood.algebra.key_values import KeyValueForm
from underhood.architectures.gated_rnn.cell import GatedRNN, Gating
from underhood.attention.linear import LinearAttention
from underhood.compiler.envelope import Envelope
from underhood.compiler.forms import rank_revealed
from underhood.compiler.lowered import Lowered
from underhood.compiler.minimal import minimal
from underhood.compiler.targets import Way

Form = Callable[[LinearAttention], KeyValueForm]


def to_gated_rnn(form: KeyValueForm) -> GatedRNN:
    """Memory neurons (λ = decay) first, then query neurons (λ = 0), which read x times the constant 1."""
    weights = form.gated
    return GatedRNN.from_lambda(
        Gating(weights.w_m, weights.w_x), weights.lambda_, Gating(weights.left, weights.right), weights.readout
    )


def through_form(lower: Way, form: Form = rank_revealed) -> Way:
    """Attention as key-values, and then as what key-values become."""

    def through(source: LinearAttention, envelope: Envelope, order: int, **options: Any) -> Lowered:
        return lower(form(source), envelope, order, **options)

    return through


def through_gated(lower: Way, form: Form = rank_revealed) -> Way:
    """Attention as a gated RNN, and then as what a gated RNN becomes."""
    return through_form(lambda form_, *settings, **options: lower(to_gated_rnn(form_), *settings, **options), form)


def either(first: Way, otherwise: Way) -> Way:
    """`first`, and `otherwise` for sources on which it comes near the tolerance."""

    def lower(source: LinearAttention, envelope: Envelope, order: int, **options: Any) -> Lowered:
        lowered = first(source, envelope, order, **options)
        return dataclasses.replace(lowered, otherwise=lambda: otherwise(source, envelope, order, **options))

    return lower


def economical(source: LinearAttention) -> KeyValueForm:
    """Figure 1 cut to the ranks; heads share memories where that halves it: a GRU layer costs neurons squared."""
    apart = rank_revealed(source)
    if source.heads == 1:
        return apart
    together = minimal(source)
    return together if 0 < together.products * 2 <= apart.products else apart
