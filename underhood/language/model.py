"""A language model and what it did on a text: tokens, logits, the residual stream, and each layer's mixer in it."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, SupportsIndex

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from underhood.core.errors import UnderhoodError
from underhood.core.memory import require_memory
from underhood.explain.maps import AttentionMap, whole_number
from underhood.language.blocks import Block, Network
from underhood.language.heads import Heads, study
from underhood.language.maps import map_of
from underhood.language.softmax import SoftmaxMixer
from underhood.language.tokens import Tokenizer
from underhood.language.why import Why, explain

SHOWN = 5  # likely next words in a repr
Patch = Mapping[int, Any]  # layer → a state, or (at, state)


class LanguageModel:
    """A network of tokens with its tokenizer, as `uh.open_model` makes it."""

    def __init__(self, network: Network, tokenizer: Tokenizer, *, name: str = "model", family: str = "") -> None:
        self.network, self.tokenizer = network, tokenizer
        self.name, self.family = name, family

    @property
    def layers(self) -> int:
        """Number of layers, as config.json counts them."""
        return len(self.network.blocks)

    @property
    def vocabulary(self) -> int:
        """Number of tokens."""
        return self.network.vocabulary

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return self.network.parameters

    def mixer(self, layer: SupportsIndex) -> Any:
        """What mixes the steps in a layer: one of this package's cells, or softmax attention.

        **Arguments:**

        - `layer`: Which layer, from 0 on.

        **Returns:**

        The mixer, which maps (t, d) to (t, d).
        """
        return self._block(layer).mixer

    def read(self, text: str, *, patch: Patch | None = None) -> Reading:
        """Run the model on a text.

        **Arguments:**

        - `text`: The text; its tokens are those of the folder's tokenizer.
        - `patch`: States to put into layers: `{layer: state}` starts a layer from a state of another reading, and
            `{layer: (at, state)}` puts it in the place of the layer's own state after token `at`.

        **Returns:**

        A `Reading`: tokens, logits, maps, states, and why this word.
        """
        if not isinstance(text, str):
            raise UnderhoodError("expected a text", type(text).__name__)
        numbers = self.tokenizer.encode(text)
        if not numbers:
            raise UnderhoodError("expected a text with a token in it", repr(text[:40]), "Give a word or more.")
        return self.read_tokens(numbers, patch=patch)

    def read_tokens(self, numbers: Any, *, patch: Patch | None = None) -> Reading:
        """Run the model on tokens by their numbers, (t,).

        **Arguments:**

        - `numbers`: Tokens from 0 to the vocabulary's last.
        - `patch`: As in `read`.

        **Returns:**

        A `Reading`.
        """
        tokens = np.asarray(numbers)
        if tokens.ndim != 1 or not len(tokens) or not np.issubdtype(tokens.dtype, np.integer):
            raise UnderhoodError("expected one sequence of tokens, by their numbers", f"shape {tokens.shape}")
        if tokens.min() < 0 or tokens.max() >= self.vocabulary:
            raise UnderhoodError(f"expected tokens from 0 to {self.vocabulary - 1:,}", f"{tokens.max():,}")
        require_memory(self.bytes_to_read(len(tokens)), f"reading {len(tokens):,} tokens", "Use a shorter text.")
        return _read(self, tokens.astype(np.int32), self._patches(patch, len(tokens)))

    def heads(self, text: str | None = None, **settings: Any) -> Heads:
        """What each head does on a text and on random tokens that repeat, and what its removal costs.

        **Arguments:**

        - `text`: Text for the scores; without one, they are those of the repeated sequence alone.
        - `settings`: Fields of `underhood.language.heads.Settings`.

        **Returns:**

        `Heads`, a table with a row for each head or group of channels.
        """
        return study(self, text, **settings)

    def with_network(self, network: Network) -> LanguageModel:
        """The same model around another network, such as one without a head.

        **Arguments:**

        - `network`: The network.

        **Returns:**

        A `LanguageModel` with the same tokenizer.
        """
        return LanguageModel(network, self.tokenizer, name=self.name, family=self.family)

    def bytes_to_read(self, length: int) -> int:
        """Memory that a reading of this many tokens takes at its widest."""
        network = self.network
        kept = length * (network.d * (len(network.blocks) + 4) + 2 * network.vocabulary)
        mixers = [block.mixer for block in network.blocks]
        wide = max((one.heads * length * length * 3 for one in mixers if isinstance(one, SoftmaxMixer)), default=0)
        return 4 * (kept + wide + 24 * length * network.d)

    def _block(self, layer: Any) -> Block:
        number = whole_number(layer)
        if number is None or not 0 <= number < self.layers:
            raise UnderhoodError(f"expected a layer from 0 to {self.layers - 1}", repr(layer))
        return self.network.blocks[number]

    def _patches(self, patch: Any, length: int) -> dict[int, tuple[int, Any]]:
        """Layer → (token after which, state); −1 is before the first token."""
        found = {}
        for layer, entry in (patch or {}).items():
            mixer = self._block(layer).mixer
            if mixer is None:
                raise UnderhoodError(f"layer {layer} has no state: it acts on each step alone")
            places = isinstance(entry, tuple) and len(entry) == 2 and whole_number(entry[0]) is not None
            at, state = entry if places else (-1, entry)
            if not -1 <= int(at) < length:
                raise UnderhoodError(f"expected a token from 0 to {length - 1} to put a state after", at)
            found[int(layer)] = (int(at), _fitting(mixer, state, layer))
        return found

    def __repr__(self) -> str:
        kinds = [getattr(block.mixer, "kind", "mlp").removesuffix("-cell") for block in self.network.blocks]
        counted = ", ".join(f"{kinds.count(kind)} × {kind}" for kind in dict.fromkeys(kinds))
        return f"LanguageModel {self.name} ({self.family}): {counted}; {self.parameters:,} parameters"


class Reading:
    """What a model did on a text. Long things are made when they are asked for, out of the residual stream."""

    def __init__(
        self, model: LanguageModel, numbers: Int[np.ndarray, " t"], stream: Float[np.ndarray, "layers t d"], patch: Any
    ) -> None:
        self.model, self.numbers, self.stream = model, numbers, stream
        """`stream[l]` enters layer l, and the last entry leaves the last layer."""
        self._patch = patch

    @functools.cached_property
    def tokens(self) -> list[str]:
        """What each token adds to the text."""
        return self.model.tokenizer.words([int(one) for one in self.numbers])

    @functools.cached_property
    def logits(self) -> Float[np.ndarray, "t v"]:
        """Row t has the logits of the token after token t."""
        return np.asarray(_logits(self.model.network, jnp.asarray(self.stream[-1])))

    @property
    def loss(self) -> float:
        """Mean −log p of each token but the first, in nats."""
        return float(np.mean(self.losses)) if len(self.numbers) > 1 else float("nan")

    @property
    def losses(self) -> Float[np.ndarray, " later"]:
        """−log p of each token but the first, in nats."""
        likely = jax.nn.log_softmax(self.logits[:-1], axis=1)
        return -np.asarray(likely)[np.arange(len(likely)), self.numbers[1:]]

    def inputs(self, layer: SupportsIndex) -> Float[np.ndarray, "t d"]:
        """What a layer's mixer reads.

        **Arguments:**

        - `layer`: Which layer, from 0 on.

        **Returns:**

        The mixer's inputs, (t, d): the residual stream through the layer's norm.
        """
        return np.asarray(self._seen(layer)[0])

    def outputs(self, layer: SupportsIndex) -> Float[np.ndarray, "t d"]:
        """What a layer's mixer gives, before it is added to the residual stream.

        **Arguments:**

        - `layer`: Which layer, from 0 on.

        **Returns:**

        The mixer's outputs, (t, d).
        """
        return np.asarray(self._seen(layer)[1])

    def map(self, layer: SupportsIndex, head: SupportsIndex | None = None, **settings: Any) -> AttentionMap:
        """Which earlier tokens each output of a layer's mixer comes from.

        **Arguments:**

        - `layer`: Which layer, from 0 on.
        - `head`: One head, or group of channels where each channel has a memory; all of them unless given.
        - `settings`: Those of `uh.attention_map`, for mixers that are cells.

        **Returns:**

        An `AttentionMap` whose steps have the tokens' names. Those of softmax attention are made the same way: the
        sizes of the contributions with the weights held.
        """
        return map_of(self, layer, head, settings)

    def states(self, layer: SupportsIndex) -> States:
        """The memory of a layer after each token.

        **Arguments:**

        - `layer`: Which layer, from 0 on.

        **Returns:**

        `States`: `states[t]` is the state after token t, which `model.read(…, patch={layer: state})` takes.
        """
        mixer = self.model._block(layer).mixer
        if mixer is None:
            raise UnderhoodError(f"layer {layer} has no state: it acts on each step alone")
        return States(mixer, self.inputs(layer), self._patch.get(whole_number(layer)))

    def why(self, target: Any, at: SupportsIndex = -1, against: Any = None, **settings: Any) -> Why:
        """Which earlier tokens, through which layers, raised a logit, or the difference of two.

        **Arguments:**

        - `target`: The next word in question: a text that is one token, or its number.
        - `at`: The token after which it is asked for; the last one unless given.
        - `against`: The word whose logit is subtracted.
        - `settings`: Fields of `underhood.language.why.Settings`.

        **Returns:**

        `Why`: a layer × token table that adds up to the logit, and how far it can be believed.
        """
        return explain(self, target, at, against, **settings)

    def likely(self, at: SupportsIndex = -1, most: int = SHOWN) -> list[tuple[str, float]]:
        """The likeliest next words and their probabilities.

        **Arguments:**

        - `at`: The token after which they come; the last one unless given.
        - `most`: How many.

        **Returns:**

        Pairs of a word and its probability, the likeliest first.
        """
        shares = np.asarray(jax.nn.softmax(self.logits[self.step(at)]))
        order = np.argsort(-shares, kind="stable")[:most]
        words = self.model.tokenizer.words([int(one) for one in order])
        return [(word, float(shares[one])) for word, one in zip(words, order, strict=True)]

    def step(self, at: Any) -> int:
        """A token's place, from 0; −1 is the last."""
        number, length = whole_number(at), len(self.numbers)
        if number is None or not -length <= number < length:
            raise UnderhoodError(f"expected a token from 0 to {length - 1}", repr(at))
        return number % length

    def _seen(self, layer: Any) -> tuple[Array, Array]:
        block, number = self.model._block(layer), whole_number(layer)
        if block.mixer is None:
            raise UnderhoodError(f"layer {number} mixes no steps: it is an MLP")
        return _through(block, jnp.asarray(self.stream[number]), self._patch.get(number))[1]

    def __len__(self) -> int:
        return len(self.numbers)

    def __repr__(self) -> str:
        words = ", ".join(f"{word!r} {share:.0%}" for word, share in self.likely())
        text = self.model.tokenizer.decode([int(one) for one in self.numbers])
        shown = text if len(text) <= 60 else f"{text[:29]}…{text[-29:]}"
        return f"Reading of {shown!r}: {len(self)} tokens, {self.loss:.2f} nats a token; next: {words}"


