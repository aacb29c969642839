#!/usr/bin/env bash
# DuckDB 2.0.1 writes NaN and Infinity into JSON files, though JSON has neither.
#
# COPY … TO 'x.json' of floating-point columns writes the bare words NaN and Infinity, also within lists. DuckDB and
# Python's json take them for numbers. Readers that keep to the standard, such as msgspec 0.21.1, refuse the line.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q duckdb==2.0.1 msgspec==0.21.1
cd "$folder"
venv/bin/python - <<'END'
import json

import duckdb
import msgspec

duckdb.sql("COPY (SELECT ['nan'::DOUBLE, 0.5] AS l, 'inf'::DOUBLE AS i) TO 'x.json'")
line = open("x.json").read()
print(line, end="")
assert line == '{"l":[NaN,0.5],"i":Infinity}\n'
assert json.loads(line)["i"] == float("inf")
try:
    msgspec.json.decode(line)
except msgspec.DecodeError as error:
    print(f"msgspec: {error}")
else:
    raise SystemExit("msgspec takes it")
assert duckdb.sql("SELECT i FROM read_json('x.json')").fetchall() == [(float("inf"),)]
END
