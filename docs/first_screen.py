"""Draws docs/first_screen.svg: what four commands show, run one after the other in an empty directory, and the curve of the
loss in the first one's metrics.jsonl.

    cargo build --release
    python3 docs/first_screen.py --host target/release/host

The last command has the flags that the refusal before it names. Training takes under a minute on two cores.
"""

import argparse
import html
import json
import os
import pty
import re
import shlex
import subprocess
import tempfile
from pathlib import Path

COLUMNS = 100
CHARACTER, LINE, MARGIN, CURVE = 7.6, 18, 20, 260
BACKGROUND, PANEL, TEXT, DIM = "#0d1117", "#161b22", "#d5dae1", "#8b949e"
COLOURS = {"1": "#ffffff", "36": "#4cb3d4", "32": "#4ac26b", "31": "#ff6b64"}
EIGHTHS = " ▏▎▍▌▋▊▉█"
REFUSED = "train --preset pythia-70m --batch-size 256 --seq-len 512 --gpu gtx1650"


def run(host, words, directory):
    """What a command writes to a terminal on standard output, and to standard error."""
    ours, theirs = pty.openpty()
    environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"} | {"TERM": "xterm-256color"}
    process = subprocess.Popen(
        [host, *words], cwd=directory, env=environment, stdin=subprocess.DEVNULL, stdout=theirs, stderr=subprocess.PIPE
    )
    os.close(theirs)
    error = process.stderr.read().decode()
    process.wait()
    out = b""
    try:
        while piece := os.read(ours, 4096):
            out += piece
    except OSError:  # Linux says so where the other end is closed.
        pass
    os.close(ours)
    return out.decode().replace("\r\n", "\n"), error


def cells(text):
    """Lines of (character, colour), broken between the words that end where the terminal does."""
    lines = []
    for line in text.rstrip("\n").split("\n"):
        colour, row = TEXT, []
        for code, character in re.findall(r"\x1b\[([0-9;]*)m|(.)", line):
            if character:
                row.append((character, colour))
            else:
                known = [COLOURS[part] for part in code.split(";") if part in COLOURS]
                colour = known[-1] if known else TEXT
        while len(row) > COLUMNS:
            end = max(at for at in range(COLUMNS + 1) if row[at][0] == " ")
            lines.append(row[:end])
            row = row[end + 1 :]
        lines.append(row)
    return lines


def drawn(row, x, y):
    """A line of text: columns of words where they begin, and bars as boxes, which every font shows alike."""
    line, parts, bars = "".join(character for character, _ in row), [], EIGHTHS[1:]
    for found in re.finditer(f"[{bars}]+|[^ {bars}](?:[^ {bars}]| (?! |$))*", line):
        at, end = found.span()
        while at < end:
            colour = row[at][1]
            same = next((other for other in range(at, end) if row[other][1] != colour), end)
            parts.append(piece(line[at:same], colour, x + at * CHARACTER, y))
            at = same
    return "".join(parts)


def piece(text, colour, x, y):
    """Words or a bar of one colour."""
    if text[0] in EIGHTHS[1:]:
        width = sum(EIGHTHS.index(character) for character in text) / 8 * CHARACTER
        return f'<rect x="{x:.1f}" y="{y - 11}" width="{width:.1f}" height="13" fill="{colour}"/>'
    length = len(text) * CHARACTER
    return (
        f'<text x="{x:.1f}" y="{y}" fill="{colour}" textLength="{length:.1f}" '
        f'lengthAdjust="spacingAndGlyphs">{html.escape(text)}</text>'
    )