class States:
    """The states of a mixer on a sequence: `states[t]` is that after token t."""

    def __init__(self, mixer: Any, inputs: Float[np.ndarray, "t d"], patch: Any) -> None:
        self._mixer, self._inputs, self._patch = mixer, inputs, patch

    def __len__(self) -> int:
        return len(self._inputs)

    def __getitem__(self, at: SupportsIndex) -> Any:
        number = whole_number(at)
        if number is None or not -len(self) <= number < len(self):
            raise IndexError(f"expected a token from 0 to {len(self) - 1}; got {at!r}")
        stop = number % len(self) + 1
        start, state = self._patch or (-1, None)
        if start + 1 >= stop:
            start, state = -1, None
        if state is None:
            state = self._mixer._initial_state()
        _, state = _scanned(self._mixer, jnp.asarray(self._inputs[start + 1 : stop]), state)
        return jax.tree.map(np.asarray, state)

    def memory(self, at: SupportsIndex) -> Float[np.ndarray, ...]:
        """The largest part of the state: the memory itself, without a convolution's last inputs.

        **Arguments:**

        - `at`: The token after which.

        **Returns:**

        An array, (heads, keys, values) for a matrix memory.
        """
        return max(jax.tree.leaves(self[at]), key=np.size)


def _fitting(mixer: Any, state: Any, layer: Any) -> Any:
    """A state of this mixer's structure; keys and values of softmax attention may be any number of them."""
    wanted, wanted_tree = jax.tree.flatten(mixer._initial_state())
    given, given_tree = jax.tree.flatten(state)
    skip = 1 if isinstance(mixer, SoftmaxMixer) else 0
    same = wanted_tree == given_tree
    same = same and all(np.shape(a)[skip:] == np.shape(b)[skip:] for a, b in zip(wanted, given, strict=True))
    if not same:
        got = ", ".join(str(np.shape(one)) for one in given)
        needs = ", ".join(str(np.shape(one)) for one in wanted)
        raise UnderhoodError(f"expected a state of layer {layer}, arrays of shapes {needs}", got)
    return jax.tree.map(lambda one, like: jnp.asarray(one, np.asarray(like).dtype), state, mixer._initial_state())


