"""Trains small byte-level tokenizer.json files on a text, one for each way of splitting text that has a name in GGUF.

    tokenizers_of_splits.py TEXT DIR
"""

import json
import pathlib
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def byte_level(*patterns):
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    return pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


KINDS = {
    "gpt2": (pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True), False),
    "qwen2": (byte_level(WORDS % ""), False),
    "llama3": (byte_level(WORDS % "{1,3}"), True),
    "llama3-merges": (byte_level(WORDS % "{1,3}"), False),
    "superbpe": (byte_level(r"\p{N}+", r"(?=(\d{3})+(?!\d))"), False),
}


def main():
    text, out = sys.argv[1], pathlib.Path(sys.argv[2])
    for name, (split, ignore_merges) in KINDS.items():
        tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
        tokenizer.pre_tokenizer = split
        tokenizer.decoder = decoders.ByteLevel()
        specials = [AddedToken(token, special=True) for token in ("<|endoftext|>", "<|begin_of_text|>")]
        trainer = trainers.BpeTrainer(vocab_size=1500, special_tokens=specials, show_progress=False,
                                      initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
        tokenizer.train([text], trainer)
        (out / name).mkdir(parents=True, exist_ok=True)
        tokenizer.save(str(out / name / "tokenizer.json"))
        file = json.loads((out / name / "tokenizer.json").read_text())
        print(name, len(file["model"]["vocab"]), len(file["model"]["merges"]))


if __name__ == "__main__":
    main()
