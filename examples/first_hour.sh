#!/usr/bin/env bash
# The first hour with Broadsheet: from files as they are to labels where you want them.
#
#   examples/first_hour.sh [FOLDER]      # a new folder to work in; by default one that is removed at the end
#
# Each step says what it does, and checks what came of it; the script ends with an error at the first surprise.
set -euo pipefail
export COLUMNS=80

work=${1:-$(mktemp -d)}
[ -n "${1:-}" ] || trap 'rm -rf "$work"' EXIT
mkdir -p "$work"
cd "$work"
work=$PWD  # the column `file` has absolute paths

steps=0
step() { steps=$((steps + 1)); printf '%2d  %s\n' "$steps" "$*"; }
fail() { echo "first_hour: step $steps: $*" >&2; [ ! -f said.txt ] || cat said.txt >&2; exit 1; }
says() { grep -qF -e "$1" said.txt || fail "it does not say: $1"; }
# run CODE COMMAND…: runs the command, whose exit code must be CODE, and writes its output to said.txt
run() {
  local expected=$1 code=0
  shift
  "$@" > said.txt 2>&1 || code=$?
  [ "$code" -eq "$expected" ] || fail "exit code $code, not $expected: $*"
}

step "Broadsheet is installed, as a command and as a package"
run 0 broadsheet --version
says "broadsheet "
head -n 1 said.txt > version.txt
run 0 python -c 'import broadsheet; print("broadsheet", broadsheet.__version__)'
cmp -s said.txt version.txt || fail "the package is not of the command's version"

step "Files as they are: a CSV from a spreadsheet (semicolons, latin-1), JSON Lines with a bad line, a log"
python - << 'PYTHON'
import csv, json

TEXTS = [
    ("Markets", "Stocks fell on Monday as oil prices rose and the café chain's shares lost a tenth of their value."),
    ("Cup final", "The striker scored twice in the final minutes and the home team won the cup for the third time."),
    ("Processors", "The software company released a new operating system for servers with faster processors."),
    ("Summit", "The president met foreign ministers in the capital to talk about the peace treaty after the war."),
]
rows = [(f"n{i:03}", f"2024-05-{i % 28 + 1:02}", *TEXTS[i % 4]) for i in range(40)]
with open("news.csv", "w", encoding="latin-1", newline="") as file:
    writer = csv.writer(file, delimiter=";")
    writer.writerow(["id", "published", "title", "body"])
    writer.writerows(rows)
with open("news.jsonl", "w") as file:
    for i, (key, day, title, body) in enumerate(rows):
        file.write("{cut off\n" if i == 5 else json.dumps({"id": key, "published": day, "text": f"{title}. {body}"}) + "\n")
with open("news.log", "w") as file:
    file.writelines(f"{title}. {body}\n" for _, _, title, body in rows[:8])
PYTHON

step "What is wrong with a command is one message, before any work"
run 2 broadsheet classify news.csv -o labels --encoding latin-1 --text-column title --text-column body
says "--delimiter"
run 2 broadsheet classify news.jsonl -o labels --text-column body
says "no column 'body'"
run 2 broadsheet classify news.jsonl -o https://host/labels
[ ! -e labels ] && [ ! -e https: ] || fail "something was written"

spreadsheet=(news.csv --encoding latin-1 --delimiter ';' --text-column title --text-column body)

step "What a job would take, from a sample: nothing is written"
run 0 broadsheet classify "${spreadsheet[@]}" -o labels --dry-run
says "rows  40"
says "hours"
[ ! -e labels ] || fail "a dry run wrote something"

step "Labels into a folder, with columns copied from the input"
run 0 broadsheet classify "${spreadsheet[@]}" -o labels --id-column id --keep published
says "40 read = 40 labelled"
[ -f labels/_SUCCESS ] || fail "no _SUCCESS"
run 0 broadsheet verify labels
says "whole"

step "They are joined to the rows they come from, in pandas and in DuckDB"
run 0 python - << 'PYTHON'
import os
import duckdb, pandas as pd

