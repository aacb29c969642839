#!/usr/bin/env bash
# In pyarrow 25.0.1, the CSV reader overlooks a delimiter that follows a zero byte, in files of many long rows.
#
# After some 16,000 rows the parser chooses a faster way for values that are long on average. It looks at eight bytes at
# a time, and what follows a zero byte among them is not looked at. A delimiter there does not end a field, so the row
# has too few of them, and read_csv fails. The same row is read correctly where fewer rows come before it. pyarrow 26.0.1
# reads it in both places.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/read.py" <<'END'
import io
import pyarrow as pa
import pyarrow.csv as csv

BEFORE = b"a field of several words,and another one that is as long\n"


def fields_after(rows: int) -> str:
    data = BEFORE * rows + b"measured \0,in grams\n"
    options = csv.ReadOptions(autogenerate_column_names=True, use_threads=False, block_size=len(data) + 1)
    try:
        table = csv.read_csv(io.BytesIO(data), options, csv.ParseOptions(newlines_in_values=True))
    except pa.ArrowInvalid:
        return "an error"
    return "two fields" if table.column(1)[-1].as_py() == "in grams" else "another value"


print(f"pyarrow {pa.__version__}: {fields_after(100)}, {fields_after(20_000)}")
END
for case in "25.0.1:two fields, an error" "26.0.1:two fields, two fields"; do
  version=${case%%:*}
  python3 -m venv "$folder/$version"
  "$folder/$version/bin/pip" install -q "pyarrow==$version"
  printed=$("$folder/$version/bin/python" "$folder/read.py")
  echo "$printed"
  [ "$printed" = "pyarrow $version: ${case#*:}" ]
done
