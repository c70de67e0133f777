"""Small models of bytes, to show what this room does on something trained: sizes, first weights, text and files."""

from __future__ import annotations

import json
import pydoc_data.topics
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from underhood.architectures.deltanet.cell import GatedDeltaNet
from underhood.architectures.gru.cell import GRU
from underhood.architectures.mamba.cell import Mamba
from underhood.architectures.stack.cell import Stack
from underhood.core.atomic import write_atomically
from underhood.core.files import tensor_bytes, to_tensors
from underhood.interop.bridges import bridge_of
from underhood.language.family import read_network
from underhood.language.tokens import byte_tokenizer
from underhood.language.weights import Weights
from underhood.layers.linear import Linear, lecun_normal

LENGTH = 128  # bytes of a training sequence, and one to predict
HELD_OUT = 0.1
SHORTEST = 8  # bytes of a segment that repeats
# For each sitting: steps, learning rate, the share of sequences that are a random segment again and again, and its
# largest length. What repeats often is learnt first; a GRU of this size does not learn it at all.
PHASES: dict[str, tuple[tuple[int, float, float, int], ...]] = {
    "mamba": ((1500, 3e-3, 0.25, 64), (800, 2e-3, 0.75, 24)),
    "qwen3_next": ((1300, 3e-3, 0.5, 64), (800, 2e-3, 0.75, 24)),
    "gru": ((1500, 3e-3, 0.25, 64),),
    "llama": ((1500, 3e-3, 0.25, 64), (800, 2e-3, 0.6, 64), (1000, 2e-3, 0.75, 24)),
}
PRINTABLE = np.arange(32, 127, dtype=np.int32)

_EVERY = {"vocab_size": 256, "hidden_size": 128, "num_hidden_layers": 4, "tie_word_embeddings": True}
_EVERY |= {"dtype": "float32", "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
_MLP = {"hidden_act": "silu", "num_attention_heads": 8, "num_key_value_heads": 4, "rms_norm_eps": 1e-6}
MODELS: dict[str, dict[str, Any]] = {
    "mamba": {
        **_EVERY, "model_type": "mamba", "architectures": ["MambaForCausalLM"], "state_size": 16, "expand": 2,
        "intermediate_size": 256, "time_step_rank": 8, "conv_kernel": 4, "layer_norm_epsilon": 1e-6,
        "use_bias": False, "use_conv_bias": True,
    },
    "qwen3_next": {
        **_EVERY, **_MLP, "model_type": "qwen3_next", "architectures": ["Qwen3NextForCausalLM"], "head_dim": 16,
        "intermediate_size": 128, "layer_types": 4 * ["linear_attention"], "num_experts": 0,
        "linear_num_key_heads": 4, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
        "linear_value_head_dim": 32, "linear_conv_kernel_dim": 4,
    },
    "gru": {**_EVERY, "model_type": "underhood-gru", "gru_size": 112, "rms_norm_eps": 1e-6},
    "llama": {
        **_EVERY, **_MLP, "model_type": "llama", "architectures": ["LlamaForCausalLM"], "head_dim": 16,
        "intermediate_size": 160, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "max_position_embeddings": 2048,
    },
}  # fmt: skip


def corpus() -> tuple[Int[np.ndarray, " n"], Int[np.ndarray, " m"]]:
    """Python's help texts as bytes: those to train on, and a tenth that is kept out."""
    text = "\n\n".join(pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics))
    data = np.frombuffer(text.encode(), np.uint8).astype(np.int32)
    cut = int(len(data) * (1 - HELD_OUT))
    return data[:cut], data[cut:]


def repeated(length: int, segment: int, random: np.random.Generator) -> Int[np.ndarray, " t"]:
    """Random printable bytes, `segment` of them, again and again."""
    return np.resize(random.choice(PRINTABLE, segment), length)


def batch(
    text: np.ndarray, size: int, share: float, longest: int, random: np.random.Generator
) -> Int[np.ndarray, "b t"]:
    """Pieces of text, and a share of segments that repeat."""
    rows = []
    for _ in range(size):
        if random.random() < share:
            rows.append(repeated(LENGTH + 1, int(random.integers(SHORTEST, longest)), random))
        else:
            start = random.integers(len(text) - LENGTH)
            rows.append(text[start : start + LENGTH + 1])
    return np.stack(rows)


