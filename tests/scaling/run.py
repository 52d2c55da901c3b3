#!/usr/bin/env python3
"""Runs the grid of the scaling law: one JSON line for each run, written when it ends. Standard library alone.

    python3 run.py --host target/release/host --texts DIR --out results.jsonl main batch depth

DIR holds NAME.jsonl and NAME_val.jsonl (clean of tests/corpus, the others of texts.sh). Jobs with an id that is already in --out are skipped.
"""
import argparse, json, os, shutil, subprocess, sys, threading, time

HERE = os.path.dirname(os.path.abspath(__file__))
SHAPES = {  # layers, width, heads, feed-forward
    "4x64": (4, 64, 2, 192), "4x128": (4, 128, 4, 352), "6x128": (6, 128, 4, 352), "6x256": (6, 256, 4, 704),
    "6x384": (6, 384, 6, 1056), "6x512": (6, 512, 8, 1408), "12x768": (12, 768, 12, 2048), "3x512": (3, 512, 8, 1408),
    "12x256": (12, 256, 4, 704), "12x384": (12, 384, 6, 1056), "3x256": (3, 256, 4, 704), "8x192": (8, 192, 6, 544),
    "4x320": (4, 320, 5, 896), "8x512": (8, 512, 8, 1408), "2x192": (2, 192, 6, 544),
}


def job(shape, steps, batch=32, t=512, text="clean", vocab=10000, lr=1.0, decay=0.6, dropout=0.0, seed=0, evals=0, flags=()):
    """Steps of batch × t tokens; `text` is NAME or NAME:BYTES, its first documents; lr multiplies the preset's rate."""
    j = dict(shape=shape, steps=steps, batch=batch, t=t, text=text, vocab=vocab, lr=lr, decay=decay, dropout=dropout, seed=seed,
             evals=evals)
    if flags:
        j["flags"] = list(flags)
    j["id"] = " ".join(str(v) if k in ("shape", "text") else f"{k}={v}" for k, v in j.items())
    return j


def epochs(n, tokens, batch, t=512):
    return max(1, round(n * tokens / (batch * t)))


