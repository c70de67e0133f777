"""A family of models: what its config.json may say, and how its tensors make a network."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from underhood.core.errors import UnderhoodError
from underhood.core.registry import Registry
from underhood.interop.bridges import Settings, expect, positive, whole
from underhood.language.blocks import ACTIVATIONS, Block, Branch, GatedMLP, Network
from underhood.language.softmax import Rotary
from underhood.language.weights import Weights
from underhood.layers.norm import Norm

ReadNetwork = Callable[[dict[str, Any], Weights], Network]
# What config.json has for every model, in this version of transformers and in earlier ones.
GENERAL = """
model_type architectures dtype torch_dtype transformers_version _name_or_path _attn_implementation attribute_map
auto_map name_or_path use_cache tie_word_embeddings is_encoder_decoder is_decoder add_cross_attention
chunk_size_feed_forward cross_attention_hidden_size tie_encoder_decoder output_hidden_states output_attentions
return_dict return_dict_in_generate torchscript use_bfloat16 pruned_heads id2label label2id problem_type
finetuning_task task_specific_params tokenizer_class prefix bos_token_id pad_token_id eos_token_id sep_token_id
decoder_start_token_id max_length min_length do_sample early_stopping num_beams num_beam_groups temperature top_k
top_p typical_p repetition_penalty length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids
diversity_penalty num_return_sequences output_scores suppress_tokens begin_suppress_tokens forced_bos_token_id
forced_eos_token_id remove_invalid_values exponential_decay_length_penalty tf_legacy_loss
"""
# What generation and training add to a config.json, and no logit depends on.
UNUSED = """
vocab_size initializer_range attention_dropout hidden_dropout resid_dropout embd_dropout router_aux_loss_coef
output_router_logits pretraining_tp max_position_embeddings use_mambapy use_associative_scan keys_to_ignore
num_logits_to_keep rescale_prenorm_residual quantization_config router_z_loss_coef model_max_length seed
"""


@dataclasses.dataclass(frozen=True)
class Family:
    """What the package knows of one `model_type`."""

    name: str
    read: ReadNetwork
    fields: frozenset[str]
    defaults: Mapping[str, Any]
    """What config.json need not say."""
    ignored: tuple[str, ...] = ()
    """Beginnings of tensors' names that no logit depends on."""
    text: str | None = None
    """Where config.json of a model of text and pictures keeps the text's part."""


FAMILIES: Registry[Family] = Registry("family of language models", "underhood.language.families.*")


def family(
    name: str, fields: str, *, ignored: tuple[str, ...] = (), text: str | None = None, **defaults: Any
) -> Callable[[ReadNetwork], ReadNetwork]:
    """Decorator: register the function that reads networks of this `model_type`.

    **Arguments:**

    - `name`: What config.json calls it.
    - `fields`: Further fields that config.json may have; those with a default go without saying.
    - `ignored`: Beginnings of tensors' names that no logit depends on.
    - `text`: The entry of config.json with the text's part, for models of pictures, too.
    - `defaults`: Settings where config.json has none: a value, or a function of the others.
    """

    def register(read: ReadNetwork) -> ReadNetwork:
        known = frozenset({*fields.split(), *defaults, *UNUSED.split(), *GENERAL.split()})
        FAMILIES.register(name)(Family(name, read, known, defaults, ignored, text))
        return read

    return register


