"""Texts of the packages unpacked under ./x_*/ as JSON lines of documents; about 3 % of the documents are held out."""
import glob, gzip, hashlib, json, os, random, re, subprocess

LIMIT, HELD = 20_000_000, 500_000


def files(pattern):
    """The text of every file of a pattern in order of name; links, copies, what is no UTF-8 and what is short left out."""
    seen = set()
    for path in sorted(glob.glob(pattern, recursive=True)):
        if os.path.islink(path) or not os.path.isfile(path):
            continue
        raw = gzip.open(path).read() if path.endswith(".gz") else open(path, "rb").read()
        key = hashlib.blake2b(raw).digest()
        if key in seen or not 200 <= len(raw) <= 400_000:
            continue
        seen.add(key)
        try:
            yield raw.decode()
        except UnicodeDecodeError:
            pass


def bible():
    """One document for each chapter, as the program prints it."""
    data = os.path.dirname(glob.glob("x_bible-kjv-text/**/bible.data", recursive=True)[0])
    text = subprocess.run(["x_bible-kjv/usr/bin/bible", "-p", data, "-f", "gen1:1-rev22:21"], capture_output=True, text=True).stdout
    chapters = {}
    for line in text.splitlines():
        got = re.match(r"(\w+):(\d+) (.*)", line)
        if got:
            chapters.setdefault(got[1], []).append(got[2] + " " + got[3])
    return [key + "\n" + "\n".join(rows) for key, rows in chapters.items()]


def write(name, texts):
    """A random order (the same each time); the first documents, up to LIMIT bytes, less about 3 % held out."""
    random.seed(3)
    random.shuffle(texts)
    kept, size = [], 0
    for text in texts:
        if size < LIMIT:
            kept.append(text)
            size += len(text.encode())
    held, goal = [], min(HELD, 0.03 * size)
    while sum(len(t.encode()) for t in held) < goal:
        held.append(kept.pop()[:40_000])
    for end, rows in (("", kept), ("_val", held)):
        with open(name + end + ".jsonl", "w") as f:
            f.writelines(json.dumps({"text": t}, ensure_ascii=False) + "\n" for t in rows)
    print(name, len(kept), "documents,", sum(len(t.encode()) for t in kept), "bytes;", len(held), "held out,",
          sum(len(t.encode()) for t in held), "bytes")


write("bible", bible())
write("german", list(files("x_manpages-de/usr/share/man/de/**/*.gz")))
write("french", list(files("x_manpages-fr/usr/share/man/fr/**/*.gz")))
write("perl", list(files("x_perl-modules*/**/*.p[ml]")))
write("python", list(files("x_*/usr/lib/python3*/**/*.py")))
write("rust", list(files("x_rust-src/**/*.rs")))
write("go", list(files("x_golang*/**/*.go")))
write("lisp", list(files("x_emacs-el/**/*.el.gz")))
write("polish", list(files("x_manpages-pl/usr/share/man/pl/**/*.gz")))
write("vim", list(files("x_vim-runtime/usr/share/vim/**/doc/*.txt")))
