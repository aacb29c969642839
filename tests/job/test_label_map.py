"""Jobs whose true labels have other names than the model's classes: a file maps each label to its class."""

from __future__ import annotations

from pathlib import Path

import pytest

from broadsheet.pipeline import UsageError, classify

ROWS = (
    "text,label\nStocks fell on Monday as oil rose,Bizness\nThe team won the cup final,Sprots\n"
    "New phone chip from Intel,n/a\nPresident meets the foreign minister,World\nRates of banks rose,nonsense\n"
)
MAP = "label,class\nBizness,Business\nSprots,Sports\nn/a,\nBusines,Business\n"


@pytest.fixture
def given(tmp_path: Path) -> Path:
    for name, text in (("rows.csv", ROWS), ("map.csv", MAP), ("other.csv", MAP + "Welt,World\n")):
        (tmp_path / name).write_text(text)
    return tmp_path


def test_mapped_labels_are_judged_and_the_rest_is_reported(given: Path) -> None:
    options = {"text_column": "text", "label_column": "label", "map_labels": given / "map.csv", "device": "cpu"}
    report = classify(given / "rows.csv", output=given / "out", model="ag-news", **options)
    assert report.confusion is not None
    assert (report.confusion.rows, report.confusion.without_truth) == (3, 2)
    assert report.tally.unknown_labels == {"nonsense": 1}  # "n/a" is missing here, because the file maps it to nothing
    assert report.tally.mapped_labels == {"Bizness": 1, "Sprots": 1, "n/a": 1}
    assert "no row has 1 label of --map-labels: 'Busines'" in report.hints


def test_a_job_goes_on_with_the_map_that_it_had(given: Path) -> None:
    options = {"text_column": "text", "label_column": "label", "model": "ag-news", "device": "cpu"}
    classify(given / "rows.csv", output=given / "out", map_labels=given / "map.csv", **options)
    for name in ("other.csv", None):
        with pytest.raises(UsageError, match="give the map_labels= that it had, with the same classes"):
            classify(given / "rows.csv", output=given / "out", map_labels=name and given / name, resume=True, **options)
    lines = MAP.splitlines()
    (given / "other.csv").write_text("\n".join([lines[0], *lines[:0:-1]]))  # the same classes in another order
    again = classify(given / "rows.csv", output=given / "out", map_labels=given / "other.csv", resume=True, **options)
    assert again.tally.mapped_labels == {"Bizness": 1, "Sprots": 1, "n/a": 1}


def test_a_map_needs_labels(given: Path) -> None:
    with pytest.raises(UsageError, match="map_labels= go with label_column"):
        classify(given / "rows.csv", output=given / "out", text_column="text", map_labels=given / "map.csv")