def curve(metrics, levels, y, width):
    """The loss of a run, step by step and on held-out text, over the lines that counting words reaches."""
    left, right, top, bottom = 5 * MARGIN, width - 8 * MARGIN, y + MARGIN, y + CURVE - 2 * MARGIN
    lines = [json.loads(line) for line in metrics.splitlines()]
    trained = [(line["step"], line["loss"]) for line in lines if line.get("loss") is not None]
    held_out = [(line["step"], line["val_loss"]) for line in lines if "val_loss" in line]
    last, most = max(step for step, _ in trained), trained[0][1]
    least = min(levels.values())
    least -= 0.08 * (most - least)

    def place(step, loss):
        return left + (right - left) * step / last, bottom - (bottom - top) * (loss - least) / (most - least)

    def path(points, colour, width):
        drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in points))
        return f'<polyline points="{drawn}" fill="none" stroke="{colour}" stroke-width="{width}"/>'

    parts, free = [], bottom + LINE
    for name, loss in sorted(levels.items(), key=lambda level: level[1]):
        _, height = place(0, loss)
        parts.append(f'<path d="M{left:.1f} {height:.1f}H{right:.1f}" stroke="{DIM}" stroke-dasharray="3 4"/>')
        # Names that would lie on each other stand one above the other.
        free = min(height + 4, free - LINE + 3)
        parts.append(piece(f"{name} {loss:.2f}", DIM, right + 8, free))
    parts += [path(trained, COLOURS["36"], 1.5), path(held_out, COLOURS["32"], 2)]
    parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{COLOURS["32"]}"/>' for x, y in (place(*p) for p in held_out)]
    parts.append(piece("loss of each logged step", COLOURS["36"], left + 8 * MARGIN, top + 4))
    parts.append(piece("loss on held-out tales", COLOURS["32"], left + 8 * MARGIN, top + 4 + LINE))
    for step in (0, last // 2, last):
        x, _ = place(step, most)
        parts.append(piece(f"step {step:,}" if step else "step 0", DIM, x - 4 * CHARACTER, bottom + LINE))
    return "".join(parts)


def picture(metrics, levels, panels):
    y = MARGIN
    width = COLUMNS * CHARACTER + 4 * MARGIN
    parts = [f'<rect x="{MARGIN}" y="{y}" width="{width - 2 * MARGIN:.0f}" height="{CURVE}" rx="6" fill="{PANEL}"/>']
    parts.append(curve(metrics, levels, y, width))
    y += CURVE + MARGIN // 2
    for command, text in panels:
        lines = [[(c, DIM if at < 2 else "#ffffff") for at, c in enumerate(f"$ {command}")], *cells(text)]
        height = len(lines) * LINE + MARGIN
        parts.append(
            f'<rect x="{MARGIN}" y="{y}" width="{width - 2 * MARGIN:.0f}" height="{height}" rx="6" fill="{PANEL}"/>'
        )
        for number, row in enumerate(lines):
            parts.append(drawn(row, 2 * MARGIN, y + MARGIN + 5 + number * LINE))
        y += height + MARGIN // 2
    height = y + MARGIN // 2
    body = "\n".join(part for part in parts if part)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" width="{width:.0f}" '
        f'height="{height}" font-family="ui-monospace, Menlo, Consolas, DejaVu Sans Mono, monospace" font-size="12.5" '
        f'xml:space="preserve">\n<rect width="100%" height="100%" rx="8" fill="{BACKGROUND}"/>\n{body}\n</svg>\n'
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--host", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("first_screen.svg"))
    arguments = parser.parse_args()
    host = arguments.host.resolve()
    with tempfile.TemporaryDirectory() as directory:
        panels = []

        def show(line):
            out, error = run(host, shlex.split(line), directory)
            # The sample that a run ends with has a panel of its own.
            panels.append((f"host {line}", (out or error).split("\n\n")[0]))
            return out or error

        ended = json.loads(run(host, ["train", "--json"], directory)[0].splitlines()[-1])
        metrics = Path(directory, ended["run"], "metrics.jsonl").read_text()
        show("train")
        show('generate --run runs/quick-tiny-001 --prompt "once there was a" --max-tokens 40 --seed 7')
        refusal = show(REFUSED)
        flags = re.search(r"(--batch-size \d+ --accumulate \d+(?: --chunk \d+)?) fits", refusal).group(1)
        show(REFUSED.replace("train", "plan").replace("--batch-size 256", flags))
    names = {"floor": ended["floor"], **ended["baselines"]}
    levels = {name.replace("four", "4-"): loss for name, loss in names.items() if isinstance(loss, float)}
    arguments.out.write_text(picture(metrics, levels, panels))


if __name__ == "__main__":
    main()
