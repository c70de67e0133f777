"""The targets, one registration each: what Table 3 says of them and what was built here."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from underhood.attention.linear import LinearAttention
from underhood.cells import GatedRNN
from underhood.construct.envelope import Envelope
from underhood.construct.forms import (
    KeyValueForm,
    compact,
    compact_coordinates,
    coordinates,
    figure_1,
    rank_revealed,
)
from underhood.construct.gated import to_gated_rnn, to_sparse_gated_rnn
from underhood.construct.gru import attention_to_gru, to_gru
from underhood.construct.lowered import Lowered
from underhood.construct.lru import attention_to_lru_in_skip, to_lru, to_lru_in_out, to_lru_in_skip
from underhood.construct.lstm import attention_to_lstm, to_lstm
from underhood.construct.minimal import minimal
from underhood.construct.products import gated_products
from underhood.construct.targets import ATTENTION, GATED, TARGETS, Target

LARGE = 10_000_000  # entries of a dense output gating, 80 MB in float64: sparse from here on

_ROUNDING_ONLY = {1: 1e-12}
_LINEARISED = {1: 1e-7, 2: 1e-9, 3: 1e-10}
_GRU = {1: 1e-4, 2: 1e-6}


Form = Callable[[LinearAttention], KeyValueForm]


def _exact(form: Form) -> Callable[..., Lowered]:
    """Attention through `form` into Eq. 2, exact but for rounding."""

    def lower(source: LinearAttention, envelope: Envelope, order: int) -> Lowered:
        return _rounded(to_gated_rnn(form(source)), envelope)

    return lower


def _figure_1(source: LinearAttention, envelope: Envelope, order: int, sparse: bool | None = None) -> Lowered:
    entries = source.heads * source.d_out * source.d_key
    if sparse or (sparse is None and entries * (entries + source.heads * source.d_key) > LARGE):
        bounds = _attention_bounds(source, envelope)
        return Lowered(to_sparse_gated_rnn(source), _rounding(envelope, entries), bounds)
    return _exact(figure_1)(source, envelope, order)


def _same(source: GatedRNN, envelope: Envelope, order: int, sparse: bool | None = None) -> Lowered:
    """A gated RNN is one already."""
    return _rounded(source, envelope)


def _rounded(model: GatedRNN, envelope: Envelope) -> Lowered:
    return Lowered(model, _rounding(envelope, model.pre_readout), gated_products(model, envelope).output_bounds)


def _rounding(envelope: Envelope, products: int) -> float:
    """Products, sums over time and the sum of the readout, against the source in exact arithmetic."""
    return envelope.worst.summing + 2 * envelope.worst.step + envelope.dot(products)


def _attention_bounds(source: LinearAttention, envelope: Envelope) -> np.ndarray:
    """Σ |v| |k| |q| over the horizon, without writing the form out."""
    total = np.zeros(source.d_out)
    decay = np.ones(source.heads) if source.decay is None else np.asarray(source.decay)
    for w_value, w_key, w_query, steps in zip(
        *(np.asarray(w, np.float64) for w in (source.w_value, source.w_key, source.w_query)),
        envelope.steps(decay),
        strict=True,
    ):
        total += steps * envelope.linear(w_value) * np.sum(envelope.linear(w_key) * envelope.linear(w_query))
    return total


def economical(source: LinearAttention) -> KeyValueForm:
    """Figure 1 cut to the ranks; heads share memories where that halves it: a GRU layer costs neurons squared."""
    apart = rank_revealed(source)
    if source.heads == 1:
        return apart
    together = minimal(source)
    return together if together.products * 2 <= apart.products else apart


def _through_gated(lower: Callable[..., Lowered], form: Form = rank_revealed) -> Callable[..., Lowered]:
    """Attention as a gated RNN, and then as what a gated RNN becomes."""

    def through(source: LinearAttention, envelope: Envelope, order: int, **options: Any) -> Lowered:
        return lower(to_gated_rnn(form(source)), envelope, order, **options)

    return through


def _through_form(lower: Callable[..., Lowered], form: Form = rank_revealed) -> Callable[..., Lowered]:
    def through(source: LinearAttention, envelope: Envelope, order: int, **options: Any) -> Lowered:
        return lower(form(source), envelope, order, **options)

    return through


def _either(first: Callable[..., Lowered], otherwise: Callable[..., Lowered]) -> Callable[..., Lowered]:
    """`first`, and `otherwise` for sources on which it comes near the tolerance."""

    def lower(source: LinearAttention, envelope: Envelope, order: int, **options: Any) -> Lowered:
        lowered = first(source, envelope, order, **options)
        return dataclasses.replace(lowered, otherwise=lambda: otherwise(source, envelope, order, **options))

    return lower


def _register(
    name: str,
    *,
    attention: dict[int, Callable[..., Lowered]],
    gated: dict[int, Callable[..., Lowered]] | None = None,
    tolerances: dict[int, float],
    why_not_fewer: str = "a network has one layer or more",
    source: str = "Section 2.1",
    paper: tuple[int | None, int | None] = (1, 1),
    default_attention: int | None = None,
) -> None:
    ways = {(ATTENTION, layers): way for layers, way in attention.items()}
    ways |= {(GATED, layers): way for layers, way in (gated or {}).items()}
    default = {ATTENTION: default_attention or min(attention)}
    if gated:
        default[GATED] = min(gated)
    target = Target(
        name,
        tolerances is _ROUNDING_ONLY,
        tolerances,
        ways,
        default,
        why_not_fewer,
        source,
        {GATED: paper[0], ATTENTION: paper[1]},
    )
    TARGETS.register(name)(target)


_register("gated-rnn", attention={1: _figure_1}, gated={1: _same}, tolerances=_ROUNDING_ONLY)
_register(
    "gated-rnn-compact",
    attention={1: _either(_exact(compact), _exact(compact_coordinates))},
    tolerances=_ROUNDING_ONLY,
)
_register("gated-rnn-minimal", attention={1: _exact(minimal)}, tolerances=_ROUNDING_ONLY)
_register(
    "lru",
    attention={2: _through_gated(to_lru)},
    gated={2: to_lru},
    tolerances=_LINEARISED,
    why_not_fewer="one layer has output gating only, and key-values need gating before the recurrence",
    source="Table 3",
    paper=(2, 2),
)
_register(
    "lru-in-out",
    attention={1: _through_gated(to_lru_in_out)},
    gated={1: to_lru_in_out},
    tolerances=_LINEARISED,
    source="Table 3",
    paper=(1, 1),
)
_register(
    "lru-in-skip",
    attention={1: _through_form(attention_to_lru_in_skip), 2: _through_gated(to_lru_in_skip)},
    gated={2: to_lru_in_skip},
    tolerances=_LINEARISED,
    why_not_fewer="the m branch of the output gating reads x, so two states cannot be multiplied in one layer",
    source="Table 3",
    paper=(2, 1),
)
_register(
    "lstm",
    attention={
        1: _either(_through_form(attention_to_lstm), _through_form(attention_to_lstm, coordinates)),
        2: _through_gated(to_lstm),
    },
    gated={2: to_lstm},
    tolerances=_LINEARISED,
    why_not_fewer="the output gate reads the input and not the cell state, so two states cannot be multiplied",
    source="Table 3",
    paper=(2, 1),
)
_register(
    "gru",
    attention={1: _through_form(attention_to_gru), 2: _through_gated(to_gru, economical)},
    gated={2: to_gru},
    tolerances=_GRU,
    why_not_fewer="a product of two states of this moment needs the sums that a layer below has made",
    source="docs/theory.md, against the dash of Table 3",
    paper=(None, None),
    default_attention=2,
)
