"""Writes the fixtures of compressed files, tables and .json files with Python's own modules: other people's writers, our
reader.

Run in this directory: python make_tables.py. Needs pyarrow (26) for parquet. Texts are those of make_parquet.py, every
third with what a table has to quote.
"""

import csv
import gzip
import io
import json

import pyarrow as pa
import pyarrow.parquet as pq


def text(i):
    if i % 7 == 3:
        return None
    if i % 11 == 5:
        return ""
    return f"Row {i}: " + "grüße 世界 " * (i % 13) + "end" + (', "quoted", \'so\'\r\n\n\tand on' if i % 3 == 0 else "")


N = 300
rows = [{"id": i, "text": text(i), "meta": {"text": "inner, [\"]}", "list": [i, None, [{}]]}} for i in range(N)]


def pack(name, data):
    # Two members, as if two files had been joined.
    half = len(data) // 2
    with open(name, "wb") as out:
        for part in (data[:half], data[half:]):
            out.write(gzip.compress(part, 9, mtime=0))


def table(**dialect):
    out = io.StringIO(newline="")
    writer = csv.writer(out, **dialect)
    writer.writerow(["id", "text", "last, of all"])
    for row in rows:
        writer.writerow([row["id"], row["text"], row["text"]])
    return out.getvalue()


pack("lines.jsonl.gz", "".join(json.dumps(row) + "\n" for row in rows).encode())
pack("array.json.gz", json.dumps(rows, ensure_ascii=False, indent=1).encode("utf-8-sig"))
# What data sets call .json is often lines.
pack("objects.json.gz", "".join(json.dumps(row) + "\n" for row in rows).encode())
pack("strings.json.gz", json.dumps([row["text"] for row in rows]).encode())
pack("table.csv.gz", table().encode("utf-8-sig"))
pack("table.tsv.gz", table(delimiter="\t", lineterminator="\n", quoting=csv.QUOTE_ALL).encode())
pack("text.txt.gz", "".join(f"{text(i)}\n\n" for i in range(N)).encode())

column = pa.table({"text": pa.array([text(i) for i in range(N)], pa.string())})
for codec in ("gzip", "brotli", "lz4"):
    # Version 1 has its levels in what is compressed, version 2 before it.
    for version in ("1.0", "2.0"):
        pq.write_table(
            column,
            f"{codec}-{version[0]}.parquet",
            compression=codec,
            row_group_size=200,
            data_page_size=4096,
            write_batch_size=64,
            use_dictionary=version == "2.0",
            data_page_version=version,
            write_statistics=False,
            store_schema=False,
        )
