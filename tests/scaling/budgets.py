#!/usr/bin/env python3
"""The choice of `host suggest` for a budget, compared with other runs of the same bytes and seconds.

    python3 budgets.py --host target/release/host --texts DIR --out budgets.jsonl --slots 1 h200-2g

Each alternative is timed for a few steps first, so that its rate suits its number of steps (docs/scaling.md), and
then trained with the budget's --budget and --time. Lines of --out: the suggestion, and the runs. --report FILE prints the tables.
"""
import argparse, json, os, shutil, subprocess, sys, threading, time

# Layers, width, vocabulary, sequences in a step, tokens of each, factor of the learning rate; then further flags.
BUDGETS = {
    "h200-2g": dict(text="clean", vocab=10000, device="cuda", budget="2GiB", seconds=60, alternatives=[
        (8, 384, 10000, 8, 1024, 1), (6, 512, 10000, 8, 1024, 1), (6, 384, 10000, 8, 1024, 1), (8, 512, 10000, 4, 1024, 1),
        (12, 256, 10000, 8, 1024, 1), (6, 256, 10000, 16, 1024, 1), (6, 256, 10000, 32, 512, 1), (6, 384, 10000, 16, 512, 1),
        (6, 512, 10000, 8, 512, 1), (8, 384, 10000, 8, 1024, 2), (6, 384, 10000, 8, 1024, 2), (6, 128, 10000, 32, 512, 1),
        (4, 512, 10000, 8, 1024, 1)]),
    "cpu-300m": dict(text="python", vocab=None, device="cpu", budget="300MiB", seconds=300, alternatives=[
        (4, 64, 5000, 16, 512, 1), (2, 64, 2000, 16, 1024, 1), (4, 96, 5000, 8, 512, 1), (4, 128, 5000, 8, 512, 1),
        (6, 128, 5000, 4, 512, 1), (4, 64, 2000, 8, 512, 1), (4, 96, 2000, 8, 256, 1), (4, 128, 2000, 8, 256, 1),
        (6, 128, 2000, 8, 256, 1), (4, 128, 5000, 4, 256, 1), (6, 192, 2000, 4, 256, 1), (4, 96, 5000, 4, 512, 1),
        (6, 128, 10000, 4, 256, 1)]),
    "h200-8g": dict(text="clean", vocab=10000, device="cuda", budget="8GiB", seconds=120, alternatives=[
        (8, 512, 10000, 16, 1024, 1), (8, 384, 10000, 16, 1024, 1), (12, 512, 10000, 16, 1024, 1), (6, 512, 10000, 32, 1024, 1),
        (8, 512, 10000, 8, 1024, 1), (12, 384, 10000, 16, 1024, 1), (6, 768, 10000, 16, 1024, 1), (12, 768, 10000, 16, 512, 1),
        (6, 512, 10000, 16, 1024, 1), (8, 384, 10000, 32, 1024, 1), (8, 512, 10000, 16, 512, 1), (12, 512, 10000, 8, 1024, 1)]),
    "cpu-5mb": dict(text="vim", vocab=None, device="cpu", budget="600MiB", seconds=600, alternatives=[
        (4, 128, 5000, 8, 512, 1), (6, 128, 5000, 8, 512, 1), (4, 96, 5000, 8, 512, 1), (6, 160, 5000, 8, 512, 1),
        (4, 128, 10000, 8, 1024, 1), (6, 128, 10000, 8, 512, 1), (4, 64, 2000, 16, 512, 1), (4, 128, 5000, 8, 512, 1, "--dropout", "0.1"),
        (4, 128, 2000, 8, 512, 1), (6, 192, 5000, 8, 256, 1), (4, 128, 5000, 8, 256, 1), (6, 128, 10000, 4, 256, 1),
        (4, 96, 5000, 16, 512, 1)]),
}


