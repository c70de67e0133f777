"""Byte-level language models of four layers, trained on Python's own help texts: Mamba, Gated DeltaNet, GRU, and
softmax attention as a control, in transformers' format. `python examples/train_byte_models.py OUT [NAME …]`

A quarter of the sequences are random bytes that repeat: there, and almost only there, induction pays. A run that was
stopped goes on where it was.
"""

import json
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

from underhood.language.byte_models import LENGTH, MODELS, batch, corpus, drawn, save
from underhood.language.family import read_network
from underhood.language.weights import Weights

STEPS, BATCH, RATE, EVERY = 1500, 16, 3e-3, 100


def train(name: str, folder: Path, steps: int = STEPS, seed: int = 0) -> float:
    """Train one model for `steps` steps, keep it in `folder`, and return its loss on held-out text, nats a byte."""
    config, (text, held_out) = MODELS[name], corpus()
    schedule = optax.warmup_cosine_decay_schedule(0.0, RATE, min(100, steps // 2), steps, RATE / 20)
    optimiser = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule, 0.9, 0.95, weight_decay=0.05))

    def loss(tensors, sequences):
        network = read_network(config, Weights.of(tensors))
        logits = jax.vmap(network)(sequences[:, :-1])
        return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, sequences[:, 1:]))

    @jax.jit
    def advance(tensors, state, sequences):
        value, slope = jax.value_and_grad(loss)(tensors, sequences)
        change, state = optimiser.update(slope, state, tensors)
        return optax.apply_updates(tensors, change), state, value

    tensors = drawn(config, seed)
    state, start = optimiser.init(tensors), 0
    half_way = folder / "training.npz"
    leaves, structure = jax.tree.flatten((tensors, state))
    if half_way.exists():
        kept = np.load(half_way)
        start = int(kept["step"])
        leaves = [jnp.asarray(kept[f"leaf{index}"]) for index in range(len(leaves))]
        tensors, state = jax.tree.unflatten(structure, leaves)
    began, losses = time.time(), []
    for step in range(start, steps):
        tensors, state, value = advance(tensors, state, batch(text, BATCH, np.random.default_rng((seed, step))))
        losses.append(float(value))
        if (step + 1) % EVERY == 0 or step + 1 == steps:
            rate = (time.time() - began) / (step + 1 - start)
            print(f"{name}: step {step + 1:,} of {steps:,}, loss {np.mean(losses[-EVERY:]):.3f}, {rate:.2f} s a step")
            save(config, tensors, folder)
            arrays = {f"leaf{index}": leaf for index, leaf in enumerate(jax.tree.leaves((tensors, state)))}
            np.savez(half_way, step=step + 1, **arrays)
    starts = range(0, len(held_out) - LENGTH, LENGTH)
    sequences = jnp.asarray(np.stack([held_out[one : one + LENGTH] for one in starts]))
    value = float(np.mean([jax.jit(loss)(tensors, sequences[one : one + 16]) for one in range(0, len(sequences), 16)]))
    (folder / "training.json").write_text(json.dumps({"held_out_loss": value, "steps": steps, "seed": seed}) + "\n")
    half_way.unlink(missing_ok=True)
    return value


if __name__ == "__main__":
    out, names = Path(sys.argv[1]), sys.argv[2:] or list(MODELS)
    for name in names:
        if not (out / name / "training.json").exists():
            print(f"{name}: {train(name, out / name):.3f} nats a byte on held-out text", flush=True)
