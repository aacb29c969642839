#!/usr/bin/env bash
# With an escape character, pyarrow 26.0.1 reads MySQL's null as the text "N".
#
# MySQL and PostgreSQL write a null as \N without quotes, and \\N for the text \N. To read their \" or \, one gives
# pyarrow's CSV reader escape_char="\\". It then takes the backslash away before it compares a field with null_values, so
# neither "\\N" nor "\N" there can match: the null becomes N, and null_values=["N"] makes a text that is N null, too.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q pyarrow==26.0.1
cd "$folder"
venv/bin/python - <<'END'
import io

import pyarrow.csv as csv

data = b'id,text\n1,\\N\n2,N\n3,"a\\"b"\n4,\\\\N\n'


def read(nulls: list[str], **parse: str) -> list[str | None]:
    convert = csv.ConvertOptions(null_values=nulls, strings_can_be_null=True)
    return csv.read_csv(io.BytesIO(data), parse_options=csv.ParseOptions(**parse), convert_options=convert)["text"].to_pylist()


escaped = read(["\\N"], escape_char="\\")
print(f"null_values=['\\\\N'], escape_char: {escaped}")
assert escaped == ["N", "N", 'a"b', None]  # the null is a text, and the text \N is null
assert read(["N"], escape_char="\\") == [None, None, 'a"b', "\\N"]
END
