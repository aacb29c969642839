"""Odd labelled rows are counted and shown before a model is trained."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pytest
from conftest import CommandHere

from broadsheet.pipeline.errors import UsageError
from broadsheet.pipeline.evaluation.evaluate import evaluate
from broadsheet.pipeline.evaluation.fitting import calibrate
from broadsheet.pipeline.source.rows.labels import one_letter_off
from broadsheet.pipeline.train import Odd, odd_rows, train

COLUMNS = {"text_column": "text", "label_column": "kind"}
HOW = {"device": "cpu", "ngrams": 1 << 12, "vectors": None, "length": 123}


def rows(count: int = 60) -> list[tuple[str | None, str | None]]:
    """Return texts of two classes, of which no two are alike."""
    return [
        (f"{'match goal team' if i % 2 else 'bank oil stock'} {i}", ("Money", "Sports")[i % 2]) for i in range(count)
    ]


def table(of: list[tuple[str | None, str | None]]) -> pa.Table:
    texts, kinds = zip(*of, strict=True)
    return pa.table({"text": pa.array(texts, pa.string()), "kind": pa.array(kinds, pa.string())})


DIRTY = [
    *rows(),
    ("no label", None), ("blank label", "  "), ("", "Sports"), (" \n", "Money"),
    ("a late goal", "sports "), ("another goal", "Ｓports"), ("a header", "Sprots"), ("a penalty", "Sport"),
    ("oil 0", "Sports"), ("oil 0", "Money"),
    ("the moon", "Space"),
]  # fmt: skip


def by_kind(found: tuple[Odd, ...]) -> dict[str, Odd]:
    return {odd.what: odd for odd in found}


def test_everything_odd_is_counted_with_what_helps() -> None:
    found = by_kind(odd_rows(table(DIRTY), **COLUMNS))
    assert [*found] == [
        "no label", "blank text", "spellings of one class", "one letter apart", "same text, different labels",
        "fewer than 20 rows of a class",
    ]  # fmt: skip
    assert [found[what].rows for what in ("no label", "blank text")] == [2, 2]
    alike = found["spellings of one class"]
    assert alike.which == "'Sports' 31, 'sports ' 1, 'Ｓports' 1"
    assert alike.remedy.startswith("--fold-labels")
    near = found["one letter apart"]
    assert near.which == "'Sports' 31, 'Sport' 1, 'Sprots' 1"
    assert "--map-labels" in near.remedy
    assert (found["same text, different labels"].rows, found["same text, different labels"].which) == (2, "'oil 0'")
    assert found["fewer than 20 rows of a class"].which == "'Space' 1"  # and none of the other spellings
    assert not any("--balanced" in odd.remedy for odd in found.values())


def test_folded_and_mapped_labels_are_one_class(tmp_path: Path) -> None:
    (tmp_path / "map.csv").write_text("label,class\nSprots,Sports\nSport,Sports\nSpace,\n")
    options = {**COLUMNS, "fold_labels": True, "map_labels": tmp_path / "map.csv"}
    assert [*by_kind(odd_rows(table(DIRTY), **options))] == ["no label", "blank text", "same text, different labels"]
    assert by_kind(odd_rows(table(DIRTY), **options))["no label"].which.endswith("or without a class in --map-labels")
    made = train(table(DIRTY), **options, **HOW).model
    assert made.classes == ("Money", "Sports")
    data = made.card["data"]
    assert (data["rows"], data["rows_without_label"], data["rows_without_text"]) == (len(DIRTY) - 5, 3, 2)
    assert data["rows_by_class"] == {"Money": 31, "Sports": 35}
    judged = {**COLUMNS, "fold_labels": True}
    assert evaluate(made, table(DIRTY), **judged).unknown_labels == {"Space": 1, "Sport": 1, "Sprots": 1}
    mapped = evaluate(made, table(DIRTY), **judged, map_labels=tmp_path / "map.csv")
    assert (mapped.unknown_labels, mapped.unmatched_labels) == ({}, ())


def test_entries_of_a_label_map_that_no_row_has_are_reported(broadsheet_here: CommandHere, tmp_path: Path) -> None:
    every, several = tmp_path / "map.csv", [table(rows()), table([(f"{text} again", kind) for text, kind in rows()])]
    every.write_text("label,class\nmoney,Money\nMony,Money\nSprots,Sports\n")
    found = by_kind(odd_rows(several[0], **COLUMNS, map_labels=every))
    assert found["labels of --map-labels without rows"].which == "'money', 'Mony', 'Sprots'"
    made = train(table(rows()), **COLUMNS, **HOW).model
    made.save(tmp_path / "model.safetensors")
    given = pa.table({"text": several[1]["text"], "kind": ["money" if k == "Money" else k for _, k in rows()]})
    assert evaluate(made, given, **COLUMNS, map_labels=every).unmatched_labels == ("Mony", "Sprots")
    pa_csv.write_csv(given, tmp_path / "rows.csv")
    of_rows = [tmp_path / "rows.csv", "--label-column", "kind", "--map-labels", every]
    for command, more in (("evaluate", []), ("classify", ["-o", tmp_path / "out"])):
        model = (
            [tmp_path / "model.safetensors"] if command == "evaluate" else ["--model", tmp_path / "model.safetensors"]
        )
        code, shown = broadsheet_here(command, *model, *of_rows, *more)
        assert (code, "no row has 2 labels of --map-labels: 'Mony', 'Sprots'" in " ".join(shown.split())) == (0, True)


def test_all_rare_classes_are_listed() -> None:
    rare = [(f"text {i} {j}", f"kind {chr(97 + i)}{chr(110 + i)}") for i in range(9) for j in range(i + 1)]
    frequent = [(f"bank oil {i}", "Money") for i in range(3000)] + [(f"match {i}", "Sports") for i in range(25)]
    found = by_kind(odd_rows(table([*rare, *frequent]), **COLUMNS))
    few = found["fewer than 20 rows of a class"]
    assert (few.rows, few.which.count("kind ")) == (45, 9)
    seldom = found["rare classes, which are seldom given"]
    assert (seldom.rows, seldom.which) == (25, "'Sports' 25")
    assert "--balanced" in seldom.remedy
    assert "rare classes, which are seldom given" not in by_kind(
        odd_rows(table([*rare, *frequent]), **COLUMNS, balanced=True)
    )


def test_names_that_differ_on_purpose_are_no_typos() -> None:
    assert one_letter_off({"class 1": 100, "class 2": 5, "cat": 100, "car": 3, "email": 50, "emails": 40}) == []
    assert one_letter_off({"Business": 90, "Busines": 2, "Bussiness": 3, "business1": 2, "Buisness": 1}) == [
        ["Business", "Bussiness", "Busines", "Buisness"]
    ]


def test_a_dry_run_prints_the_table_alone_and_writes_nothing(broadsheet_here: CommandHere, tmp_path: Path) -> None:
    pa_csv.write_csv(table(DIRTY), tmp_path / "rows.csv")
    code, shown = broadsheet_here("train", tmp_path / "rows.csv", "--label-column", "kind", "--dry-run")
    assert code == 0, shown
    plain = " ".join(shown.split())
    assert plain.startswith("what is odd")
    assert "--fold-labels" in plain
    assert "each row by a model" not in plain
    example = shown.rstrip().splitlines()[-3:]
    assert [line.strip() for line in example] == ["label,class", "Sport,Sports", "Space,"]
    (tmp_path / "map.csv").write_text("\n".join(line.strip() for line in example))
    of_map = ("--map-labels", tmp_path / "map.csv", "--dry-run")
    code, shown = broadsheet_here("train", tmp_path / "rows.csv", "--label-column", "kind", *of_map)
    assert (code, "Space" in shown, "Sport'" in shown, "Sprots" in shown) == (0, False, False, True)
    (tmp_path / "map.csv").unlink()
    assert [file.name for file in tmp_path.iterdir()] == ["rows.csv"]
    code, shown = broadsheet_here("train", tmp_path / "rows.csv", "--label-column", "kind")
    assert (code, "-o MODEL.safetensors" in shown) == (2, True)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("from,to\na,b\n", "no column 'label'"),
        ("label,class\na,b\na,c\n", "'a' stands for 'b', and in line 3 for 'c'"),
        ("label,class\n,c\n", "line 2 names no label"),
        (b"label,class\n\xff,c\n", "cannot be read"),
    ],
)
def test_a_map_that_cannot_be_meant_is_refused(tmp_path: Path, content: str | bytes, message: str) -> None:
    (tmp_path / "map.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UsageError, match=message):
        odd_rows(table(rows()), **COLUMNS, map_labels=tmp_path / "map.csv")


def test_columns_and_numbers_without_values_are_left_out_too() -> None:
    both = pa.table({
        "text": [f"text {i}" for i in range(40)],
        "kind": [None, None, *["a", "b"] * 19],
        "tone": [None, "x", *["x", "y"] * 19],
        "number": pa.array([None, float("nan"), *range(38)], pa.float64()),
    })  # fmt: skip
    heads = by_kind(odd_rows(both, text_column="text", label_column=["kind", "tone"]))
    assert heads["no label"].rows == 1
    assert by_kind(odd_rows(both, text_column="text", target_column="number"))["no number"].rows == 2


def test_the_rows_that_were_held_out_are_found_among_odd_ones() -> None:
    """`calibrate` leaves out the rows that `train` left out, so both take the same rows."""
    rng = np.random.default_rng(0)
    clean = [(f"{text} {i}", kind if rng.random() < 0.9 else "Money") for i, (text, kind) in enumerate(rows(600))]
    odd = table([*clean[:300], (None, "Money"), (" ", "Sports"), ("no label", None), *clean[300:]])
    made = train(odd, **COLUMNS, **HOW, hold_out_share=0.3).model
    about = calibrate(made, odd, **COLUMNS, held_out=0.3).card["temperature fitted on"]
    assert about["rows"] == made.card["data"]["held_out_rows"]
    assert not [name for name in about if "left out" in name and "learned" in name]
