"""Opens pages of `host report` in Chromium: of a tiny run of each family, and of all runs on one page; and the page of a
run in progress, of `host train --live`.

    cargo build --release
    python3 tests/browser/report.py --host target/release/host

Needs Chromium (Debian: apt-get install chromium) and nothing else. Checks figures in the DOM against metrics.jsonl; that the
console has no error and that there are no external requests; that a run's page is updated without losing its scroll
position, and shows when the run has ended; that no text is cut off, overlaps another or is hard to read, in light and dark
mode and on paper. With --keep DIR the pages and their pictures are stored there. The exit status is 1 for any error.
"""

import argparse
import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TINY = (
    "--set layers=2 --set d_model=32 --set heads=2 --set d_ff=64 --vocab-size 300 --seq-len 32 --batch-size 4 "
    "--eval-tokens 2000 --baseline-tokens 20000"
)
FAMILIES = {
    "pythia": f"--preset pythia-tiny {TINY} --lr 3e-3",
    "yxanul": f"--preset yxanul-tiny --set rank=8 --set kv_heads=1 {TINY} --ema 0.9",
    "neurogen": "--preset neurogen-tiny --set embedding=16 --set fan_out=8 --batch-size 4 --seq-len 16 --eval-tokens 2000 "
    "--baseline-tokens 20000",
}
# No network; root has no sandbox.
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-default-apps --remote-debugging-pipe"
)

# Errors of texts: outside of their drawing, overlapping, or with too little contrast.
TEXTS = r"""
(() => {
  const wrong = [];
  const box = (e) => e.getBoundingClientRect();
  for (const svg of document.querySelectorAll("svg[role=img]")) {
    const frame = box(svg), texts = [...svg.querySelectorAll("text")];
    const boxes = texts.map(box);
    texts.forEach((text, i) => {
      const b = boxes[i];
      if (b.left < frame.left - 1 || b.right > frame.right + 1 || b.top < frame.top - 2 || b.bottom > frame.bottom + 2)
        wrong.push(`${svg.id}: '${text.textContent}' is cut off`);
      for (let j = 0; j < i; j++) {
        const o = boxes[j];
        const width = Math.min(b.right, o.right) - Math.max(b.left, o.left);
        const height = Math.min(b.bottom, o.bottom) - Math.max(b.top, o.top);
        if (width > 1 && height > 4) wrong.push(`${svg.id}: '${text.textContent}' lies over '${texts[j].textContent}'`);
      }
    });
    for (const g of svg.querySelectorAll("g")) {
      const rect = g.querySelector("rect");
      for (const text of rect ? g.querySelectorAll("text") : [])
        if (box(text).right > box(rect).right + 1 || box(text).bottom > box(rect).bottom + 1)
          wrong.push(`${svg.id}: '${text.textContent}' is wider or lower than its region`);
    }
  }
  const channels = (c) => (c.match(/[\d.]+/g) || []).map(Number);
  const light = (c) => {
    const [r, g, b] = channels(c).slice(0, 3).map((v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (e) => {
    const rect = e instanceof SVGTextElement && e.parentElement.querySelector("rect");
    if (rect) return getComputedStyle(rect).fill;
    for (; e; e = e.parentElement) {
      const c = getComputedStyle(e).backgroundColor, [, , , a] = channels(c);
      if (c && a !== 0) return c;
    }
    return getComputedStyle(document.documentElement).getPropertyValue("color-scheme") ? "rgb(255,255,255)" : "rgb(255,255,255)";
  };
  const seen = new Set();
  for (const e of document.querySelectorAll("body *")) {
    if (![...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim())) continue;
    if (["TITLE", "DESC", "title", "desc"].includes(e.tagName)) continue;
    const style = getComputedStyle(e), ink = e instanceof SVGTextElement ? style.fill : style.color;
    const [a, b] = [light(ink), light(ground(e))].sort((x, y) => y - x), contrast = (a + 0.05) / (b + 0.05);
    const key = `${ink} on ${ground(e)}`;
    if (contrast < 4.5 && !seen.has(key)) { seen.add(key); wrong.push(`${key}: a contrast of ${contrast.toFixed(2)}`); }
  }
  if (document.documentElement.scrollWidth > innerWidth + 1) wrong.push(`the page is wider than ${innerWidth}`);
  return wrong;
})()
"""

