#!/usr/bin/env bash
# openpyxl 3.1.5 leaves out rows in its read-only mode if their numbers do not rise, without a word.
#
# Each row of a sheet carries its number. Where a row comes after one with a higher number, or has the same number, the
# default mode returns its cells, and the read-only mode does not. Resetting the sheet's dimensions does not help.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q openpyxl==3.1.5
cd "$folder"
venv/bin/python - <<'END'
import zipfile

import openpyxl

book = openpyxl.Workbook()
for text in ("one", "two", "three"):
    book.active.append([text])
book.save("in_order.xlsx")
with zipfile.ZipFile("in_order.xlsx") as old, zipfile.ZipFile("out_of_order.xlsx", "w") as new:
    for name in old.namelist():
        data = old.read(name)
        if name == "xl/worksheets/sheet1.xml":  # the second row becomes the fifth: it stands before the third
            data = data.replace(b'<row r="2"><c r="A2"', b'<row r="5"><c r="A5"')
        new.writestr(name, data)

sheet = openpyxl.load_workbook("out_of_order.xlsx").active
default = [text for (text,) in sheet.values if text]
sheet = openpyxl.load_workbook("out_of_order.xlsx", read_only=True).active
sheet.reset_dimensions()
read_only = [row[0] for row in sheet.values if row]
print(f"default mode: {default}; read-only mode: {read_only}")
assert default == ["one", "three", "two"]
assert read_only == ["one", "two"]
END