def _read(model: LanguageModel, numbers: Int[np.ndarray, " t"], patch: dict[int, Any]) -> Reading:
    x = _embedded(model.network, jnp.asarray(numbers))
    stream = [np.asarray(x)]
    for index, block in enumerate(model.network.blocks):
        x, _ = _through(block, x, patch.get(index))
        stream.append(np.asarray(x))
    if not np.all(np.isfinite(stream[-1])):
        raise UnderhoodError("the model's numbers overflow on this text", remedy="Check the checkpoint's weights.")
    return Reading(model, numbers, np.stack(stream), patch)


def _through(block: Block, x: Float[Array, "t d"], patch: tuple[int, Any] | None) -> tuple[Array, tuple[Array, Array]]:
    """The stream after a block, and what its mixer read and gave; with a state put in after a token."""
    if patch is None:
        x, _, seen = _run(block, x, None)
        return x, seen
    at, state = patch
    if at < 0:
        x, _, seen = _run(block, x, state)
        return x, seen
    first, _, seen = _run(block, x[: at + 1], None)
    if at + 1 == len(x):
        return first, seen
    second, _, later = _run(block, x[at + 1 :], state)
    joined = tuple(jnp.concatenate(pair) for pair in zip(seen, later, strict=True))
    return jnp.concatenate([first, second]), (joined[0], joined[1])


@eqx.filter_jit
def _run(block: Block, x: Float[Array, "t d"], state: Any) -> tuple[Array, Any, tuple[Array, Array]]:
    return block.run(x, state)


@eqx.filter_jit
def _scanned(mixer: Any, xs: Float[Array, "t d"], state: Any) -> tuple[Array, Any]:
    return mixer._scan(xs, state)


@eqx.filter_jit
def _embedded(network: Network, numbers: Int[Array, " t"]) -> Float[Array, "t d"]:
    return network.embedded(numbers)


@eqx.filter_jit
def _logits(network: Network, x: Float[Array, "t d"]) -> Float[Array, "t v"]:
    return network.logits(x)
