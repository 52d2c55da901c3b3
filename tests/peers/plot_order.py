"""Draws validation losses by step as an SVG: python3 plot_order.py OUT.svg NAME=FILE[,FILE...] ...

A FILE holds lines of JSON with `step` and `val_loss`, as metrics.jsonl and torch_text.py write them; several files of one
name are runs with different seeds: their mean is drawn and their range is shaded.
"""
import json, math, sys

W, H, LEFT, TOP, RIGHT, BOTTOM = 720, 420, 56, 16, 170, 44
COLOURS = ["#1f6feb", "#d1242f", "#1a7f37", "#8250df", "#bf8700"]

def losses(path):
    lines = [json.loads(line) for line in open(path) if line.startswith("{")]
    return {d["step"]: d["val_loss"] for d in lines if "val_loss" in d and "step" in d}

def main():
    out, *named = sys.argv[1:]
    curves = []
    for item in named:
        name, files = item.split("=", 1)
        runs = [losses(f) for f in files.split(",")]
        steps = sorted(set.intersection(*(set(r) for r in runs)))
        curves.append((name, [(s, [r[s] for r in runs]) for s in steps]))
    every = [v for _, c in curves for _, vs in c for v in vs]
    low, high, last = min(every) * 0.98, max(every) * 1.02, max(c[-1][0] for _, c in curves)
    x = lambda s: LEFT + (W - LEFT - RIGHT) * s / last
    y = lambda v: TOP + (H - TOP - BOTTOM) * (math.log(high) - math.log(v)) / (math.log(high) - math.log(low))
    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {W} {H}" font-family="sans-serif" font-size="13">',
           f'<rect width="{W}" height="{H}" fill="#ffffff"/>']
    for v in [v / 2 for v in range(1, 40) if low <= v / 2 <= high]:
        svg.append(f'<line x1="{LEFT}" x2="{W - RIGHT}" y1="{y(v):.1f}" y2="{y(v):.1f}" stroke="#dddddd"/>'
                   f'<text x="{LEFT - 8}" y="{y(v) + 4:.1f}" text-anchor="end">{v:g}</text>')
    for s in range(0, last + 1, 500):
        svg.append(f'<text x="{x(s):.1f}" y="{H - BOTTOM + 20}" text-anchor="middle">{s}</text>')
    svg.append(f'<text x="{(LEFT + W - RIGHT) / 2}" y="{H - 6}" text-anchor="middle">steps of 32,768 tokens</text>'
               f'<text x="14" y="{H / 2}" transform="rotate(-90 14 {H / 2})" text-anchor="middle">validation, nats a token</text>')
    for i, (name, curve) in enumerate(curves):
        colour = COLOURS[i % len(COLOURS)]
        edge = [(x(s), y(max(vs))) for s, vs in curve] + [(x(s), y(min(vs))) for s, vs in reversed(curve)]
        points = lambda ps: " ".join(f"{a:.1f},{b:.1f}" for a, b in ps)
        svg.append(f'<polygon points="{points(edge)}" fill="{colour}" opacity="0.2"/>')
        middle = [(x(s), y(sum(vs) / len(vs))) for s, vs in curve]
        svg.append(f'<polyline points="{points(middle)}" fill="none" stroke="{colour}" stroke-width="2"/>')
        svg.append(f'<text x="{W - RIGHT + 10}" y="{TOP + 20 + 20 * i}" fill="{colour}">{name}</text>')
    open(out, "w").write("\n".join(svg + ["</svg>\n"]))

if __name__ == "__main__":
    main()
