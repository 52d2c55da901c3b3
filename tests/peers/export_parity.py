"""Compares the output of `host export --to hf`, loaded in transformers, with its run: logits, greedy
continuations and token ids. Prints one JSON line and fails where they differ.

    export_parity.py --host target/release/host --run RUN --export DIR [--tolerance 1e-4]
"""

import argparse
import json
import subprocess

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

TEXTS = [
    "def f(x):\n    return x ** 2  # it's 12345.678\n",
    "The quick brown fox jumps over the lazy dog. DON'T PANIC, it'll be fine!\r\n\r\n",
    "Ελληνικά, Русский, हिन्दी, العربية, 漢字かな交じり文, 한국어, ภาษาไทย",
    "👩‍👩‍👧‍👦 👍🏽 🐻 ❤️ e\u0301 \u00a0\u3000 tab\there   three spaces",
    "1 22 333 4444 55555 1e10 0x7f ½ Ⅷ ٣٤٥",
]


def host(arguments, *line):
    done = subprocess.run([arguments.host, *line], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", required=True)
    parser.add_argument("--run", required=True)
    parser.add_argument("--export", required=True)
    parser.add_argument("--tolerance", type=float, default=1e-4)
    parser.add_argument("--greedy", type=int, default=64)
    arguments = parser.parse_args()
    model = AutoModelForCausalLM.from_pretrained(arguments.export, dtype=torch.float32) \
        if int(transformers.__version__.split(".")[0]) >= 5 \
        else AutoModelForCausalLM.from_pretrained(arguments.export, torch_dtype=torch.float32)
    model.eval()
    tokenizer = AutoTokenizer.from_pretrained(arguments.export)
    # Ids: compares the text between the marks.
    same = 0
    for text in TEXTS:
        ours = host(arguments, "vocab", "--json", "--tokenizer", f"{arguments.export}/tokenizer.json", "--encode", text)
        ours = ours["ids"] if isinstance(ours, dict) else ours
        theirs = tokenizer(text, add_special_tokens=False)["input_ids"]
        same += ours == theirs
        if ours != theirs:
            print(repr(text), ours, theirs)
    # Long enough to cover every wavelength.
    size = model.config.vocab_size - 4
    ids = [4 + i * 37 % size for i in range(min(200, model.config.max_position_embeddings))]
    ours = torch.tensor(host(arguments, "logits", "--json", "--device", "cpu", "--run", arguments.run, "--ids", ",".join(map(str, ids)))["logits"])
    with torch.no_grad():
        theirs = model(torch.tensor([ids])).logits[0]
    difference = (ours - theirs).abs().max().item()
    # Greedy, each token from the whole text before it.
    text, agreed = ids[:8], 0
    for _ in range(arguments.greedy):
        ours = host(arguments, "logits", "--json", "--device", "cpu", "--run", arguments.run, "--ids", ",".join(map(str, text)))["logits"][-1]
        with torch.no_grad():
            theirs = model(torch.tensor([text])).logits[0, -1]
        best = max(range(len(ours)), key=ours.__getitem__)
        agreed += best == int(theirs.argmax())
        text.append(best)
    print(json.dumps({
        "transformers": transformers.__version__, "class": type(model).__name__, "tokenizer": type(tokenizer).__name__,
        "largest_difference_of_logits": difference, "greedy_agreed": agreed, "greedy": arguments.greedy,
        "texts_with_the_same_ids": same, "texts": len(TEXTS), "bos": tokenizer.bos_token_id, "eos": tokenizer.eos_token_id,
        "tied": bool(model.config.tie_word_embeddings),
    }))
    assert difference <= arguments.tolerance and agreed == arguments.greedy and same == len(TEXTS)


if __name__ == "__main__":
    main()
