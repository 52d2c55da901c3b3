"""Writes the parquet and zstd fixtures with pyarrow 26 and the zstd command: other people's writers, our reader.

Run in this directory: python make_parquet.py. Row i holds text(i) below; every 7th is null, every 11th empty.
"""

import json
import subprocess

import pyarrow as pa
import pyarrow.parquet as pq


def text(i):
    if i % 7 == 3:
        return None
    if i % 11 == 5:
        return ""
    return f"Row {i}: " + "grüße 世界 " * (i % 13) + "end"


N = 500
table = pa.table(
    {
        "id": pa.array(range(N), pa.int64()),
        "meta": pa.array([{"source": "x"}] * N, pa.struct([("source", pa.string())])),
        "text": pa.array([text(i) for i in range(N)], pa.string()),
    }
)
# Pages of a few rows, two versions of them, dictionary and plain, so that entering at a row skips all of these.
pq.write_table(table, "snappy.parquet", compression="snappy", row_group_size=120, data_page_size=256, write_batch_size=16)
pq.write_table(
    table,
    "zstd.parquet",
    compression="zstd",
    row_group_size=170,
    data_page_size=512,
    write_batch_size=16,
    use_dictionary=False,
    data_page_version="2.0",
    write_page_index=True,
)
pq.write_table(table.drop_columns("text"), "no_text.parquet")
with open("lines.jsonl", "w", encoding="utf-8") as out:
    for i in range(N):
        if text(i) is not None:
            out.write(json.dumps({"id": i, "text": text(i), "meta": {"text": "inner"}}, ensure_ascii=i % 2 == 0) + "\n")
subprocess.run(["zstd", "-q", "-f", "-19", "--rm", "lines.jsonl", "-o", "lines.jsonl.zst"], check=True)
