"""Compares the output of `host export --to gguf`, loaded in llama.cpp, with its run: logits, greedy
continuations and token ids. Prints one JSON line; with --exact it fails where greedy tokens or ids differ.

    gguf_parity.py --host target/release/host --run RUN --export FILE.gguf [--exact]
"""

import argparse
import json
import subprocess

import numpy
from llama_cpp import Llama

TEXTS = [
    "def f(x):\n    return x ** 2  # it's 12345.678\n\n\n\tif a<=b: pass",
    "The quick brown fox jumps over the lazy dog. DON'T PANIC, it'll be fine! we've I'M they'RE\r\n\r\n",
    "Ελληνικά, Русский, हिन्दी की, العربية السَّلام, 漢字かな交じり文, 한국어, ภาษาไทย",
    "👩‍👩‍👧‍👦 👍🏽 🐻 ❤️ e\u0301 \u00a0\u3000 tab\there   three spaces  ",
    "1 22 333 4444 55555 1234567 1e10 0x7f ½ Ⅷ ٣٤٥ १२३४",
    " leading, \n \n mixed \t\n white  space\u2028x\u00a0y\u0085z",
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
    parser.add_argument("--tokenizer", help="the run's tokenizer.json; no ids are compared without it")
    parser.add_argument("--texts", help="a file whose lines are compared too")
    parser.add_argument("--greedy", type=int, default=64)
    parser.add_argument("--exact", action="store_true")
    arguments = parser.parse_args()
    model = Llama(arguments.export, n_ctx=0, n_threads=2, logits_all=True, type_k=0, type_v=0, verbose=False)
    same, texts = 0, list(TEXTS)
    if arguments.texts:
        texts += [line for line in open(arguments.texts, encoding="utf-8").read().split("\n") if line]
    if arguments.tokenizer:
        for text in texts:
            ours = host(arguments, "vocab", "--json", "--tokenizer", arguments.tokenizer, "--encode", text)["ids"]
            theirs = model.tokenize(text.encode(), add_bos=False, special=True)
            same += ours == theirs
            if ours != theirs:
                print(repr(text), ours, theirs)

    def logits(ids):
        return numpy.array(host(arguments, "logits", "--json", "--device", "cpu", "--run", arguments.run, "--ids", ",".join(map(str, ids)))["logits"])

    def theirs(ids):
        model.reset()
        model.eval(ids)
        return model.scores[: len(ids)].copy()

    # Long enough to cover every wavelength.
    size = model.n_vocab() - 4
    ids = [4 + i * 37 % size for i in range(min(200, model.n_ctx()))]
    ours, other = logits(ids), theirs(ids)
    difference = float(abs(ours - other).max())
    text, agreed = ids[:8], 0
    for _ in range(arguments.greedy):
        best = int(logits(text)[-1].argmax())
        agreed += best == int(theirs(text)[-1].argmax())
        text.append(best)
    print(json.dumps({
        "architecture": model.metadata["general.architecture"], "file_type": model.metadata["general.file_type"],
        "largest_difference_of_logits": difference, "spread_of_logits": float(ours.std()),
        "mean_difference": float(abs(ours - other).mean()), "greedy_agreed": agreed, "greedy": arguments.greedy,
        "texts_with_the_same_ids": same if arguments.tokenizer else None, "texts": len(texts),
        "bos": model.token_bos(), "eos": model.token_eos(), "ids": model.n_vocab(),
    }))
    assert not arguments.exact or (agreed == arguments.greedy and (same == len(texts) or not arguments.tokenizer))


if __name__ == "__main__":
    main()
