"""Our cells and the public torch classes that compute the same, both ways.

A bridge is looked up by the qualified name of the public class: nothing is imported before someone needs it.

    uh.from_torch(mixer)        tensors → read → our cell
    uh.to_torch(cell)           our cell → write → settings and tensors → build → their module
    uh.from_pretrained(folder)  config.json and the tensors under the prefix → read → our cell
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from underhood.core.errors import UnderhoodError
from underhood.core.extras import require
from underhood.core.files import from_tensors, to_tensors
from underhood.core.registry import Registry
from underhood.interop.tensors import Tensors, listed, printable

ORACLES = "oracles"  # the extra that has the public packages
Shape = tuple[int | None, ...]
MATRIX, VECTOR, KERNEL, BLOCKS = (None, None), (None,), (None, 1, None), (None, None, None)
Settings = Mapping[str, Any]  # plain JSON: the fields of a public configuration that matter to the layer


@dataclasses.dataclass(frozen=True)
class Bridge:
    """One of our kinds and one public class."""

    kind: str
    public: str
    """Qualified name, "transformers.models.mamba.modeling_mamba.MambaMixer"."""
    read: Callable[[Tensors, Settings], Any]
    """Tensors under the public names, and settings, to a cell; settings may say more than is needed.

    What the shapes do not tell must be among the settings (`needed`): a guess would be another function.
    """
    write: Callable[[Any], tuple[dict[str, Any], Tensors]]
    """A cell to settings and tensors."""
    build: Callable[[Settings], Any]
    """Settings to a torch module, its weights of no account."""
    describe: Callable[[Any], dict[str, Any]] = lambda module: {}
    """A torch module to those settings that the shapes of its tensors do not tell."""
    run: Callable[[Any, Any], Any] = lambda module, xs: module(xs)
    """The module on a batch (b, t, d)."""
    model_type: str | None = None
    """What config.json of a checkpoint calls the model; several names with spaces between them."""
    prefix: str = ""
    """Where a checkpoint keeps one layer's tensors, "backbone.layers.{layer}.mixer."; in base models, "layers.…".

    Several places with spaces between them, the usual one first.
    """
    mark: str = ""
    """A tensor that only layers of this class have, "A_log"."""
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """What the settings that `write` gives are where config.json has none: a value, or a function of the others."""
    ignores: frozenset[str] = frozenset()
    """Fields of such a config.json that sound as if they changed the layer, and do not."""

    @property
    def model_types(self) -> tuple[str, ...]:
        """What config.json calls the model: one name or several."""
        return () if self.model_type is None else tuple(self.model_type.split())

    @property
    def prefixes(self) -> tuple[str, ...]:
        return tuple(self.prefix.split())

    @property
    def name(self) -> str:
        """ "MambaMixer"."""
        return self.public.rpartition(".")[2]


# Recurrent model types of transformers that no cell computes, and what differs.
UNSUPPORTED = {
    "zamba": "each of its heads has B, C and Δ of its own, where a Mamba of ours shares them among all channels",
    "rwkv": "RWKV-4 divides an average of values by one of weights e^k, channel by channel; RWKV-7 has a cell",
    "xlstm": "its mLSTM caps its gates softly and has neither convolution nor skip; xlstm's own mLSTMLayer has a cell",
    "kimi_linear": "its delta rule decays each channel of a key by itself (KDA), where a Gated DeltaNet has one decay",
    "bailing_hybrid": "its delta rule decays each channel of a key by itself (KDA), and a Gated DeltaNet has one decay",
    "glm5_next": "its delta rule decays each channel of a key by itself (KDA), where a Gated DeltaNet has one decay",
    "minimax": "its lightning attention decays by a fixed rate for each head and adds blocks of softmax attention",
    "lfm2": "its layer is a gated convolution of three steps, C ⊙ conv(B ⊙ x), which has no state to carry",
}


BRIDGES: Registry[Bridge] = Registry("bridge", "underhood.architectures.*.bridge", by_name=False)


def bridge(public: str, *, ignores: str = "", **fields: Any) -> Bridge:
    """Register a bridge for the class of this qualified name; `ignores` are names with spaces between them."""
    return BRIDGES.register(public)(Bridge(public=public, ignores=frozenset(ignores.split()), **fields))


def bridge_of(cell: Any, public: str | None = None) -> Bridge:
    """The bridge for a cell of ours."""
    found = [one for one in BRIDGES.values() if one.kind == cell.kind and public in (None, one.public)]
    if not found:
        wanted = "public torch class" if public is None else public
        known = ", ".join(dict.fromkeys(one.kind for one in BRIDGES.values()))
        raise UnderhoodError(f"no {wanted} for the kind {cell.kind}", remedy=f"Known kinds: {known}.")
    return found[0]


def public_form(cell: Any) -> tuple[Bridge, dict[str, Any], Tensors] | None:
    """The cell for a public class that is on this machine; None where there is none, or where it cannot hold it."""
    for one in BRIDGES.values():
        if one.kind == getattr(cell, "kind", None) and importlib.util.find_spec(one.public.partition(".")[0]):
            with contextlib.suppress(UnderhoodError):  # a setting that only ours has
                return one, *one.write(cell)
    return None


def qualified_name(module: Any) -> str:
    return f"{type(module).__module__}.{type(module).__qualname__}"


def take(tensors: Tensors, names: Mapping[str, tuple[int | None, ...]], optional: tuple[str, ...] = ()) -> Tensors:
    """The tensors by name, each with the rank and the sizes that are told; None is any size."""
    unknown = [name for name in tensors if name not in names]
    missing = [name for name in names if name not in tensors and name not in optional]
    if unknown or missing:
        what = f"no tensor {missing[0]}" if missing else f"unknown tensor {printable(unknown[0])}"
        raise UnderhoodError(f"{what} among {listed(tensors)}")
    for name, tensor in tensors.items():
        wanted = names[name]
        fits = tensor.ndim == len(wanted) and all(w in (None, n) for w, n in zip(wanted, tensor.shape, strict=True))
        if not fits:
            shape = ", ".join("any" if size is None else str(size) for size in wanted)
            raise UnderhoodError(f"expected {name} of shape ({shape})", f"shape {tensor.shape}")
    return dict(tensors)


def needed(settings: Settings, name: str) -> Any:
    """A setting that the shapes of the tensors do not tell."""
    if name not in settings:
        remedy = (
            "Import its checkpoint folder (config.json) with `layer`, or the module: uh.save(uh.from_torch(m), FILE)."
        )
        raise UnderhoodError(f"these tensors do not tell {name}, and nothing beside them does", remedy=remedy)
    return settings[name]


def whole(settings: Settings, name: str) -> int:
    """A setting that must be a whole number from 1 on."""
    value = needed(settings, name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UnderhoodError(f"expected a whole number {name} from 1 on", repr(value))
    return value


def positive(settings: Settings, name: str) -> float:
    """A setting that must be a positive number, of a size that any arithmetic holds."""
    value = needed(settings, name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
        raise UnderhoodError(f"expected a positive number {name}", repr(value))
    return float(value)


def expand_to(channels: int, inputs: int, settings: Settings) -> None:
    """The setting expand, where it is given, makes these channels of the inputs."""
    if "expand" in settings and int(positive(settings, "expand") * inputs) != channels:
        raise UnderhoodError(f"expected expand to make {channels} channels of {inputs}", settings["expand"])


def expect(settings: Settings, **values: tuple[Any, ...]) -> None:
    """Settings of these names, where they are given, have one of these values."""
    for name, allowed in values.items():
        if name in settings and settings[name] not in allowed:
            words = " or ".join(map(repr, allowed))
            raise UnderhoodError(f"expected the setting {name} to be {words}", repr(settings[name]))


class Renamed(Mapping[str, Any]):
    """Settings of one public class under the names that another has for the same; and some that go without saying."""

    def __init__(self, settings: Settings, names: Mapping[str, str], fixed: Settings | None = None) -> None:
        self.settings, self.names, self.fixed = settings, names, fixed or {}

    def __getitem__(self, name: str) -> Any:
        return self.fixed[name] if name in self.fixed else self.settings[self.names.get(name, name)]

    def __contains__(self, name: object) -> bool:
        return name in self.fixed or self.names.get(str(name), name) in self.settings

    def __iter__(self) -> Iterator[str]:
        theirs = {their: our for our, their in self.names.items()}
        return iter(dict.fromkeys((*self.fixed, *(theirs.get(name, name) for name in self.settings))))

    def __len__(self) -> int:
        return len(list(iter(self)))


def renamed(settings: Settings, names: Mapping[str, str]) -> dict[str, Any]:
    """The settings of `write`, under another class's names."""
    return {names.get(name, name): value for name, value in settings.items()}


