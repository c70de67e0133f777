"""Section 3.3's stacks for a batch, features first: embedding and readout as one product over all steps."""

from __future__ import annotations

from jaxtyping import Array, Float

from underhood.cells.stack import Stack
from underhood.fit.kernels.dispatch import CELL_KERNELS, affine, kernel_for, own_scan


@kernel_for(Stack)
def stack(model: Stack, xs: Float[Array, "b t d"], last: bool) -> Float[Array, "b *t d_o"]:
    """Cells with a kernel of their own run it, the others their own scan over each sequence."""
    signal, embedding, readout = xs.transpose(2, 1, 0), model.embedding, model.readout
    for index, cell in enumerate(model.cells):
        kernel, before = CELL_KERNELS.get(type(cell)), embedding if index == 0 else None
        signal = (own_scan if kernel is None else kernel)(cell, before, signal)
    outputs = affine(readout.weight, readout.bias, signal[:, -1] if last else signal)
    return outputs.T if last else outputs.transpose(2, 1, 0)
