#!/usr/bin/env python3
"""Makes tests/fixtures/tokenizers: a small tokenizer.json of every standard kind, with the results of Python's `tokenizers`.

    python3 tests/peers/tokenizer_fixtures.py tests/fixtures/tokenizers

texts.json has the texts. The file of each kind has the tokenizer and, for each text, its ids without marks and the decoded
text, null where that equals the text. All text is written or generated here. `sentencepiece` compiles the character maps.
"""
import io
import json
import os
import pathlib
import sys
import unicodedata

import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CL100K = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN2 = CL100K.replace(r"\p{N}{1,3}", r"\p{N}")
# Possessive quantifiers, as in tiktoken.
POSSESSIVE = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]"
              r"|\s+(?!\S)|\s+")
WORD = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]%s[\p{Ll}\p{Lm}\p{Lo}\p{M}]%s(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
O200K = "|".join([WORD % ("*", "+"), WORD % ("+", "*"), r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+",
                  r"\s+(?!\S)", r"\s+"])
DEEPSEEK = [
    r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
]

SAMPLE = """The river runs past the old mill, and the miller's daughter doesn't mind the noise of the water.
We'll see whether they've counted 12, 345 or 67890 stones; I'd say there are 1,000,000 of them.
def count(words): return {w: words.count(w) for w in set(words)}  # it's slow
    for (let i = 0; i < items.length; i++) { total += items[i].price * 1.07; }
fn main() { let x: Vec<u8> = vec![0; 16]; println!("{:?}", x); }
SELECT name, COUNT(*) FROM birds WHERE wing > 3.5 GROUP BY name ORDER BY 2 DESC;
Der Müller hört das Rauschen des Wassers, während die Tür quietscht. Größe: 17 Fuß.
L'été dernier, la rivière était à sec ; où sont passés les poissons ? C'était déjà dit.
El niño corrió mañana por la ribera, ¿verdad? ¡Qué alegría!
Река течёт мимо старой мельницы, и дочь мельника слышит шум воды.
Το ποτάμι περνά δίπλα από τον παλιό μύλο. Πόσα είναι;
النهر يجري بجانب الطاحونة القديمة، والماء بارد.
הנהר זורם ליד הטחנה הישנה, והמים קרים.
नदी पुरानी चक्की के पास से बहती है और पानी ठंडा है।
แม่น้ำไหลผ่านโรงสีเก่าและน้ำเย็น
河水流过旧磨坊，水很凉。河边有三棵树。
川は古い水車小屋のそばを流れ、水は冷たい。カタカナも少し。
강은 오래된 방앗간 옆을 흐르고 물은 차갑다.
Sông chảy qua cối xay cũ, nước rất lạnh.
"""

TEXTS = [
    "", " ", "   ", "\n", "\t\t", "\r\n\r\n", " \n \t ", "a", " a", "a ", "  two  spaces   three    ",
    *SAMPLE.splitlines(),
    "Don't WE'LL I'M you'Ve he'd 'tis ''s 'ſ 'S it\u2019s",
    "int *p = &x[0];\n\tif (p != NULL && *p > 0x1F) {\n\t\treturn ~*p;\n\t}\r\n",
    "<html>\n  <body class='a b'>&nbsp;</body>\n</html>",
    "{\"key\": [1, 2.5e-10, null, true], \"k\\u00e9y\": \"\\\\\"}",
    "`` quoted '' and ``again''", "snake_case CamelCase HTTPServer2Go kebab-case //comment /* x */ #!/bin/sh",
    "e\u0301 é a\u0323\u0302 ậ \u0301alone \u0300\u0301\u0302 o\u0308\u0304 ȫ ﬁ ﬃ Ａ１ ｶﾞ ㎏ ℌ ² ① ½ Ⅷ ﷺ",
    "İstanbul ıI ß ẞ ΟΔΟΣ ς ǅ ŉ Σίσυφος ÅÄÖ Å",
    "👩‍👩‍👧‍👦 👍🏽 ❤️ 🇩🇪🇫🇷 🐻‍❄️ 🏴\U000e0067\U000e0062\U000e007f ☺ 1️⃣",
    "1 12 123 1234 12345 123456 1234567 1234567890123456789012345678901234567890 3.14159 1,234.5 0x7fff 1e-9 ١٢٣٤ १२३४ ４２ 𝟎𝟏𝟐𝟑 〇",
    "\0 \x01\x02\x07\x08\x0b\x0c\x1b\x1c\x1f\x7f \x80\x85\x9f end", "a\0b", "line\rline\nline\r\nline\u2028line\u2029line\u0085x",
    "\u00a0x\u00a0\u1680\u2000\u2009\u200a\u202f\u205f\u3000y\u180e\u200b\u200c\u200d\u2060\ufeffz",
    "\ufffd \ufffe\uffff \U0010ffff \ue000 \U000f0000 \u0378 \U0001fbff \U000e0001",
    "▁ ▁▁ a▁b ▁a ##x ## [UNK] Ġ Ċ Ãĥ <0x41> <0xE2><0x96> <unk>",
    "<s> </s>a</s> <|endoftext|><|endoftext|> x <|end|>y [CLS] [SEP] [MASK] <mask> </S> <S",
    "x" * 120, "ab" * 90 + "c", "é" * 60, "=" * 80 + "\n" + "-" * 33, " " * 40 + "x" + " " * 17, "\n" * 9 + "a" + "\t" * 9,
    "Donaudampfschifffahrtsgesellschaftskapitänswitwenrentenauszahlungsstelle" * 2,
    "http://example.org/a/b?c=d&e=f#g user@example.org C:\\Dir\\file.txt ~/.rc",
    "我爱 Rust🦀编程。「引用」、……——！", "ゔ か\u3099 が ﾊﾟ ー 々", "한국어 \u1112\u1161\u11ab 가나다", "क्षि त्र ज्ञ श्री \u0915\u093c क़",
    "กำลัง น้ำ ที่", "שָׁלוֹם \u202bעברית\u202c", "السَّلَامُ عَلَيْكُمْ ـــ لا", "ᚠᚢᚦ 𐍈 𝔘𝔫𝔦 𠮷 𓀀", "a,b;c:d!e?f.g(h)[i]{j}", "- * + = ~ ^ | \\ / _ ' \"",
]


def mark(content, **options):
    return AddedToken(content, special=True, normalized=False, **options)


def byte_level(split, size, sample, normalizer=None, ignore_merges=False, specials=("<|endoftext|>",), template=False):
    tokenizer = Tokenizer(models.BPE())
    if split is None:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        parts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in split]
        end = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*parts, end])
    if normalizer:
        tokenizer.normalizer = normalizer
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(sample, trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=alphabet, special_tokens=[mark(token) for token in specials],
        show_progress=False))
    tokenizer.decoder = decoders.ByteLevel()
    if template:
        first = specials[0]
        tokenizer.post_processor = processors.Sequence([
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(f"{first} $A", special_tokens=[(first, tokenizer.token_to_id(first))])])
    file = json.loads(tokenizer.to_str())
    file["model"]["ignore_merges"] = ignore_merges
    return file


