#!/usr/bin/env python3
"""Sets of ten configurations on texts that the fit never saw: short anchor runs, then the prediction, then the run.

    python3 heldout.py --host target/release/host --texts DIR --out heldout.jsonl --set second
    python3 heldout.py --report heldout.jsonl

Lines of --out: anchors, a prediction for each configuration (written before its run begins), and the runs. --report prints
these errors, and those of the current law with s and delta from two anchors, or three.
"""
import argparse, json, os, sys, threading, time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import law, run
from run import job

# Anchors: a narrow and a wide run of 250 steps at four times the preset's rate, of 16,384 tokens, or of 4,096 where the text has fewer
# than 3 million; and the narrow one on a million tokens, or on half as many, in sequences of 256. The first set had the first two.


def anchors_of(few):
    b, n = (8, 250) if few else (32, 500)
    return [("6x128", 250, b, 512, 4.0), ("6x384", 250, b, 512, 4.0), ("6x128", n, 8, 256, 1000 / n)]


# Text, shape, steps, sequences a step, tokens of a sequence, --lr over 1e-3: at least 1,000 steps' worth of the preset's rate.
SETS = {
    "first": [
        ("rust", "6x256", 1000, 32, 512, 1.0), ("rust", "6x512", 500, 32, 512, 2.0), ("rust", "8x192", 2000, 8, 512, 1.0),
        ("python", "6x384", 1000, 32, 512, 1.0), ("python", "4x320", 500, 32, 512, 2.0), ("python", "6x128", 2000, 8, 256, 1.0),
        ("bible", "8x192", 500, 8, 512, 2.0), ("bible", "6x256", 1000, 8, 256, 1.0),
        ("french", "4x320", 500, 8, 512, 2.0), ("french", "6x128", 1000, 8, 512, 1.0),
    ],
    "second": [
        ("go", "6x384", 500, 32, 512, 2.0), ("go", "8x192", 2000, 16, 512, 1.0), ("go", "6x256", 1000, 32, 512, 1.0),
        ("lisp", "6x512", 500, 32, 512, 2.0), ("lisp", "4x320", 1000, 16, 512, 1.0), ("lisp", "6x128", 2000, 8, 256, 1.0),
        ("polish", "8x192", 500, 8, 512, 2.0), ("polish", "6x256", 500, 8, 256, 2.0),
        ("vim", "4x320", 500, 8, 512, 2.0), ("vim", "6x128", 1000, 8, 512, 1.0),
    ],
}


def about(a, texts, j):
    """A job with the data that the law needs, before it runs."""
    _, _, shards = texts(j["text"], j["vocab"])
    matrices, head, _ = run.size(j)
    tokens = j["steps"] * j["batch"] * j["t"]
    return dict(j, matrices=matrices, head=head, tokens=tokens, unique=shards["tokens"], bytes=shards["bytes"],
                epochs=tokens / shards["tokens"])


def many(a, jobs, texts, slots, each):
    """Runs jobs, the longest first; `each` gets a result."""
    jobs, lock = sorted(jobs, key=lambda j: run.size(j)[2] * j["steps"]), threading.Lock()

    def worker():
        while True:
            with lock:
                if not jobs:
                    return
                j = jobs.pop()
            r = run.run(a, j, texts)
            with lock:
                each(r)

    threads = [threading.Thread(target=worker) for _ in range(slots)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()


def report(path):
    """The table of docs/scaling.md, and the root mean square of each column."""
    rows = law.read(path)
    c = json.load(open(os.path.join(law.HERE, "law.json")))["constants"]
    runs, columns = {r["id"]: r for r in rows if r["what"] == "run"}, [[], [], []]
    for p in (r for r in rows if r["what"] == "prediction"):
        r = runs[p["id"]]
        two = [a for a in rows if a["what"] == "anchor" and a["text"] == r["text"]]
        three = two + [a for a in rows if a["what"] == "anchor, later" and a["text"] == r["text"]]
        got = [p["predicted"], law.loss(c, r, *law.anchor(c, two)), law.loss(c, r, *law.anchor(c, three))]
        e = [100 * (g / r["bpb"] - 1) for g in got]
        for column, v in zip(columns, e):
            column.append(v)
        print(f"| {r['text']} | {r['shape']} | {r['steps']} × {r['batch']} × {r['t']} | {r['lr']:g} | {r['epochs']:.1f} | {got[0]:.3f} | "
              f"{r['bpb']:.3f} | {e[0]:+.1f} | {e[1]:+.1f} | {e[2]:+.1f} |")
    for name, v in zip(("before the run", "two anchors", "three"), columns):
        print(f"{name}: RMS {(sum(x * x for x in v) / len(v)) ** 0.5:.1f} %, within 3 %: {sum(abs(x) < 3 for x in v)} of {len(v)}")


def main():
    if sys.argv[1:2] == ["--report"]:
        return report(sys.argv[2])
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("host", None), ("texts", None), ("out", None), ("work", "/tmp/scaling"), ("device", "cuda"),
                          ("precision", "bf16")):
        p.add_argument("--" + name, required=default is None, default=default)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--slots", type=int, default=1)
    p.add_argument("--set", default="second", choices=SETS)
    a = p.parse_args()
    a.host = os.path.abspath(a.host)
    os.makedirs(a.work, exist_ok=True)
    saved = json.load(open(os.path.join(law.HERE, "law.json")))
    c, texts, began = saved["constants"], run.Texts(a), time.time()

    def write(r):
        with open(a.out, "a") as f:
            f.write(json.dumps(r) + "\n")
        print(f"{time.time() - began:6.1f} s  {r.get('what', 'run')}  {r.get('predicted', '')}  {r.get('bpb', r.get('error', ''))}  {r['id']}", flush=True)

    names = list(dict.fromkeys(x[0] for x in SETS[a.set]))
    anchors = {x: [] for x in names}

    def anchored(r):
        write(dict(r, what="anchor"))
        if "bpb" in r:
            anchors[r["text"]].append(r)

    def few(x):
        return texts(x, 10000)[2]["tokens"] < 3_000_000

    many(a, [job(s, n, b, t, text=x, lr=r) for x in names for s, n, b, t, r in anchors_of(few(x))], texts, a.slots, anchored)
    held = [job(s, n, b, t, text=x, lr=r) for x, s, n, b, t, r in SETS[a.set]]
    for j in held:
        j = about(a, texts, j)
        s, delta = law.anchor(c, anchors[j["text"]])
        write(dict(j, what="prediction", predicted=round(law.loss(c, j, s, delta), 4), s=round(s, 4), delta=round(delta, 4)))
    many(a, held, texts, a.slots, lambda r: write(dict(r, what="run")))


if __name__ == "__main__":
    main()
