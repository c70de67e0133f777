"""`uh.read(path)`: a model out of any file or folder of another program's that `underhood import` takes."""

from __future__ import annotations

import dataclasses
import os
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from underhood.architectures.stack.cell import Stack
from underhood.core.arrays import DType
from underhood.core.atomic import special_file
from underhood.core.errors import UnderhoodError
from underhood.core.files import from_tensors
from underhood.interop.attention_weights import attention_from
from underhood.interop.bridges import BRIDGES, Bridge
from underhood.interop.checkpoints import from_pretrained
from underhood.interop.config import config_beside, read_layer
from underhood.interop.own_names import ATTENTION, described_kind, kinds, names_of, structure_of
from underhood.interop.readers import Source, read_file
from underhood.interop.recurrent import RECURRENT, Found, layers_in
from underhood.interop.tensors import Tensors, listed, part_of, printable
from underhood.interop.torch_names import trimmed
from underhood.layers.linear import Linear


@dataclasses.dataclass(frozen=True)
class Reading:
    """A model, and how it came out of the file."""

    model: Any
    mapping: dict[str, str] = dataclasses.field(default_factory=dict)
    """Part of the model → what it was read from, where names were guessed and shapes confirmed them."""
    left_out: tuple[str, ...] = ()
    """What else the file holds."""

    @property
    def remark(self) -> str:
        """One line on what was guessed and left out; empty where nothing was."""
        said = "; ".join(f"{ours}: {theirs}" for ours, theirs in self.mapping.items())
        left = f" Left out: {', '.join(self.left_out[:8])}{' …' * (len(self.left_out) > 8)}." if self.left_out else ""
        return f"Read by shapes, {said}.{left}" if said or left else ""


def read(
    path: str | os.PathLike[str],
    *,
    kind: str | None = None,
    part: str = "",
    layer: int | None = None,
    heads: int = 1,
    embedding: str = "embedding",
    readout: str = "readout",
) -> Any:
    """A model out of any file or folder with recurrent weights or attention; the same as `underhood import`.

    Reads safetensors, torch's .pt and .bin (tensors only: no code of a pickle runs), NumPy's .npz, Keras's .h5 and
    .keras, the LSTM, GRU and RNN operators of ONNX files, what `underhood export` wrote, and checkpoint folders.
    Narrow floats widen exactly. A config.json beside the file is believed.

    **Arguments:**

    - `path`: the file, or a checkpoint folder in the format of transformers or mamba_ssm.
    - `kind`: of the model in a file, such as "lstm" or "mamba", where neither it nor the shapes tell.
    - `part`: prefix of the tensors to read. Several names in order, "embedding,rnn_1,rnn_2", make a stack.
    - `layer`: of a checkpoint folder, from 0 on.
    - `heads`: that the rows of attention matrices are split into.
    - `embedding`, `readout`: names of the linear maps before and after a recurrent layer, with `kind`.

    **Returns:**

    The model. Where names had to be guessed, a warning says what was read as what, and what was left out; an
    `UnderhoodError` says what is in the way where nothing fits.
    """
    found = reading(path, kind=kind, part=part, layer=layer, heads=heads, embedding=embedding, readout=readout)
    if found.remark and not part:
        warnings.warn(found.remark, UserWarning, stacklevel=2)
    return found.model


def reading(
    path: str | os.PathLike[str],
    *,
    kind: str | None = None,
    part: str = "",
    layer: int | None = None,
    heads: int = 1,
    embedding: str = "embedding",
    readout: str = "readout",
) -> Reading:
    """What `read` does, with what it guessed."""
    if kind is not None and kind not in kinds():
        raise UnderhoodError(f"unknown kind {kind!r} to import", remedy=f"Known: {', '.join(kinds())}.")
    if special_file(Path(path)) == "a folder":
        if layer is None:
            raise UnderhoodError(f"{path} is a folder of many layers", remedy="Use `layer=0`.")
        return Reading(from_pretrained(path, layer))
    if layer is not None:
        raise UnderhoodError("expected a checkpoint folder with a layer", f"the file {path}", "Pass its folder.")
    source, beside = read_file(path, part, guess=kind is None), config_beside(path)
    kind = kind or described_kind(source.description)
    if kind is None:
        one = bool(part) and "," not in part and not source.chains
        kind = _kind_beside(part_of(source.tensors, part) if one else source.tensors, beside) if beside else None
    options = {"heads": heads, "embedding": embedding, "readout": readout}
    try:
        if kind is None:
            return _by_shapes(source, part, beside)
        if source.chains:
            raise UnderhoodError(
                "expected no kind for a file that names its own layers", f"kind={kind!r}", "Leave out `kind`."
            )
        tensors = part_of(source.tensors, part) if part else source.tensors
        return Reading(_of_kind(tensors, kind, source.description, beside, **options))
    except UnderhoodError as error:
        about = f"{path} {error.rule[3:]}" if error.rule.startswith("it ") else f"{path}: {error.rule}"
        raise UnderhoodError(about, error.got, error.remedy) from None
    except (TypeError, ValueError, AttributeError, IndexError, KeyError) as error:
        # Arrays without axes, or with an axis of size 0, where a matrix belongs.
        raise UnderhoodError(f"{path}: these tensors make no {kind or 'model'}: {error}") from None