def superbpe(size, sample):
    return byte_level([r"\p{N}+", r"(?=(\d{3})+(?!\d))"], size, sample)


def split_digits(size, sample):
    """StarCoder's and SmolLM's: single digits, then GPT-2's pattern inside the byte level."""
    file = byte_level(None, size, sample)
    file["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [
        {"type": "Digits", "individual_digits": True}, file["pre_tokenizer"]]}
    return file


def byte_fallback_bpe(size, sample, metaspace):
    """Llama 2's, with a normalizer or, as in current files, with Metaspace."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.train_from_iterator(sample, trainers.BpeTrainer(vocab_size=size, show_progress=False))
    trained = json.loads(tokenizer.to_str())["model"]
    names = ["<unk>", "<s>", "</s>"]
    tokens = names + [f"<0x{byte:02X}>" for byte in range(256)]
    tokens += sorted(trained["vocab"], key=trained["vocab"].get)
    model = dict(trained, vocab={token: i for i, token in enumerate(tokens)}, fuse_unk=True, byte_fallback=True)
    model["merges"] = [pair if isinstance(pair, list) else pair.split(" ") for pair in model["merges"]]
    shown = [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
             {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]
    template = processors.TemplateProcessing("<s> $A", "<s> $A <s>:1 $B:1", special_tokens=[("<s>", 1)])
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [added(i, token, normalized=not metaspace) for i, token in enumerate(names)],
        "normalizer": None if metaspace else {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
        if metaspace else None,
        "post_processor": json.loads(template.__getstate__()), "decoder": {"type": "Sequence", "decoders": shown},
        "model": model,
    }


def added(i, content, normalized=False, lstrip=False):
    return {"id": i, "content": content, "single_word": False, "lstrip": lstrip, "rstrip": False,
            "normalized": normalized, "special": True}


def charsmap(rules=None, name=None):
    """The character map that sentencepiece compiles from rules, or a built-in one by name."""
    model = io.BytesIO()
    options = {}
    if rules is not None:
        path = pathlib.Path("/tmp/rules.tsv" if os.name == "posix" else "rules.tsv").with_suffix(f".{os.getpid()}")
        path.write_text("".join(f"{' '.join(f'{ord(c):X}' for c in old)}\t{' '.join(f'{ord(c):X}' for c in new)}\n"
                                for old, new in sorted(rules.items())))
        options["normalization_rule_tsv"] = str(path)
    else:
        options["normalization_rule_name"] = name
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SAMPLE.splitlines()), model_writer=model, vocab_size=400, hard_vocab_limit=False,
        character_coverage=1.0, minloglevel=2, **options)
    if rules is not None:
        path.unlink()
    proto = sentencepiece_model_pb2.ModelProto.FromString(model.getvalue())
    return normalizers.Precompiled(proto.normalizer_spec.precompiled_charsmap)


def small_rules():
    """Some of nmt_nfkc's rules: compatibility forms, white space, removed control characters."""
    wide = [*range(0xA0, 0x180), *range(0x2000, 0x2070), 0x3000, *range(0xFB00, 0xFB07), *range(0xFF01, 0xFFA0),
            *range(0x2460, 0x2470), *range(0x2150, 0x2180), 0x338F, 0x210C, 0xFDFA]
    rules = {}
    for c in map(chr, wide):
        form = unicodedata.normalize("NFKC", c)
        if form != c:
            rules[c] = form
    for c in [*range(1, 9), 0xB, *range(0xE, 0x20), 0x7F, 0x8F, 0x9F, 0x200B, 0x200E, 0x200F, 0xFEFF]:
        rules[chr(c)] = " " if c in (0x200B, 0xFEFF) else ""
    for c in "\t\n\r\x0c\u2028\u2029\u1680":
        rules[c] = " "
    for letter in "aeoukAEOU":
        for accent in "\u0300\u0301\u0302\u0308":
            form = unicodedata.normalize("NFC", letter + accent)
            if len(form) == 1:
                rules[letter + accent] = form
    return rules


