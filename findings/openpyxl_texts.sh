#!/usr/bin/env bash
# openpyxl 3.1.5 does not undo the escapes of texts in a workbook, and makes two different texts one.
#
# A workbook writes a character that XML cannot hold as _xHHHH_, and an underscore that would look like the beginning
# of such an escape as _x005F_. XlsxWriter 3.3.1 writes both as Excel does. openpyxl returns "a_x000D_b" for "a", a
# carriage return and "b", and the same for a text that really is "a_x000D_b". It also deletes "x005F_" wherever it
# stands in a shared text: "disk x005F_1" comes back as "disk 1". A workbook that openpyxl itself wrote does not show
# this, since it writes texts into the cells, where it deletes nothing.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q openpyxl==3.1.5 xlsxwriter==3.3.1
cd "$folder"
venv/bin/python - <<'END'
import openpyxl
import xlsxwriter

texts = ["a\rb", "a_x000D_b", "disk x005F_1"]
with xlsxwriter.Workbook("texts.xlsx") as book:
    book.add_worksheet().write_column(0, 0, texts)
for read_only in (False, True):
    rows = openpyxl.load_workbook("texts.xlsx", read_only=read_only).active.values
    read = [text for (text,) in rows]
    print(f"read_only={read_only}: wrote {texts}, read {read}")
    assert read == ["a_x000D_b", "a_x000D_b", "disk 1"]

book = openpyxl.Workbook()
book.active.append(["disk x005F_1"])
book.save("own.xlsx")
assert openpyxl.load_workbook("own.xlsx").active["A1"].value == "disk x005F_1"
END
