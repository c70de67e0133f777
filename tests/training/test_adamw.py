"""AdamW on the ravelled vector against optax's own on the tree of parameters."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import underhood as uh
from underhood.core.errors import UnderhoodError
from underhood.core.model import ARCHITECTURES
from underhood.training import adamw
from underhood.training.config import PRESETS, SECTION_3_1, SECTION_4_2, FitConfig

CONFIG = FitConfig(steps=30, weight_decay=0.3)


def test_the_steps_are_those_of_optax():
    model = uh.make_model("gated-rnn", 3, hidden=5)
    decays = eqx.tree_at(lambda m: m.nu, jax.tree.map(lambda _: True, model), replace=False)
    schedule = optax.cosine_decay_schedule(1e-3, CONFIG.steps, alpha=1e-3)
    theirs = optax.adamw(schedule, weight_decay=0.3, mask=eqx.filter(decays, True))
    # A mask with callable modules crashes optax: hand it plain tuples instead.
    leaves = jax.tree.leaves(model)
    theirs = optax.adamw(schedule, weight_decay=0.3, mask=jax.tree.leaves(decays))
    state = theirs.init(leaves)
    ravelled = adamw.ravel(model)
    at, factor = adamw.start(ravelled.vector), adamw.annealed(CONFIG)
    rates = adamw.Rates(jnp.float32(1e-3), jnp.float32(0.3))
    random = np.random.default_rng(0)
    for step in range(CONFIG.steps):
        gradient = [jnp.asarray(random.normal(size=leaf.shape), jnp.float32) for leaf in leaves]
        change, state = theirs.update(gradient, state, leaves)
        leaves = optax.apply_updates(leaves, change)
        flat = jnp.concatenate([g.ravel() for g in gradient])
        at = adamw.update(at, flat, rates, ravelled.decays, factor(step), CONFIG)
    found = jax.tree.leaves(ravelled.unravel(at.vector))
    for ours, right in zip(found, leaves, strict=True):
        np.testing.assert_allclose(ours, right, rtol=2e-5, atol=1e-7)
    assert int(at.step) == CONFIG.steps


def test_only_recurrent_parameters_keep_their_size_without_a_gradient():
    model = uh.make_model("gated-rnn", 3, hidden=5)
    ravelled = adamw.ravel(model)
    rates = adamw.Rates(jnp.float32(1e-1), jnp.float32(0.5))
    at = adamw.start(ravelled.vector)
    at = adamw.update(at, jnp.zeros_like(at.vector), rates, ravelled.decays, jnp.float32(1), CONFIG)
    after = ravelled.unravel(at.vector)
    np.testing.assert_array_equal(after.nu, model.nu)
    np.testing.assert_allclose(after.readout, 0.95 * model.readout, rtol=1e-6)
    np.testing.assert_allclose(after.input_gating.w_m, 0.95 * model.input_gating.w_m, rtol=1e-6)


# Numbers that the paper's "recurrent ones λ" are, with 4 hidden neurons in one layer.
PAPER = {"gated-rnn": 4, "gated-rnn-dense": 16, "lstm": 0, "gru": 0, "lru": 12, "lru-in-out": 12, "lru-in-skip": 12}


@pytest.mark.parametrize("name", list(ARCHITECTURES))
def test_a_model_survives_the_vector(name):
    model = uh.make_model(name, 3, hidden=4)
    ravelled = adamw.ravel(model)
    assert ravelled.vector.size == model.parameters == ravelled.decays.size
    back = ravelled.unravel(ravelled.vector)
    assert eqx.tree_equal(back, model)
    spared = int(np.sum(np.asarray(ravelled.decays) == 0))
    assert spared == PAPER.get(name, spared) == recurrent_numbers(model)


def recurrent_numbers(part):
    """How many numbers are in fields that a class calls recurrent, found by walking through its fields."""
    if isinstance(part, tuple):
        return sum(map(recurrent_numbers, part))
    if not dataclasses.is_dataclass(part):
        return 0
    pairs = [(field, getattr(part, field.name)) for field in dataclasses.fields(part)]
    return sum(np.size(v) if f.metadata.get("recurrent") else recurrent_numbers(v) for f, v in pairs)


def test_the_rate_falls_along_a_cosine():
    factor = adamw.annealed(SECTION_3_1)
    assert adamw.learning_rate_at(SECTION_3_1, 0) == pytest.approx(1e-3)
    assert adamw.learning_rate_at(SECTION_3_1, SECTION_3_1.steps) == pytest.approx(1e-6)
    for step in (0, 1000, 400_000, 781_000):
        assert float(factor(step)) * 1e-3 == pytest.approx(adamw.learning_rate_at(SECTION_3_1, step), rel=1e-3)


def test_presets_are_the_paper_s():
    assert SECTION_3_1.steps == 781_000
    assert SECTION_4_2.steps == 300_000
    assert {preset.batch_size for preset in PRESETS.values()} == {64}


@pytest.mark.parametrize(
    "settings", [{"steps": 0}, {"learning_rate": 0.0}, {"weight_decay": float("nan")}, {"seed": -1}, {"batch_size": -3}]
)
def test_bad_settings_are_refused(settings):
    (name,) = settings
    with pytest.raises(UnderhoodError, match=name):
        FitConfig(**settings)
