#!/usr/bin/env python3
"""Makes tests/fixtures/llama_transformers_20_steps.json: 20 training steps of transformers' LlamaForCausalLM.

    python3 tests/peers/llama_fixture.py > tests/fixtures/llama_transformers_20_steps.json

A factorised embedding is passed as the table E P^T, for the embedding and the head alike, and its gradient is propagated
to E and P. Weights, batches and learning rates are the formulas of fixture.py; everything is computed in float32, which
transformers' norm and rotary embedding use in any case. Each case has the logits of the first sequence of batch 0 before
the first and after the last step, loss and gradient norm (before clipping) of every step, and for the first gradient g
of every tensor, before clipping, its norm and its dot product with sin(0.37 i^2 + 1).
"""
import json
import math
import sys

import torch
import torch.nn.functional as F
import transformers
from torch.func import functional_call
from transformers import LlamaConfig, LlamaForCausalLM

from fixture import batches, wave

CONFIG = dict(
    vocab_size=67, hidden_size=48, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2,
    intermediate_size=80, hidden_act="silu", max_position_embeddings=64, rms_norm_eps=1e-5, rope_theta=10000.0,
    attention_bias=False, mlp_bias=False,
)
LENGTH = 16
CASES = [dict(rank=5, tied=True), dict(rank=0, tied=True), dict(rank=0, tied=False)]


def tensors(rank, tied):
    """Names and shapes, in the order of the forward pass."""
    v, d, ff = (CONFIG[key] for key in ("vocab_size", "hidden_size", "intermediate_size"))
    narrow = d // CONFIG["num_attention_heads"] * CONFIG["num_key_value_heads"]
    if rank:
        yield "model.embed_tokens.E", [v, rank]
        yield "model.embed_tokens.P", [d, rank]
    else:
        yield "model.embed_tokens.weight", [v, d]
    for layer in range(CONFIG["num_hidden_layers"]):
        for name, shape in [
            ("input_layernorm", [d]), ("self_attn.q_proj", [d, d]), ("self_attn.k_proj", [narrow, d]),
            ("self_attn.v_proj", [narrow, d]), ("self_attn.o_proj", [d, d]), ("post_attention_layernorm", [d]),
            ("mlp.gate_proj", [ff, d]), ("mlp.up_proj", [ff, d]), ("mlp.down_proj", [d, ff]),
        ]:
            yield f"model.layers.{layer}.{name}.weight", shape
    yield "model.norm.weight", [d]
    if not tied:
        yield "lm_head.weight", [v, d]


def start(rank, tied):
    made = {}
    for n, (name, shape) in enumerate(tensors(rank, tied)):
        base = 1.0 if name.endswith("norm.weight") else 0.0
        values = [base + 0.1 * x for x in wave(n, math.prod(shape))]
        made[name] = torch.tensor(values, dtype=torch.float64).float().view(shape).requires_grad_()
    return made


def logits(model, weights, ids):
    given = dict(weights)
    if "model.embed_tokens.E" in given:
        given["model.embed_tokens.weight"] = given.pop("model.embed_tokens.E") @ given.pop("model.embed_tokens.P").T
    given.setdefault("lm_head.weight", given["model.embed_tokens.weight"])
    return functional_call(model, given, (ids,), dict(use_cache=False), tie_weights=False).logits


def run(rank, tied):
    # Untied in the library, so that the head is the given tensor.
    model = LlamaForCausalLM(LlamaConfig(**CONFIG, tie_word_embeddings=False, attn_implementation="eager"))
    return dict(rank=rank, tied=tied, **train(model, start(rank, tied), batches(CONFIG, LENGTH)))


def train(model, weights, made):
    """The results of training `made` on `weights`, for a case of the fixture."""
    groups = [
        dict(params=[w for w in weights.values() if w.dim() > 1], weight_decay=0.1),
        dict(params=[w for w in weights.values() if w.dim() == 1], weight_decay=0.0),
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.95), eps=1e-8)
    first_ids = torch.tensor(made["inputs"][0])[:1]

    def shown():
        with torch.no_grad():
            return [float(f"{x:.8g}") for x in logits(model, weights, first_ids).flatten().tolist()]

    case = dict(logits_before=shown(), losses=[], gradient_norms=[], first_gradients={})
    for inputs, targets, rate in zip(made["inputs"], made["targets"], made["learning_rates"], strict=True):
        targets = torch.tensor(targets)
        targets = targets.masked_fill(targets == 4294967295, -100)
        loss = F.cross_entropy(logits(model, weights, torch.tensor(inputs)).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        if not case["losses"]:
            for name, w in weights.items():
                g = w.grad.flatten().double()
                along = torch.tensor(wave(1, g.numel()), dtype=torch.float64)
                case["first_gradients"][name] = [g.norm().item(), g.dot(along).item()]
        case["gradient_norms"].append(torch.nn.utils.clip_grad_norm_(weights.values(), 1.0).item())
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        case["losses"].append(loss.item())
    case["logits_after"] = shown()
    return case


def main():
    torch.set_num_threads(1)
    out = dict(
        made_by="tests/peers/llama_fixture.py", torch=torch.__version__.split("+")[0],
        transformers=transformers.__version__, config=CONFIG, sequences=2, length=LENGTH,
        cases=[run(**case) for case in CASES],
    )
    json.dump(out, sys.stdout, indent=None, separators=(",", ":"))
    print()


if __name__ == "__main__":
    main()