def unigram(size, sample, normalizer, specials, unknown, byte_fallback=False, prepend="always"):
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend)
    tokenizer.train_from_iterator(sample, trainers.UnigramTrainer(
        vocab_size=size, unk_token=unknown, special_tokens=[mark(token) for token in specials], show_progress=False))
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=prepend)
    end, first = "</s>", "<s>"
    if end in specials:
        tokenizer.post_processor = processors.TemplateProcessing(
            f"{first} $A {end}" if first in specials else f"$A {end}",
            special_tokens=[(token, tokenizer.token_to_id(token)) for token in (first, end) if token in specials])
    file = json.loads(tokenizer.to_str())
    model = file["model"]
    model["vocab"] = [[piece, round(score, 4)] for piece, score in model["vocab"]]
    if byte_fallback:
        have = {piece for piece, _ in model["vocab"]}
        model["vocab"] += [[f"<0x{b:02X}>", -20.0] for b in range(256) if f"<0x{b:02X}>" not in have]
        model["byte_fallback"] = True
        file["decoder"] = {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
            {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
    return file


def albert(size, sample, precompiled):
    normalizer = normalizers.Sequence([
        normalizers.Replace("``", '"'), normalizers.Replace("''", '"'), normalizers.NFKD(), normalizers.StripAccents(),
        normalizers.Lowercase(), precompiled])
    file = unigram(size, sample, normalizer, ["<pad>", "<unk>", "[CLS]", "[SEP]"], "<unk>")
    ids = {token["content"]: token["id"] for token in file["added_tokens"]}
    post = processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=[(t, ids[t]) for t in ("[CLS]", "[SEP]")])
    file["post_processor"] = json.loads(post.__getstate__())
    file["added_tokens"].append(added(len(file["model"]["vocab"]), "[MASK]", lstrip=True))
    return file


def word_level(size, sample):
    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), pre_tokenizers.Punctuation()])
    tokenizer.train_from_iterator(sample, trainers.WordLevelTrainer(
        vocab_size=size, special_tokens=[mark("<unk>"), mark("<s>"), mark("</s>")], show_progress=False))
    return json.loads(tokenizer.to_str())


