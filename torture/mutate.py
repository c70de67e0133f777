"""Damage to files that knows their structure: bytes, JSON trees, safetensors headers, members of zip archives.

Damaged bytes alone rarely get past the first check. Most mutations here keep a file well-formed on the outside and
wrong on the inside: a size, a name, a dtype, a number. Everything follows from the `random.Random` that is given.
"""

from __future__ import annotations

import io
import json
import struct
import zipfile
from collections.abc import Callable
from random import Random
from typing import Any

DEEP = 3000  # levels of nesting: more than any parser that calls itself has room for

NASTY: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2, 7, 2**31 - 1, 2**31, 2**53 + 1, 2**63, 2**64, -(2**63), 10**30, 10**12, 65_537),
    *(0.5, -0.0, 1e-320, 1e308, float("nan"), float("inf"), float("-inf")),
    *("", " ", "0", "-1", "NaN", "\x00", "\u202e", "ä" * 300, "../../x", "/etc/passwd", "[red]", "a\nb\n", "stack"),
    *([], {}, [[]], [None], [0], [1, 2, 3], {"": {}}, {"kind": "stack"}, {"kind": "sparse"}, ["block"], [2] * 70),
)


def damaged_bytes(content: bytes, random: Random) -> bytes:
    """Cut, flipped, doubled, moved, or with numbers in it that are as large as they get."""
    data = bytearray(content)
    for _ in range(random.choice((1, 1, 1, 2, 5, 20))):
        size = len(data)
        at, length = random.randrange(size + 1), random.choice((1, 2, 4, 8, 64, 1000))
        how = random.randrange(7)
        if how == 0 and size:
            data[min(at, size - 1)] ^= 1 << random.randrange(8)
        elif how == 1:
            del data[at:]
        elif how == 2:
            del data[at : at + length]
        elif how == 3:
            data[at:at] = data[at : at + length]
        elif how == 4:
            data[at:at] = random.randbytes(length)
        elif how == 5:
            width = random.choice((1, 2, 4, 8))
            data[at : at + width] = random.choice((b"\xff", b"\x7f", b"\x00", b"\x80")) * width
        else:
            other = random.randrange(size + 1)
            data[at : at + length] = data[other : other + length]
    return bytes(data)


def damaged_json(value: Any, random: Random) -> Any:
    """The same tree with one place in it changed, left out, doubled or exchanged."""
    places: list[tuple[Any, Any]] = []

    def collect(node: Any) -> None:
        entries = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
        for key, entry in entries:
            places.append((node, key))
            collect(entry)

    tree = json.loads(json.dumps(value))
    collect(tree)
    if not places:
        return random.choice(NASTY)
    node, key = random.choice(places)
    how = random.randrange(8)
    if how <= 3:
        node[key] = random.choice(NASTY)
    elif how == 4:
        del node[key]
    elif how == 5:
        other, name = random.choice(places)
        node[key] = json.loads(json.dumps(other[name]))
    elif how == 6:
        if isinstance(node, dict):
            node[random.choice((f"{key}x", "", "kind", "__metadata__", f" {key}", f"{key}.0"))] = node.pop(key)
        else:
            node.append(node[key])
    elif isinstance(node[key], int | float):
        node[key] = node[key] * random.choice((-1, 0, 2, 0.5, 1e9, 10**18))
    else:
        node[key] = [node[key]]
    return tree


def damaged_json_text(text: str, random: Random) -> bytes:
    """A tree that is wrong (mostly), or a text that is no JSON, or too much of it."""
    how = random.randrange(12)
    if how == 0:
        return damaged_bytes(text.encode(), random)
    if how == 1:
        opening, closing = random.choice((("[", "]"), ('{"a":', "}"), ('{"runs":[', "]}")))
        return (opening * DEEP + "1" + closing * random.choice((DEEP, 0))).encode()
    if how == 2:
        return text.replace("1", "9" * random.choice((20, 400, 5000)), 1).encode()
    if how == 3:
        return random.choice((b"\xff\xfe", b"\xef\xbb\xbf", b"\x00", b"\xed\xa0\x80")) + text.encode()
    if how == 4:  # one key twice: readers differ in which they take
        at = text.find("{") + 1
        return (text[:at] + '"kind": "stack", "runs": 1, "step": null, ' + text[at:]).encode()
    tree = json.loads(text)
    for _ in range(random.choice((1, 1, 2, 4))):
        tree = damaged_json(tree, random)
    return json.dumps(tree, ensure_ascii=random.random() < 0.5).encode(errors="surrogatepass")


def split_safetensors(content: bytes) -> tuple[dict[str, Any], bytes]:
    (length,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def joined_safetensors(header: Any, body: bytes, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text) if length is None else length) + text + body


