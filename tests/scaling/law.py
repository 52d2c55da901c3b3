"""The law, and a least-squares fit of it: standard library alone. See docs/scaling.md for what each constant is."""
import json, math, os

HERE = os.path.dirname(os.path.abspath(__file__))
REFERENCE = 3.396  # bytes per token in the fit: tokens of another text or tokenizer count as bytes over this
# Constants, with the start of the fit. ln: the logarithm is fitted, so that the constant is above 0.
START = {
    "E": (0.45, True), "A": (0.6, True), "alpha": (0.25, True), "B": (0.7, True), "beta": (0.27, True), "p": (1.5, True),
    "C": (0.004, True), "x": (-0.5, False), "y": (1.3, True), "G": (0.025, True),
    "F": (0.025, True), "phi": (0.45, True), "psi": (0.5, True), "omega": (1.6, True),
}
# Fixed at these values unless a form of fit.py frees them: freeing them gained nothing in validation.
HELD = {"head": 0.0, "W": 0.0, "gamma": 1.0, "tau": 1.0}


def work(r):
    """W of a run: its steps at the preset's rate, an annealed share counted half; 1 for each step of decay 0.6 and --lr 1e-3."""
    return r["lr"] * r["steps"] * (1 - r["decay"] / 2) / 0.7


def loss(c, r, s=1.0, delta=0.0):
    """Bits per byte of a run `r` with constants `c`; s and delta are the text's."""
    c = {**HELD, **c}
    scale = r["bytes"] / r["unique"] / REFERENCE
    d, u = r["tokens"] * scale / 1e6, r["unique"] * scale / 1e6
    n, step, epochs = (r["matrices"] + c["head"] * r["head"]) / 1e6, r["batch"] * r["t"] / 16384, r["tokens"] / r["unique"]
    size, data = c["A"] * n ** -c["alpha"], c["B"] * (d / 10) ** -c["beta"]
    base = c["E"] + (size ** c["p"] + data ** c["p"]) ** (1 / c["p"])
    base += c["C"] * r["lr"] ** c["x"] * step ** -c["y"] + (c["W"] * (work(r) / 1000) ** -c["gamma"] if c["W"] else 0.0)
    length = 1 + c["G"] * ((512 / r["t"]) ** c["tau"] - 1)
    again = 0.0
    if epochs > 1:
        again = math.log1p(c["F"] * (r["matrices"] / 4e6) ** c["phi"] * (u / 4) ** -c["psi"] * (epochs - 1) ** c["omega"])
    return s * (base * length - delta) * (1 + again)


def solve(a, b):
    """x of a x = b by Gauss's elimination with pivots."""
    n = len(b)
    m = [row[:] + [b[i]] for i, row in enumerate(a)]
    for i in range(n):
        p = max(range(i, n), key=lambda k: abs(m[k][i]))
        m[i], m[p] = m[p], m[i]
        for k in range(i + 1, n):
            f = m[k][i] / m[i][i]
            if f:
                for j in range(i, n + 1):
                    m[k][j] -= f * m[i][j]
    x = [0.0] * n
    for i in reversed(range(n)):
        x[i] = (m[i][n] - sum(m[i][j] * x[j] for j in range(i + 1, n))) / m[i][i]
    return x


def least(f, p, huber=0.01, rounds=150):
    """Levenberg–Marquardt on residuals f(p), Huber's loss; returns p, the cost and (JᵀJ) with weights."""
    def cost(r):
        return sum(v * v / 2 if abs(v) < huber else huber * (abs(v) - huber / 2) for v in r)

    r, damp = f(p), 1e-3
    best, n = cost(r), len(p)
    for _ in range(rounds):
        columns = []
        for i in range(n):
            q = p[:]
            q[i] += 1e-5
            columns.append([(a - b) / 1e-5 for a, b in zip(f(q), r)])
        w = [1.0 if abs(v) < huber else huber / abs(v) for v in r]
        jtj = [[sum(wk * a * b for wk, a, b in zip(w, columns[i], columns[j])) for j in range(n)] for i in range(n)]
        g = [-sum(wk * a * v for wk, a, v in zip(w, columns[i], r)) for i in range(n)]
        before = best
        for _ in range(12):
            a = [[v + (damp * (jtj[i][i] + 1e-9) if i == j else 0) for j, v in enumerate(row)] for i, row in enumerate(jtj)]
            q = [v + max(-0.5, min(0.5, dv)) for v, dv in zip(p, solve(a, g))]
            try:
                rq = f(q)
                c = cost(rq)
            except (OverflowError, ValueError, ZeroDivisionError):
                c = math.inf
            if c < best:
                p, r, best, damp = q, rq, c, max(damp / 4, 1e-9)
                break
            damp *= 4
        if before - best < 1e-9 * before:
            break
    return p, best, jtj


def pack(c, names):
    return [math.log(c[k]) if START[k][1] else c[k] for k in names]


def unpack(p, names, fixed=()):
    c = dict(fixed)
    c.update({k: math.exp(min(v, 50)) if START[k][1] else v for k, v in zip(names, p)})
    return c


def fit(runs, start=None, prior=3.0, fixed=None, spread=0.2):
    """Constants, and (s, delta) by text other than `clean`, for the least Huber loss of ln bits a byte.

    Weak priors keep constants that the runs do not determine near their starts: a factor of e^prior (for an exponent x: ± prior),
    0.5 in ln s and `spread` in delta each weigh as much as a residual of 1 %.
    """
    fixed = fixed or {}
    start = start or {k: v[0] for k, v in START.items()}
    names = [k for k in START if k not in fixed]
    texts = sorted({r["text"] for r in runs} - {"clean"})
    p0 = pack(start, names)
    k = len(names)

    def text(p):
        st = {"clean": (1.0, 0.0)}
        st.update({x: (math.exp(p[k + 2 * i]), p[k + 2 * i + 1]) for i, x in enumerate(texts)})
        return st

    def residuals(p):
        c, st = unpack(p, names, fixed), text(p)
        out = [math.log(max(loss(c, r, *st[r["text"]]), 1e-3) / r["bpb"]) for r in runs]
        out += [0.01 * (a - b) / prior for a, b in zip(p[:k], p0)]
        return out + [0.01 * v / (spread if i % 2 else 0.5) for i, v in enumerate(p[k:])]

    p, _, _ = least(residuals, p0 + [0.0] * (2 * len(texts)))
    return unpack(p, names, fixed), text(p)


def anchor(c, runs, noise=0.025, spread=0.2, scale=0.6):
    """s and delta of a text from its anchor runs: the most probable values, where the law's error is `noise` and the priors are
    delta = 0 ± `spread` and ln s = -0.4 ± `scale`. One run determines s, runs with different losses determine both.
    """
    def residuals(p):
        out = [math.log(max(loss(c, r, math.exp(p[0]), p[1]), 1e-3) / r["bpb"]) / noise for r in runs]
        return out + [p[1] / spread, (p[0] + 0.4) / scale]

    p, _, _ = least(residuals, [-0.4, 0.0], huber=1e9)
    return math.exp(p[0]), p[1]


def scale_alone(c, runs):
    """s of a text with delta 0: the geometric mean of measured over law for its anchor runs."""
    return math.exp(sum(math.log(r["bpb"] / loss(c, r)) for r in runs) / len(runs))


def read(path):
    return [json.loads(r) for r in open(path)]


def usable(r):
    """The runs that the law is fitted on: enough movement, not too many epochs, no dropout."""
    return "bpb" in r and work(r) >= 899 and r["epochs"] <= 14.5 and not r["dropout"]