def word_piece(size, sample, lower):
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lower)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.train_from_iterator(sample, trainers.WordPieceTrainer(
        vocab_size=size, special_tokens=[mark(f"[{name}]") for name in ("PAD", "UNK", "CLS", "SEP", "MASK")],
        show_progress=False))
    tokenizer.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", special_tokens=[(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")])
    tokenizer.decoder = decoders.WordPiece()
    return json.loads(tokenizer.to_str())


def kinds(size, sample, precompiled):
    """Every kind, with about `size` ids in addition to those that it requires."""
    llama3 = ["<|begin_of_text|>", "<|end_of_text|>"]
    spaces = normalizers.Sequence([precompiled, normalizers.Replace(Regex(" {2,}"), "▁")])
    strip = normalizers.Sequence([precompiled, normalizers.Strip(left=False, right=True),
                                  normalizers.Replace(Regex(" {2,}"), "▁")])
    t5 = ["<pad>", "</s>", "<unk>"]
    yield "bpe_gpt2", byte_level(None, 256 + size, sample)
    yield "bpe_llama3", byte_level([CL100K], 256 + size, sample, ignore_merges=True, specials=llama3, template=True)
    yield "bpe_qwen2", byte_level([QWEN2], 256 + size, sample, normalizer=normalizers.NFC())
    yield "bpe_super", superbpe(256 + size, sample)
    yield "bpe_possessive", byte_level([POSSESSIVE], 256 + size, sample)
    yield "bpe_o200k", byte_level([O200K], 256 + size, sample)
    yield "bpe_deepseek", byte_level(DEEPSEEK, 256 + size, sample)
    yield "bpe_digits", split_digits(256 + size, sample)
    yield "bpe_fallback_normalizer", byte_fallback_bpe(2 * size, sample, metaspace=False)
    yield "bpe_fallback_metaspace", byte_fallback_bpe(2 * size, sample, metaspace=True)
    yield "unigram_t5", unigram(2 * size, sample, strip, t5, "<unk>")
    yield "unigram_xlmr", unigram(2 * size, sample, spaces, ["<s>", "<pad>", "</s>", "<unk>"], "<unk>", prepend="first")
    yield "unigram_bytes", unigram(2 * size, sample, spaces, ["<unk>", "<s>", "</s>"], "<unk>", byte_fallback=True)
    yield "unigram_albert", albert(2 * size, sample, precompiled)
    yield "word_level", word_level(size, sample)
    yield "word_piece_uncased", word_piece(2 * size, sample, lower=True)
    yield "word_piece_cased", word_piece(2 * size, sample, lower=False)


def main(directory):
    directory = pathlib.Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    write = lambda name, value: (directory / f"{name}.json").write_text(
        json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n")
    write("texts", TEXTS)
    for name, file in kinds(300, SAMPLE.splitlines(), charsmap(small_rules())):
        tokenizer = Tokenizer.from_str(json.dumps(file))
        ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in TEXTS]
        shown = [tokenizer.decode(each) for each in ids]
        shown = [None if back == text else back for back, text in zip(shown, TEXTS)]
        write(name, {"tokenizer": file, "ids": ids, "texts": shown})


if __name__ == "__main__":
    main(*sys.argv[1:])
