#!/usr/bin/env bash
# In pyarrow 23.0.1, if_else with a null scalar returns wrong bytes for strings whose offsets do not begin at 0.
#
# An array of strings may point into the middle of a larger buffer: its first offset is then above 0. The format allows
# this, and a slice that came through the C data interface or a cast can look so. if_else(condition, null, strings)
# copies the strings to the wrong place. The result has the right length and no error, but not the right values.
# pyarrow 24.0.0 returns the strings.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/replace.py" <<'END'
import pyarrow as pa
import pyarrow.compute as pc

words = pa.array([f"word {i:03d}" for i in range(90)])
_, offsets, data = words.buffers()
last_50 = pa.StringArray.from_buffers(50, offsets.slice(40 * 4, 51 * 4), data)
last_50.validate(full=True)
assert last_50.equals(words[40:])
with_nulls = pc.if_else(pa.array([False] * 50), pa.scalar(None, pa.string()), last_50)
is_right = with_nulls.cast(pa.binary()).equals(words[40:].cast(pa.binary()))
print(f"pyarrow {pa.__version__}: {'the strings' if is_right else 'other bytes'}")
END
for case in "23.0.1:other bytes" "24.0.0:the strings"; do
  version=${case%%:*}
  python3 -m venv "$folder/$version"
  "$folder/$version/bin/pip" install -q "pyarrow==$version"
  printed=$("$folder/$version/bin/python" "$folder/replace.py")
  echo "$printed"
  [ "$printed" = "pyarrow $version: ${case#*:}" ]
done