def import_model(path: str | os.PathLike[str], kind: str | None = None, **options: Any) -> Any:
    """`read` without its remark."""
    return reading(path, kind=kind, **options).model


def _of_kind(
    tensors: Tensors, kind: str, description: dict[str, Any], beside: tuple[Path, dict[str, Any]] | None, **options: Any
) -> Any:
    """By the kind that was said, unless a config.json beside the file says another."""
    if beside is not None and not description:
        where, config = beside
        said = next((one for one in BRIDGES.values() if config["model_type"] in one.model_types), None)
        through_bridge = kind != ATTENTION and kind not in RECURRENT and _public(tensors, kind) is not None
        if (said is not None and said.kind != f"{kind}-cell") or (said is None and through_bridge):
            got = f"kind={kind!r}"
            rule = f"{where}: expected weights of the model type {printable(config['model_type'])}"
            raise UnderhoodError(rule, got, "Move the file elsewhere if it is of another model.")
        if said is not None and through_bridge:
            return read_layer(said, tensors, config, where)
    return from_state_dict(tensors, kind, description, **options)


def _kind_beside(tensors: Tensors, beside: tuple[Path, dict[str, Any]] | None) -> str | None:
    """The kind of one layer's tensors by the config.json beside them."""
    if beside is None:
        return None
    said = next((one for one in BRIDGES.values() if beside[1]["model_type"] in one.model_types), None)
    if said is None or not any(name.endswith(said.mark) for name in tensors):
        return None
    if said.mark not in tensors:
        raise UnderhoodError(f"{beside[0].parent} holds whole models", remedy="Pass the folder, with `layer=0`.")
    return said.kind.removesuffix("-cell")


def _by_shapes(source: Source, part: str, beside: Any) -> Reading:
    """Recurrent layers and what stands around them, by the names that people give them and by their shapes."""
    chains, taken = source.chains, set()
    if not chains:
        layers, taken = layers_in(source.tensors)
        by_place: dict[str, list[Found]] = {}
        for layer in layers:
            by_place.setdefault(layer.where, []).append(layer)
        chains = [sorted(chain, key=lambda layer: (layer.level, layer.backward)) for chain in by_place.values()]
    linears = linears_in({name: tensor for name, tensor in source.tensors.items() if name not in taken})
    if not chains:
        known = f"Use `kind`, one of {', '.join(kinds())}."
        raise UnderhoodError("it does not say what its weights are", remedy=known)
    if part:
        return _named_parts([name.strip() for name in part.split(",")], chains, linears, source.tensors)
    if len(chains) > 1:
        listing = ", ".join(f"{chain[0].where} ({_title(chain)})" for chain in chains[:8])
        names = ",".join(chain[0].where for chain in chains[:2])
        remedy = f"Choose one with `part={chains[0][0].where!r}`, or several in order: `part={names!r}`."
        raise UnderhoodError(f"it holds {len(chains)} recurrent networks: {listing}", remedy=remedy)
    (chain,) = chains
    first, last = _around(chain, linears)
    signal = [*([linears[first][0]] if first else []), *cells_of(chain, {}), *([linears[last][0]] if last else [])]
    mapping = {"embedding": first, _title(chain): _names(chain), "readout": last}
    left = [name for name in linears if name not in (first, last)]
    used = {name for _, names in linears.values() for name in names} | taken
    left += [name for name in source.tensors if name not in used]
    return Reading(as_stack(signal, {}), {key: one for key, one in mapping.items() if one}, tuple(map(printable, left)))