def read_network(config: Mapping[str, Any], weights: Weights, source: str = "config.json") -> Network:
    """The network that config.json describes, out of exactly these tensors."""
    name = config.get("model_type")
    if not isinstance(name, str) or name not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))
        raise UnderhoodError(f"{source}: no family for the model type {name!r}", remedy=f"Known: {known}.")
    chosen = FAMILIES[name]
    own = {**config, **config[chosen.text]} if chosen.text and isinstance(config.get(chosen.text), dict) else config
    unknown = sorted(own.keys() - chosen.fields - {chosen.text})
    if unknown:
        remedy = "Take it out if it does not change what the model computes."
        raise UnderhoodError(f"{source}: unknown field {unknown[0]!r} for the model type {name}", remedy=remedy)
    settings = {**chosen.defaults, **own}
    for field, default in chosen.defaults.items():
        if callable(default) and own.get(field) is None:
            settings[field] = default(settings)
    network = chosen.read(settings, weights)
    left = [one for one in weights.left() if not one.startswith(chosen.ignored or (" ",))]
    if left:
        more = f" and {len(left) - 1} more" if len(left) > 1 else ""
        raise UnderhoodError(f"{source}: a {name} has no tensor {left[0]}{more}", remedy="Take the right config.json.")
    return network


def assembled(
    settings: Settings,
    weights: Weights,
    blocks: tuple[Block, ...],
    norm: Norm | None,
    *,
    body: str,
    embedding: str = "embed_tokens",
    head: str = "lm_head",
    **more: Any,
) -> Network:
    """Embedding, blocks, norm and a head of its own unless it is tied to the embedding."""
    vocabulary, d = whole(settings, "vocab_size"), whole(settings, "hidden_size")
    table = weights.under(body).sized(f"{embedding}.weight", vocabulary, d)
    own = f"{head}.weight" in weights
    tied = bool(settings.get("tie_word_embeddings"))
    if not own and not tied:
        raise UnderhoodError(f"no tensor {head}.weight in the checkpoint, and no tie_word_embeddings in config.json")
    matrix = weights.sized(f"{head}.weight", vocabulary, d) if own else None
    bias = weights.sized(f"{head}.bias", vocabulary) if f"{head}.bias" in weights else None
    return Network(table, blocks, norm, None if tied else matrix, bias, **more)


def layers_of(settings: Settings, read: Callable[[int], Block]) -> tuple[Block, ...]:
    return tuple(read(index) for index in range(whole(settings, "num_hidden_layers")))


def activation_of(settings: Settings, name: str = "hidden_act") -> str:
    expect(settings, **{name: tuple(ACTIVATIONS)})
    return settings[name]


def gated_mlp(settings: Settings, weights: Weights, size: int, *, activation: str = "hidden_act") -> GatedMLP:
    """gate_proj, up_proj and down_proj, as most families call them."""
    d = whole(settings, "hidden_size")
    gate, up = (weights.affine(f"{name}_proj", size, d) for name in ("gate", "up"))
    return GatedMLP(gate, up, weights.affine("down_proj", d, size), activation_of(settings, activation))


def rotary_of(settings: Settings, size: int) -> Rotary:
    """θ^(−2i/n) of the first n channels of `size`, as config.json has θ and their share."""
    parameters = settings.get("rope_parameters") or settings.get("rope_scaling") or {}
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    theta = positive({"rope_theta": 10000.0, **settings, **parameters}, "rope_theta")
    share = positive({"partial_rotary_factor": 1.0, **settings, **parameters}, "partial_rotary_factor")
    turned = int(size * share)
    frequencies = [theta ** (-index / turned) for index in range(0, turned, 2)]
    if kind == "llama3":
        frequencies = [_stretched(one, parameters) for one in frequencies]
    elif kind == "linear":
        frequencies = [one / positive(parameters, "factor") for one in frequencies]
    elif kind != "default":
        raise UnderhoodError("expected rotary positions default, linear or llama3", repr(kind))
    return Rotary(tuple(frequencies))


def _stretched(frequency: float, parameters: Mapping[str, Any]) -> float:
    """Llama 3: slow turns are slowed by a factor, fast ones stay, those between are blended."""
    import math

    names = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    slower, low, high, length = (positive(parameters, name) for name in names)
    wavelength = 2 * math.pi / frequency
    share = min(max((length / wavelength - low) / (high - low), 0), 1)
    return (1 - share) * frequency / slower + share * frequency


__all__ = ["Block", "Branch", "assembled", "family", "gated_mlp", "layers_of", "read_network", "rotary_of"]
