#!/usr/bin/env python3
"""Compares the ids and texts of `host vocab --lines` with those of Python's `tokenizers`, kind by kind.

    python3 tests/peers/tokenizer_parity.py --host target/release/host [--natural docs.jsonl] [--texts 20000]

Tokenizers are those of tokenizer_fixtures.py with larger vocabularies, trained on the natural text if it is given, and
with the whole nmt_nfkc map; and small ones that test each class of characters. Texts are random UTF-8: mixtures of
blocks, of arbitrary characters, and of strings that the patterns distinguish. Exit status 1 if any text differs.
"""
import argparse
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time

from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from tokenizer_fixtures import SAMPLE, TEXTS, charsmap, kinds

BLOCKS = [(0, 0x80), (0x20, 0x7F), (0x80, 0x250), (0x250, 0x370), (0x300, 0x370), (0x370, 0x530), (0x590, 0x780),
          (0x900, 0xE00), (0xE00, 0x1000), (0x1000, 0x1200), (0x1100, 0x1200), (0x1E00, 0x2000), (0x2000, 0x2070),
          (0x2070, 0x2400), (0x2460, 0x2800), (0x3000, 0x3100), (0x3130, 0x3400), (0x4E00, 0xA000), (0xAC00, 0xD7A4),
          (0xF900, 0x10000), (0x10000, 0x11000), (0x1D400, 0x1D800), (0x1F000, 0x1FB00), (0x20000, 0x2A700),
          (0xE0000, 0xE0200), (0, 0x110000)]
PARTS = [" ", "  ", "\n", "\r\n", "\t", "\u00a0", "\u3000", "\u0085", "\u2028", "'s", "'LL", "'\u017f", "\u017f", "\u212a",
         "1", "23", "456", "7890123", "٣٤", "½", "Ⅷ", "<s>", "</s>", "<|endoftext|>", "[MASK]", "<0x41>", "▁", "``", "''",
         "\u0301", "\u200d", "\ufe0f", "\ufeff", "\0", "\ufffd", "the", " and", "über", "ПРИВЕТ", "Σ", "ς"]
CLASSES = [r"\p{L}", r"\p{N}", r"\s", r"\p{Lu}", r"\p{Ll}", r"\p{Lt}", r"\p{Lm}", r"\p{Lo}", r"\p{M}", r"\p{P}", r"\p{S}",
           r"\d", r"\w", r"[^\s\p{L}\p{N}]", "(?i:'s|'t|'re|'ve|'m|'ll|'d)"]


def texts(count, seed):
    draw = random.Random(seed)
    for _ in range(count):
        text = []
        for _ in range(draw.randrange(1, 6)):
            low, high = draw.choice(BLOCKS)
            for _ in range(draw.randrange(0, 12)):
                c = draw.randrange(low, high)
                if not 0xD800 <= c < 0xE000:
                    text.append(chr(c))
                if draw.random() < 0.2:
                    text.append(draw.choice(PARTS))
        yield "".join(text)


def words(sample, count, seed):
    """Pieces of the sample, cut anywhere and concatenated, as material for merges."""
    draw = random.Random(seed)
    whole = "\n".join(sample)
    for _ in range(count):
        cut = (draw.randrange(len(whole)) for _ in range(draw.randrange(1, 5)))
        yield "".join(whole[at:at + draw.randrange(1, 40)] + draw.choice(["", *PARTS]) for at in cut)


def host(program, file, lines):
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory, "tokenizer.json")
        path.write_text(json.dumps(file))
        run = subprocess.run([program, "vocab", "--lines", "--tokenizer", str(path)], capture_output=True, text=True,
                             input="".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    if run.returncode:
        sys.exit(f"{run.stderr.strip()}")
    return [json.loads(line) for line in run.stdout.split("\n")[:-1]]


def compare(program, name, file, lines):
    tokenizer = Tokenizer.from_str(json.dumps(file))
    start = time.time()
    ours = host(program, file, lines)
    seconds = time.time() - start
    differ = {"ids": 0, "text": 0}
    assert len(ours) == len(lines)
    for text, our in zip(lines, ours):
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        wrong = "ids" if our["ids"] != ids else "text" if our["text"] != tokenizer.decode(ids) else None
        if wrong:
            if differ[wrong] < 2:
                print(f"  {name}: {wrong} of {text[:80]!r}", file=sys.stderr)
            differ[wrong] += 1
    size = sum(len(text.encode()) for text in lines)
    print(f"{name:28} {len(lines):8} texts {size / 1e6:8.2f} MB {sum(differ.values()):6} differ "
          f"({seconds:.1f} s in host)", flush=True)
    return sum(differ.values())


def classes(program):
    """Each character between two that are in no class: with a tokenizer of one id, the number of ids is compared."""
    every = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    total = 0
    for pattern in CLASSES:
        tokenizer = Tokenizer(models.WordLevel({"?": 0}, "?"))
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "isolated")
        lines = ["'" + c if "'s" in pattern else f"\x01{c}\x01" for c in every]
        ours = host(program, json.loads(tokenizer.to_str()), lines)
        theirs = [len(e.ids) for e in tokenizer.encode_batch_fast(lines)]
        wrong = [c for c, our, their in zip(every, ours, theirs) if len(our["ids"]) != their]
        print(f"{pattern:46} {len(every)} characters {len(wrong):6} differ "
              + " ".join(f"U+{ord(c):04X}" for c in wrong[:6]), flush=True)
        total += len(wrong) if pattern != r"\w" else 0
    return total


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", default="target/release/host")
    parser.add_argument("--natural")
    parser.add_argument("--texts", type=int, default=20000)
    parser.add_argument("--size", type=int, default=8000)
    parser.add_argument("--natural-mb", type=float, default=4)
    parser.add_argument("--only")
    parser.add_argument("--classes", action="store_true")
    options = parser.parse_args()
    if options.classes:
        sys.exit(1 if classes(options.host) else 0)
    natural, size = [], 0
    if options.natural:
        # Every eleventh document, so that all kinds of documents in the text occur.
        for i, line in enumerate(open(options.natural, encoding="utf-8")):
            if i % 11 == 0 and size < 2e6 * options.natural_mb:
                natural.append(json.loads(line)["text"])
                size += len(natural[-1])
    half = len(natural) // 2
    # None of the tokenizers has seen its second half.
    sample = SAMPLE.splitlines() * 3 + [line for text in natural[:half] for line in text.splitlines()]
    total = 0
    for name, file in kinds(options.size if natural else 600, sample, charsmap(name="nmt_nfkc")):
        if options.only and options.only not in name:
            continue
        half_of_texts = options.texts // 2
        lines = [*TEXTS, *texts(half_of_texts, 1), *words(sample, options.texts - half_of_texts, 2)]
        total += compare(options.host, name, file, lines)
        if natural:
            total += compare(options.host, f"{name} (natural)", file, natural[half:])
    sys.exit(1 if total else 0)


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    main()
