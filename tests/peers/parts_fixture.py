#!/usr/bin/env python3
"""Makes tests/fixtures/parts_transformers_20_steps.json: 20 training steps of models of transformers with parts that a
Llama of 2023 did not have: Qwen3's norm of queries and keys with heads that do not fill the width, Qwen2's biases, and
Llama with biases and with stretched rotary wavelengths.

    python3 tests/peers/parts_fixture.py > tests/fixtures/parts_transformers_20_steps.json

Everything else is as in llama_fixture.py.
"""
import json
import math
import sys

import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from fixture import batches, wave
from llama_fixture import train

COMMON = dict(
    vocab_size=43, hidden_size=48, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2, head_dim=8,
    intermediate_size=40, hidden_act="silu", max_position_embeddings=64, rms_norm_eps=1e-5,
)
LENGTH = 16
PLAIN = dict(rope_type="default", rope_theta=10000.0)
LLAMA3 = dict(
    rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
    original_max_position_embeddings=32,
)
LINEAR = dict(rope_type="linear", rope_theta=10000.0, factor=4.0)
CASES = [
    dict(model="qwen3", tied=True, config=dict(head_dim=12, attention_bias=False, rope_parameters=PLAIN)),
    dict(model="qwen2", tied=False, config=dict(rope_parameters=PLAIN)),
    dict(model="llama", tied=True, config=dict(attention_bias=True, mlp_bias=False, rope_parameters=LLAMA3)),
    dict(model="llama", tied=True, config=dict(head_dim=6, attention_bias=True, mlp_bias=True, rope_parameters=LINEAR)),
]
MODELS = dict(
    qwen3=(Qwen3Config, Qwen3ForCausalLM), qwen2=(Qwen2Config, Qwen2ForCausalLM), llama=(LlamaConfig, LlamaForCausalLM),
)


def tensors(model, tied, config):
    """Names and shapes, in the order of the forward pass."""
    v, d, ff, size = (config[key] for key in ("vocab_size", "hidden_size", "intermediate_size", "head_dim"))
    wide, narrow = (size * config[key] for key in ("num_attention_heads", "num_key_value_heads"))
    attention = config.get("attention_bias", False)
    qkv, feed = attention or model == "qwen2", config.get("mlp_bias", False)

    def linear(name, outputs, inputs, bias):
        yield f"{name}.weight", [outputs, inputs]
        if bias:
            yield f"{name}.bias", [outputs]

    yield "model.embed_tokens.weight", [v, d]
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        yield f"{at}.input_layernorm.weight", [d]
        for name, outputs in [("q", wide), ("k", narrow), ("v", narrow)]:
            yield from linear(f"{at}.self_attn.{name}_proj", outputs, d, qkv)
        yield from linear(f"{at}.self_attn.o_proj", d, wide, attention)
        if model == "qwen3":
            yield f"{at}.self_attn.q_norm.weight", [size]
            yield f"{at}.self_attn.k_norm.weight", [size]
        yield f"{at}.post_attention_layernorm.weight", [d]
        yield from linear(f"{at}.mlp.gate_proj", ff, d, feed)
        yield from linear(f"{at}.mlp.up_proj", ff, d, feed)
        yield from linear(f"{at}.mlp.down_proj", d, ff, feed)
    yield "model.norm.weight", [d]
    if not tied:
        yield "lm_head.weight", [v, d]


def run(model, tied, config):
    config = COMMON | config
    made_of, kind = MODELS[model]
    # Untied in the library, so that the head is the given tensor.
    net = kind(made_of(**config, tie_word_embeddings=False, attn_implementation="eager"))
    weights = {}
    for n, (name, shape) in enumerate(tensors(model, tied, config)):
        base = 1.0 if name.endswith("norm.weight") else 0.0
        values = [base + 0.1 * x for x in wave(n, math.prod(shape))]
        weights[name] = torch.tensor(values, dtype=torch.float64).float().view(shape).requires_grad_()
    theirs = {name: list(x.shape) for name, x in net.named_parameters() if not tied or name != "lm_head.weight"}
    assert theirs == {name: list(x.shape) for name, x in weights.items()}, model
    return dict(model=model, rank=0, tied=tied, config=config, **train(net, weights, batches(config, LENGTH)))


def main():
    torch.set_num_threads(1)
    out = dict(
        made_by="tests/peers/parts_fixture.py", torch=torch.__version__.split("+")[0],
        transformers=transformers.__version__, sequences=2, length=LENGTH, cases=[run(**case) for case in CASES],
    )
    json.dump(out, sys.stdout, indent=None, separators=(",", ":"))
    print()


if __name__ == "__main__":
    main()
