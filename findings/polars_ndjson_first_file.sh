#!/usr/bin/env bash
# infer_schema_length=None of Polars 2.1.0 reads all rows of the first file only, whatever other files hold.
#
# "If set to None, the full data may be scanned": of a pattern that is one file. A column that is null throughout the
# first file has the type Null, and the first value of another file ends the whole read. schema_overrides helps.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q polars==2.1.0
cd "$folder"
venv/bin/python - <<'END'
from pathlib import Path

import polars as pl

Path("a.jsonl").write_text('{"note": null}\n')
Path("b.jsonl").write_text('{"note": "x"}\n')
for read in (pl.read_ndjson, lambda *names, **options: pl.scan_ndjson(*names, **options).collect()):
    try:
        read("*.jsonl", infer_schema_length=None)
    except pl.exceptions.ComputeError as error:
        print(error)
    else:
        raise SystemExit("Polars reads it")
    assert read("*.jsonl", schema_overrides={"note": pl.String})["note"].to_list() == [None, "x"]
assert pl.read_ndjson("b.jsonl")["note"].to_list() == ["x"]
END
