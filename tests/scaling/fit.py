#!/usr/bin/env python3
"""Fits the law to results.jsonl, prints its cross-validation errors, writes law.json and docs/scaling.svg. Standard library alone.

    python3 tests/scaling/fit.py
"""
import json, math, os, sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import law
from law import HERE, START, fit, loss, read, usable, work

# Published before this law (docs/speedrun.md) and fitted with it, all on the same text: shape, steps of 32 x 512, mean
# bits per byte of the seeds.
EARLIER = [("6x512", 1100, 1.1719), ("6x512", 1500, 1.1358), ("6x512", 2500, 1.0843), ("6x512", 5000, 1.0683),
           ("12x768", 1500, 1.0847), ("12x768", 2500, 1.0320)]
# Alternative forms: the constants that are fixed, and their values.
FORMS = {
    "the law": {}, "N with a quarter of the head": {"head": 0.25}, "N with all of the head": {"head": 1.0},
    "a term of movement, 0.008 (W / 1000)^-2.3": {"W": 0.008, "gamma": 2.3}, "size and data added (p = 1)": {"p": 1.0},
    "no noise of small batches (C)": {"C": 1e-12, "x": 0.0, "y": 1.0}, "no length (G)": {"G": 1e-12},
    "passes without the shape (phi = 0)": {"phi": 1e-9}, "passes without the text's size (psi = 0)": {"psi": 1e-9},
    "no lowest loss (E = 0)": {"E": 1e-9},
}


def errors(c, st, runs):
    return [100 * math.log(loss(c, r, *st[r["text"]]) / r["bpb"]) for r in runs]


def rms(v):
    return math.sqrt(sum(x * x for x in v) / len(v))


def groups(runs):
    """Groups of runs that are left out together: one for each shape, and the eighth of the runs with the most work."""
    g = {}
    for r in runs:
        g.setdefault(r["shape"], []).append(r)
    flops = sorted(runs, key=lambda r: (r["matrices"] + r["head"]) * r["tokens"])
    return list(g.values()), flops[-len(runs) // 8:]


def validate(runs, fixed):
    shapes, longest = groups(runs)
    out = []
    whole, st = fit(runs, fixed=fixed)
    for left in shapes:
        c, s = fit([r for r in runs if r not in left], fixed=fixed)
        out += [100 * math.log(loss(c, r, *s.get(r["text"], st[r["text"]])) / r["bpb"]) for r in left]
    c, s = fit([r for r in runs if r not in longest], fixed=fixed)
    far = [100 * math.log(loss(c, r, *s.get(r["text"], st[r["text"]])) / r["bpb"]) for r in longest]
    return whole, st, out, far


def uncertainty(runs, c, parts=10):
    """Standard deviation of each constant when a tenth of the runs is left out (jackknife of groups)."""
    got = []
    for k in range(parts):
        ck, _ = fit([r for i, r in enumerate(runs) if i % parts != k], start=c)
        got.append(ck)
    out = {}
    for k in START:
        mean = sum(g[k] for g in got) / parts
        out[k] = math.sqrt((parts - 1) / parts * sum((g[k] - mean) ** 2 for g in got))
    return out


def earlier(runs):
    base = {}
    for r in runs:
        if r["text"] == "clean" and r["vocab"] == 10000:
            base[r["shape"]] = r
    for shape, steps, bpb in EARLIER:
        r = dict(base[shape], steps=steps, batch=32, t=512, lr=1.0, decay=0.6, tokens=steps * 16384, bpb=bpb, text="clean", seed=0)
        r["epochs"] = r["tokens"] / r["unique"]
        r["id"] = f"{shape} steps={steps} (published earlier)"
        yield r


def picture(c, st, runs, path):
    """Left: predicted against measured. Right: loss against tokens for each shape, lines by the law."""
    w, h = 900, 440
    o = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{w}" height="{h}" viewBox="0 0 {w} {h}" font-family="sans-serif" font-size="12">',
         f'<rect width="{w}" height="{h}" fill="white"/>']
    colours = ["#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#17becf"]
    ladder = ["4x64", "4x128", "6x128", "6x256", "6x384", "6x512", "12x768"]
    tx = lambda d: 60 + 340 * math.log(d / 3e6) / math.log(1e8 / 3e6)
    ty = lambda b: 370 - 330 * math.log(b / 1.0) / math.log(2.0)
    o.append('<text x="60" y="22" font-weight="bold">Bits a byte after so many tokens, 32 × 512 a step</text>')
    for d in (5e6, 1e7, 2e7, 5e7, 1e8):
        o.append(f'<line x1="{tx(d):.0f}" x2="{tx(d):.0f}" y1="40" y2="370" stroke="#ddd"/><text x="{tx(d):.0f}" y="388" text-anchor="middle">{d / 1e6:.0f} M</text>')
    for b in (1.0, 1.1, 1.2, 1.4, 1.6, 1.8, 2.0):
        o.append(f'<line x1="60" x2="400" y1="{ty(b):.0f}" y2="{ty(b):.0f}" stroke="#ddd"/><text x="54" y="{ty(b) + 4:.0f}" text-anchor="end">{b:.1f}</text>')
    like = next(r for r in runs if r["text"] == "clean" and r["vocab"] == 10000)
    plain = [r for r in read(os.path.join(HERE, "results.jsonl")) if "bpb" in r and r["text"] == "clean" and r["vocab"] == 10000
             and r["decay"] == 0.6 and r["seed"] == 0 and (r["batch"], r["t"]) == (32, 512) and not r["dropout"]]
    for k, shape in enumerate(ladder):
        mine = [r for r in plain if r["shape"] == shape]
        if not mine:
            continue
        line = []
        for i in range(60):
            d = 4.1e6 * (16 ** (i / 59))
            steps = d / 16384
            r = dict(like, matrices=mine[0]["matrices"], head=mine[0]["head"], batch=32, t=512, decay=0.6, tokens=d, steps=steps,
                     lr=max(1.0, 1000 / steps), epochs=d / like["unique"])
            line.append(f"{tx(d):.1f},{ty(loss(c, r)):.1f}")
        o.append(f'<polyline points="{" ".join(line)}" fill="none" stroke="{colours[k]}" stroke-width="1.5"/>')
        for r in mine:
            if ty(r["bpb"]) > 38:
                fill = colours[k] if usable(r) else "white"
                o.append(f'<circle cx="{tx(r["tokens"]):.1f}" cy="{ty(r["bpb"]):.1f}" r="3.5" fill="{fill}" stroke="{colours[k]}"/>')
        o.append(f'<text x="{330}" y="{56 + 15 * k}" fill="{colours[k]}">{shape.replace("x", " × ")}</text>')
    o.append('<text x="60" y="410">Full: the rate times the steps is that of 900 steps at 1e-3 or more. Hollow: less.</text>')
    o.append('<text x="60" y="427">Lines: the law, with --lr raised to 1 / steps where there are fewer than 1,000.</text>')
    px = lambda b: 500 + 370 * math.log(b / 0.85) / math.log(3.0 / 0.85)
    py = lambda b: 370 - 330 * math.log(b / 0.85) / math.log(3.0 / 0.85)
    o.append('<text x="500" y="22" font-weight="bold">Law against measured, all runs of the fit</text>')
    for b in (1.0, 1.5, 2.0, 3.0):
        o.append(f'<line x1="{px(b):.0f}" x2="{px(b):.0f}" y1="40" y2="370" stroke="#ddd"/><text x="{px(b):.0f}" y="388" text-anchor="middle">{b:.1f}</text>')
        o.append(f'<line x1="500" x2="870" y1="{py(b):.0f}" y2="{py(b):.0f}" stroke="#ddd"/><text x="494" y="{py(b) + 4:.0f}" text-anchor="end">{b:.1f}</text>')
    o.append(f'<line x1="{px(.85):.0f}" y1="{py(.85):.0f}" x2="{px(3):.0f}" y2="{py(3):.0f}" stroke="#888"/>')
    for k, (name, label) in enumerate((("clean", "the fit’s text"), ("german", "German manual pages"), ("perl", "Perl"))):
        for r in runs:
            if r["text"] == name:
                o.append(f'<circle cx="{px(r["bpb"]):.1f}" cy="{py(loss(c, r, *st[r["text"]])):.1f}" r="3" fill="none" stroke="{colours[k]}"/>')
        o.append(f'<text x="520" y="{56 + 15 * k}" fill="{colours[k]}">{label}</text>')
    o.append('<text x="870" y="410" text-anchor="end">Measured bits a byte →</text></svg>')
    open(path, "w").write("\n".join(o) + "\n")


