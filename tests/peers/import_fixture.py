#!/usr/bin/env python3
"""Makes tests/fixtures/import: very small models of random weights as `transformers` saves them, and its results.

    python3 tests/peers/import_fixture.py tests/fixtures/import

The directory of a case can be read by `host import --from hf`: config.json, the weights in one of their types, a
tokenizer of whole words. `expected.json` next to them has a sequence of ids and its logits in float64 (the library's norms
and rotary embedding stay in float32). For the cases that are trained it also has the losses of 50 steps in float32:

  data     texts.jsonl, documents one after another, repeated at the end; every document consists of the ids of its words
           between its begin and end marks, if the tokenizer has them
  batch    2 consecutive sequences of 12 tokens; the next step continues with the last target
  update   global-norm clip at 1, AdamW with betas 0.9 and 0.95, eps 1e-8, a decay of 0.1 for two-dimensional tensors
  rate     0.003 (s + 1) / 5 up to step s = 4, then 0.003
"""
import json
import os
import sys

import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers

VOCABULARY, STEPS, SEQUENCES, LENGTH, RATE = 40, 50, 2, 12, 0.003
WORDS = ("the bear sleeps and a small fish swims to its river while old trees wait for rain or snow in spring they grow "
         "new leaves").split()
IDS = [3, 17, 5, 9, 30, 3, 22, 11, 39, 8, 3, 14]

LLAMA = dict(
    vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    intermediate_size=24, hidden_act="silu", max_position_embeddings=512, rms_norm_eps=1e-5, tie_word_embeddings=False,
    attention_bias=False, mlp_bias=False, bos_token_id=1, eos_token_id=2,
)
NEOX = dict(
    architectures=["GPTNeoXForCausalLM"], model_type="gpt_neox", vocab_size=VOCABULARY, hidden_size=16,
    num_hidden_layers=2, num_attention_heads=2, intermediate_size=24, hidden_act="gelu", max_position_embeddings=16,
    layer_norm_eps=1e-5, use_parallel_residual=True, tie_word_embeddings=False, bos_token_id=1, eos_token_id=2,
)
LLAMA3 = dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)

# Name: configuration, type of the file, shards, and whether it is trained.
CASES = {
    # With the rotation keys of the library's fourth version, and with the buffers that old files have.
    "gpt_neox_parallel": (dict(NEOX, rotary_pct=0.25, rotary_emb_base=10000), torch.float32, 1, True),
    # With those of the fifth version.
    "gpt_neox_sequential": (
        dict(NEOX, num_hidden_layers=1, use_parallel_residual=False,
             rope_parameters=dict(rope_type="default", rope_theta=1000.0, partial_rotary_factor=0.5)),
        torch.float32, 1, False),
    "llama_sharded": (
        dict(LLAMA, architectures=["LlamaForCausalLM"], model_type="llama", rope_theta=10000.0, rope_scaling=None),
        torch.float16, 3, False),
    "llama3": (
        dict(LLAMA, architectures=["LlamaForCausalLM"], model_type="llama", head_dim=8, tie_word_embeddings=True,
             attention_bias=True, mlp_bias=True, rope_theta=10000.0, rope_scaling=dict(LLAMA3, rope_type="llama3")),
        torch.bfloat16, 1, False),
    "qwen3": (
        dict(LLAMA, architectures=["Qwen3ForCausalLM"], model_type="qwen3", head_dim=8, tie_word_embeddings=True,
             use_sliding_window=False, sliding_window=None, layer_types=["full_attention"] * 2,
             rope_parameters=dict(rope_type="default", rope_theta=1000000.0)),
        torch.bfloat16, 1, True),
    "qwen2": (
        dict(LLAMA, architectures=["Qwen2ForCausalLM"], model_type="qwen2", num_hidden_layers=1, rope_theta=1000000.0,
             use_sliding_window=False, sliding_window=8, max_window_layers=1),
        torch.bfloat16, 1, False),
    "mistral": (
        dict(LLAMA, architectures=["MistralForCausalLM"], model_type="mistral", num_hidden_layers=1, sliding_window=None,
             rope_parameters=dict(rope_type="linear", factor=4.0, rope_theta=10000.0)),
        torch.float16, 1, False),
}


def weights(model, dtype):
    """Random, and larger than at the beginning of a training, so that every part of the model affects the logits."""
    made = {}
    tied = model.config.tie_word_embeddings
    # The library's fifth version renames GPT-NeoX's head only in memory.
    head = "embed_out.weight" if model.config.model_type == "gpt_neox" else "lm_head.weight"
    for name, w in model.named_parameters():
        around = 1.0 if "norm" in name and name.endswith("weight") else 0.0
        name = head if name == "lm_head.weight" else name
        made[name] = (around + 0.25 * torch.randn(w.shape)).to(dtype)
    return {name: w for name, w in made.items() if not (tied and name == head)}


