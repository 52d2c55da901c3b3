#!/usr/bin/env python3
"""Trains adapters of a small random Llama with `host train --lora-rank` and with PEFT, and compares the losses.

    python3 tests/peers/lora_peft.py --host target/release/host [--device cuda] [--base int8] [--plain]

Both begin with the same adapters: those that a run of capful with the same seed and a rate of 1e-30 exports, which PEFT
loads like any others. Both read the same batches in the same order (`--order consecutive`, as in import_fixture.py) and
are updated by AdamW with betas 0.9 and 0.95, eps 1e-8, no decay, after a clip of the global norm at 1. Without the package
`peft`, or with --plain, y = W x + α / r · B (A x) is computed here. PyTorch computes in float32. With --base int8 it
receives the base rounded to 8 bits with a scale for each row, as capful then stores it.

Prints a line for each step and then one JSON line: the largest relative difference of a loss, the difference after the last
step, the distance of the trained adapters, and that of the logits of the merged model. Exits with 1 where a loss differs by
more than --most.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file

from import_fixture import IDS, VOCABULARY, texts, write_tokenizer

LORA = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def parsed():
    p = argparse.ArgumentParser()
    p.add_argument("--host", default="target/release/host")
    p.add_argument("--dir", help="where to leave the models and runs; a temporary directory otherwise")
    p.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    p.add_argument("--base", default="f32", choices=["f32", "int8"])
    p.add_argument("--capful", default="", help="more flags of host train, such as '--precision bf16'")
    p.add_argument("--plain", action="store_true")
    p.add_argument("--steps", type=int, default=50)
    p.add_argument("--batch", type=int, default=4)
    p.add_argument("--seq", type=int, default=64)
    p.add_argument("--rate", type=float, default=3e-3)
    p.add_argument("--rank", type=int, default=8)
    p.add_argument("--alpha", type=float, default=16)
    p.add_argument("--layers", type=int, default=4)
    p.add_argument("--width", type=int, default=256)
    p.add_argument("--most", type=float, default=1e-3)
    return p.parse_args()


def make(where, args):
    """A Llama of random weights, wider than at the beginning of a training, with a tokenizer of whole words."""
    width = args.width
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=width, num_hidden_layers=args.layers, num_attention_heads=width // 32,
        num_key_value_heads=width // 64, intermediate_size=width * 11 // 4, max_position_embeddings=args.seq,
        rms_norm_eps=1e-5, tie_word_embeddings=False, bos_token_id=1, eos_token_id=2, attn_implementation="eager")
    torch.manual_seed(1)
    model = transformers.LlamaForCausalLM(config)
    with torch.no_grad():
        for name, w in model.named_parameters():
            w.normal_(1.0 if "norm" in name else 0.0, 0.1 if w.dim() == 1 else width ** -0.5)
    model.save_pretrained(where)
    return write_tokenizer(where, qwen=False)


def host(args, line, more=()):
    command = [args.host, *line.split(), *more]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stderr}")
    return done.stdout


def train_here(args, out, steps, rate):
    base = "" if args.base == "f32" else f"--base-type {args.base}"
    printed = host(args, f"""train --json --init-from model --data texts.jsonl --validation texts.jsonl --order consecutive
        --steps {steps} --batch-size {args.batch} --seq-len {args.seq} --lr {rate} --schedule constant --warmup 5
        --weight-decay 0 --beta1 0.9 --beta2 0.95 --clip 1 --log-every 1 --seed 1 --device {args.device}
        --lora-rank {args.rank} --lora-alpha {args.alpha} {base} {args.capful} --out {out}""")
    return [line["loss"] for line in map(json.loads, printed.splitlines()) if "loss" in line]


def in_eight_bits(model):
    """Every matrix rounded to codes of -127 to 127 with a scale of half precision for each row."""
    with torch.no_grad():
        for w in model.parameters():
            if w.dim() == 2:
                scale = (w.abs().amax(1, keepdim=True) / 127).half().float()
                w.copy_((w / scale).round().clamp(-127, 127) * scale)


class Lora(torch.nn.Module):
    def __init__(self, base, a, b, scale):
        super().__init__()
        self.base, self.scale = base, scale
        self.a, self.b = torch.nn.Parameter(a), torch.nn.Parameter(b)

    def forward(self, x):
        return self.base(x) + self.scale * F.linear(F.linear(x, self.a), self.b)


def by_hand(model, adapter, args):
    tensors = load_file(os.path.join(adapter, "adapter_model.safetensors"))
    model.requires_grad_(False)
    for name, module in list(model.named_modules()):
        if name.rsplit(".", 1)[-1] in LORA:
            a, b = (tensors.pop(f"base_model.model.{name}.lora_{which}.weight") for which in "AB")
            parent, last = name.rsplit(".", 1)
            setattr(model.get_submodule(parent), last, Lora(module, a, b, args.alpha / args.rank))
    assert not tensors, f"these belong to nothing: {list(tensors)}"
    return model


def adapters_of(model):
    """The trained numbers under the names that capful exports."""
    if any("lora_" in name for name, _ in model.named_parameters()):
        short = lambda name: name.replace(".default", "")
    else:
        hand = {"a": "lora_A.weight", "b": "lora_B.weight"}
        short = lambda name: "base_model.model." + ".".join([*name.split(".")[:-1], hand[name.split(".")[-1]]])
    return {short(name): w.detach().cpu() for name, w in model.named_parameters() if w.requires_grad}


def train_there(args, model, stream):
    learnt = [w for w in model.parameters() if w.requires_grad]
    optimizer = torch.optim.AdamW(learnt, lr=0.0, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
    losses, count = [], args.batch * args.seq
    for s in range(args.steps):
        taken = torch.tensor([stream[(s * count + i) % len(stream)] for i in range(count + 1)], device=args.device)
        inputs, targets = taken[:-1].view(args.batch, args.seq), taken[1:]
        loss = F.cross_entropy(model(input_ids=inputs, use_cache=False).logits.flatten(0, 1), targets)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(learnt, 1.0)
        for group in optimizer.param_groups:
            group["lr"] = args.rate * min((s + 1) / 5, 1)
        optimizer.step()
        losses.append(loss.item())
    return losses


def logits_of(model, device):
    with torch.no_grad():
        return model(input_ids=torch.tensor([IDS], device=device), use_cache=False).logits[0].cpu()


def compare(args):
    tokenizer, bos, eos = make("model", args)
    with open("texts.jsonl", "w") as f:
        f.writelines(json.dumps(dict(text=text)) + "\n" for text in texts())
    stream = [id for text in texts() for id in bos + tokenizer.encode(text, add_special_tokens=False).ids + eos]
    train_here(args, "first", 1, 1e-30)
    host(args, "export --run first --to hf --adapter first-adapter")
    ours = train_here(args, "tuned", args.steps, args.rate)
    host(args, "export --run tuned --to hf --adapter tuned-adapter")

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    model = transformers.LlamaForCausalLM.from_pretrained("model", dtype=torch.float32, attn_implementation="eager")
    if args.base == "int8":
        in_eight_bits(model)
    try:
        if args.plain:
            raise ImportError
        import peft
        by = f"peft {peft.__version__}"
        model = peft.PeftModel.from_pretrained(model, "first-adapter", is_trainable=True)
    except ImportError:
        by, model = "PyTorch", by_hand(model, "first-adapter", args)
    model = model.to(args.device).train()
    learnt = sum(w.numel() for w in model.parameters() if w.requires_grad)
    theirs = train_there(args, model, stream)

    off = [abs(a - b) / b for a, b in zip(ours, theirs, strict=True)]
    for s, (a, b) in enumerate(zip(ours, theirs)):
        print(f"step {s + 1:3}: capful {a:.6f}, {by} {b:.6f}")
    trained, found = adapters_of(model), load_file("tuned-adapter/adapter_model.safetensors")
    assert set(trained) == set(found), set(trained) ^ set(found)
    difference = sum((trained[n] - found[n]).square().sum() for n in trained) / sum(w.square().sum() for w in trained.values())
    result = dict(by=by, torch=torch.__version__, device=args.device, base=args.base, learnt=learnt, first=[ours[0], theirs[0]],
                  last=[ours[-1], theirs[-1]], most=max(off), last_off=off[-1], adapters=difference.sqrt().item())
    if args.base == "f32":
        host(args, "export --run tuned --to hf merged --dtype f32")
        merged = transformers.LlamaForCausalLM.from_pretrained("merged", dtype=torch.float32, attn_implementation="eager")
        there, here = logits_of(model, args.device), logits_of(merged, "cpu")
        result["merged_logits"] = ((there - here).norm() / there.norm()).item()
    print(json.dumps(result))
    return max(off) <= args.most


def main():
    args = parsed()
    args.host = os.path.abspath(args.host)
    with tempfile.TemporaryDirectory() as temporary:
        where = args.dir or temporary
        os.makedirs(where, exist_ok=True)
        os.chdir(where)
        sys.exit(0 if compare(args) else 1)


if __name__ == "__main__":
    main()
