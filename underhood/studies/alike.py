"""A network beside the attention it implements, as rows of an artifact: its outputs, and its attention map."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from jaxtyping import Float
from numpy import ndarray

from underhood.attention.linear import LinearAttention
from underhood.core.model import AbstractModel
from underhood.explain.attention_map import attention_map
from underhood.explain.maps import compare_maps
from underhood.studies.rows import Row, at_most

if TYPE_CHECKING:
    from underhood.compiler.compile import Compiled


def error_row(name: str, compiled: Compiled) -> Row:
    """The error measured; the target is what compile promises: its tolerance, and its bound where that is smaller."""
    limit = compiled.tolerance
    if compiled.max_abs_error > 0:
        limit = min(limit, compiled.error_bound * compiled.max_rel_error / compiled.max_abs_error)
    return Row(name, None, compiled.max_rel_error, at_most(limit))


def map_rows(
    what: str,
    network: AbstractModel,
    attention: LinearAttention,
    xs: Float[ndarray, "t d"],
    *,
    most: float,
    last: bool = False,
) -> list[Row]:
    """How far the two maps are apart on `xs`, or their `last` rows; at most `most` is asked."""
    maps = (attention_map(one, xs) for one in (network, attention))
    same = compare_maps(
        *(replace(one, weights=one.weights[:, -1:], rows=(one.length - 1,)) if last else one for one in maps)
    )
    return [
        Row(f"{what}, 1 − correlation", None, max(1 - same.correlation, 0.0), at_most(most)),
        Row(f"{what}, largest difference", None, same.largest_difference, at_most(most)),
    ]