# The figures on the page, for the comparison.
FIGURES = r"""
(() => {
  const one = (e) => ({ ...e.dataset });
  return {
    facts: Object.fromEntries([...document.querySelectorAll(".run td[data-key]")].map((e) => [e.dataset.key, e.dataset.value])),
    marks: [...document.querySelectorAll(".mark[data-step]")].map(one),
    lines: [...document.querySelectorAll("svg[role=img] .line")].map((e) => ({ ...e.dataset, length: e.getTotalLength() })),
    rules: [...document.querySelectorAll(".rule")].map(one),
    cells: [...document.querySelectorAll(".cell")].map((e) => {
      const b = e.getBBox(); return { bytes: Number(e.dataset.bytes), area: b.width * b.height };
    }),
    named: [...document.querySelectorAll("svg[role=img]")].every((e) =>
      e.getAttribute("aria-labelledby").split(" ").every((id) => document.getElementById(id)?.textContent.trim())),
    heads: [...document.querySelectorAll("table")].every((e) => e.querySelector("thead th[scope=col]")),
    ids: (() => { const ids = [...document.querySelectorAll("[id]")].map((e) => e.id); return ids.length === new Set(ids).size; })(),
    runs: document.querySelectorAll("section.run").length,
  };
})()
"""


class Browser:
    """Chromium, controlled through a pipe: messages of JSON, each followed by a zero byte."""

    def __init__(self, program, profile):
        to_child, ours = os.pipe()
        theirs, from_child = os.pipe()

        def connect():
            # Chromium reads from 3 and writes to 4; both ends are duplicated before either number is reused.
            source, target = os.dup(to_child), os.dup(from_child)
            os.dup2(source, 3)
            os.dup2(target, 4)

        self.process = subprocess.Popen(
            [program, *FLAGS.split(), f"--user-data-dir={profile}", "about:blank"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            close_fds=False, preexec_fn=connect,
        )
        os.close(to_child)
        os.close(from_child)
        self.to, self.back = os.fdopen(ours, "wb", 0), os.fdopen(theirs, "rb")
        self.number, self.buffer, self.events = 0, b"", []

    def receive(self):
        while b"\0" not in self.buffer:
            piece = os.read(self.back.fileno(), 1 << 16)
            if not piece:
                raise SystemExit("chromium ended")
            self.buffer += piece
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, session=None, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        self.to.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive()
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise SystemExit(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def close(self):
        self.call("Browser.close")
        self.process.wait(timeout=30)


class Page:
    """A page, and the requests and messages since it was opened."""

    def __init__(self, browser, url, width):
        self.browser, self.url = browser, url
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        browser.events.clear()
        self.call("Page.navigate", url=url)
        while not any(event.get("method") == "Page.loadEventFired" for event in browser.events):
            browser.events.append(browser.receive())

    def call(self, method, **parameters):
        return self.browser.call(method, self.session, **parameters)

    def evaluate(self, expression):
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in answer:
            raise SystemExit(f"{answer['exceptionDetails']}")
        return answer["result"]["value"]

    def media(self, media="screen", scheme="light"):
        self.call("Emulation.setEmulatedMedia", media=media, features=[{"name": "prefers-color-scheme", "value": scheme}])

    def picture(self, path):
        picture = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(picture["data"]))

    def paper(self, path):
        path.write_bytes(base64.b64decode(self.call("Page.printToPDF", printBackground=True)["data"]))

    def said(self):
        """Requests that left the file, or the server, and errors of the console."""
        own = ("file:", "data:") if self.url.startswith("file:") else ("data:", self.url)
        found = []
        for event in self.browser.events:
            parameters = event.get("params", {})
            if event.get("method") == "Network.requestWillBeSent":
                url = parameters["request"]["url"]
                if not url.startswith(own):
                    found.append(f"it asks for {url}")
            elif event.get("method") in ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown"):
                found.append(f"the console says {json.dumps(parameters)[:300]}")
        return found


def close(a, b):
    return abs(float(a) - float(b)) <= 1e-12 * max(1.0, abs(float(b)))


def figures(found, run):
    """The figures of a page that differ from its run's."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "loss" in line]
    evaluations = [line for line in lines if "val_loss" in line]
    plan = json.loads((run / "plan.json").read_text())
    wrong = []

    def require(name, got, expected):
        if got is None or not close(got, expected):
            wrong.append(f"{name} is {got}, not {expected}")

    facts = found["facts"]
    require("val_loss", facts.get("val_loss"), evaluations[-1]["val_loss"])
    require("best_val_loss", facts.get("best_val_loss"), min(line["val_loss"] for line in evaluations))
    require("tokens", facts.get("tokens"), steps[-1]["tokens"])
    require("steps", facts.get("steps"), lines[-1]["step"])
    require("params", facts.get("params"), plan["params"])
    if "val_bits_per_byte" in evaluations[-1]:
        require("bits_per_byte", facts.get("bits_per_byte"), evaluations[-1]["val_bits_per_byte"])
    for line in evaluations:
        here = [mark for mark in found["marks"] if int(mark["step"]) == line["step"] and close(mark["value"], line["val_loss"])]
        if len(here) != 1 or not close(here[0].get("error", 0), line.get("val_loss_se", 0)):
            wrong.append(f"the evaluation of step {line['step']} is marked {here}")
    for name, key in (("training loss", "loss"), ("lr", "lr"), ("norm", "norm"), ("tokens_per_s", "tokens_per_s")):
        values = [line[key] for line in steps]
        curve = next((curve for curve in found["lines"] if curve["name"] == name), None)
        if curve is None or curve["length"] < 100:
            wrong.append(f"{name} has no line")
            continue
        require(f"{name}: count", curve["count"], len(values))
        for part, expected in (("last", values[-1]), ("low", min(values)), ("high", max(values))):
            require(f"{name}: {part}", curve[part], expected)
    if [rule["label"] for rule in found["rules"]].count("unigram") != 1:
        wrong.append("the unigram's loss is no line")
    whole = sum(cell["bytes"] for cell in found["cells"])
    require("bytes", whole, plan["arena_bytes"] + plan["outside_arena_bytes"])
    area = sum(cell["area"] for cell in found["cells"])
    off = max(abs(cell["area"] / area - cell["bytes"] / whole) for cell in found["cells"])
    if off > 2e-4:
        wrong.append(f"an area is off by {off:.5f} of all")
    firing = sum("firing" in line for line in map(str, steps[-1])) if "modules.pfc.firing" in steps[-1] else 0
    if firing and not any(curve["name"] == "pfc" for curve in found["lines"]):
        wrong.append("the modules' rates have no line")
    return wrong


def live(browser, host, directory, out, keep):
    """The errors of the page of a run in progress."""
    wrong = []
    line = f"train {FAMILIES['pythia']} --time 20s --eval-every 200 --log-every 5 --threads 1 --live 0 --out live"
    run = subprocess.Popen(
        [host, *line.split()], cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    said = "live page: "
    url = next((line[len(said):].strip() for line in run.stderr if line.startswith(said)), None)
    if url is None:
        raise SystemExit(f"host {line}: it names no page")
    # Drain the rest of the output.
    drain = subprocess.Popen(["cat"], stdin=run.stderr, stdout=subprocess.DEVNULL)
    page = Page(browser, url, 1000)

    def until(what, expression, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if page.evaluate(expression):
                return True
            time.sleep(0.2)
        wrong.append(f"{what}: not in {seconds} s")
        return False

    until("a step is told", "Number(document.getElementById('live').dataset.step) > 0", 10)
    until("there is a line", "document.querySelectorAll('svg[role=img] .line').length > 3", 12)
    # A user reads further down, and has selected text that does not change.
    page.evaluate("window.mark = document.querySelector('.settings'); getSelection().selectAllChildren(mark); scrollTo(0, 700)")
    top = page.evaluate("document.getElementById('r0-memory').getBoundingClientRect().top")
    snapshots = []
    for _ in range(2):
        counts = "[...document.querySelectorAll('svg[role=img] .line')].map((e) => e.dataset.count + e.getAttribute('d')).join()"
        snapshots.append(page.evaluate(counts))
        until("it is renewed", f"({counts}) !== {json.dumps(snapshots[-1])}", 15)
    for what, expression in (
        # A new line above changes the page's height, but not what is visible.
        ("where it was scrolled to", f"Math.abs(document.getElementById('r0-memory').getBoundingClientRect().top - {top}) < 2"),
        ("what does not change", "mark.isConnected"),
        ("what was selected", "getSelection().toString().includes('seed')"),
    ):
        if not page.evaluate(expression):
            wrong.append(f"{what} did not stay")
    for scheme in ("light", "dark"):
        page.media("screen", scheme)
        wrong += [f"{scheme}: {what}" for what in page.evaluate(TEXTS)]
        if keep:
            page.picture(out / f"live-{scheme}.png")
    ended = until("it says that the run has ended", "document.getElementById('live').dataset.ended === 'yes'", 60)
    if run.wait(timeout=30) != 0:
        wrong.append(f"the run ended with {run.returncode}")
    drain.wait(timeout=10)
    if ended:
        wrong += figures(page.evaluate(FIGURES), Path(directory, "live"))
        if page.evaluate("document.querySelector('[data-key=state]').dataset.value") != "done":
            wrong.append("the last page is not that of the end")
    if keep:
        page.picture(out / "live-ended.png")
    # A stream that is opened again would log an error to the console.
    time.sleep(3)
    page.evaluate("0")
    last = page.evaluate("document.getElementById('live').textContent")
    print(f"live: {url}, {last}")
    return wrong + page.said()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--host", default="target/release/host", help="the program")
    parser.add_argument("--chromium", default="chromium", help="the browser")
    parser.add_argument("--keep", type=Path, help="where pages and pictures stay")
    parser.add_argument("--runs", nargs="*", type=Path, default=[], help="pages of these runs as well, whose texts are looked at")
    arguments = parser.parse_args()
    if not shutil.which(arguments.chromium):
        raise SystemExit(f"{arguments.chromium}: not there; apt-get install chromium, or name another with --chromium")
    host = str(Path(arguments.host).resolve())
    wrong = []
    with tempfile.TemporaryDirectory() as temporary:
        out = arguments.keep or Path(temporary, "pages")
        out.mkdir(parents=True, exist_ok=True)

        def run(line, **more):
            subprocess.run([host, *line], check=True, cwd=temporary, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **more)

        for family, flags in FAMILIES.items():
            run(f"train {flags} --steps 120 --eval-every 30 --threads 2 --out {family}".split())
            profile = f"bench --config {family}/config.toml --steps 3 --profile --json".split()
            made = subprocess.run([host, *profile], check=True, cwd=temporary, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            Path(temporary, family, "profile.json").write_bytes(made.stdout)
        runs = {family: [Path(temporary, family)] for family in FAMILIES}
        runs["all"] = [Path(temporary, family) for family in FAMILIES]
        runs.update({path.name: [path.resolve()] for path in arguments.runs})
        browser = Browser(arguments.chromium, Path(temporary, "profile"))
        try:
            for name, of in runs.items():
                path = (out / f"{name}.html").resolve()
                run(["report", "--run", *map(str, of), "--out", str(path)])
                page = Page(browser, path.as_uri(), 1000)
                found = page.evaluate(FIGURES)
                problems = figures(found, of[0]) if name in FAMILIES else []
                problems += [f"{what}" for what in ("named", "heads", "ids") if not found[what]]
                if found["runs"] != len(of):
                    problems.append(f"{found['runs']} runs")
                for media, scheme, width in (
                    ("screen", "light", 1000), ("screen", "dark", 1000), ("screen", "light", 420), ("print", "light", 720),
                ):
                    page.media(media, scheme)
                    page.call(
                        "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False
                    )
                    looked = f"{media}-{scheme}-{width}"
                    problems += [f"{looked}: {what}" for what in page.evaluate(TEXTS)]
                    if arguments.keep:
                        page.picture(out / f"{name}-{looked}.png")
                page.paper(out / f"{name}.pdf")
                wrong += [f"{name}: {what}" for what in problems + page.said()]
                print(f"{name}: {path.stat().st_size} bytes, {len(found['marks'])} marks, {len(found['cells'])} regions")
            wrong += [f"live: {what}" for what in live(browser, host, temporary, out, arguments.keep)]
        finally:
            browser.close()
    for what in wrong:
        print(what, file=sys.stderr)
    print(f"{len(runs) + 1} pages, {len(wrong)} problems")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