def damaged_safetensors(content: bytes, random: Random) -> bytes:
    """Wrong in the header (sizes, dtypes, offsets, names), in the description of the network, or in the numbers."""
    header, body = split_safetensors(content)
    names = [name for name in header if name != "__metadata__"]
    how = random.randrange(14)
    if how == 0:
        return damaged_bytes(content, random)
    if how == 1:
        length = random.choice((0, 1, 7, len(content), len(content) + 8, 10**8, 2**31, 2**62, 2**63, 2**64 - 1))
        return joined_safetensors(header, body, length)
    if how == 2:
        return joined_safetensors(damaged_json_text(json.dumps(header), random), body)
    if how in (3, 4):
        return joined_safetensors(damaged_json(header, random), body)
    if how in (5, 6, 7) and header.get("__metadata__"):
        metadata = header["__metadata__"]
        key = random.choice([key for key in metadata if key in ("structure", "underhood")] or list(metadata))
        key = key if random.random() < 0.8 else random.choice(list(metadata))
        text = metadata[key]
        try:
            damaged = damaged_json_text(text, random).decode(errors="surrogateescape")
        except json.JSONDecodeError:
            damaged = str(random.choice((*NASTY, "gated-rnn", "linear-attention", "lstm-cell", "underhood/2")))
        metadata[key] = damaged.encode(errors="replace").decode()
        return joined_safetensors(header, body)
    if how in (8, 9) and names:
        return joined_safetensors(*_another_shape(header, body, random.choice(names), random))
    if how == 10 and names:
        name = random.choice(names)
        entry = header.pop(name)
        header[random.choice((f"{name}.x", "w_value", "u", "cells.0.u", "cells.9.u", "lambda_", "", "nu"))] = entry
        return joined_safetensors(header, body)
    if how == 11 and names:
        entry = header[random.choice(names)]
        entry["dtype"] = random.choice(("F64", "F32", "F16", "BF16", "I64", "I32", "U8", "BOOL", "F8_E4M3", "C64", "x"))
        return joined_safetensors(header, body)
    return joined_safetensors(header, _numbers(body, random))


def _another_shape(header: dict[str, Any], body: bytes, name: str, random: Random) -> tuple[dict[str, Any], bytes]:
    """A tensor of another shape with as many bytes as that needs: what only a check of the network can tell."""
    entry = header[name]
    shape, (begin, end) = list(entry["shape"]), entry["data_offsets"]
    width = {"F64": 8, "F32": 4}.get(entry["dtype"], 8)
    how = random.randrange(8)
    if how == 0:
        shape = shape[::-1]
    elif how == 1 and shape:
        shape[random.randrange(len(shape))] += random.choice((-1, 1))
    elif how == 2:
        shape = [*shape, 1]
    elif how == 3:
        shape = shape[1:]
    elif how == 4 and shape:
        shape[random.randrange(len(shape))] = 0
    elif how == 5:
        shape = [0, random.choice((2**31, 2**40, 2**62))]
    elif how == 6:
        shape = [1] * random.choice((33, 65, 200))
    else:
        shape = [2**20, 2**20, 2**20, 0]
    size = width
    for side in shape:
        size *= max(side, 0)
    if size > 2**20:
        return {**header, name: {**entry, "shape": shape}}, body
    data = (body[begin:end] * (size // max(1, end - begin) + 1))[:size]
    grown = size - (end - begin)
    new = {key: dict(value) for key, value in header.items()}
    for key, value in new.items():
        if key != "__metadata__" and value["data_offsets"][0] >= end and key != name:
            value["data_offsets"] = [offset + grown for offset in value["data_offsets"]]
    new[name] |= {"shape": shape, "data_offsets": [begin, begin + size]}
    return new, body[:begin] + data + body[end:]


def _numbers(body: bytes, random: Random) -> bytes:
    """Numbers that are none, or none to compute with."""
    values = [float("nan"), float("inf"), -float("inf"), 1e308, -1e200, 5e-324, 0.0, -0.0, 1e-200, 40.0, 1e9]
    data = bytearray(body)
    for _ in range(random.choice((1, 1, 3, 50))):
        if len(data) >= 8:
            struct.pack_into("<d", data, 8 * random.randrange(len(data) // 8), random.choice(values))
    return bytes(data)


def damaged_zip(content: bytes, random: Random, inside: Callable[[str, bytes, Random], bytes]) -> bytes:
    """An archive with a damaged member, other names, other compression; or damaged bytes."""
    if random.random() < 0.25:
        return damaged_bytes(content, random)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = [(name, archive.read(name)) for name in archive.namelist()]
    chosen, how = random.randrange(len(members)), random.randrange(10)
    buffer = io.BytesIO()
    method = random.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA))
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED if how else method) as archive:
        for index, (name, data) in enumerate(members):
            if index == chosen and how == 1:
                continue
            if index == chosen and how == 2:
                name = random.choice(("x", "../x.npy", "w_value.npy", f"{name}x", "a/data.pkl", "in_proj_weight.npy"))
            elif index == chosen and how == 3:
                data = bytes(random.choice((0, 1, 10**6)))
            elif index == chosen:
                data = inside(name, data, random)
            archive.writestr(name, data)
    return buffer.getvalue()


def damaged_npy(name: str, content: bytes, random: Random) -> bytes:
    """The header of an array: a Python literal that a reader may believe."""
    if random.random() < 0.3:
        return damaged_bytes(content, random)
    length = struct.unpack("<H", content[8:10])[0]
    body = content[10 + length :]
    descr = random.choice(
        ("<f8", "<f4", "<f2", ">f8", "<i8", "<c16", "|O", "|V8", "<U4", "[('a','<f8')]", "<f16", "|b1")
    )
    shape = random.choice(
        (
            *("(2, 2)", "(4,)", "()", "(0, 0)", "(2, 0)", "(2, 2, 1)", "(True,)", "[2, 2]", "(-1,)", "(1.5,)", "'x'"),
            *(f"({2**40},)", f"({2**31}, {2**31})", f"({10**8},)", f"(0, {2**62})", "(1,) * 9"),
            "__import__('os').getpid()",
        )
    )
    order = random.choice(("False", "True", "None", "1"))
    header = f"{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}".encode()
    header += b" " * (-(10 + len(header) + 1) % 64) + b"\n"
    return content[:8] + struct.pack("<H", len(header)) + header + body
