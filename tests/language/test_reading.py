"""A text read: maps, states put in, heads taken out, and why this word; on a small model with random weights."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

import underhood as uh
from tests.language.public import saved
from underhood.core.errors import UnderhoodError
from underhood.language.groups import heads_of, only, without

TEXT = "the cat sat on the mat; the cat"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    made = {}

    def model(name):
        if name not in made:
            path = tmp_path_factory.mktemp(name)
            saved(name, path)
            made[name] = uh.open_model(path)
        return made[name]

    return model


@pytest.mark.parametrize("name", ["mamba", "qwen3_next", "recurrent_gemma"])
def test_contributions_of_a_map_are_the_mixers_outputs(models, name):
    run = models(name).read(TEXT)
    assert "".join(run.tokens) == TEXT
    for layer in range(models(name).layers):
        found = run.map(layer)
        told = np.stack([found.contributions(t).sum(axis=0) for t in range(len(run))])
        assert np.abs(told - run.outputs(layer)).max() <= 1e-4 * np.abs(run.outputs(layer)).max()
        assert found.completeness < 1e-4


@pytest.mark.parametrize("name", ["mamba", "mamba2", "qwen3_next", "recurrent_gemma"])
def test_heads_add_up_to_their_mixer(models, name):
    model, run = models(name), models(name).read(TEXT)
    for layer in range(model.layers):
        mixer, xs = model.mixer(layer), run.inputs(layer)
        count = heads_of(mixer)

        def output(some, xs=xs):
            return np.asarray(some._scan(jnp.asarray(xs), some._initial_state())[0])

        whole = output(mixer)
        # A bias of the outputs is in each of them.
        bias = output(without(only(mixer, 0), 0))
        parts = [output(only(mixer, head)) - bias for head in range(count)]
        assert np.abs(np.sum(parts, axis=0) + bias - whole).max() <= 1e-4 * np.abs(whole).max()
        assert np.abs(output(without(mixer, 0)) + parts[0] - whole).max() <= 1e-4 * np.abs(whole).max()
    with pytest.raises(UnderhoodError, match="expected a head from 0 to"):
        only(mixer, count)


@pytest.mark.parametrize("name", ["mamba", "qwen3_next", "recurrent_gemma"])
def test_a_state_put_in_goes_on_from_it(models, name):
    """A text in two halves, the states of the first put into the second, is the text."""
    model = models(name)
    whole = model.read(TEXT)
    first, rest = model.read(TEXT[:12]), TEXT[12:]
    states = {layer: first.states(layer)[-1] for layer in range(model.layers)}
    second = model.read(rest, patch=states)
    np.testing.assert_allclose(second.logits, whole.logits[12:], rtol=0, atol=2e-4 * np.abs(whole.logits).max())
    assert np.abs(model.read(rest).logits - whole.logits[12:]).max() > 1e-2 * np.abs(whole.logits).max()
    # The states of a reading that was itself patched, and a state put in where it was.
    again = model.read(TEXT, patch={0: (11, whole.states(0)[11])})
    np.testing.assert_allclose(again.logits, whole.logits, rtol=0, atol=2e-4 * np.abs(whole.logits).max())
    with pytest.raises(UnderhoodError, match="expected a state of layer 0"):
        model.read(TEXT, patch={0: np.zeros(3)})


@pytest.mark.parametrize("name", ["mamba", "qwen3_next", "llama", "mamba2"])
def test_why_adds_up_and_checks_itself(models, name):
    run = models(name).read(TEXT)
    why = run.why("s", against="x", deleted=4)
    logits = run.logits[-1]
    wanted = float(logits[ord("s")] - logits[ord("x")])
    assert why.logit == pytest.approx(wanted, abs=1e-4)
    assert why.contributions.shape == (len(why.layers), len(why.tokens))
    assert why.contributions.sum() == pytest.approx(wanted, abs=1e-4)
    assert why.deletion.largest > 0
    assert json.loads(json.dumps(why.as_data()))["target"] == "s"
    assert run.why("s", at=5, deleted=2).tokens == run.tokens[:6]


def test_what_is_held_adds_up_to_the_number_at_every_layer(models):
    """The flow of the held pass through each layer boundary is the same number: nothing is lost on the way."""
    from underhood.language.why import Settings, _Subject, _table

    run = models("qwen3_next").read(TEXT)
    model = _Subject(run, len(run) - 1, [ord("s")], Settings(), None)
    table = _table(model)
    assert table.shape == (models("qwen3_next").layers + 1, len(run))
    change = model.xs - model.baseline
    slope = held_slope(model)
    assert table.sum() == pytest.approx(float(np.sum(slope * change)), rel=1e-3)


def held_slope(model):
    """One backward pass through the whole network at once, gates held."""
    import jax
    import jax.numpy as jnp

    from underhood.language.why import _score
    from underhood.layers.held import holding

    def number(x):
        for block in model.network.blocks:
            x = block(x)
        return _score(model.network, x[-1], model.wanted)

    with holding("halves"):
        return np.asarray(jax.grad(number)(jnp.asarray(model.xs)))


def test_heads_are_scored_and_their_removal_costs(models):
    heads = models("llama").heads(TEXT, period=8, sequences=1)
    assert len(heads.rows) == 12
    for row in heads.rows:
        assert 0 <= row.previous <= 1 and 0 <= row.induction <= 1 and row.reach >= 0 and np.isfinite(row.cost)
    assert heads.best("cost", 1)[0].cost == max(row.cost for row in heads.rows)
    assert "induction" in repr(heads)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda m: m.read(""), "expected a text with a token in it"),
        (lambda m: m.read_tokens([1, 300]), "expected tokens from 0 to 299"),
        (lambda m: m.read("ab").map(9), "expected a layer from 0 to 2; got 9"),
        (lambda m: m.read("ab").why("cd"), "expected a target of one token: 'cd' has 2; got 'c', 'd'. Try 'c'"),
        (lambda m: m.read("ab").why(999), "expected a token from 0 to 299"),
        (lambda m: m.read("ab").why("c", at=2), "expected a token from 0 to 1; got 2"),
        (lambda m: m.read("a" * 10**7), "not enough memory for reading 10,000,000 tokens"),
    ],
)
def test_bad_questions_are_refused_in_one_line(models, call, says):
    with pytest.raises(UnderhoodError) as caught:
        call(models("llama"))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda f: (f / "tokenizer.json").unlink(), "no tokenizer.json in"),
        (lambda f: (f / "tokenizer.json").write_text("{}"), "no tokenizer"),
        (lambda f: changed(f, vocab_size=301), "expected backbone.embeddings.weight of shape (301, 16)"),
        (lambda f: changed(f, vocab_size=200), "expected backbone.embeddings.weight of shape (200, 16)"),
        (lambda f: changed(f, model_type="gpt9"), "no family for the model type 'gpt9'. Known: bamba"),
        (lambda f: changed(f, secret_gate=2), "unknown field 'secret_gate' for the model type mamba"),
        (lambda f: changed(f, num_hidden_layers=2), "a mamba has no tensor backbone.layers.2"),
        (lambda f: changed(f, num_hidden_layers=4), "no tensor backbone.layers.3"),
        (lambda f: (f / "model.safetensors").unlink(), "no model.safetensors and no model.safetensors.index.json"),
    ],
)
def test_bad_folders_are_refused_in_one_line(tmp_path, spoil, says):
    folder = tmp_path / "model"
    saved("mamba", folder)
    spoil(folder)
    with pytest.raises(UnderhoodError) as caught:
        uh.open_model(folder)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def changed(folder, **settings):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))
