"""½ l2 |w|² in the loss: the steps are those of plain Adam on the penalised loss, and losses are told without it."""

import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import underhood as uh
from underhood.training.population import Member
from underhood.training.tasks.task import TRAINING, half_mean_square, stream_key

TASK = uh.LinearRegression(3, 1, 1)
L2, STEPS = 0.3, 6


def config(**settings):
    usual = {"steps": STEPS, "batch_size": 4, "weight_decay": 0.0, "held_out": 8, "log_every": 1}
    return uh.FitConfig(**{**usual, **settings})


def start():
    return uh.make_model("gated-rnn", TASK.d, hidden=3, d_out=1, dtype=np.float64)


def penalised(parameters, rest, xs, wanted, l2):
    """Written out field by field: everything but ν, which λ is made of."""
    model = eqx.combine(parameters, rest)
    gatings = (model.input_gating.w_m, model.input_gating.w_x, model.output_gating.w_m, model.output_gating.w_x)
    size = sum(jnp.sum(weight**2) for weight in (*gatings, model.readout))
    return half_mean_square(jax.vmap(model)(xs)[:, -1], wanted) + 0.5 * l2 * size


def by_optax(l2, *, anneal=False):
    parameters, rest = eqx.partition(start(), eqx.is_inexact_array)
    optimiser = optax.adam(optax.cosine_decay_schedule(1e-3, STEPS, alpha=1e-3))
    state = optimiser.init(parameters)
    for step in range(STEPS):
        xs, wanted = TASK.batch(jax.random.fold_in(stream_key(0, TRAINING), step), 4, dtype=jnp.float64)
        fall = float(optax.cosine_decay_schedule(1.0, STEPS, alpha=1e-3)(step)) if anneal else 1.0
        gradient = jax.grad(penalised)(parameters, rest, xs, wanted, l2 * fall)
        change, state = optimiser.update(gradient, state)
        parameters = optax.apply_updates(parameters, change)
    return eqx.combine(parameters, rest)


def distance(one, other):
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return max(float(np.max(np.abs(np.asarray(a) - np.asarray(b)))) for a, b in pairs)


def test_steps_are_those_of_adam_on_the_penalised_loss():
    trained = uh.fit(start(), TASK, config(l2=L2)).model
    with jax.enable_x64(True):
        assert distance(trained, by_optax(L2)) < 1e-10
        assert distance(trained, by_optax(0.0)) > 1e-4  # a step is 1e-3 long


def test_an_annealed_penalty_falls_with_the_rate():
    trained = uh.fit(start(), TASK, config(l2=L2, anneal_l2=True)).model
    with jax.enable_x64(True):
        assert distance(trained, by_optax(L2, anneal=True)) < 1e-9  # the schedule is computed in float32 there
        assert distance(trained, by_optax(L2)) > 1e-6


def test_losses_are_told_without_the_penalty():
    with_it, without = (uh.fit(start(), TASK, config(steps=1, l2=l2)) for l2 in (100.0, 0.0))
    assert with_it.history[0]["loss"] == without.history[0]["loss"]
    assert with_it.held_out_loss < 2 * without.held_out_loss


def test_a_resumed_run_keeps_it(tmp_path):
    folder = tmp_path / "run"
    unbroken = uh.fit(start(), TASK, config(steps=100, l2=L2, checkpoint_every=50))

    def stop(step, _):
        if step >= 50:
            raise RuntimeError

    for _ in range(2):
        with pytest.raises(RuntimeError):
            uh.fit(start(), TASK, config(steps=100, l2=L2, checkpoint_every=25), out=folder, resume=True, watch=stop)
    assert json.loads((folder / "run.json").read_text())["config"]["l2"] == L2
    with pytest.raises(uh.UnderhoodError, match=r"config\.l2 0\.3 → null"):
        uh.fit(start(), TASK, config(steps=100, checkpoint_every=25), out=folder, resume=True)
    resumed = uh.fit(start(), TASK, config(steps=100, l2=L2, checkpoint_every=25), out=folder, resume=True)
    assert distance(resumed.model, unbroken.model) == 0.0


def test_without_it_run_folders_are_as_they_were():
    assert "l2" not in config().as_dict()
    assert uh.FitConfig(**config(l2=L2).as_dict()).l2 == L2
    with pytest.raises(uh.UnderhoodError, match="expected l2"):
        config(l2=-1.0)


def test_members_share_it():
    members = [Member(0, 1e-3, 0.0), Member(1, 1e-3, 0.0)]
    together = uh.fit_population([start(), start()], members, TASK, config(l2=L2))
    alone = uh.fit(start(), TASK, config(l2=L2))
    assert distance(together[0].model, alone.model) < 1e-12