def _named_parts(parts: list[str], chains: list[list[Found]], linears: Linears, tensors: Tensors) -> Reading:
    """The parts that the user names, in that order."""
    signal: list[Any] = []
    for name in parts:
        short = name.rstrip("._")
        chain = next((one for one in chains if short in (one[0].where, one[0].where.rpartition(".")[2])), None)
        under = [chain for chain in chains if chain[0].where.startswith(f"{name.rstrip('.')}.")]
        if chain is None and len(under) == 1:
            chain = under[0]
        if chain is not None:
            signal += cells_of(chain, {})
        elif name in linears:
            signal.append(linears[name][0])
        else:
            known = ", ".join(printable(one) for one in (*(chain[0].where for chain in chains), *linears))
            raise UnderhoodError(f"no tensors under {name!r}", listed(tensors), f"Parts: {known}.")
    if all(isinstance(one, Linear) for one in signal):
        raise UnderhoodError("expected a recurrent layer among the parts", ", ".join(parts))
    mapping = {f"part {index}": name for index, name in enumerate(parts)} if len(parts) > 1 else {}
    return Reading(as_stack(signal, {}), mapping)


Linears = dict[str, tuple[Linear, tuple[str, ...]]]
_WEIGHT = re.compile(r"(?P<where>.+?)[._]?(?P<what>weight|kernel|embeddings|w|W)")


def linears_in(tensors: Tensors) -> Linears:
    """Linear maps by name, with the tensors that make them: X.weight with X.bias, X_w with X_b.

    A table of embeddings, which has no bias and says so in its name, reads one-hot rows.
    """
    found: Linears = {}
    for name, tensor in tensors.items():
        if tensor.ndim != 2:
            continue
        match = _WEIGHT.fullmatch(name)
        where, what = (match["where"], match["what"]) if match else (name, "")
        bias = next((other for other in _biases(name, what) if other in tensors), None)
        if bias is None:
            weight = tensor.T if "emb" in name.lower() else tensor
            found[where] = Linear(weight, np.zeros(len(weight), weight.dtype)), (name,)
        elif tensors[bias].shape == (len(tensor),):
            found[where] = Linear(tensor, tensors[bias]), (name, bias)
    return found


def _biases(name: str, what: str) -> list[str]:
    bias = {"weight": "bias", "kernel": "bias", "w": "b", "W": "b"}.get(what)
    return [] if bias is None else [f"{name.removesuffix(what)}{bias}"]


def _around(chain: list[Found], linears: Linears) -> tuple[str | None, str | None]:
    """Which linear map stands before the layers, and which one behind them, where only one of each fits."""
    sizes = {name: np.shape(linear.weight) for name, (linear, _) in linears.items()}
    before = [name for name, (rows, _) in sizes.items() if "emb" in name.lower() and rows == chain[0].d]
    after = [name for name, (_, columns) in sizes.items() if name not in before and columns == chain[-1].hidden]
    return (before[0] if len(before) == 1 else None), (after[0] if len(after) == 1 else None)


def _title(chain: list[Found]) -> str:
    """ "GRU 256 × 2"."""
    sizes = dict.fromkeys(str(layer.hidden) for layer in chain)
    return f"{chain[0].layer.torch} {'/'.join(sizes)}{f' × {len(chain)}' if len(chain) > 1 else ''}"


def _names(chain: list[Found]) -> str:
    names = [name for layer in chain for name in layer.names.values() if name]
    return ", ".join(map(printable, names[:4])) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def from_state_dict(
    tensors: Tensors,
    kind: str,
    description: dict[str, Any] | None = None,
    *,
    heads: int = 1,
    embedding: str = "embedding",
    readout: str = "readout",
) -> Any:
    """`description` is what our own export wrote beside the tensors; files of others do without."""
    ours = (description or {}).get("ours", {})
    ours = ours if isinstance(ours, dict) else {}
    if kind == ATTENTION:
        return attention_from(tensors, heads)
    if heads != 1:
        raise UnderhoodError(
            f"{kind} has no heads to split rows into", remedy="Leave out heads, or use `kind='attention'`."
        )
    if kind in RECURRENT and not any(name == "u" or name.startswith("cells.") for name in tensors):
        return _recurrent(tensors, kind, ours, embedding, readout)
    if (public := _public(tensors, kind)) is not None:
        return public.read(tensors, (description or {}).get("settings", {}))
    return from_tensors(structure_of(tensors, kind, ours), tensors, kind)


def _public(tensors: Tensors, kind: str) -> Bridge | None:
    """The public class of this kind, unless the tensors are ours.

    Some public names are ours, too, but torch's kernels have three axes where ours have two.
    """
    if any(name.startswith("cells.") for name in tensors):
        return None
    found = next((one for one in BRIDGES.values() if one.kind == f"{kind}-cell"), None)
    kernels = [tensor for name, tensor in tensors.items() if re.fullmatch(r"conv_?1d(\.conv)?\.weight", name)]
    if found is None or kernels:
        return found if any(kernel.ndim == 3 for kernel in kernels) else None
    return None if {f"cells.0.{name}" for name in tensors} <= names_of(kind) else found


