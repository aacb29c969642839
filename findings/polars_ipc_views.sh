#!/usr/bin/env bash
# pyarrow 26.0.1 reads Polars 2.1.0's IPC files, and can then neither filter, take nor sort their rows.
#
# DataFrame.write_ipc stores strings as string_view. pyarrow reads the layout and casts it, but the kernels of filter,
# take and sort have no such type: every call ends with an error, on any table with a text column. The same holds within
# lists and structs. compat_level=CompatLevel.oldest() writes another layout; write_parquet always does.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q pyarrow==26.0.1 polars==2.1.0
cd "$folder"
venv/bin/python - <<'END'
import polars
import pyarrow as pa
import pyarrow.parquet as pq

frame = polars.DataFrame({"text": ["b", "a"], "tags": [["x"], []]})
frame.write_ipc("new.arrow")
frame.write_ipc("old.arrow", compat_level=polars.CompatLevel.oldest())
frame.write_parquet("f.parquet")
table = pa.ipc.open_file("new.arrow").read_all()
print(table.schema.to_string())
assert table.schema.field("text").type == pa.string_view()
assert table.schema.field("tags").type.value_type == pa.string_view()
text, tags, first = table.select(["text"]), table.select(["tags"]), pa.array([True, False])
calls = {
    "take": lambda: text.take([0]),
    "filter": lambda: text.filter(first),
    "sort": lambda: text.sort_by("text"),
    "take of lists": lambda: tags.take([0]),
    "filter of lists": lambda: tags.filter(first),
}
for name, call in calls.items():
    try:
        call()
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        print(f"{name}: {error}")
    else:
        raise SystemExit(f"{name} works")
for other in (pa.ipc.open_file("old.arrow").read_all(), pq.read_table("f.parquet")):
    assert other.take([0])["text"].to_pylist() == ["b"]
END