def grid():
    """Jobs by group."""
    g = {}
    ladder = ["4x64", "4x128", "6x128", "6x256", "6x384", "6x512"]
    g["main"] = [job(s, n) for s in ladder for n in (250, 500, 1000, 2000, 4000) if (s, n) != ("6x512", 4000)]
    g["main"] += [job("12x768", n) for n in (250, 500, 1000)]
    g["large"] = [job("6x512", 4000), job("12x768", 2000)]
    g["batch"] = [job("6x256", 32000 // b, b) for b in (4, 8, 16, 64, 128)] + [job("6x512", 32000 // b, b) for b in (8, 128)]
    g["batch"] += [job("6x256", 500, 8), job("6x256", 1000, 128)]
    g["small"] = [job("6x128", n, 8, 256) for n in (250, 500, 836, 1000, 2000, 4000)]
    g["small"] += [job(s, n, 8, 256) for s in ("4x64", "6x256", "6x512") for n in (250, 1000, 4000)]
    g["depth"] = [job(s, n) for s in ("3x512", "12x256", "12x384") for n in (500, 1000)] + [job("3x256", 1000), job("12x256", 2000)]
    g["length"] = [job(s, 1000, 16384 // t, t) for s in ("6x128", "6x384") for t in (128, 256, 1024)]
    g["decay"] = [job("6x256", n, decay=d) for n, d in ((1000, 0.2), (1000, 0.4), (1000, 0.9), (250, 0.2), (250, 0.9))]
    g["vocab"] = [job("6x256", 1000, vocab=v) for v in (2000, 5000, 20000)] + [job("6x128", 500, vocab=v) for v in (2000, 20000)]
    g["rate"] = [job(s, n, b, t, lr=r) for s, n, b, t, rates in (
        ("6x128", 1000, 8, 256, (0.25, 0.5, 2.0)), ("6x128", 4000, 8, 256, (0.25, 0.5)), ("6x512", 1000, 8, 256, (0.35,)),
        ("6x256", 4000, 8, 512, (0.25, 0.5)), ("6x256", 8000, 4, 512, (0.35,)), ("6x256", 250, 128, 512, (2.0, 4.0)),
        ("6x256", 250, 32, 512, (0.5, 2.0)), ("6x256", 1000, 32, 512, (0.5, 2.0)), ("6x256", 4000, 32, 512, (0.5,)),
        ("4x128", 500, 32, 512, (0.5, 2.0)), ("4x128", 4000, 32, 512, (0.5,)), ("6x512", 500, 32, 512, (0.5, 2.0)),
        ("12x768", 500, 32, 512, (0.5,))) for r in rates]
    g["seeds"] = [job(s, n, b, t, seed=k) for k in (1, 2) for s, n, b, t in (
        ("6x128", 500, 32, 512), ("6x384", 1000, 32, 512), ("6x128", 1000, 8, 256))]
    u = 1_440_000  # about the tokens of the first 5 MB
    g["little"] = [job(s, epochs(n, u, b), b, text="clean:5000000", dropout=d, evals=10) for s, b, n, d in (
        ("6x128", 8, 1, 0.0), ("6x128", 8, 2, 0.0), ("6x128", 8, 4, 0.0), ("6x128", 8, 8, 0.0), ("6x128", 8, 16, 0.0),
        ("6x384", 8, 1, 0.0), ("6x384", 8, 4, 0.0), ("6x384", 8, 8, 0.0), ("6x128", 8, 16, 0.2), ("6x384", 8, 8, 0.2),
        ("6x384", 32, 2, 0.0), ("6x384", 32, 8, 0.0))]
    g["little"] += [job(s, epochs(n, u / 4, 8), 8, text="clean:1250000", dropout=d, evals=10) for s, n, d in (
        ("6x128", 4, 0.0), ("6x128", 16, 0.0), ("6x128", 16, 0.2), ("6x384", 4, 0.0), ("6x384", 16, 0.0))]
    g["little"] += [job("6x256", epochs(n, 4 * u, 32), 32, text="clean:20000000", evals=10) for n in (2, 6)]
    g["other"] = [job(s, n, b, text=x) for x in ("german", "perl") for s, n, b in (
        ("4x128", 250, 8), ("6x128", 250, 32), ("6x128", 1000, 32), ("6x384", 250, 32), ("6x384", 1000, 32), ("6x256", 2000, 16))]
    g["other"] += [job("6x128", n, 8, 256, text=x) for x in ("german", "perl") for n in (250, 1000)]
    g["rule"] = [job(s, n, b, t, lr=1000 / n) for s, n, b, t in (
        ("6x128", 250, 32, 512), ("6x128", 500, 32, 512), ("6x256", 250, 32, 512), ("6x384", 250, 32, 512), ("6x512", 250, 32, 512),
        ("4x64", 250, 8, 256), ("6x128", 250, 8, 256), ("6x128", 500, 8, 256), ("6x256", 500, 8, 256))]
    g["rule"] += [job("6x384", 352, 8, text="clean:5000000", lr=3.0), job("6x128", 703, 8, text="clean:5000000", lr=1.5)]
    g["rule"] += [job(s, n, b, t, text=x, lr=r) for x, few in (("perl", 250), ("german", 300)) for s, n, b, t, r in (
        ("6x128", 250, 8, 256, 4.0), ("6x128", 500, 8, 256, 2.0), ("6x128", few, 32, 512, round(1000 / few, 3)),
        ("6x384", few, 32, 512, round(1000 / few, 3)), ("6x128", 500, 32, 512, 2.0), ("6x256", 500, 32, 512, 2.0), ("6x512", 500, 8, 512, 2.0))]
    g["cpu"] = [job("6x128", 1000, 8, 256)]
    g["curves"] = [job(s, n, b, t, lr=r, decay=d, evals=20) for s, n, b, t, r, d in (
        ("6x128", 250, 32, 512, 4.0, 0.6), ("6x128", 500, 32, 512, 2.0, 0.6), ("6x128", 1000, 32, 512, 1.0, 0.6),
        ("6x128", 2000, 32, 512, 1.0, 0.6), ("6x256", 250, 32, 512, 4.0, 0.6), ("6x256", 1000, 32, 512, 1.0, 0.6),
        ("6x256", 2000, 32, 512, 1.0, 0.6), ("6x384", 500, 32, 512, 2.0, 0.6), ("6x384", 1000, 32, 512, 1.0, 0.6),
        ("6x512", 500, 32, 512, 2.0, 0.6), ("6x512", 1000, 32, 512, 1.0, 0.6), ("12x384", 500, 32, 512, 2.0, 0.6),
        ("6x256", 500, 8, 512, 2.0, 0.6), ("6x256", 2000, 8, 512, 1.0, 0.6), ("4x64", 1000, 8, 256, 1.0, 0.6),
        ("6x128", 500, 8, 256, 2.0, 0.6), ("6x128", 2000, 8, 256, 1.0, 0.6), ("6x256", 1000, 8, 256, 1.0, 0.6),
        ("6x256", 250, 128, 512, 4.0, 0.6), ("6x128", 1000, 16, 1024, 1.0, 0.6), ("6x256", 1000, 32, 512, 1.0, 0.2),
        ("6x256", 1000, 32, 512, 1.0, 0.9), ("6x128", 500, 32, 512, 2.0, 0.3), ("6x256", 1000, 32, 512, 2.0, 0.6),
        ("6x128", 1000, 32, 512, 0.5, 0.6))]
    g["curves"] += [job(s, n, b, text=x, lr=r, evals=20) for s, n, b, x, r in (
        ("6x128", 703, 8, "clean:5000000", 1.5), ("6x128", 1406, 8, "clean:5000000", 1.0), ("6x384", 352, 8, "clean:5000000", 3.0),
        ("6x384", 1406, 8, "clean:5000000", 1.0), ("6x256", 1056, 32, "clean:20000000", 1.0),
        ("6x256", 1000, 16, "german", 1.0), ("6x256", 1000, 16, "perl", 1.0))]
    return g


def size(j):
    """Parameters by kind and estimated seconds of a step on one H200."""
    layers, d, _, ff = SHAPES[j["shape"]]
    matrices, head = layers * (4 * d * d + 3 * d * ff), j["vocab"] * d
    flops = 6 * (matrices + head) + 12 * layers * j["t"] * d
    return matrices, head, 0.0007 + flops * j["batch"] * j["t"] / 3.2e14


class Texts:
    """Shards of (text, vocabulary), made on the first request."""

    def __init__(self, a):
        self.a, self.lock, self.locks = a, threading.Lock(), {}

    def __call__(self, text, vocab):
        with self.lock:
            lock = self.locks.setdefault((text, vocab), threading.Lock())
        with lock:
            name, _, limit = text.partition(":")
            out = os.path.join(self.a.work, f"{name}{limit}_{vocab}")
            if not os.path.exists(out + "/shards.json"):
                source = os.path.join(self.a.texts, name + ".jsonl")
                if limit:
                    source, rows, took = os.path.join(self.a.work, f"{name}{limit}_{vocab}.jsonl"), open(source), 0
                    with open(source, "w") as f:
                        for row in rows:
                            if took >= int(limit):
                                break
                            f.write(row)
                            took += len(json.loads(row)["text"].encode())
                subprocess.run([self.a.host, "data", "--in", source, "--tokenizer", "bpe", "--vocab-size", str(vocab), "--out", out],
                               check=True, capture_output=True)
            return out, os.path.join(self.a.texts, name + "_val.jsonl"), json.load(open(out + "/shards.json"))


def command(a, j, shards, validation, out):
    layers, d, heads, ff = SHAPES[j["shape"]]
    flags = ["--preset", "quick-70m", "--set", f"layers={layers}", "--set", f"d_model={d}", "--set", f"heads={heads}", "--set",
             f"d_ff={ff}", "--vocab-size", str(j["vocab"]), "--device", a.device, "--precision", a.precision, "--data", shards,
             "--validation", validation, "--batch-size", str(j["batch"]), "--seq-len", str(j["t"]), "--steps", str(j["steps"]),
             "--lr", f"{1e-3 * j['lr']:.4g}", "--decay", str(j["decay"]), "--dropout", str(j["dropout"]), "--seed", str(j["seed"]),
             "--eval-every", str(-(-j["steps"] // j["evals"]) if j["evals"] else 0), "--eval-tokens", "1000000",
             "--baseline-tokens", "0", "--save-minutes", "0", "--save-every", "0", "--log-every", str(max(1, j["steps"] // 20)),
             "--threads", str(a.threads), "--out", out]
    return [a.host, "train"] + flags + list(j.get("flags", ()))


def run(a, j, texts):
    shards, validation, about = texts(j["text"], j["vocab"])
    out = os.path.join(a.work, f"run{threading.get_ident()}")
    shutil.rmtree(out, ignore_errors=True)
    began = time.time()
    got = subprocess.run(command(a, j, shards, validation, out), capture_output=True, text=True)
    if got.returncode:
        return dict(j, error=got.stderr.strip().splitlines()[-3:])
    rows = [json.loads(r) for r in open(out + "/metrics.jsonl")]
    plan, evals = json.load(open(out + "/plan.json")), [r for r in rows if "val_bits_per_byte" in r]
    steps = [r for r in rows if "tokens_per_s" in r]
    seconds, before = 0.0, 0
    for r in steps:
        seconds, before = seconds + (r["tokens"] - before) / r["tokens_per_s"], r["tokens"]
    matrices, head, _ = size(j)
    tokens = j["steps"] * j["batch"] * j["t"]
    r = dict(j, device=a.device, precision=a.precision, params=plan["params"], matrices=matrices, head=head,
             arena=plan["arena_bytes"], tokens=tokens, unique=about["tokens"], bytes=about["bytes"],
             epochs=round(tokens / about["tokens"], 4), bpb=evals[-1]["val_bits_per_byte"], nats=evals[-1]["val_loss"],
             se=evals[-1]["val_loss_se"], train=steps[-1]["loss"], seconds=round(seconds, 3), wall=round(time.time() - began, 2))
    if j["evals"]:
        r["curve"] = [[e["step"], e["val_bits_per_byte"]] for e in evals]
    shutil.rmtree(out, ignore_errors=True)
    return r


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("groups", nargs="*", help="of " + ", ".join(grid()))
    p.add_argument("--host", required=True)
    p.add_argument("--texts", required=True)
    p.add_argument("--out", required=True)
    p.add_argument("--jobs", help="a file of JSON lines with jobs, instead of groups")
    p.add_argument("--work", default="/tmp/scaling")
    p.add_argument("--device", default="cuda")
    p.add_argument("--precision", default="bf16")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--slots", type=int, default=1, help="runs at once")
    p.add_argument("--limit", type=float, default=1e9, help="seconds after which nothing is begun that would end later")
    p.add_argument("--scale", type=float, default=1.0, help="multiplies the estimated seconds")
    p.add_argument("--dry", action="store_true", help="prints jobs and the estimate only")
    a = p.parse_args()
    a.host = os.path.abspath(a.host)
    os.makedirs(a.work, exist_ok=True)
    done = {json.loads(r)["id"] for r in open(a.out)} if os.path.exists(a.out) else set()
    jobs = [json.loads(r) for r in open(a.jobs)] if a.jobs else [j for n in a.groups for j in grid()[n]]
    jobs = [j for j in jobs if j["id"] not in done]
    cost = {j["id"]: a.scale * (size(j)[2] * j["steps"] + 0.1 * (1 + j["evals"])) for j in jobs}
    if a.dry:
        for j in jobs:
            print(f"{cost[j['id']]:7.1f} s  {j['id']}")
        print(f"{len(jobs)} jobs, {sum(cost.values()):.0f} s")
        return
    jobs.sort(key=lambda j: -cost[j["id"]])
    texts, lock, began, running = Texts(a), threading.Lock(), time.time(), {}

    def worker():
        while True:
            with lock:
                left = a.limit - (time.time() - began) - sum(max(0.0, c - (time.time() - s) / a.slots) for c, s in running.values())
                j = next((j for j in jobs if cost[j["id"]] + 4 < left), None)
                if j is None:
                    return
                jobs.remove(j)
                running[j["id"]] = (cost[j["id"]], time.time())
            try:
                r = run(a, j, texts)
            except Exception as e:
                r = dict(j, error=repr(e))
            with lock:
                del running[j["id"]]
                with open(a.out, "a") as f:
                    f.write(json.dumps(r) + "\n")
                print(f"{time.time() - began:6.1f} s  {r.get('bpb', r.get('error'))}  {r.get('seconds')} s of {cost[j['id']]:.1f}  {j['id']}",
                      flush=True)

    threads = [threading.Thread(target=worker) for _ in range(a.slots)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    print(f"{time.time() - began:.1f} s; not begun: {[j['id'] for j in jobs]}")


if __name__ == "__main__":
    main()
