#!/usr/bin/env python3
"""Ten configurations on texts that the fit never saw: short anchor runs, then the prediction, then the run.

    python3 heldout.py --host target/release/host --texts DIR --out heldout.jsonl
    python3 heldout.py --report heldout.jsonl

Lines of --out: anchors, a prediction for each configuration (written before its run begins), and the runs. --report prints the
errors, and those of the law as it is now with s and delta from two anchors, or three.
"""
import argparse, json, os, sys, threading, time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import law, run
from run import job

# Two anchors a text, a narrow and a wide one, 250 steps at four times the preset's rate: of 16,384 tokens, or of 4,096 where the
# text has fewer than 3 million.
WIDTHS = ("6x128", "6x384")
HELD = [
    ("rust", "6x256", 1000, 32, 512, 1.0), ("rust", "6x512", 500, 32, 512, 2.0), ("rust", "8x192", 2000, 8, 512, 1.0),
    ("python", "6x384", 1000, 32, 512, 1.0), ("python", "4x320", 500, 32, 512, 2.0), ("python", "6x128", 2000, 8, 256, 1.0),
    ("bible", "8x192", 500, 8, 512, 2.0), ("bible", "6x256", 1000, 8, 256, 1.0),
    ("french", "4x320", 500, 8, 512, 2.0), ("french", "6x128", 1000, 8, 512, 1.0),
]


def about(a, texts, j):
    """A job with what the law needs to know, before it is run."""
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
    p.add_argument("--skip", nargs="*", default=[], help="texts to leave out")
    a = p.parse_args()
    a.host = os.path.abspath(a.host)
    os.makedirs(a.work, exist_ok=True)
    saved = json.load(open(os.path.join(law.HERE, "law.json")))
    c, texts, began = saved["constants"], run.Texts(a), time.time()

    def write(r):
        with open(a.out, "a") as f:
            f.write(json.dumps(r) + "\n")
        print(f"{time.time() - began:6.1f} s  {r.get('what', 'run')}  {r.get('predicted', '')}  {r.get('bpb', r.get('error', ''))}  {r['id']}", flush=True)

    names = [x for x in dict.fromkeys(h[0] for h in HELD) if x not in a.skip]
    anchors = {x: [] for x in names}

    def anchored(r):
        write(dict(r, what="anchor"))
        if "bpb" in r:
            anchors[r["text"]].append(r)

    def few(x):
        return texts(x, 10000)[2]["tokens"] < 3_000_000

    many(a, [job(s, 250, 8 if few(x) else 32, text=x, lr=4.0) for x in names for s in WIDTHS], texts, a.slots, anchored)
    held = [job(s, n, b, t, text=x, lr=lr) for x, s, n, b, t, lr in HELD if x in names]
    for j in held:
        j, known = about(a, texts, j), anchors[j["text"]]
        s, narrow = law.anchor(c, known), law.anchor(c, [r for r in known if r["shape"] == WIDTHS[0]])
        write(dict(j, what="prediction", predicted=round(s * law.loss(c, j), 4), narrow=round(narrow * law.loss(c, j), 4), s=round(s, 4)))
    many(a, held, texts, a.slots, lambda r: write(dict(r, what="run")))


if __name__ == "__main__":
    main()
