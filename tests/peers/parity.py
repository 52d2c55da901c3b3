#!/usr/bin/env python3
"""Trains a GPT-NeoX in PyTorch from given weights on given batches, to compare another implementation with.

The model is written with torch's own operations and shares nothing with capful. Prints one JSON object.

  parity.py DIR --batches FILE.json [--dtype float32] [--clip 1.0] [--attention local --block 16 --window 1]
      DIR holds model.safetensors and config.json in Hugging Face's GPTNeoX layout. FILE.json holds
      {"inputs": [step][sequence][position], "targets": the same shape, "learning_rates": [step]}; a target of
      4294967295 or -100 is not counted. One update per step: global-norm clip, then AdamW. -> {"losses": [...], ...}
  parity.py DIR --ids 1,2,3
      Logits at every position, by transformers' GPTNeoXForCausalLM loaded from DIR and by the model here, and the
      largest difference of the two. -> {"logits": [[...]], "largest_difference": ...}
      For a Llama directory, factorised or not, only the logits of transformers' LlamaForCausalLM.
"""
import argparse
import json
import os
import sys

import torch
import torch.nn.functional as F

IGNORED = (4294967295, -100)


def mask(length, attention="dense", block=16, window=1, stride=2):
    """[query, key]: the keys that a query sees."""
    position = torch.arange(length)
    i, j = position[:, None], position[None, :]
    bi, bj = i // block, j // block

    def local(w):
        return (bi - bj).abs() <= w

    def spread(s):
        return (bj % s == 0) | (bi == bj)

    seen = {
        "dense": lambda: torch.ones(length, length, dtype=torch.bool),
        "local": lambda: local(window),
        "global": lambda: spread(stride),
        "mixed": lambda: local(1) | spread(4),
    }[attention]()
    return seen & (j <= i)


