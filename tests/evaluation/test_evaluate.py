"""broadsheet evaluate: its figures are those of classify, its counts equal counting one by one, and its mistakes are
real mistakes.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pa_csv
import pytest
from conftest import Command, CommandHere, random_model
from distributed import Client

from broadsheet.pipeline.api import classify
from broadsheet.pipeline.errors import UsageError
from broadsheet.pipeline.evaluation.evaluate import evaluate
from broadsheet.pipeline.model.charcnn import Model

ROWS = pa.table(
    {
        "text": [f"article {i} about {'sport ' * (i % 5)}" for i in range(60)],
        "truth": [["class 0", "class 1", "class 2", "no such class"][i % 4] for i in range(60)],
    }
)


def test_the_figures_are_those_of_classify(client: Client, small_model: Model) -> None:
    report = classify(ROWS, model=small_model, client=client, text_column="text", label_column="truth")
    result = evaluate(small_model, ROWS, text_column="text", label_column="truth", mistakes=100)
    assert report.confusion is not None
    assert result.confusion.counts.tolist() == report.confusion.counts.tolist()
    assert result.confusion.without_truth == 15
    labels = report.to_arrow().column("label").to_pylist()
    assert len(result.mistakes) == result.confusion.rows - result.confusion.correct
    assert [m.score for m in result.mistakes] == sorted((m.score for m in result.mistakes), reverse=True)
    for mistake in result.mistakes:
        assert mistake.label == labels[mistake.row] != mistake.truth
        assert mistake.text == ROWS.column("text")[mistake.row].as_py()[:400]
    few = evaluate(small_model, ROWS, text_column="text", label_column="truth", mistakes=3)
    assert few.mistakes == result.mistakes[:3]


def test_the_command(
    broadsheet: Command, broadsheet_in_process: Command, small_model_file: Path, tmp_path: Path
) -> None:
    pa_csv.write_csv(ROWS, tmp_path / "rows.csv")
    arguments = ["evaluate", small_model_file, tmp_path / "rows.csv", "--label-column", "truth"]
    run = broadsheet(*arguments)
    assert run.returncode == 0, run.stderr
    assert "(95% interval " in run.stdout
    assert "precision" in run.stdout
    assert "most confident mistakes" in run.stdout
    found = json.loads(broadsheet_in_process(*arguments, "--json", "--mistakes", 2).stdout)
    assert found["rows"] == 45
    assert found["without_truth"] == 15
    assert math.isclose(found["accuracy"], sum(found["confusion"][i][i] for i in range(4)) / 45)
    low, high = found["accuracy_interval"]
    assert 0 < low < found["accuracy"] < high < 1
    for one in found["classes"]:
        for name in ("precision", "recall"):
            low, high = one[f"{name}_interval"] or (None, None)
            assert low is one[name] is None or low <= one[name] <= high
    assert len(found["mistakes"]) == 2
    assert [c["name"] for c in found["classes"]] == [f"class {i}" for i in range(4)]


# Few enough classes for a matrix, and more than a table lists.
@pytest.mark.parametrize("classes", [6, 100])
def test_what_is_printed_keeps_to_eighty_columns(
    broadsheet_here: CommandHere, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, classes: int
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    names = tuple(f"{'a class with a name of many words ' * (i % 4)}{i}" for i in range(classes))
    card = {"a key of the card that is as long as some people write them": "words " * 60, "nested": {"x": [0] * 99}}
    path = tmp_path / f"{'long_' * 15}.safetensors"
    replace(random_model(1, length=123, classes=classes), classes=names, card=card).save(path)
    rows = pa.table({"text": [f"{i} {'word ' * 40}" for i in range(30)], "truth": [names[i % 6] for i in range(30)]})
    pa_csv.write_csv(rows, tmp_path / "rows.csv")
    for arguments in (["inspect", path], ["evaluate", path, tmp_path / "rows.csv", "--label-column", "truth"]):
        code, said = broadsheet_here(*arguments)
        assert code == 0, said
        assert [line for line in said.splitlines() if len(line) > 80 and str(tmp_path) not in line] == []
    assert ("80 more" in said) == ("most frequent mistakes" in said) == (classes == 100)
    # The numbers refer to the matrix above.
    assert ("(6) a class with a name of" in " ".join(said.split())) == (classes == 6)


def test_the_matrix_is_drawn(broadsheet_in_process: Command, small_model_file: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    pa_csv.write_csv(ROWS, tmp_path / "rows.csv")
    path = tmp_path / "matrix.png"
    run = broadsheet_in_process(
        "evaluate", small_model_file, tmp_path / "rows.csv", "--label-column", "truth", "--plot", path
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert path.read_bytes().startswith(b"\x89PNG")


def test_what_cannot_be_evaluated(
    broadsheet_in_process: Command, small_model: Model, small_model_file: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="nothing"):
        evaluate(small_model, ROWS, text_column="text", label_column="nothing")
    pa_csv.write_csv(pa.table({"text": ["a"], "truth": ["x"]}), tmp_path / "rows.csv")
    run = broadsheet_in_process("evaluate", small_model_file, tmp_path / "rows.csv", "--label-column", "truth")
    assert run.returncode == 2
    assert "no row has a class of the model" in run.stderr


# Counts of true and predicted classes, compared with counting them one by one.
