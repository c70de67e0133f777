"""Section 3.3's stacks for a batch, features first: embedding and readout as one product over all steps."""

from __future__ import annotations

import jax
from jaxtyping import Array, Float

from underhood.architectures.stack.cell import Stack
from underhood.core.model import AbstractModel
from underhood.layers.kernels.dispatch import CELL_KERNELS, affine, is_dense, kernel_for


@kernel_for(Stack)
def stack(model: Stack, xs: Float[Array, "b t d"], last: bool) -> Float[Array, "b *t d_o"] | None:
    """Cells with a kernel of their own run it, the others their own scan over each sequence."""
    signal, embedding, readout = xs.transpose(2, 1, 0), model.embedding, model.readout
    if not (is_dense(embedding.weight) and is_dense(readout.weight)):
        return None
    for index, cell in enumerate(model.cells):
        kernel, before = CELL_KERNELS.get(type(cell)), embedding if index == 0 else None
        states = kernel(cell, before, signal, last and index == model.layers - 1) if kernel is not None else None
        if states is None:
            states = _own_scan(cell, affine(before.weight, before.bias, signal) if before else signal)
        signal = states
    outputs = affine(readout.weight, readout.bias, signal[:, -1] if last else signal)
    return outputs.T if last else outputs.transpose(2, 1, 0)


def _own_scan(cell: AbstractModel, xs: Float[Array, "d t b"]) -> Float[Array, "d_o t b"]:
    ys = jax.vmap(lambda x: cell._scan(x, cell._initial_state())[0], in_axes=1, out_axes=1)(xs.transpose(1, 2, 0))
    return ys.transpose(2, 0, 1)
