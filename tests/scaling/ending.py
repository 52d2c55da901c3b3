#!/usr/bin/env python3
"""Fits a prediction of the final loss from the curve so far, prints its errors, writes ending.json. See docs/scaling.md, "While a run goes on".

    python3 tests/scaling/ending.py

Standard library alone.
"""
import json, math, os

from law import HERE, least, loss, read

GAMMA = 1.15  # how the effect of the rate on the loss depends on the rate's share
EARLIER = 0.6  # the earlier evaluation is at this part of the steps, or the nearest to it
POSITIONS = (10, 12, 14, 16, 18)  # evaluations of 20: half of the run to nine tenths
NOISE = 0.012  # a residual that weighs as much as a constant one spread off its start
# Constants: the start of the fit, and the likely distance from there.
START = {"p0": (math.log(0.12), 1.0), "p1": (0, 0.3), "p2": (0, 0.3), "p3": (0, 0.3), "p4": (0, 0.3), "p5": (0, 0.3),
         "q0": (0, 0.1), "q1": (0.4, 0.4), "q2": (0.4, 0.4), "q3": (0, 0.3)}
LAW = json.load(open(os.path.join(HERE, "law.json")))["constants"]


def share(r, k):
    """eta: the rate of step k divided by the highest rate; ignores the warm-up."""
    falls = round(r["decay"] * r["steps"])
    return min(1.0, (r["steps"] - k) / falls)


def moved(r, k):
    """a: the sum of eta over the steps 1 to k."""
    falls = round(r["decay"] * r["steps"])
    n = max(0, k - (r["steps"] - falls))
    return k - n + n - n * (n + 1) / (2 * falls)


def earlier(steps, k):
    """The evaluation to compare step k with: the nearest to 0.6 k, as a ratio, among those from 0.4 to 0.75 k."""
    there = [j for j in steps if 5 * j >= 2 * k and 4 * j <= 3 * k]
    return min(there, key=lambda j: abs(math.log(j / (EARLIER * k))), default=None)


def features(r, k, every=1):
    """The inputs of a prediction for run `r` at step k, given every `every`-th evaluation; None if it is not possible."""
    known = dict(r["curve"][every - 1::every])
    j = earlier(known, k)
    if j is None or k not in known:
        return None
    a, step = moved(r, k), r["batch"] * r["t"]
    nats = known[k] * r["nats"] / r["bpb"]
    law = [math.log(loss(LAW, dict(r, tokens=s * step))) for s in (k, r["steps"])]
    return {
        "here": math.log(known[k]), "z": math.log(known[k] / r["bpb"]), "x": math.log(moved(r, r["steps"]) / a),
        "eta": share(r, k) ** GAMMA, "fell": share(r, j) ** GAMMA - share(r, k) ** GAMMA,
        "drop": math.log(known[j] / known[k]), "d": math.log(a / moved(r, j)),
        "ls": (law[0] - law[1]) / math.log(r["steps"] / k),
        "h": (math.log(r["matrices"] / 4e6), math.log(r["lr"]), math.log(step / 16384), math.log(nats) - 1.3,
              math.log(a * r["lr"] / 500)),
    }


def remains(c, q):
    """z: the logarithm of the loss at step k divided by that at the end."""
    h = math.exp(c[0] + sum(p * v for p, v in zip(c[1:6], q["h"])))
    m = (q["drop"] - h * q["fell"]) / q["d"]
    return (c[6] + c[7] * m + c[8] * q["ls"] + c[9] * q["x"]) * q["x"] + h * q["eta"]


def predicted(c, q):
    """Bits per byte at the end."""
    return math.exp(q["here"] - remains(c, q))


def fit(rows):
    """Constants by Huber's loss beyond NOISE, tied to their starts as loosely as START specifies."""
    start = [v for v, _ in START.values()]

    def residuals(p):
        return [(remains(p, q) - q["z"]) / NOISE for q in rows] + [(a - b) / s for a, (b, s) in zip(p, START.values())]

    return least(residuals, start, huber=1.0)[0]


