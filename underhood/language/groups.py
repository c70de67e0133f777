"""A layer's heads, or groups of channels where each channel has a memory of its own: one at a time, or taken out.

Every mixer ends in a projection of its channels; a head is some columns of it, and a mixer without them is the mixer
with these columns at 0. That is exact, and the same for every architecture.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from underhood.core.errors import UnderhoodError
from underhood.explain.maps import whole_number

GROUPS = 8  # of a layer whose channels have a memory each
# Where the last projection of each kind of mixer is; its columns are the channels.
LAST = {
    "mamba-cell": ("out_proj",),
    "mamba2-cell": ("out_proj", "weight"),
    "gated-deltanet-cell": ("out_proj", "weight"),
    "griffin-cell": ("linear_out", "weight"),
    "mlstm-cell": ("proj_down", "weight"),
    "rwkv7-cell": ("o_proj", "weight"),
    "gla-cell": ("o_proj", "weight"),
    "stack": ("readout", "weight"),
    "softmax-attention": ("o_proj", "weight"),
}


def heads_of(mixer: Any) -> int:
    """How many heads a mixer has, or groups of channels."""
    if mixer is None:
        return 0
    own = getattr(mixer, "heads", None)
    columns = _last(mixer).shape[1]
    return int(own) if isinstance(own, int) and own > 1 else int(np.gcd(GROUPS, columns))


def only(mixer: Any, head: Any) -> Any:
    """The mixer with the contributions of one head."""
    return _masked(mixer, head, keep=True)


def without(mixer: Any, head: Any) -> Any:
    """The mixer without the contributions of one head."""
    return _masked(mixer, head, keep=False)


def _masked(mixer: Any, head: Any, *, keep: bool) -> Any:
    number, count = whole_number(head), heads_of(mixer)
    if number is None or not 0 <= number < count:
        raise UnderhoodError(f"expected a head from 0 to {count - 1}", repr(head))
    matrix = _last(mixer)
    inside = np.arange(matrix.shape[1]) // (matrix.shape[1] // count) == number
    changed = jnp.where(jnp.asarray(inside == keep)[None], matrix, 0)
    return eqx.tree_at(_last, mixer, changed)


def _last(mixer: Any) -> Any:
    kind = getattr(mixer, "kind", type(mixer).__name__)
    if kind not in LAST:
        raise UnderhoodError(f"no heads are known of a mixer of the kind {kind}", remedy=f"Known: {', '.join(LAST)}.")
    for name in LAST[kind]:
        mixer = getattr(mixer, name)
    return mixer
