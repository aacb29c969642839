#!/usr/bin/env bash
# With `fields`, fastsimdjson 0.8.0 returns the first of two values of one key; without, the last, as Python's json does.
#
# JSON does not forbid an object in which a key occurs twice. `loads` takes the last value, as `json.loads`, PyArrow and
# DuckDB do. `map_many(..., fields=[...])`, which is there to take a few values out of JSON Lines quickly, takes the first.
# With format="lines" it also accepts two objects on a line, and an object that goes over several lines.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q fastsimdjson==0.8.0
"$folder/venv/bin/python" - <<'END'
import json

import fastsimdjson

line = b'{"id": 1, "text": "first", "text": "last"}\n'


def taken(data: bytes) -> list[str]:
    return [values[0] for (values,) in fastsimdjson.map_many(lambda *found: found, data, format="lines", fields=["/text"])]


print(f"json.loads: {json.loads(line)['text']}, loads: {fastsimdjson.loads(line)['text']}, map_many: {taken(line)[0]}")
assert json.loads(line)["text"] == fastsimdjson.loads(line)["text"] == "last"
assert taken(line) == ["first"]
two, over_lines = taken(b'{"text": "a"}{"text": "b"}\n'), taken(b'{"text":\n"c"}\n')
print(f"two objects on a line: {two}, one over two lines: {over_lines}")
assert (two, over_lines) == (["a", "b"], ["c"])
END
