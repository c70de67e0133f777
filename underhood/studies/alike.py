"""A network's attention map against that of the attention it implements, as rows of an artifact."""

from __future__ import annotations

from dataclasses import replace

from jaxtyping import Float
from numpy import ndarray

from underhood.attention.linear import LinearAttention
from underhood.core.model import AbstractModel
from underhood.explain.attention_map import attention_map
from underhood.explain.maps import compare_maps
from underhood.studies.artifact import Row


def map_rows(
    what: str,
    network: AbstractModel,
    attention: LinearAttention,
    xs: Float[ndarray, "t d"],
    *,
    most: float,
    last: bool = False,
) -> list[Row]:
    """Correlation and largest difference of the two maps on `xs`, or of their `last` rows; met where within `most`."""
    maps = (attention_map(one, xs) for one in (network, attention))
    same = compare_maps(*(replace(one, weights=one.weights[:, -1:]) if last else one for one in maps))
    return [
        Row(f"{what}, correlation", None, same.correlation, 1 - same.correlation <= most),
        Row(f"{what}, largest difference", None, same.largest_difference, same.largest_difference <= most),
    ]
