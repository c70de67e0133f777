"""What others made, as a function from NumPy to NumPy or as a model of this package: a torch module, an ONNX file.

`uh.decompile`, `uh.probe` and `uh.in_context` take such things and ask here what they are. The converters come from
`interop`, or from another package's entry point; nobody's library is imported before something of it is recognised.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from underhood.core.model import AbstractModel
from underhood.core.registry import Registry


@dataclass(frozen=True)
class Converter:
    """How one sort of foreign networks is used here."""

    recognises: Callable[[Any], bool]
    as_function: Callable[[Any], Callable[[Any], Any]]
    """The network as a map of one NumPy sequence."""
    input_size: Callable[[Any], int | None]
    """d, if the network tells it."""
    as_model: Callable[[Any], AbstractModel] | None = None
    """The network as a model of this package; raises UnderhoodError where there is none."""


CONVERTERS: Registry[Converter] = Registry("converter", "underhood.interop.foreign")


def converter_of(network: Any) -> Converter | None:
    """Who converts it; None for models of this package, plain callables and everything else."""
    if isinstance(network, AbstractModel):
        return None
    return next((converter for converter in CONVERTERS.values() if converter.recognises(network)), None)


def as_function(network: Any, d: Any = None) -> tuple[Any, Any]:
    """A callable for foreign networks, anything else as it is; and its input size: `d`, or what the network tells."""
    converter = converter_of(network)
    if converter is not None:
        return converter.as_function(network), converter.input_size(network) if d is None else d
    return network, network.d if isinstance(network, AbstractModel) and d is None else d
