#!/usr/bin/env bash
# pyarrow writes two equal tables to Parquet files that differ, if the chunks of their columns differ.
#
# A column of an Arrow table is a list of chunks, and two tables with the same values are equal whatever their chunks.
# The Parquet writer looks at the size of a page after each batch of values, and a batch ends where a chunk ends. If a
# column reaches the size of a page within its last batch, one row more in a chunk of its own becomes a page of its own.
# So a file's hash, which people use to tell whether data has changed, depends on how the rows happened to be read.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/compare.py" <<'END'
import hashlib
import io

import pyarrow as pa
import pyarrow.parquet as pq


def digest(table):
    file = io.BytesIO()
    pq.write_table(table, file, use_dictionary=False)
    assert pq.read_table(io.BytesIO(file.getvalue())).equals(table)
    return hashlib.sha256(file.getvalue()).hexdigest()


whole = pa.table({"text": [f"row {number}: {'-' * 168}" for number in range(6008)]})
in_two = pa.concat_tables([whole.slice(0, 6007), whole.slice(6007)])
assert whole.equals(in_two)
same = digest(whole) == digest(in_two)
again = digest(whole) == digest(in_two.combine_chunks())
print(f"pyarrow {pa.__version__}: {'same' if same else 'other'} bytes, combined {'same' if again else 'other'} bytes")
END
for version in 23.0.1 26.0.1; do
  python3 -m venv "$folder/$version"
  "$folder/$version/bin/pip" install -q "pyarrow==$version"
  printed=$("$folder/$version/bin/python" "$folder/compare.py")
  echo "$printed"
  [ "$printed" = "pyarrow $version: other bytes, combined same bytes" ]
done
