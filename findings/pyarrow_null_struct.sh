#!/usr/bin/env bash
# pyarrow 26.0.1 makes arrays of structs with dictionaries that its own validation refuses.
#
# pa.array([None], struct<a: dictionary>) has a valid index 0 beneath the null struct, and an empty dictionary.
# validate() accepts it, validate(full=True) does not, and a file or stream keeps it as it is. So a reader that checks
# what it reads refuses a file in which nothing is wrong; the index is null once the struct is flattened.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q pyarrow==26.0.1
cd "$folder"
venv/bin/python - <<'END'
import pyarrow as pa

kind = pa.struct([("a", pa.dictionary(pa.int8(), pa.string()))])
array = pa.array([None], kind)
table = pa.table({"s": array})
with pa.ipc.new_file("s.arrow", table.schema) as to:
    to.write_table(table)
for values in (array, pa.ipc.open_file("s.arrow").read_all()["s"].chunk(0)):
    values.validate()
    try:
        values.validate(full=True)
    except pa.ArrowInvalid as error:
        print(error)
        assert "Value at position 0 out of bounds" in str(error)
    else:
        raise SystemExit("it is valid")
    (child,) = values.flatten()
    child.validate(full=True)
    assert child.to_pylist() == [None]
END
