#!/usr/bin/env python3
"""Writes the tables of these pages, and the README's, from the measurements in results/.

    python3 docs/performance/build.py            writes the tables into the pages
    python3 docs/performance/build.py --check    fails where a page is not what the results give, or a result is incomplete

A page holds a table, or a result's commands, between two markers; the text around them is written by hand:

    <!-- table: pythia/gpu -->                   the table `gpu` of results/pythia.json
    <!-- commands: pythia/70m-b32 -->            the command of a result, and the peer's
    <!-- end -->

results/machines.json describes the machines. Every other file has `results` and `tables`. A result is one run:

    id, name       the name is what the first column of a table usually says
    date, commit   of the build that was measured; the commit is null where it was not recorded
    recorded       the commit that brought the figure into the documents
    machine        a key of machines.json
    command        repeats the measurement; prepare, where there is one, comes before it
    peer           name and command of the program beside it, where there is one
    note           what else is known of the run
    labels         words for columns that are no measurement
    measures       by metric: value, unit, and where known runs (every repetition), spread ([least, greatest]), peer (the
                   peer's value or [least, greatest]), ratio (as it was recorded, to the peer's), error (standard error) and
                   is: "mean" where the value is the mean of the runs

A table is a list of columns, [title, cell], and of rows: an id, `file/id` for a result of another file, or [id, name] to call it
otherwise (readme.json has the table of the README). A cell is a format string over a row: `{name}`, `{date}`,
`{label}`, `{metric}` (the value), `{metric.runs}`, `{metric.run[0]}`, `{metric.spread}`, `{metric.range}` (the spread, else the
value), `{metric.peer}`, `{metric.ratio}`, `{metric.middle}` (the middle one of several runs, of two the lower),
`{metric.plus_minus}` (with its error), `{metric.signed}`. Of `one || another` the first is taken that a row has everything for; a
cell is empty where there is none. A title that ends with `>` is aligned to the right.

Numbers are decimal and are printed with the digits that they have in the results.
"""

import argparse
import json
import re
import sys
import textwrap
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
MOST_LINES = 150
MARKED = re.compile(r"(<!-- (table|commands): ([\w-]+)/([\w-]+) -->\n)(?:(?!<!-- ).)*(<!-- end -->)", re.S)
MARKER = re.compile(r"^<!-- (?:table|commands|end)\b", re.M)


class Missing(Exception):
    """A cell asks for what its row does not have."""


def is_number(value):
    return isinstance(value, (int, Decimal)) and not isinstance(value, bool)


def digits(value):
    if isinstance(value, str):
        return value
    return f"{value:,}".replace("-", "−")


def span(pair):
    return digits(pair[0]) if len(pair) == 1 or pair[0] == pair[1] else f"{digits(pair[0])}–{digits(pair[1])}"