def _recurrent(tensors: Tensors, kind: str, ours: dict[str, Any], embedding: str, readout: str) -> Any:
    """A bare layer becomes a cell; several, or with an embedding or a readout, a stack."""
    layers, taken = layers_in(tensors)
    places = dict.fromkeys(layer.where for layer in layers)
    if len(places) != 1:
        rule = "expected the tensor weight_ih_l0 once, after any prefix"
        raise UnderhoodError(rule, listed(tensors), "Name its part with `part`.")
    left = {name: tensor for name, tensor in tensors.items() if name not in taken}
    first, last = _linear(left, embedding), _linear(left, readout)
    cells = cells_of([dataclasses.replace(layer, model=kind) for layer in layers], left)
    if left:
        remedy = f"Known: {embedding}, {readout} and one {kind}; say others with `embedding`, `readout` or `part`."
        raise UnderhoodError(f"unknown tensors: {listed(left)}", remedy=remedy)
    return as_stack([*filter(None, [first]), *cells, *filter(None, [last])], ours)


def cells_of(layers: list[Found], beside: Tensors) -> list[Any]:
    """One torch module's layers as cells, from the first on."""
    projected = [name for name in beside if re.search(r"weight_hr_l\d+$", name)]
    for word, wrong in {"one direction": any(layer.backward for layer in layers), "no projection": projected}.items():
        if wrong:
            names = {name: layer.w for layer in layers for name in layer.names.values()}
            raise UnderhoodError(f"expected a layer with {word}", listed({**names, **beside}))
    levels = sorted(layers, key=lambda layer: layer.level)
    for index, layer in enumerate(levels):
        if layer.level != index:
            raise UnderhoodError(f"unknown tensors: {listed(dict.fromkeys(layer.names.values(), layer.w))}")
    return [layer.cell() for layer in levels]


def recurrent_cells(title: str, tensors: Tensors, options: dict[str, Any]) -> list[Any]:
    """The state dict of a torch.nn.LSTM, GRU or RNN as cells."""
    layers, taken = layers_in(tensors)
    try:
        left = {name: tensor for name, tensor in tensors.items() if name not in taken}
        return cells_of([dataclasses.replace(layer, options=options) for layer in layers], left)
    except UnderhoodError as error:
        raise UnderhoodError(f"{title}: {error.rule}", error.got, error.remedy) from None


def as_stack(signal: list[Any], ours: dict[str, Any]) -> Any:
    """Linear maps, cells, linear maps as one model: the cell itself where it is alone."""
    inner = [index for index, one in enumerate(signal) if not isinstance(one, Linear)]
    cells = tuple(signal[inner[0] : inner[-1] + 1])
    if any(isinstance(one, Linear) for one in cells):
        raise UnderhoodError("expected recurrent layers next to one another", "a linear layer between them")
    first, last = _product(signal[: inner[0]]), _product(signal[inner[-1] + 1 :])
    if len(cells) == 1 and first is None and last is None:
        return trimmed(cells, None, ours)[0][0]
    first = Linear(*_identity(cells[0].d, cells[0].dtype)) if first is None else first
    last = Linear(*_identity(cells[-1].d_out, cells[-1].dtype)) if last is None else last
    cells, last = trimmed(cells, last, ours)
    return Stack(first, cells, last)


def _product(linears: list[Linear]) -> Linear | None:
    """Linear maps in a row as one."""
    if len(linears) < 2:
        return linears[0] if linears else None
    weight, bias = (np.asarray(array, np.float64) for array in (linears[0].weight, linears[0].bias))
    for after in linears[1:]:
        matrix = np.asarray(after.weight, np.float64)
        weight, bias = matrix @ weight, matrix @ bias + np.asarray(after.bias, np.float64)
    dtype = np.asarray(linears[0].weight).dtype
    return Linear(weight.astype(dtype), bias.astype(dtype))


def _linear(tensors: Tensors, name: str) -> Linear | None:
    weight, bias = tensors.pop(f"{name}.weight", None), tensors.pop(f"{name}.bias", None)
    if weight is None:
        if bias is not None:
            raise UnderhoodError(f"{name}.bias is there without {name}.weight")
        return None
    if weight.ndim != 2:
        raise UnderhoodError(f"expected {name}.weight of shape (outputs, inputs)", weight.shape)
    return Linear(weight, np.zeros(len(weight), weight.dtype) if bias is None else bias)


def _identity(size: int, dtype: DType) -> tuple[np.ndarray, np.ndarray]:
    return np.eye(size, dtype=dtype), np.zeros(size, dtype)