def main():
    every = [r for r in read(os.path.join(HERE, "results.jsonl")) if "bpb" in r]
    runs = [r for r in every if usable(r)]
    without, _ = fit(runs)
    print("runs published earlier, by a law without them:",
          ", ".join(f"{r['shape']} {r['steps']}: {100 * math.log(loss(without, r) / r['bpb']):+.1f} %" for r in earlier(runs)))
    runs += list(earlier(runs))
    c, st = fit(runs)
    dev = uncertainty(runs, c)
    print(f"{len(every)} runs, {len(runs)} of them fitted")
    for k in START:
        print(f"  {k:6s} {c[k]:9.4f} ± {dev[k]:.4f}")
    for x, v in st.items():
        print(f"  {x}: s {v[0]:.4f}, delta {v[1]:.4f}")
    e = errors(c, st, runs)
    print(f"residuals: RMS {rms(e):.2f} %, largest {max(map(abs, e)):.2f} %; within 2 %: {sum(abs(v) < 2 for v in e)} of {len(e)}")
    for v, r in sorted(zip(e, runs), key=lambda q: -abs(q[0]))[:10]:
        print(f"  {v:+.2f} %  {r['bpb']:.4f}  {r['id']}")
    small = [r for r in every if not usable(r) and not r["dropout"] and r["epochs"] <= 8.5 and r["text"] in st]
    e = [100 * math.log(loss(c, r, *st[r["text"]]) / r["bpb"]) for r in small]
    print(f"runs of less movement, not fitted: {len(small)}, mean error {sum(e) / len(e):+.1f} %, RMS {rms(e):.1f} %")
    if "--forms" in sys.argv:
        for name, fixed in FORMS.items():
            cf, sf, out, far = validate(runs, fixed)
            e = errors(cf, sf, runs)
            print(f"{name}: RMS {rms(e):.2f} %; left out by shape: RMS {rms(out):.2f} %, largest {max(map(abs, out)):.1f} %; "
                  f"the longest eighth left out: RMS {rms(far):.2f} %, largest {max(map(abs, far)):.1f} %")
    json.dump({"reference_bytes_a_token": law.REFERENCE, "constants": {k: round(v, 6) for k, v in c.items()},
               "texts": {k: [round(a, 5) for a in v] for k, v in st.items()}}, open(os.path.join(HERE, "law.json"), "w"), indent=1)
    picture(c, st, runs, os.path.join(HERE, "..", "..", "docs", "scaling.svg"))


if __name__ == "__main__":
    main()
