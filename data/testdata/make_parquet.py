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


def messages(i):
    if i % 9 == 4:
        return None if i % 2 else []
    turns = [("user", f"What of {i}? " + "grüße " * (i % 5)), ("assistant", f"It is {i * i} 世界.")] * (1 + i % 3)
    return [{"role": role, "content": said} for role, said in [("system", "Be brief.")][: i % 2] + turns]


roles = pa.list_(pa.struct([("content", pa.string()), ("role", pa.string())]))
table = pa.table({"id": pa.array(range(300), pa.int64()), "messages": pa.array([messages(i) for i in range(300)], roles)})
small = {"row_group_size": 70, "data_page_size": 256, "write_batch_size": 16}
pq.write_table(table, "chats_snappy.parquet", compression="snappy", **small)
pq.write_table(table, "chats_zstd.parquet", compression="zstd", use_dictionary=False, data_page_version="2.0", **small)
for name, column in [("chats_delta_1.parquet", "1.0"), ("chats_delta_2.parquet", "2.0")]:
    encoding = {"messages.list.element.content": "DELTA_BYTE_ARRAY", "messages.list.element.role": "DELTA_LENGTH_BYTE_ARRAY"}
    pq.write_table(table, name, use_dictionary=False, column_encoding=encoding, data_page_version=column, **small)
with open("chats.jsonl", "w", encoding="utf-8") as out:
    for i in range(300):
        if messages(i):
            out.write(json.dumps({"messages": messages(i)}, ensure_ascii=False) + "\n")
# A completion is missing.
pairs = {"prompt": [f"{i} + {i}?" for i in range(20)], "completion": [str(2 * i) if i != 7 else None for i in range(20)]}
pq.write_table(pa.table(pairs), "pairs.parquet")
