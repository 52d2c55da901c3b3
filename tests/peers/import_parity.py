#!/usr/bin/env python3
"""Imports models of published shapes, of random weights, and compares their logits with those of `transformers`.

    python3 tests/peers/import_parity.py --host target/release/host --dir /tmp/models [--only qwen3-0.6b]

Prints one JSON line for each model: the largest difference of a logit divided by the largest logit, seconds of
`host import`, and its peak memory: `anonymous` is the allocated memory (RssAnon), `resident` is VmHWM, which includes mapped
pages of files. Both sides compute in float32 from the same file. The weights have a larger deviation than at the beginning
of a training, so that rotation, norms and biases affect the logits. Each model is removed after its line unless --keep is given.
"""
import argparse
import json
import os
import shutil
import subprocess
import time

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

LLAMA = dict(hidden_act="silu", attention_bias=False, bos_token_id=1, eos_token_id=2)
SHAPES = {
    "pythia-160m": ("gpt_neox", torch.float16, dict(
        vocab_size=50304, hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072,
        max_position_embeddings=2048, rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.25),
        use_parallel_residual=True)),
    "smollm2-135m": ("llama", torch.bfloat16, dict(
        LLAMA, vocab_size=49152, hidden_size=576, num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3,
        intermediate_size=1536, max_position_embeddings=8192, rms_norm_eps=1e-5, tie_word_embeddings=True,
        rope_parameters=dict(rope_type="default", rope_theta=100000.0))),
    # Three of its sixteen layers.
    "llama-3.2-1b": ("llama", torch.bfloat16, dict(
        LLAMA, vocab_size=128256, hidden_size=2048, num_hidden_layers=3, num_attention_heads=32, num_key_value_heads=8,
        head_dim=64, intermediate_size=8192, max_position_embeddings=131072, rms_norm_eps=1e-5, tie_word_embeddings=True,
        rope_parameters=dict(rope_type="llama3", rope_theta=500000.0, factor=32.0, low_freq_factor=1.0,
                             high_freq_factor=4.0, original_max_position_embeddings=8192))),
    "qwen2.5-0.5b": ("qwen2", torch.bfloat16, dict(
        LLAMA, vocab_size=151936, hidden_size=896, num_hidden_layers=24, num_attention_heads=14, num_key_value_heads=2,
        intermediate_size=4864, max_position_embeddings=32768, rms_norm_eps=1e-6, tie_word_embeddings=True,
        rope_parameters=dict(rope_type="default", rope_theta=1000000.0))),
    "qwen3-0.6b": ("qwen3", torch.bfloat16, dict(
        LLAMA, vocab_size=151936, hidden_size=1024, num_hidden_layers=28, num_attention_heads=16, num_key_value_heads=8,
        head_dim=128, intermediate_size=3072, max_position_embeddings=40960, rms_norm_eps=1e-6, tie_word_embeddings=True,
        rope_parameters=dict(rope_type="default", rope_theta=1000000.0))),
}


def make(where, kind, dtype, config):
    config = transformers.AutoConfig.for_model(kind, **config, attn_implementation="eager")
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, w in model.named_parameters():
            around = 1.0 if "norm" in name and name.endswith("weight") else 0.0
            w.normal_(around, 0.1 if w.dim() == 1 else 1.5 * config.hidden_size ** -0.5)
    # Several shards, as for large models.
    model.to(dtype).save_pretrained(where, max_shard_size="400MB")
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(["<unk>", "<s>", "</s>", "a"])}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.save(os.path.join(where, "tokenizer.json"))
    return sum(w.numel() for w in model.parameters())


def measured(command):
    """Runs a command; returns its seconds and its peak memory in MiB: allocated, and resident."""
    start, most = time.time(), [0, 0]
    process = subprocess.Popen(command)
    while process.poll() is None:
        try:
            with open(f"/proc/{process.pid}/status") as f:
                lines = dict(line.split(":", 1) for line in f)
            for i, key in enumerate(("RssAnon", "VmHWM")):
                most[i] = max(most[i], int(lines.get(key, "0 kB").split()[0]) / 1024)
        except (FileNotFoundError, ProcessLookupError):
            break
        time.sleep(0.005)
    if process.wait() != 0:
        raise SystemExit(f"{command} failed")
    return time.time() - start, most


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--host", required=True)
    p.add_argument("--dir", required=True)
    p.add_argument("--only", choices=SHAPES)
    p.add_argument("--length", type=int, default=40)
    p.add_argument("--keep", action="store_true")
    a = p.parse_args()
    for name in [a.only] if a.only else SHAPES:
        kind, dtype, config = SHAPES[name]
        source, run = os.path.join(a.dir, name), os.path.join(a.dir, name + "-run")
        shutil.rmtree(run, ignore_errors=True)
        if not os.path.exists(source):
            make(source, kind, dtype, config)
        files = [os.path.join(source, f) for f in os.listdir(source) if f.endswith(".safetensors")]
        size = sum(map(os.path.getsize, files))
        os.sync()
        seconds, (anonymous, resident) = measured([a.host, "import", "--from", "hf", source, "--out", run])
        ids = [(n * n * 7919 + 31 * n) % config["vocab_size"] for n in range(a.length)]
        out = subprocess.run([a.host, "logits", "--json", "--run", run, "--ids", ",".join(map(str, ids))],
                             check=True, capture_output=True).stdout
        got = torch.tensor(json.loads(out)["logits"])
        model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32, attn_implementation="eager")
        with torch.no_grad():
            expected = model.eval()(torch.tensor([ids]), use_cache=False).logits[0]
        largest = expected.abs().max().item()
        print(json.dumps(dict(
            model=name, parameters=sum(w.numel() for w in model.parameters()), type=str(dtype).removeprefix("torch."),
            files=len(files), bytes=size, ids=a.length, largest_logit=round(largest, 3),
            difference=float(f"{(got - expected).abs().max().item() / largest:.2g}"), seconds=round(seconds, 2),
            mb_per_s=round(size / 1e6 / seconds), anonymous_mib=round(anonymous, 1), resident_mib=round(resident, 1),
        )), flush=True)
        del model
        if not a.keep:
            shutil.rmtree(source)
            shutil.rmtree(run)


if __name__ == "__main__":
    main()
