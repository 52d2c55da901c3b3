#!/usr/bin/env python3
"""Makes tests/fixtures/pythia_torch_20_steps.json: 20 training steps of a very small GPT-NeoX in PyTorch.

    python3 tests/peers/fixture.py > tests/fixtures/pythia_torch_20_steps.json
    python3 tests/peers/fixture.py --write DIR      the same weights as a Hugging Face model, and batches.json

Weights, batches and learning rates are formulas, so that any language can compute them without a file:
  weight   entry i of tensor n (counted in the order of `tensors`): 0.1 sin(0.37 i^2 + n), plus 1 in a LayerNorm's
           weight, rounded to float32
  token    at step s, sequence b: position 0 has (3 s + 7 b) mod V, each next one (5 times the last + 3) mod V, up to
           position T
  batch    inputs are tokens 0..T-1, targets tokens 1..T; the target is ignored where (s + b + t) mod 7 = 3
  rate     of step s: 0.01 (s + 1) / 5 up to s = 4, then 0.01 (1 - (s - 4) / 20)
Each case has losses and gradient norms (before clipping) of every step in float64 and float32, and for the first
gradient g of every tensor, before clipping, its norm and its dot product with sin(0.37 i^2 + 1).
"""
import argparse
import json
import math
import os
import sys

import torch

from parity import train

CONFIG = dict(
    architectures=["GPTNeoXForCausalLM"], model_type="gpt_neox", vocab_size=67, hidden_size=48, num_hidden_layers=2,
    num_attention_heads=3, intermediate_size=80, hidden_act="gelu", rotary_pct=0.25, rotary_emb_base=10000,
    max_position_embeddings=64, layer_norm_eps=1e-5, initializer_range=0.02, use_parallel_residual=True,
    tie_word_embeddings=False, attention_bias=True, bos_token_id=2, eos_token_id=3, torch_dtype="float32",
)
STEPS, SEQUENCES = 20, 2
CASES = [  # length, attention
    (16, dict(attention="dense")),
    (60, dict(attention="local", block=16, window=1)),
    (60, dict(attention="global", block=16, stride=2)),
    (60, dict(attention="mixed", block=16)),
]


def tensors(c):
    """Names and shapes, in the order of the forward pass."""
    v, d, ff = c["vocab_size"], c["hidden_size"], c["intermediate_size"]
    yield "gpt_neox.embed_in.weight", [v, d]
    for layer in range(c["num_hidden_layers"]):
        for name, shape in [
            ("input_layernorm.weight", [d]), ("input_layernorm.bias", [d]),
            ("post_attention_layernorm.weight", [d]), ("post_attention_layernorm.bias", [d]),
            ("attention.query_key_value.weight", [3 * d, d]), ("attention.query_key_value.bias", [3 * d]),
            ("attention.dense.weight", [d, d]), ("attention.dense.bias", [d]),
            ("mlp.dense_h_to_4h.weight", [ff, d]), ("mlp.dense_h_to_4h.bias", [ff]),
            ("mlp.dense_4h_to_h.weight", [d, ff]), ("mlp.dense_4h_to_h.bias", [d]),
        ]:
            yield f"gpt_neox.layers.{layer}.{name}", shape
    yield "gpt_neox.final_layer_norm.weight", [d]
    yield "gpt_neox.final_layer_norm.bias", [d]
    yield "embed_out.weight", [v, d]


def wave(n, size):
    return [math.sin(0.37 * (float(i) * i) + n) for i in range(size)]


def weights(c):
    made = {}
    for n, (name, shape) in enumerate(tensors(c)):
        base = 1.0 if name.endswith("norm.weight") else 0.0
        values = [base + 0.1 * x for x in wave(n, math.prod(shape))]
        made[name] = torch.tensor(values, dtype=torch.float64).float().view(shape)
    return made


def batches(c, length):
    out = dict(inputs=[], targets=[], learning_rates=[])
    for s in range(STEPS):
        tokens = [[(3 * s + 7 * b) % c["vocab_size"]] for b in range(SEQUENCES)]
        for walk in tokens:
            while len(walk) <= length:
                walk.append((5 * walk[-1] + 3) % c["vocab_size"])
        out["inputs"].append([walk[:-1] for walk in tokens])
        ignore = [[(s + b + t) % 7 == 3 for t in range(length)] for b in range(SEQUENCES)]
        out["targets"].append(
            [[4294967295 if skip else x for skip, x in zip(row, walk[1:])] for row, walk in zip(ignore, tokens)])
        out["learning_rates"].append(0.01 * (s + 1) / 5 if s < 5 else 0.01 * (1 - (s - 4) / 20))
    return out


def run(length, attention):
    case = dict(length=length, attention=attention)
    for dtype in (torch.float64, torch.float32):
        gradients = {}

        def first(ws):
            for name, w in ws.items():
                g = w.grad.flatten().double()
                along = torch.tensor(wave(1, g.numel()), dtype=torch.float64)
                gradients[name] = [g.norm().item(), g.dot(along).item()]

        start = {name: w.to(dtype) for name, w in weights(CONFIG).items()}
        losses, norms = train(CONFIG, start, batches(CONFIG, length), attention, at_start=first)
        kind = str(dtype).removeprefix("torch.")
        case[kind] = dict(losses=losses, gradient_norms=norms)
        if dtype == torch.float64:
            case["first_gradients"] = gradients
    return case


def write(directory):
    from safetensors.torch import save_file

    os.makedirs(directory, exist_ok=True)
    save_file(weights(CONFIG), os.path.join(directory, "model.safetensors"), metadata={"format": "pt"})
    with open(os.path.join(directory, "config.json"), "w") as f:
        json.dump(CONFIG, f, indent=1)
    with open(os.path.join(directory, "batches.json"), "w") as f:
        json.dump(batches(CONFIG, CASES[0][0]), f)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--write", metavar="DIR")
    a = p.parse_args()
    torch.set_num_threads(1)
    if a.write:
        return write(a.write)
    out = dict(
        made_by="tests/peers/fixture.py", torch=torch.__version__.split("+")[0], config=CONFIG, sequences=SEQUENCES,
        cases=[run(*case) for case in CASES],
    )
    json.dump(out, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
