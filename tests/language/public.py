"""Tiny models of transformers, one a family, with random weights, in folders that transformers itself saved."""

import json

import numpy as np
import torch
import transformers

from underhood.language.tokens import byte_tokenizer

V = {"vocab_size": 300}
ATTENTION = {"num_attention_heads": 4, "num_key_value_heads": 2}


def mamba():
    config = transformers.MambaConfig(hidden_size=16, state_size=4, num_hidden_layers=3, **V)
    return transformers.MambaForCausalLM(config)


def mamba2():
    sizes = {"hidden_size": 16, "state_size": 8, "num_heads": 4, "head_dim": 8, "n_groups": 2, "num_hidden_layers": 3}
    return transformers.Mamba2ForCausalLM(transformers.Mamba2Config(**sizes, **V))


def recurrent_gemma():
    sizes = {"hidden_size": 32, "lru_width": 32, "num_hidden_layers": 3, "intermediate_size": 96}
    attention = {"num_attention_heads": 4, "num_key_value_heads": 1, "attention_window_size": 16}
    config = transformers.RecurrentGemmaConfig(**sizes, **attention, **V)
    return transformers.RecurrentGemmaForCausalLM(config)


def qwen3_next():
    linear = {"linear_key_head_dim": 8, "linear_value_head_dim": 8}
    linear |= {"linear_num_key_heads": 2, "linear_num_value_heads": 4}
    experts = {"moe_intermediate_size": 16, "shared_expert_intermediate_size": 24, "num_experts": 6}
    config = transformers.Qwen3NextConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=4, head_dim=16, num_experts_per_tok=2,
        mlp_only_layers=[1], **linear, **experts, **ATTENTION, **V,
    )  # fmt: skip
    return transformers.Qwen3NextForCausalLM(config)


def llama():
    rope = {"rope_type": "llama3", "rope_theta": 1000.0, "factor": 4.0, "low_freq_factor": 1.0}
    rope |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 64}
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=3, rope_parameters=rope, **ATTENTION, **V
    )
    return transformers.LlamaForCausalLM(config)


FAMILIES = {make.__name__: make for make in (mamba, mamba2, recurrent_gemma, qwen3_next, llama)}
MIXERS = ("mixer", "linear_attn", "self_attn", "temporal_block", "mamba", "mlstm_layer")


def saved(name, folder, **settings):
    """The model, its weights moved from the constants that new models have, saved by transformers."""
    torch.manual_seed(0)
    model = FAMILIES[name]()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.2 * torch.randn_like(weight))
    model.eval().save_pretrained(folder, **settings)
    (folder / "tokenizer.json").write_text(json.dumps(byte_tokenizer()))
    return model


def layers_of(model):
    return (getattr(model, "backbone", None) or model.model).layers


def mixer_of(layer):
    return next((getattr(layer, name) for name in MIXERS if hasattr(layer, name)), None)


def watched(model, tokens):
    """Logits, and the inputs and outputs of each layer's mixer."""
    seen, handles = {}, []
    for index, layer in enumerate(layers_of(model)):
        mixer = mixer_of(layer)

        def keep(module, args, kwargs, output, index=index):
            given = args[0] if args else kwargs["hidden_states"]
            output = output[0] if isinstance(output, tuple) else output
            seen[index] = given[0].numpy(), output[0].numpy()

        handles.append(mixer.register_forward_hook(keep, with_kwargs=True))
    with torch.no_grad():
        logits = model(torch.from_numpy(np.asarray(tokens))[None], use_cache=False).logits[0].numpy()
    for handle in handles:
        handle.remove()
    return logits, seen
