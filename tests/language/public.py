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


def falcon_mamba():
    config = transformers.FalconMambaConfig(hidden_size=16, state_size=4, num_hidden_layers=3, **V)
    return transformers.FalconMambaForCausalLM(config)


SSD = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_n_groups": 2, "mamba_d_state": 8}


def bamba():
    config = transformers.BambaConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=3, attn_layer_indices=[1], **SSD, **ATTENTION, **V
    )
    return transformers.BambaForCausalLM(config)


def falcon_h1():
    scales = {"lm_head_multiplier": 0.5, "embedding_multiplier": 2.0, "mlp_multipliers": [0.7, 1.3]}
    scales |= {"key_multiplier": 0.8, "attention_out_multiplier": 1.2, "attention_in_multiplier": 0.9}
    scales |= {"ssm_multipliers": [0.9, 1.1, 0.8, 1.2, 1.3], "ssm_in_multiplier": 1.1, "ssm_out_multiplier": 0.6}
    config = transformers.FalconH1Config(
        hidden_size=32, intermediate_size=48, num_hidden_layers=3, mamba_d_ssm=64, **SSD, **scales, **ATTENTION, **V
    )
    return transformers.FalconH1ForCausalLM(config)


def qwen3_5_text():
    linear = {"linear_key_head_dim": 8, "linear_value_head_dim": 8}
    linear |= {"linear_num_key_heads": 2, "linear_num_value_heads": 4}
    config = transformers.Qwen3_5TextConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=4, head_dim=16, **linear, **ATTENTION, **V
    )
    return transformers.Qwen3_5ForCausalLM(config)


def jamba():
    config = transformers.JambaConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=4, attn_layer_period=3, attn_layer_offset=1,
        num_experts=4, mamba_d_state=4, use_mamba_kernels=False, **ATTENTION, **V,
    )  # fmt: skip
    return transformers.JambaForCausalLM(config)


def granitemoehybrid():
    scales = {"embedding_multiplier": 2.0, "logits_scaling": 1.5, "residual_multiplier": 0.8}
    config = transformers.GraniteMoeHybridConfig(
        hidden_size=32, intermediate_size=24, shared_intermediate_size=48, num_hidden_layers=3, num_local_experts=4,
        attention_multiplier=0.3, layer_types=["mamba", "attention", "mamba"], **SSD, **scales, **ATTENTION, **V,
    )  # fmt: skip
    return transformers.GraniteMoeHybridForCausalLM(config)


MAKERS = (mamba, falcon_mamba, mamba2, bamba, falcon_h1, recurrent_gemma, qwen3_next, qwen3_5_text, jamba)
FAMILIES = {make.__name__: make for make in (*MAKERS, granitemoehybrid, llama)}
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


def mixers_of(layer):
    """The layer's mixers, each with the factor of its outputs; Falcon-H1 has two side by side."""
    if hasattr(layer, "ssm_out_multiplier"):
        return [(layer.mamba, layer.ssm_out_multiplier), (layer.self_attn, layer.attn_out_multiplier)]
    return [(next(filter(None, (getattr(layer, name, None) for name in MIXERS))), 1.0)]


def watched(model, tokens):
    """Logits, and the inputs and outputs of each layer's mixer."""
    seen, handles = {}, []
    for index, layer in enumerate(layers_of(model)):
        for mixer, factor in mixers_of(layer):

            def keep(module, args, kwargs, output, index=index, factor=factor):
                given = args[0] if args else kwargs["hidden_states"]
                output = (output[0] if isinstance(output, tuple) else output)[0].numpy() * factor
                before = seen.get(index)
                seen[index] = (given[0].numpy(), output) if before is None else (before[0], before[1] + output)

            handles.append(mixer.register_forward_hook(keep, with_kwargs=True))
    with torch.no_grad():
        logits = model(torch.from_numpy(np.asarray(tokens))[None], use_cache=False).logits[0].numpy()
    for handle in handles:
        handle.remove()
    return logits, seen