def write_weights(where, made, shards):
    if shards == 1:
        return save_file(made, os.path.join(where, "model.safetensors"), metadata={"format": "pt"})
    names = list(made)
    files = [names[i::shards] for i in range(shards)]
    index = dict(metadata=dict(total_size=sum(w.nbytes for w in made.values())), weight_map={})
    for i, part in enumerate(files):
        file = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        save_file({name: made[name] for name in part}, os.path.join(where, file), metadata={"format": "pt"})
        index["weight_map"].update({name: file for name in part})
    write_json(os.path.join(where, "model.safetensors.index.json"), index)


def old_buffers(config):
    """The buffers that GPT-NeoX's first versions saved in addition to the weights."""
    n, made = config["max_position_embeddings"], {}
    for layer in range(config["num_hidden_layers"]):
        stem = f"gpt_neox.layers.{layer}.attention."
        made[stem + "bias"] = torch.tril(torch.ones(n, n, dtype=torch.bool)).view(1, 1, n, n)
        made[stem + "masked_bias"] = torch.tensor(-1e9)
        made[stem + "rotary_emb.inv_freq"] = torch.tensor([1.0])
    return made


def write_json(path, value, indent=1):
    with open(path, "w") as f:
        json.dump(value, f, indent=indent, separators=None if indent else (",", ":"))
        f.write("\n")


def write_tokenizer(where, qwen):
    """A tokenizer of whole words. One of Qwen's marks ends a document, and none begins it."""
    marks = ["<|unknown|>", "<|im_start|>", "<|im_end|>"] if qwen else ["<unk>", "<s>", "</s>"]
    words = marks + sorted(set(WORDS))
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=marks[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(marks)
    tokenizer.save(os.path.join(where, "tokenizer.json"), pretty=False)
    bos = None if qwen else "<s>"
    write_json(os.path.join(where, "tokenizer_config.json"), dict(
        tokenizer_class="PreTrainedTokenizerFast", bos_token=bos, eos_token=marks[2], clean_up_tokenization_spaces=False))
    return tokenizer, [1] if not qwen else [], [2]


def texts():
    random = torch.Generator().manual_seed(7)
    draw = lambda n: int(torch.randint(n, (1,), generator=random))
    return [" ".join(WORDS[draw(len(WORDS))] for _ in range(6 + draw(20))) for _ in range(24)]


def train(model, tokenizer, bos, eos):
    stream = [id for text in texts() for id in bos + tokenizer.encode(text, add_special_tokens=False).ids + eos]
    groups = [dict(params=[w for w in model.parameters() if w.dim() > 1], weight_decay=0.1),
              dict(params=[w for w in model.parameters() if w.dim() == 1], weight_decay=0.0)]
    optimizer = torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.95), eps=1e-8)
    losses, count = [], SEQUENCES * LENGTH
    for s in range(STEPS):
        taken = torch.tensor([stream[(s * count + i) % len(stream)] for i in range(count + 1)])
        inputs, targets = taken[:-1].view(SEQUENCES, LENGTH), taken[1:]
        loss = F.cross_entropy(model(inputs, use_cache=False).logits.flatten(0, 1), targets)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = RATE * min((s + 1) / 5, 1)
        optimizer.step()
        losses.append(round(loss.item(), 6))
    return losses


def make(where, config, dtype, shards, trained):
    os.makedirs(where, exist_ok=True)
    write_json(os.path.join(where, "config.json"), dict(config, torch_dtype=str(dtype).removeprefix("torch.")))
    read = transformers.AutoConfig.from_pretrained(where, attn_implementation="eager")
    model = transformers.AutoModelForCausalLM.from_config(read)
    made = weights(model, dtype)
    extra = old_buffers(config) if config["model_type"] == "gpt_neox" and "rotary_pct" in config else {}
    write_weights(where, dict(made, **extra), shards)
    tokenizer, bos, eos = write_tokenizer(where, config["model_type"].startswith("qwen"))
    # The reference is the library's result for the files.
    model = transformers.AutoModelForCausalLM.from_pretrained(where, dtype=torch.float64, attn_implementation="eager")
    model.eval()
    with torch.no_grad():
        logits = model(torch.tensor([IDS]), use_cache=False).logits[0]
    expected = dict(ids=IDS, logits=[[float(f"{x:.7g}") for x in row] for row in logits.tolist()])
    if trained:
        model = transformers.AutoModelForCausalLM.from_pretrained(where, dtype=torch.float32, attn_implementation="eager")
        expected["losses"] = train(model.train(), tokenizer, bos, eos)
    write_json(os.path.join(where, "expected.json"), expected, indent=None)


def main():
    torch.set_num_threads(1)
    root = sys.argv[1]
    for number, (name, case) in enumerate(CASES.items()):
        torch.manual_seed(number)
        make(os.path.join(root, name), *case)
    with open(os.path.join(root, "texts.jsonl"), "w") as f:
        f.writelines(json.dumps(dict(text=text)) + "\n" for text in texts())
    made_by = dict(made_by="tests/peers/import_fixture.py", torch=torch.__version__.split("+")[0],
                   transformers=transformers.__version__)
    write_json(os.path.join(root, "made_by.json"), made_by)


if __name__ == "__main__":
    main()