class Measure:
    """What a cell may ask of one metric of a row."""

    def __init__(self, of):
        self.of = of

    def __str__(self):
        return digits(self.of["value"])

    def __format__(self, spec):
        return str(self)

    def wanted(self, key):
        if self.of.get(key) is None:
            raise Missing(key)
        return self.of[key]

    @property
    def run(self):
        return [digits(one) for one in self.wanted("runs")]

    @property
    def runs(self):
        return "; ".join(self.run) if "runs" in self.of else str(self)

    @property
    def spread(self):
        return span(self.wanted("spread"))

    @property
    def range(self):
        return span(self.of["spread"]) if "spread" in self.of else str(self)

    @property
    def plus_minus(self):
        return f"{self} ± {digits(self.of['error'])}" if "error" in self.of else str(self)

    @property
    def peer(self):
        peer = self.wanted("peer")
        return span(peer) if isinstance(peer, list) else digits(peer)

    @property
    def ratio(self):
        if "ratio" in self.of:
            return digits(self.of["ratio"])
        return str((Decimal(self.of["value"]) / Decimal(self.wanted("peer"))).quantize(Decimal("0.01"), ROUND_HALF_UP))

    @property
    def middle(self):
        runs = sorted(self.of.get("runs", [self.of["value"]]))
        return digits(runs[(len(runs) - 1) // 2])

    @property
    def signed(self):
        return f"{self.of['value']:+,}".replace("-", "−")


class Row(dict):
    def __missing__(self, key):
        raise Missing(key)


def row_of(result):
    fields = {key: result[key] for key in ("name", "date") if key in result}
    fields.update(result.get("labels", {}))
    fields.update({metric: Measure(of) for metric, of in result["measures"].items()})
    return Row(fields)


def cell(template, result):
    for alternative in template.split(" || "):
        try:
            text = alternative.format_map(row_of(result))
        except (Missing, IndexError):
            continue
        return f"**{text}**" if result.get("bold") and text else text
    return ""


def place_of(file, row):
    """The file and the id that a row of a table of `file` names."""
    one = row[0] if isinstance(row, list) else row
    return tuple(one.split("/", 1)) if "/" in one else (file, one)


def result_of(files, file, row):
    file, id_ = place_of(file, row)
    result = next(result for result in files[file]["results"] if result["id"] == id_)
    return {**result, "name": row[1]} if isinstance(row, list) else result


def table(files, file, name):
    columns, rows = files[file]["tables"][name]["columns"], files[file]["tables"][name]["rows"]
    results = [result_of(files, file, row) for row in rows]
    filled = [[cell(template, result) for _, template in columns] for result in results]
    for number, (title, template) in enumerate(columns):
        if not any(row[number] for row in filled):
            raise ValueError(f"table {name}: no row has anything for the column '{title}' ({template})")
    lines = ["| " + " | ".join(title.rstrip(">").strip() for title, _ in columns) + " |"]
    lines.append("| " + " | ".join("---:" if title.endswith(">") else "---" for title, _ in columns) + " |")
    lines += ["| " + " | ".join(row) + " |" for row in filled]
    return "\n".join(re.sub(r"\|  (?=\|)", "| ", line) for line in lines) + "\n"


def wrapped(command):
    """The command in lines that end between a flag's value and the next flag."""
    glued = re.sub(r" (?!--)", "\0", command)
    parts = textwrap.wrap(glued, 126, break_long_words=False, break_on_hyphens=False)
    return " \\\n  ".join(parts).replace("\0", " ")


def commands(files, file, name):
    result = result_of(files, file, name)
    lines = [result.get("prepare"), result["command"], result.get("peer", {}).get("command")]
    lines = [wrapped(line) for line in dict.fromkeys(lines) if line]
    return "```sh\n" + "\n".join(lines) + "\n```\n"


def incomplete(name, files, machines):
    """What a file of results lacks."""
    data, seen = files[name], set()
    shown = {place_of(name, row) for one in data["tables"].values() for row in one["rows"]}
    for result in data["results"]:
        place = f"results/{name}.json: {result.get('id', '?')}"
        for key in ("id", "name", "command", "machine", "date"):
            if not result.get(key):
                yield f"{place}: no {key}"
        if "commit" not in result:
            yield f"{place}: no commit (null where it is not known)"
        if not re.fullmatch(r"\d{4}-\d\d-\d\d", result.get("date", "")):
            yield f"{place}: the date is not YYYY-MM-DD"
        if result.get("machine") not in machines:
            yield f"{place}: machine '{result.get('machine')}' is not in machines.json"
        if result.get("id") in seen:
            yield f"{place}: the id stands twice"
        seen.add(result.get("id"))
        if (name, result.get("id")) not in shown:
            yield f"{place}: no table shows it"
        if not result.get("measures"):
            yield f"{place}: measures nothing"
        for metric, of in result.get("measures", {}).items():
            if not is_number(of.get("value")) or not isinstance(of.get("unit"), str):
                yield f"{place}: {metric} has no value or no unit"
                continue
            if of["value"] not in of.get("runs", [of["value"]]) and of.get("is") != "mean":
                yield f"{place}: the value of {metric} is none of its runs"
            if "peer" in of and not result.get("peer", {}).get("command"):
                yield f"{place}: {metric} has a peer's value and the result no peer's command"
            if "peer" in of and "ratio" in of:
                peers = of["peer"] if isinstance(of["peer"], list) else [of["peer"]]
                runs = of.get("runs", [of["value"]])
                least, most = Decimal(min(runs)) / Decimal(max(peers)), Decimal(max(runs)) / Decimal(min(peers))
                if not least - Decimal("0.006") <= of["ratio"] <= most + Decimal("0.006"):
                    yield f"{place}: the ratio of {metric} is not of its values"
    for table_name, one in data["tables"].items():
        for row in one["rows"]:
            file, id_ = place_of(name, row)
            if not any(result.get("id") == id_ for result in files.get(file, {"results": []})["results"]):
                yield f"results/{name}.json: table {table_name}: no result '{file}/{id_}'"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail where something is not as it should be")
    check = parser.parse_args().check
    read = lambda path: json.loads(path.read_text(encoding="utf-8"), parse_float=Decimal)
    files = {path.stem: read(path) for path in sorted((HERE / "results").glob("*.json"))}
    machines = files.pop("machines")
    faults = [fault for name in files for fault in incomplete(name, files, machines)]
    if faults:
        sys.exit("\n".join(faults))

    used, stale = set(), []
    for page in sorted(HERE.glob("*.md")) + [ROOT / "README.md"]:
        def filled(found):
            opening, kind, name, what, ending = found.groups()
            used.add((kind, name, what))
            there = files.get(name, {"tables": {}, "results": []})
            if what not in (there["tables"] if kind == "table" else [result["id"] for result in there["results"]]):
                faults.append(f"{page.relative_to(ROOT)}: results/ has nothing for '{kind}: {name}/{what}'")
                return found.group()
            return opening + (table if kind == "table" else commands)(files, name, what) + ending

        before = page.read_text(encoding="utf-8")
        after = MARKED.sub(filled, before)
        where = page.relative_to(ROOT)
        if len(MARKER.findall(after)) != 2 * len(MARKED.findall(after)):
            faults.append(f"{where}: a marker has no partner")
        if page.parent == HERE and len(after.splitlines()) > MOST_LINES:
            faults.append(f"{where}: {len(after.splitlines())} lines, at most {MOST_LINES}")
        if after != before:
            stale.append(str(where))
            if not check:
                page.write_text(after, encoding="utf-8")
    for name, data in files.items():
        for what in data["tables"]:
            if ("table", name, what) not in used:
                faults.append(f"results/{name}.json: no page has the table {what}")
    if check and stale:
        faults.append(f"not what the results give: {', '.join(stale)}; python3 docs/performance/build.py writes them")
    if faults:
        sys.exit("\n".join(faults))
    if not check:
        print(f"written: {', '.join(stale)}" if stale else "nothing to write")


if __name__ == "__main__":
    main()