def public_layer(module: str, config: str, layer: str, settings: Settings, **more: Any) -> Any:
    """A layer of a public class, its weights uninitialised, from the settings of its configuration."""
    public = public_module(f"transformers.models.{module}")
    return getattr(public, layer)(getattr(public, config)(**settings, **more), 0)


def _ours(name: str) -> str:
    """Our name of a public tensor."""
    return name.removeprefix("mlstm_cell.").replace("conv1d.conv.", "conv1d.")


def read_cell(
    kind: str, tensors: Tensors, names: Mapping[str, Shape], optional: tuple[str, ...], **structure: Any
) -> Any:
    given = take(tensors, names, optional)
    ours = {_ours(name): tensor[:, 0] if names[name] == KERNEL else tensor for name, tensor in given.items()}
    return from_tensors({"kind": kind, **structure}, ours, "the module")


def named_tensors(cell: Any, names: Mapping[str, Shape], biases: tuple[str, ...] = ()) -> Tensors:
    """The cell's tensors under the public names; all of `biases` or none of them, zeros where one is missing."""
    ours = to_tensors(cell)[1]
    found = {name: ours[_ours(name)] for name in names if _ours(name) in ours}
    if any(name in found for name in biases):
        rows = {name: found[name.replace("bias", "weight")].shape for name in biases}
        zeros = {name: np.zeros(int(np.prod(shape[:-1])), cell.dtype) for name, shape in rows.items()}
        found = zeros | found
    unknown = ours.keys() - {_ours(name) for name in names}
    if unknown:
        raise UnderhoodError(f"the public layer has no {sorted(unknown)[0]}", remedy="Leave it out of the cell.")
    return {name: tensor[:, None] if names[name] == KERNEL else tensor for name, tensor in found.items()}


def norm_settings(settings: Settings, name: str, **more: Any) -> dict[str, Any]:
    return {"kind": "norm", "eps": positive(settings, name), **more}


def require_square(cell: Any) -> None:
    if cell.d != cell.d_out:
        got = f"{cell.d} inputs, {cell.d_out} outputs"
        raise UnderhoodError("expected as many outputs as inputs for the public layer", got)


def public_module(module: str) -> Any:
    return require(module, ORACLES, f"a module of {module.split('.')[0]}")
