"""Natural text for runs on a machine without any: the Python sources installed there, as lines of JSON.

python3 tests/peers/python_text.py OUT.jsonl [--megabytes 40] [--pieces N]

Each line is a file, in a random order that is the same every time; with --pieces each line is a piece of a file of whole
lines with at least N characters, and all pieces are shuffled.
"""

import argparse
import glob
import json
import os
import random
import sysconfig


def cut(text, size):
    piece = ""
    for line in text.splitlines(keepends=True):
        piece += line
        if len(piece) >= size:
            yield piece
            piece = ""
    if len(piece) >= size // 4:
        yield piece


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out")
    parser.add_argument("--megabytes", type=int, default=40)
    parser.add_argument("--pieces", type=int, default=0)
    options = parser.parse_args()
    roots = {sysconfig.get_paths()[name] for name in ("stdlib", "purelib")}
    files = sorted(f for root in roots for f in glob.glob(root + "/**/*.py", recursive=True) if "/test" not in f)
    random.seed(1)
    random.shuffle(files)
    texts, characters = [], 0
    for file in dict.fromkeys(map(os.path.realpath, files)):
        try:
            with open(file, encoding="utf-8") as source:
                text = source.read()
        except (UnicodeDecodeError, OSError):
            continue
        if 500 <= len(text) <= 200_000 and "\0" not in text:
            texts.append(text)
            characters += len(text)
        if characters > options.megabytes * 1_000_000:
            break
    count = len(texts)
    if options.pieces:
        texts = [piece for text in texts for piece in cut(text, options.pieces)]
        random.shuffle(texts)
    with open(options.out, "w") as out:
        out.writelines(json.dumps({"text": text}) + "\n" for text in texts)
    print(f"{count} files, {characters} characters, {len(texts)} documents")


if __name__ == "__main__":
    main()