def rms(v):
    return math.sqrt(sum(x * x for x in v) / len(v))


def error(c, q):
    """The error of the predicted loss, in % of the loss at the end; as a logarithm."""
    return 100 * (q["z"] - remains(c, q))


def text(r):
    return r["text"].split(":")[0]


def main():
    held = [r for r in read(os.path.join(HERE, "heldout_second.jsonl")) if r["what"] == "run"]
    runs = [r for r in read(os.path.join(HERE, "curves.jsonl")) + held if r["epochs"] <= 3.4 and r["text"] != "german"]
    rows = {r["id"]: [features(r, r["curve"][i - 1][0]) for i in POSITIONS] for r in runs}

    def without(out):
        return fit([q for r in runs if r not in out for q in rows[r["id"]]])

    # A run on the text of the law's fit is left out alone, any other one together with all runs on its text.
    texts = {x: without([r for r in runs if text(r) == x]) for x in {text(r) for r in runs} - {"clean"}}
    left = {r["id"]: without([r]) if text(r) == "clean" else texts[text(r)] for r in runs}
    whole = {k: round(v, 5) for k, v in zip(START, without([]))}
    print(f"{len(runs)} runs")
    print("\n".join(f"| {k} | {v} |" for k, v in whole.items()))
    errors = {}
    for n, i in enumerate(POSITIONS):
        errors[i] = [error(left[r["id"]], rows[r["id"]][n]) for r in runs]
        of = {name: rms([e for e, r in zip(errors[i], runs) if keep(r)]) for name, keep in (
            ("clean", lambda r: text(r) == "clean"), ("others", lambda r: text(r) != "clean"))}
        print(f"| {i / 20} | {rms(errors[i]):.2f} | {of['clean']:.2f} | {of['others']:.2f} | {max(errors[i], key=abs):+.1f} | "
              f"{sum(abs(e) <= 1.5 for e in errors[i])} | {sum(abs(e) <= 2 * rms(errors[i]) for e in errors[i])} |")
    for every in (2, 4):
        for i in range(10, 20):
            found = [(r, features(r, r["curve"][i - 1][0], every)) for r in runs if i % every == 0]
            found = [error(left[r["id"]], q) for r, q in found if q]
            if found:
                print(f"every {every}: {i / 20} RMS {rms(found):.2f} of {len(found)}")
    blind = without(held)
    for r in held:
        q = rows[r["id"]][0]
        two = [predicted(c, q) for c in (left[r["id"]], blind)]
        print(f"| {r['text']} | {r['shape']} | {r['steps']} × {r['batch']} × {r['t']} | {math.exp(q['here']):.3f} | {two[0]:.3f} | "
              f"{r['bpb']:.3f} | {100 * (two[0] / r['bpb'] - 1):+.1f} | {100 * (two[1] / r['bpb'] - 1):+.1f} |")
    for name, c in (("without the text", None), ("without the ten", blind)):
        e = [error(c or left[r["id"]], rows[r["id"]][0]) for r in held]
        print(f"{name}: RMS {rms(e):.2f} %, within 1.5 %: {sum(abs(x) <= 1.5 for x in e)} of {len(e)}")
    for r in runs[:3]:
        i = next(i for i, (k, _) in enumerate(r["curve"]) if 2 * k >= r["steps"])
        k = r["curve"][i][0]
        print(f"{r['id']}: by the constants above {predicted(list(whole.values()), features(r, k))!r} after {k} steps")
    written = {"gamma": GAMMA, "constants": whole, "positions": [i / 20 for i in POSITIONS],
               "rms": [round(rms(errors[i]) / 100, 4) for i in POSITIONS]}
    with open(os.path.join(HERE, "ending.json"), "w") as f:
        f.write(json.dumps(written, indent=1) + "\n")


if __name__ == "__main__":
    main()
