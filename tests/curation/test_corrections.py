"""Decisions that a person made in a file: `train --corrections` learns them instead of the labels."""

from __future__ import annotations

import csv
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pa_csv
import pytest
from conftest import Command
from training import LENGTH, articles

from broadsheet.pipeline.errors import UsageError
from broadsheet.pipeline.evaluation.decisions import LEAVE_OUT, key_of
from broadsheet.pipeline.train import Note, Trained, train


def corrected(table: pa.Table, file: Path, told: list[object] | None = None, **options: object) -> Trained:
    options = {"device": "cpu", "length": LENGTH, "ngrams": 1 << 12, "vectors": None, **options}
    tell = (lambda one: None) if told is None else told.append
    return train(table, text_column="text", label_column="kind", corrections=file, tell=tell, **options)


def decided(file: Path, rows: list[dict[str, str]], delimiter: str = ",") -> Path:
    with file.open("w", newline="", encoding="utf-8-sig") as out:
        writer = csv.DictWriter(out, [*rows[0]], delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)
    return file


def test_the_whole_loop_from_suspects_to_a_model_without_their_errors(
    broadsheet_in_process: Command, tmp_path: Path
) -> None:
    """The next training reads the file of suspects with its decisions filled in."""
    right = articles(150)
    kinds, wrong = right["kind"].to_pylist(), [3, 50, 77, 149]
    given = [{"sport": "space"}.get(kind, "sport") if i in wrong else kind for i, kind in enumerate(kinds)]
    rows, found, model = tmp_path / "rows.csv", tmp_path / "suspects.csv", tmp_path / "m.safetensors"
    pa_csv.write_csv(right.set_column(right.column_names.index("kind"), "kind", pa.array(given)), rows)
    command = ["train", str(rows), "--text-column", "text", "--label-column", "kind", "-o", str(model), "--overwrite"]
    command += ["--device", "cpu", "--vectors", "none", "--ngrams", str(1 << 12), "--suspects"]
    assert broadsheet_in_process(*command, str(found)).returncode == 0
    suspects = list(csv.DictReader(found.open()))
    for row in suspects:
        row["decision"] = kinds[int(row["row"])] if row is not suspects[0] else LEAVE_OUT
    again = tmp_path / "again.csv"
    made = broadsheet_in_process(*command, str(again), "--corrections", str(decided(found, suspects)))
    assert made.returncode == 0, made.stderr
    changed = sum(row["decision"] not in (row["truth"], LEAVE_OUT) for row in suspects)
    assert f"{changed} rows with another label, {len(suspects) - changed - 1} confirmed, 1 left out" in made.stderr
    assert not {row["text_key"] for row in csv.DictReader(again.open())} & {row["text_key"] for row in suspects}


def test_a_decision_counts_for_every_row_with_its_text_and_new_texts_are_added(tmp_path: Path) -> None:
    table = pa.concat_tables([articles(60), articles(60)])  # each text occurs twice
    texts, kinds = table["text"].to_pylist(), table["kind"].to_pylist()
    other = next(name for name in ("sport", "space") if name != kinds[0])
    rows = [
        {"text_key": key_of(texts[0]), "decision": other, "text": ""},
        {"text_key": "", "decision": kinds[1], "text": texts[1]},
        {"text_key": "", "decision": "", "text": texts[2]},
        {"text_key": "", "decision": "money", "text": "a new text about the bank"},
        {"text_key": key_of("nowhere"), "decision": "money", "text": ""},
        {"text_key": "", "decision": LEAVE_OUT, "text": texts[3]},
    ]
    told: list[object] = []
    trained = corrected(table, decided(tmp_path / "c.csv", rows, ";"), told)
    line = next(one.text for one in told if isinstance(one, Note) and "c.csv" in one.text)
    assert line.endswith(
        "2 rows with another label, 2 confirmed, 2 left out, 1 added; 1 decision ignored: no row has the text"
    )
    counts = trained.model.card["data"]["rows_by_class"]
    before = {name: kinds.count(name) for name in counts}
    before[kinds[0]] -= 2
    before[other] += 2
    before[kinds[3]] -= 2
    before["money"] += 1
    assert counts == before


def test_a_class_that_no_row_has_any_more_is_gone(tmp_path: Path) -> None:
    table = articles(60)
    kinds = table["kind"].to_pylist()
    misspelt = table.set_column(1, "kind", pa.array(["sprot", *kinds[1:]]))
    file = decided(tmp_path / "c.csv", [{"decision": "sport", "text": table["text"][0].as_py()}])
    assert corrected(misspelt, file).model.classes == ("money", "space", "sport")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("decision,text\nsprot,a text\n", r"no row has the label 'sprot' \(1\).*Known are money, space, sport"),
        ("label,text\nsport,a text\n", "has the columns label, text: decisions need"),
        ("decision,text_key\nsport,\n", "line 2 has the decision 'sport', but no text"),
        ("", "of an empty file"),
        (None, "no decisions can be read from it"),
        (b"decision,text\nsport,\xff\n", "not UTF-8: save it as CSV UTF-8"),
    ],
)
def test_a_file_that_holds_no_decisions_is_refused(content: str | bytes | None, message: str, tmp_path: Path) -> None:
    file = tmp_path / "c.csv"
    if content is not None:
        file.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(UsageError, match=message):
        corrected(articles(60), file)


def test_corrections_are_for_one_label_a_text(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="corrections are of labels in one column"):
        train(articles(60), text_column="text", label_column=["kind", "more"], corrections=tmp_path / "c.csv")
