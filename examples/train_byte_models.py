"""Byte-level language models of four layers, trained on Python's own help texts: Mamba, Gated DeltaNet, GRU, and
softmax attention as a control, in transformers' format. `python examples/train_byte_models.py OUT [NAME …]`

Some of the sequences are random bytes that repeat: there, and almost only there, induction pays. A run that was stopped
goes on where it was; each sitting begins with the weights of the one before, and a fresh optimiser.
"""

import json
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import safetensors.numpy

from underhood.language.byte_models import MODELS, PHASES, batch, corpus, drawn, held_out_loss, loss_of, save

BATCH, EVERY = 16, 100


def train(name: str, folder: Path, phase: int, steps: int, rate: float, share: float, longest: int) -> None:
    """One sitting: `steps` steps from the weights in `folder`, or from random ones."""
    config, (text, _) = MODELS[name], corpus()
    schedule = optax.warmup_cosine_decay_schedule(0.0, rate, min(100, steps // 2), steps, rate / 20)
    optimiser = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule, 0.9, 0.95, weight_decay=0.05))

    @jax.jit
    def advance(tensors, state, sequences):
        value, slope = jax.value_and_grad(lambda one: loss_of(config, one, sequences))(tensors)
        change, state = optimiser.update(slope, state, tensors)
        return optax.apply_updates(tensors, change), state, value

    kept, half_way, start = folder / "model.safetensors", folder / "training.npz", 0
    tensors = drawn(config, 0) if phase == 0 else safetensors.numpy.load_file(kept)
    tensors = {key: jnp.asarray(tensor, jnp.float32) for key, tensor in sorted(tensors.items())}
    leaves, structure = jax.tree.flatten((tensors, optimiser.init(tensors)))
    if half_way.exists():
        arrays = np.load(half_way)
        start, leaves = int(arrays["step"]), [jnp.asarray(arrays[f"leaf{index}"]) for index in range(len(leaves))]
    (tensors, state), losses, began = jax.tree.unflatten(structure, leaves), [], time.time()
    for step in range(start, steps):
        sequences = batch(text, BATCH, share, longest, np.random.default_rng((phase, step)))
        tensors, state, value = advance(tensors, state, sequences)
        losses.append(float(value))
        if (step + 1) % EVERY == 0 or step + 1 == steps:
            rate = (time.time() - began) / (step + 1 - start)
            print(f"{name}: step {step + 1:,} of {steps:,}, loss {np.mean(losses[-EVERY:]):.3f}, {rate:.2f} s a step")
            arrays = {f"leaf{index}": leaf for index, leaf in enumerate(jax.tree.leaves((tensors, state)))}
            np.savez(half_way, step=step + 1, **arrays)
    save(config, tensors, folder)
    half_way.unlink()


def main(out: Path, names: list[str], phases=PHASES) -> None:
    """Train what is not trained yet, and write how well it does on held-out text."""
    for name in names:
        folder, done = out / name, out / name / "training.json"
        folder.mkdir(parents=True, exist_ok=True)
        told = json.loads(done.read_text()) if done.exists() else {"sittings": 0}
        for phase in range(told["sittings"], len(phases[name])):
            train(name, folder, phase, *phases[name][phase])
            loss = held_out_loss(MODELS[name], safetensors.numpy.load_file(folder / "model.safetensors"))
            done.write_text(json.dumps({"held_out_loss": loss, "sittings": phase + 1}) + "\n")
            print(f"{name}: {loss:.3f} nats a byte on held-out text", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:] or list(MODELS))