def drawn(config: dict[str, Any], seed: int) -> dict[str, Array]:
    """Random weights of a model under transformers' names."""
    d, layers = config["hidden_size"], config["num_hidden_layers"]
    keys = iter(jax.random.split(jax.random.key(seed), 16 * layers + 1))
    kind = config["model_type"]
    body = "backbone" if kind == "mamba" else "model"
    embedding, norm = ("embeddings", "norm_f") if kind == "mamba" else ("embed_tokens", "norm")
    ones = jnp.zeros(d) if kind == "qwen3_next" else jnp.ones(d)  # qwen3_next adds 1
    tensors = {f"{body}.{embedding}.weight": 0.02 * jax.random.normal(next(keys), (config["vocab_size"], d))}
    tensors[f"{body}.{norm}.weight"] = ones
    for index in range(layers):
        mixers = {"mamba": ("mixer", _mamba), "qwen3_next": ("linear_attn", _deltanet)}
        mixers |= {"underhood-gru": ("mixer", _gru), "llama": ("self_attn", _attention)}
        where, make = mixers[kind]
        found = {f"{where}.{name}": tensor for name, tensor in make(config, next(keys)).items()}
        if "intermediate_size" in config and kind != "mamba":
            size = config["intermediate_size"]
            for name, rows, columns in (("gate", size, d), ("up", size, d), ("down", d, size)):
                found[f"mlp.{name}_proj.weight"] = lecun_normal(next(keys), (rows, columns), np.float32)
            found |= {"input_layernorm.weight": ones, "post_attention_layernorm.weight": ones}
        else:
            found["norm.weight"] = ones
        tensors |= {f"{body}.layers.{index}.{name}": jnp.asarray(tensor) for name, tensor in found.items()}
    return tensors


def _mamba(config: dict[str, Any], key: Array) -> dict[str, Any]:
    d = config["hidden_size"]
    cell = Mamba.random(d=d, channels=config["intermediate_size"], d_out=d, state=config["state_size"], key=key)
    return bridge_of(cell).write(cell)[1]


def _deltanet(config: dict[str, Any], key: Array) -> dict[str, Any]:
    sizes = {"heads": config["linear_num_value_heads"], "d_key": config["linear_key_head_dim"]}
    sizes["d_value"] = config["linear_value_head_dim"]
    cell = GatedDeltaNet.random(d=config["hidden_size"], **sizes, key=key)
    # Steps as Mamba has them at first: with transformers' own, all is forgotten within a token or two.
    step = np.exp(np.linspace(np.log(1e-3), np.log(0.1), cell.heads))
    return bridge_of(cell).write(cell)[1] | {"dt_bias": np.log(np.expm1(step)).astype(np.float32)}


def _gru(config: dict[str, Any], key: Array) -> dict[str, Any]:
    d, size = config["hidden_size"], config["gru_size"]
    keys = jax.random.split(key, 3)
    ends = Linear.random(d, size, key=keys[0]), Linear.random(size, d, key=keys[1])
    return to_tensors(Stack(ends[0], (GRU.random(d=size, hidden=size, key=keys[2]),), ends[1]))[1]


def _attention(config: dict[str, Any], key: Array) -> dict[str, Any]:
    d, size = config["hidden_size"], config["head_dim"]
    rows = {"q": config["num_attention_heads"], "k": config["num_key_value_heads"], "v": config["num_key_value_heads"]}
    shapes = {f"{name}_proj": (heads * size, d) for name, heads in rows.items()}
    shapes["o_proj"] = (d, config["num_attention_heads"] * size)
    keys = jax.random.split(key, len(shapes))
    drawn = zip(shapes.items(), keys, strict=True)
    return {f"{name}.weight": lecun_normal(one, shape, np.float32) for (name, shape), one in drawn}


def save(config: dict[str, Any], tensors: dict[str, Any], folder: Path) -> None:
    """config.json, the weights in float16, and a tokenizer whose tokens are bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    half = {name: np.ascontiguousarray(np.asarray(tensor, np.float16)) for name, tensor in tensors.items()}
    write_atomically(folder / "model.safetensors", tensor_bytes(half, {"format": "pt"}))
    write_atomically(folder / "config.json", (json.dumps(config, indent=2) + "\n").encode())
    write_atomically(folder / "tokenizer.json", (json.dumps(byte_tokenizer(), ensure_ascii=False) + "\n").encode())


def loss_of(config: dict[str, Any], tensors: dict[str, Any], sequences: Int[Array, "b t"]) -> Float[Array, ""]:
    """Nats a byte."""
    logits = jax.vmap(read_network(config, Weights.of(tensors)))(sequences[:, :-1])
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, sequences[:, 1:]))


def held_out_loss(config: dict[str, Any], tensors: dict[str, Any]) -> float:
    """Nats a byte on the text that is kept out."""
    text, wide = corpus()[1], {name: np.asarray(tensor, np.float32) for name, tensor in tensors.items()}
    rows = np.stack([text[one : one + LENGTH] for one in range(0, len(text) - LENGTH, LENGTH)])
    evaluate = jax.jit(lambda some: loss_of(config, wide, some))
    return float(np.mean([evaluate(rows[one : one + 16]) for one in range(0, len(rows) - 15, 16)]))