class NeoX:
    """A GPT-NeoX over a dictionary of tensors with Hugging Face's names."""

    def __init__(self, config, weights, attention):
        self.c, self.w, self.attention = config, weights, attention

    def linear(self, x, name):
        return F.linear(x, self.w[name + ".weight"], self.w[name + ".bias"])

    def norm(self, x, name):
        eps = self.c.get("layer_norm_eps", 1e-5)
        return F.layer_norm(x, x.shape[-1:], self.w[name + ".weight"], self.w[name + ".bias"], eps)

    def rotate(self, x, cos, sin):
        half = cos.shape[-1]
        a, b, rest = x[..., :half], x[..., half:2 * half], x[..., 2 * half:]
        return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], dim=-1)

    def attend(self, x, prefix, cos, sin, seen):
        batch, length, d = x.shape
        heads = self.c["num_attention_heads"]
        qkv = self.linear(x, prefix + "query_key_value").view(batch, length, heads, 3, d // heads)
        q, k, v = qkv.permute(3, 0, 2, 1, 4)
        q, k = self.rotate(q, cos, sin), self.rotate(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        return self.linear(y.transpose(1, 2).reshape(batch, length, d), prefix + "dense")

    def logits(self, ids):
        x = F.embedding(ids, self.w["gpt_neox.embed_in.weight"])
        length, head_dim = ids.shape[1], self.c["hidden_size"] // self.c["num_attention_heads"]
        rope = self.c.get("rope_parameters") or {}            # where transformers 5 keeps the two values
        turned = int(head_dim * rope.get("partial_rotary_factor", self.c.get("rotary_pct", 0.25)))
        base = rope.get("rope_theta", self.c.get("rotary_emb_base", 10000))
        speed = base ** (-torch.arange(0, turned, 2, dtype=torch.float64) / turned)
        angle = torch.arange(length, dtype=torch.float64)[:, None] * speed
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        seen = mask(length, **self.attention)
        for layer in range(self.c["num_hidden_layers"]):
            p = f"gpt_neox.layers.{layer}."
            a = self.attend(self.norm(x, p + "input_layernorm"), p + "attention.", cos, sin, seen)
            h = F.gelu(self.linear(self.norm(x, p + "post_attention_layernorm"), p + "mlp.dense_h_to_4h"))
            x = x + a + self.linear(h, p + "mlp.dense_4h_to_h")
        x = self.norm(x, "gpt_neox.final_layer_norm")
        return F.linear(x, self.w["embed_out.weight"])

    def loss(self, inputs, targets):
        z = self.logits(inputs)
        return F.cross_entropy(z.flatten(0, 1), targets.flatten(), ignore_index=-100)


def train(config, weights, batches, attention, clip=1.0, betas=(0.9, 0.95), eps=1e-8, decay=0.1, at_start=None):
    """Losses before each update and the global norms before clipping. `at_start` is called with the weights when
    the first gradient is there and nothing has moved."""
    weights = {name: w.clone().requires_grad_() for name, w in weights.items()}
    model = NeoX(config, weights, attention)
    matrices = [w for w in weights.values() if w.dim() > 1]
    vectors = [w for w in weights.values() if w.dim() <= 1]
    groups = [dict(params=matrices, weight_decay=decay), dict(params=vectors, weight_decay=0.0)]
    optimizer = torch.optim.AdamW(groups, lr=0.0, betas=betas, eps=eps)
    losses, norms = [], []
    for inputs, targets, rate in zip(batches["inputs"], batches["targets"], batches["learning_rates"], strict=True):
        inputs, targets = torch.tensor(inputs), torch.tensor(targets)
        for ignored in IGNORED:
            targets = targets.masked_fill(targets == ignored, -100)
        loss = model.loss(inputs, targets)
        optimizer.zero_grad()
        loss.backward()
        if at_start and not losses:
            at_start(weights)
        norms.append(torch.nn.utils.clip_grad_norm_(weights.values(), clip).item())
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        losses.append(loss.item())
    return losses, norms


def load(directory, dtype):
    """config.json and the tensors of model.safetensors."""
    from safetensors.torch import load_file

    with open(os.path.join(directory, "config.json")) as f:
        config = json.load(f)
    skipped = ("attention.bias", "attention.masked_bias", "attention.rotary_emb.inv_freq")
    tensors = load_file(os.path.join(directory, "model.safetensors"))
    return config, {name: t.to(dtype) for name, t in tensors.items() if not name.endswith(skipped)}


def compare_logits(directory, ids, dtype):
    from transformers import GPTNeoXForCausalLM

    config, weights = load(directory, dtype)
    theirs, report = GPTNeoXForCausalLM.from_pretrained(directory, torch_dtype=dtype, output_loading_info=True)
    with torch.no_grad():
        reference = theirs.eval()(torch.tensor([ids])).logits[0]
        ours = NeoX(config, weights, dict(attention="dense")).logits(torch.tensor([ids]))[0]
    return dict(
        ids=ids,
        logits=reference.tolist(),
        largest_difference=(reference - ours).abs().max().item(),
        parameters=sum(p.numel() for p in theirs.parameters()),
        missing=sorted(report["missing_keys"]),
        unexpected=sorted(report["unexpected_keys"]),
    )


def llama_logits(directory, ids, dtype):
    """With LlamaForCausalLM; a factorised embedding (model_type yxanul) becomes the table E P^T of a tied Llama."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config, weights = load(directory, dtype)
    if config["model_type"] == "yxanul":
        e, p = (weights.pop(f"model.embed_tokens.{name}") for name in "EP")
        weights["model.embed_tokens.weight"] = e @ p.T
        sizes = {k: v for k, v in config.items() if k not in ("architectures", "model_type", "embedding_rank")}
        theirs = LlamaForCausalLM(LlamaConfig(**sizes)).to(dtype)
        found = theirs.load_state_dict(weights, strict=False)
        # The head is the embedding.
        missing = [k for k in found.missing_keys if k != "lm_head.weight"]
        unexpected = list(found.unexpected_keys)
        theirs.tie_weights()
    else:
        theirs, report = LlamaForCausalLM.from_pretrained(directory, torch_dtype=dtype, output_loading_info=True)
        missing, unexpected = sorted(report["missing_keys"]), sorted(report["unexpected_keys"])
    with torch.no_grad():
        logits = theirs.eval()(torch.tensor([ids])).logits[0]
    return dict(ids=ids, logits=logits.tolist(), missing=missing, unexpected=unexpected)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("directory")
    p.add_argument("--batches", help="JSON file of batches to train on")
    p.add_argument("--ids", help="comma-separated ids to compute logits of")
    p.add_argument("--dtype", choices=["float32", "float64"], default="float32")
    p.add_argument("--clip", type=float, default=1.0)
    p.add_argument("--weight-decay", type=float, default=0.1)
    p.add_argument("--attention", choices=["dense", "local", "global", "mixed"], default="dense")
    p.add_argument("--block", type=int, default=16)
    p.add_argument("--window", type=int, default=1)
    p.add_argument("--stride", type=int, default=2)
    p.add_argument("--threads", type=int, default=0)
    a = p.parse_args()
    if bool(a.batches) == bool(a.ids):
        p.error("give one of --batches and --ids")
    if a.threads:
        torch.set_num_threads(a.threads)
    dtype = getattr(torch, a.dtype)
    if a.ids:
        with open(os.path.join(a.directory, "config.json")) as f:
            llama = json.load(f)["model_type"] in ("llama", "yxanul")
        out = (llama_logits if llama else compare_logits)(a.directory, [int(i) for i in a.ids.split(",")], dtype)
    else:
        with open(a.batches) as f:
            batches = json.load(f)
        config, weights = load(a.directory, dtype)
        attention = dict(attention=a.attention, block=a.block, window=a.window, stride=a.stride)
        losses, norms = train(config, weights, batches, attention, a.clip, decay=a.weight_decay)
        out = dict(losses=losses, gradient_norms=norms, dtype=a.dtype, torch=torch.__version__)
    json.dump(out, sys.stdout)
    print()


if __name__ == "__main__":
    main()