rows = pd.read_csv("news.csv", sep=";", encoding="latin-1").rename_axis("row").reset_index()
rows["file"] = os.path.abspath("news.csv")
joined = rows.merge(pd.read_parquet("labels"), on=["file", "row"], validate="one_to_one", suffixes=("", "_copied"))
assert len(joined) == 40 and (joined["id"] == joined["id_copied"]).all()
assert (joined["published"] == joined["published_copied"].astype(str)).all()
print(joined[["title", "label", "score"]].head(4).to_string())
assert joined["label"][:4].tolist() == ["Business", "Sports", "Sci/Tech", "World"]
found = duckdb.sql("select r.id, l.label from rows r join 'labels/**/*.parquet' l using (file, row) order by r.row").fetchall()
assert found == list(zip(joined["id"], joined["label"]))
PYTHON

step "Only the rows that you want, as JSON Lines in a folder for each label; the bad line is in quarantine"
run 0 broadsheet classify news.jsonl -o chosen --keep id --format jsonl --partition-by label \
  --where 'label == "Sports" and score >= 0.5' --json
python - << 'PYTHON'
import json
from pathlib import Path

report = json.loads(Path("said.txt").read_text().splitlines()[-1])
assert report["rows_read"] == 40 == report["rows_written"] + report["rows_filtered"] + report["rows_quarantined"], report
assert [folder.name for folder in Path("chosen/parts").iterdir()] == ["label=Sports"]
rows = [json.loads(line) for part in Path("chosen/parts").rglob("*.jsonl") for line in part.open()]
assert len(rows) == report["rows_written"] > 0 and all(row["score"] >= 0.5 for row in rows)
(bad,) = [json.loads(line) for file in Path("chosen/_quarantine").iterdir() for line in file.open()]
assert (bad["row"], bad["head"]) == (5, "{cut off"), bad
PYTHON

step "The first rows only, as CSV"
run 0 broadsheet classify news.jsonl -o first --limit 10 --format csv --keep-all
cat first/parts/*.csv > first.csv
[ "$(wc -l < first.csv)" -eq 10 ] || fail "not a header and 9 rows"
grep -q '"n000"' first.csv || fail "no copied column"

step "In a pipe: a line in, a label out; a bad line keeps its place"
broadsheet classify - -o - --keep text --quiet < news.log > labels.jsonl
[ "$(wc -l < labels.jsonl)" -eq 8 ] || fail "not a label a line"
head -2 labels.jsonl | tail -1 | grep -q '"label":"Sports"' || fail "the second line is about sports"
broadsheet classify - -o - --stdin-format jsonl --id-column id --format csv --quiet < news.jsonl > labels.csv
[ "$(wc -l < labels.csv)" -eq 41 ] || fail "not a header and a label for each line"
grep -q 'stdin",5,.*not JSON' labels.csv || fail "the bad line has no reason"
first=$(yes "Stocks fell on Monday." | broadsheet classify - -o - | head -1 || true)  # head closes the pipe
[[ $first == '{"file":"stdin","row":0,'* ]] || fail "head -1 gets no label"

step "From Python: a frame with nulls keeps its rows and its index; a classifier that you hold"
run 0 python - << 'PYTHON'
import pandas as pd
import broadsheet

frame = pd.DataFrame(
    {"text": ["Stocks fell on Monday as oil prices rose.", None, "The home team won the cup final."]}, index=[7, 3, 5]
)
labelled = broadsheet.label(frame)
assert labelled.index.tolist() == [7, 3, 5]
assert labelled["text"].equals(frame["text"])
assert labelled["label"].isna().tolist() == [False, True, False]
assert labelled.loc[3, "reason"] == "the text is null"
report = broadsheet.classify(frame)
assert report.join(frame)["label"].equals(labelled["label"])
with broadsheet.load("ag-news") as classifier:
    assert classifier("The home team won the cup final.").label == labelled.loc[5, "label"] == "Sports"
    assert classifier.predict(["Stocks fell on Monday as oil prices rose."]) == [labelled.loc[7, "label"]]
assert broadsheet.dry_run("news.jsonl").rows == 40
print(labelled)
PYTHON

step "Damage is found, and repaired"
part=$(find labels/parts -name '*.parquet' | head -1)
cp "$part" before
printf 'XY' | dd of="$part" bs=1 seek=100 conv=notrunc status=none
run 1 broadsheet verify labels
says "--resume"
run 0 broadsheet classify "${spreadsheet[@]}" -o labels --id-column id --keep published --resume
run 0 broadsheet verify labels
cmp -s "$part" before || fail "the part is not what it was"

echo "all $steps steps went as they should"
