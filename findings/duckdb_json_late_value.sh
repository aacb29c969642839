#!/usr/bin/env bash
# DuckDB 2.0.1 reads a JSON value as null, without an error, where the rows that it samples have null for that key.
#
# After 20,480 rows with a null the column has the type "NULL", in which every later text is null. The same column with
# sample_size = -1, or with its type in `columns`, has the text.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q duckdb==2.0.1
cd "$folder"
venv/bin/python - <<'END'
import json

import duckdb

with open("rows.jsonl", "w") as file:
    for number in range(40_960):
        print(json.dumps({"number": number, "note": None}), file=file)
    print(json.dumps({"number": -1, "note": "late"}), file=file)


def last(options: str = "") -> tuple[object, ...]:
    query = f"select note, typeof(note) from read_json('rows.jsonl'{options}) where number = -1"
    return duckdb.sql(query).fetchall()[0]


print(last())
assert last() == (None, '"NULL"')
assert last(", sample_size = -1") == ("late", "VARCHAR")
assert last(", columns = {number: 'bigint', note: 'varchar'}") == ("late", "VARCHAR")
END