def shape(layers, width, vocab, batch, t):
    feed = 2048 if width == 768 else -(-11 * width // 4 // 32) * 32
    heads = width // 32 if width < 256 else width // 64
    flags = ["--preset", "quick-70m"]
    for key, value in (("layers", layers), ("d_model", width), ("heads", heads), ("d_ff", feed)):
        flags += ["--set", f"{key}={value}"]
    return flags + ["--vocab-size", str(vocab), "--batch-size", str(batch), "--seq-len", str(t)]


class Grid:
    def __init__(self, a, name):
        self.a, self.name, self.b = a, name, BUDGETS[name]
        self.lock = threading.Lock()
        self.work = os.path.join(a.work, name)
        os.makedirs(self.work, exist_ok=True)
        self.data = os.path.join(a.texts, self.b["text"] + ".jsonl")
        if self.b["vocab"]:
            shards = os.path.join(self.work, "shards")
            if not os.path.exists(shards + "/shards.json"):
                subprocess.run([a.host, "data", "--in", self.data, "--tokenizer", "bpe", "--vocab-size", str(self.b["vocab"]),
                                "--out", shards], check=True, capture_output=True)
            self.data = shards
        self.flags = ["--data", self.data, "--budget", self.b["budget"], "--device", self.b["device"],
                      "--validation", os.path.join(a.texts, self.b["text"] + "_val.jsonl"), "--threads", "2"]
        self.flags += ["--precision", "bf16"] if self.b["device"] == "cuda" else []
        self.done = {r["id"] for r in map(json.loads, open(a.out)) if r["budget"] == name} if os.path.exists(a.out) else set()

    def write(self, r):
        with self.lock, open(self.a.out, "a") as f:
            f.write(json.dumps(dict(budget=self.name, **r)) + "\n")
            print(f"{self.name}: {r}", flush=True)

    def host(self, *words):
        """The last line of JSON of a command, on two cores of a slot."""
        slot = threading.current_thread().name
        cores = ["taskset", "-c", f"{2 * int(slot)},{2 * int(slot) + 1}"] if slot.isdigit() else []
        got = subprocess.run(cores + [self.a.host, *words, "--json"], capture_output=True, text=True)
        if got.returncode:
            return None, got.stderr.strip().splitlines()[-1:]
        return json.loads(got.stdout.strip().splitlines()[-1]), None

    def train(self, name, flags):
        out = os.path.join(self.work, "run" + name.replace(" ", "_"))
        shutil.rmtree(out, ignore_errors=True)
        began = time.time()
        got, error = self.host("train", *flags, "--out", out, "--eval-every", "0", "--eval-tokens", "1000000",
                               "--baseline-tokens", "0")
        if error:
            return self.write(dict(id=name, flags=flags, error=error))
        plan = json.load(open(out + "/plan.json"))
        self.write(dict(id=name, flags=flags, bpb=got["bits_per_byte"], steps=got["steps"], seconds=got["seconds"],
                        of_time=got["seconds_of_time"], wall=round(time.time() - began, 2), arena=plan["arena_bytes"]))
        shutil.rmtree(out, ignore_errors=True)

    def suggestion(self):
        got, error = self.host("suggest", *self.flags, "--time", f"{self.b['seconds']}s")
        if error:
            return self.write(dict(id="suggestion", error=error))
        with self.lock, open(self.a.out + ".suggest", "a") as f:
            f.write(json.dumps(dict(budget=self.name, **got)) + "\n")
        flags = got["command"].split()[2:]
        at = flags.index("--eval-every")
        self.train("suggestion", flags[:at] + flags[at + 2:])

    def alternative(self, x):
        name = " ".join(map(str, x))
        flags = shape(*x[:5]) + list(x[6:]) + self.flags
        got, error = self.host("bench", *flags, "--steps", "20" if self.b["device"] == "cuda" else "4")
        if error:
            return self.write(dict(id=name, flags=flags, error=error))
        step = got["ms_per_step"] / 1e3
        lr = 1e-3 * x[5] * min(4.0, max(1.0, 1000 * step / self.b["seconds"]))
        self.train(name, flags + ["--lr", f"{lr:.2g}", "--time", f"{self.b['seconds']}s"])

    def run(self, slots):
        todo = [("suggestion", self.suggestion)] + [(" ".join(map(str, x)), lambda x=x: self.alternative(x)) for x in self.b["alternatives"]]
        todo = [t for t in todo if t[0] not in self.done]

        def worker():
            while True:
                with self.lock:
                    if not todo or time.time() - self.a.began + self.b["seconds"] + 25 > self.a.limit:
                        return
                    _, job = todo.pop(0)
                job()

        threads = [threading.Thread(target=worker, name=str(i) if slots > 1 else "all") for i in range(slots)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()


def report(path):
    rows = [json.loads(r) for r in open(path)]
    for name in dict.fromkeys(r["budget"] for r in rows):
        runs = [r for r in rows if r["budget"] == name and "bpb" in r]
        best = min((r["bpb"] for r in runs if r["id"] != "suggestion"), default=float("nan"))
        print(f"\n{name}\n\n| run | bits a byte | over the best | steps | bytes | seconds |\n| --- | ---: | ---: | ---: | ---: | ---: |")
        for r in sorted(runs, key=lambda r: r["bpb"]):
            print(f"| {r['id']} | {r['bpb']:.4f} | {100 * (r['bpb'] / best - 1):+.1f} % | {r['steps']} | {r['arena'] / 2**20:.0f} MiB | "
                  f"{r['of_time'] or r['seconds']:.1f} |")
        for r in rows:
            if r["budget"] == name and "error" in r:
                print(f"{r['id']}: {r['error']}")


def main():
    if sys.argv[1:2] == ["--report"]:
        return report(sys.argv[2])
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("budgets", nargs="+", help="of " + ", ".join(BUDGETS))
    for name, default in (("host", None), ("texts", None), ("out", None), ("work", "/tmp/budgets")):
        p.add_argument("--" + name, required=default is None, default=default)
    p.add_argument("--slots", type=int, default=1, help="runs at once, each on two cores of its own")
    p.add_argument("--limit", type=float, default=1e9, help="seconds after which nothing is begun that would end later")
    a = p.parse_args()
    a.host, a.began = os.path.abspath(a.host), time.time()
    for name in a.budgets:
        Grid(a, name).run(a.slots)


if __name__ == "__main__":
    main()
