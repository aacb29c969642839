"""A label is the same for every command and format: whichever tool wrote the column, a model can be evaluated on its
own rows, and no number stands for another class.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from conftest import CommandHere
from distributed import Client

from broadsheet.pipeline.api import classify
from broadsheet.pipeline.errors import UsageError
from broadsheet.pipeline.evaluation.evaluate import evaluate, evaluate_labels
from broadsheet.pipeline.evaluation.fitting import calibrate
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.source.rows.label_columns import numbers_in
from broadsheet.pipeline.source.rows.labels import (
    NO_TRUTH,
    LabelRules,
    class_names_in,
    class_of_each,
    first_class_number,
    labels_of,
)
from broadsheet.pipeline.train import train

TEXTS = ["the team won the match", "oil prices rose again"] * 30
SECOND = [False, True] * 30
"""Whether a row is of the second of two classes."""

QUICK = {"text_column": "text", "label_column": "label", "device": "cpu"}


def trained(source: Any, **options: Any) -> Model:
    return train(source, **QUICK, **options).model


def accuracy(model: Model, source: Any, **options: Any) -> float:
    result = evaluate(model, source, text_column="text", label_column="label", device="cpu", **options)
    assert result.confusion.rows == len(TEXTS), result.unknown_labels
    return result.confusion.accuracy


def pandas_with_a_missing_value(folder: Path) -> Path:
    """pandas turns integers into floats if one is missing. The test leaves out the row without a label afterwards."""
    frame = pd.DataFrame({"text": [*TEXTS, "nothing"], "label": [*map(int, SECOND), None]})
    frame.dropna().to_csv(folder / "float.csv", index=False)
    return folder / "float.csv"


def pandas_floats(folder: Path) -> Path:
    pd.DataFrame({"text": TEXTS, "label": np.array(SECOND, float)}).to_parquet(folder / "float.parquet")
    return folder / "float.parquet"


def pandas_integers(folder: Path) -> Path:
    pd.DataFrame({"text": TEXTS, "label": np.array(SECOND, int)}).to_csv(folder / "int.csv", index=False)
    return folder / "int.csv"


def pandas_booleans(folder: Path) -> Path:
    pd.DataFrame({"text": TEXTS, "label": SECOND}).to_csv(folder / "True.csv", index=False)
    return folder / "True.csv"


def polars_booleans(folder: Path) -> Path:
    pl.DataFrame({"text": TEXTS, "label": SECOND}).write_csv(folder / "true.csv")
    return folder / "true.csv"


def parquet_booleans(folder: Path) -> Path:
    pq.write_table(pa.table({"text": TEXTS, "label": SECOND}), folder / "bool.parquet")
    return folder / "bool.parquet"


def arrow_integers(folder: Path) -> Path:
    feather.write_feather(pa.table({"text": TEXTS, "label": pa.array(SECOND).cast(pa.int8())}), folder / "int.arrow")
    return folder / "int.arrow"


def json_booleans(folder: Path) -> Path:
    rows = (json.dumps({"text": text, "label": second}) for text, second in zip(TEXTS, SECOND, strict=True))
    (folder / "bool.jsonl").write_text("\n".join(rows))
    return folder / "bool.jsonl"


def json_floats(folder: Path) -> Path:
    rows = (json.dumps({"text": text, "label": float(second)}) for text, second in zip(TEXTS, SECOND, strict=True))
    (folder / "float.jsonl").write_text("\n".join(rows))
    return folder / "float.jsonl"


def dicts(_: Path) -> list[dict[str, Any]]:
    return [{"text": text, "label": np.float64(second)} for text, second in zip(TEXTS, SECOND, strict=True)]


def excel(folder: Path) -> Path:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for row in (("text", "label"), *zip(TEXTS, SECOND, strict=True)):
        book.active.append(row)
    book.save(folder / "bool.xlsx")
    return folder / "bool.xlsx"


WAYS = [
    *(pandas_with_a_missing_value, pandas_floats, pandas_integers, pandas_booleans, polars_booleans),
    *(parquet_booleans, arrow_integers, json_booleans, json_floats, dicts, excel),
]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The same rows, as different tools write them."""
    return {way.__name__: way(tmp_path_factory.mktemp(way.__name__)) for way in WAYS}


@pytest.fixture(scope="module")
def models(sources: dict[str, Any]) -> dict[str, Model]:
    """Models trained on some of these sources."""
    ways = (pandas_with_a_missing_value, polars_booleans, parquet_booleans, json_floats)
    return {way.__name__: trained(sources[way.__name__]) for way in ways}


@pytest.mark.slow
def test_every_spelling_of_a_value_is_the_same_label(sources: dict[str, Any], models: dict[str, Model]) -> None:
    assert {len(model.classes) for model in models.values()} == {2}
    for way, other in product(models, sources):
        assert accuracy(models[way], sources[other]) == 1.0, f"trained on {way}, evaluated on {other}"


def test_one_column_may_hold_several_spellings_of_a_value(sources: dict[str, Any], tmp_path: Path) -> None:
    """A folder has a file with a missing value, for which pandas writes 1.0, and files in which it writes 1."""
    for number, way in enumerate(("pandas_integers", "pandas_with_a_missing_value")):
        (tmp_path / f"{number}.csv").write_bytes(sources[way].read_bytes())
    assert trained(tmp_path).classes in {("0.0", "1.0"), ("0", "1")}


def test_codes_are_not_numbers(tmp_path: Path) -> None:
    labels = ["007", "7"] * 30
    pq.write_table(pa.table({"text": TEXTS, "label": labels}), tmp_path / "codes.parquet")
    assert {*trained(tmp_path / "codes.parquet").classes} == {"007", "7"}


CLASSES = ("Business", "Sci/Tech", "Sports", "World")


@pytest.fixture(scope="module")
def named() -> Model:
    """A model of four classes, whose texts are the names of the classes."""
    names = [CLASSES[i % 4] for i in range(80)]
    return trained(pa.table({"text": [f"about {name} again" for name in names], "label": names}))


def numbered(numbers: list[Any], first: int) -> pa.Table:
    return pa.table({"text": [f"about {CLASSES[int(n) - first]} again" for n in numbers], "label": numbers})


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("kind", [int, float, str])
def test_class_numbers_count_from_where_they_begin(
    client: Client, named: Model, kind: Callable[[int], Any], first: int
) -> None:
    rows = numbered([kind(first + i % 4) for i in range(40)], first)
    result = evaluate(named, rows, text_column="text", label_column="label", device="cpu")
    assert (result.confusion.accuracy, result.confusion.rows, result.label_numbers_from) == (1.0, 40, first)
    report = classify(rows, model=named, client=client, text_column="text", label_column="label", device="cpu")
    assert report.accuracy == 1.0
    assert f"labels are class numbers: {first} is Business, {first + 3} is World" in str(report)


# Four classes: numbers that fit both ways of counting, and numbers that fit neither.
@pytest.mark.parametrize("numbers", [[1, 2, 3], [0, 1, 2, 3, 4]])
def test_class_numbers_that_may_count_from_zero_or_one_are_refused(named: Model, numbers: list[int]) -> None:
    rows = pa.table({"text": ["a"] * len(numbers) * 50, "label": numbers * 50})
    for ask in (evaluate, calibrate, classify):
        where = {"model": named, "source": rows, "text_column": "text", "label_column": "label", "device": "cpu"}
        with pytest.raises(UsageError, match="label_numbers_from=0 or label_numbers_from=1"):
            ask(**where)
    with pytest.raises(UsageError, match="label_numbers_from=0"):
        trained(rows, classes=CLASSES)
    assert evaluate(named, rows, text_column="text", label_column="label", label_numbers_from=0).confusion.rows >= 150


def test_training_says_how_class_numbers_count(broadsheet_here: CommandHere, named: Model, tmp_path: Path) -> None:
    pq.write_table(numbered([i % 4 for i in range(80)], 0), tmp_path / "rows.parquet")
    named.save(tmp_path / "teacher.safetensors")
    arguments = ["train", tmp_path / "rows.parquet", "--label-column", "label", "--device", "cpu", "--vectors", "none"]
    for options in (["--classes", ",".join(CLASSES)], ["--teacher", tmp_path / "teacher.safetensors"]):
        code, shown = broadsheet_here(*arguments, *options, "-o", tmp_path / "new.safetensors", "--overwrite")
        assert code == 0, shown
        assert "labels are class numbers: 0 is Business, 3 is World" in " ".join(shown.split())


def test_the_first_number_that_is_asked_for_counts_before_the_default_names_of_transformers() -> None:
    classes = ("LABEL_0", "LABEL_1")
    assert LabelRules().indices("012", classes) == {"0": 0, "1": 1, "2": NO_TRUTH}
    assert LabelRules(numbers_from=1).indices("012", classes) == {"0": NO_TRUTH, "1": 0, "2": 1}


def test_a_resumed_job_counts_classes_as_it_began(named: Model, client: Client, tmp_path: Path) -> None:
    """A new file that alone would suggest another way of counting changes nothing."""
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    pq.write_table(numbered([0, 1, 2, 3] * 5, 0), folder / "a.parquet")
    how = {"model": named, "client": client, "text_column": "text", "label_column": "label", "device": "cpu"}
    assert classify(folder, out, **how).accuracy == 1.0
    pq.write_table(numbered([1, 2, 3] * 5, 0), folder / "b.parquet")
    updated = classify(folder, out, update=True, **how)
    assert (updated.accuracy, updated.confusion.rows) == (1.0, 35)


def with_class_label(kind: str, folder: Path) -> Any:
    """Return numbers from 0 with their names in the file itself, as Hugging Face's datasets writes them."""
    names = ["World", "Sports", "Business", "Sci/Tech"]
    feature = {"names": names, "_type": "ClassLabel"}
    about = {"info": {"features": {"label": feature, "text": {"dtype": "string", "_type": "Value"}}}}
    numbers = [0, 1, 2, 3, -1] * 8
    table = pa.table({"text": [f"about {names[n]} again" for n in numbers], "label": numbers})
    table = table.replace_schema_metadata({"huggingface": json.dumps(about)})
    if kind == "memory":
        return table
    write = {"parquet": pq.write_table, "arrow": lambda t, path: feather.write_feather(t, str(path))}[kind]
    write(table, folder / f"hub.{kind}")
    return folder / f"hub.{kind}"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["parquet", "arrow", "memory"])
def test_names_in_the_file_win(client: Client, named: Model, tmp_path: Path, kind: str) -> None:
    """The model has its classes in another order than the file, and -1 stands for no label."""
    source = with_class_label(kind, tmp_path)
    result = evaluate(named, source, text_column="text", label_column="label", device="cpu")
    assert (result.confusion.accuracy, result.confusion.rows, result.confusion.without_truth) == (1.0, 32, 8)
    report = classify(source, model=named, client=client, text_column="text", label_column="label", keep_all=True)
    table = report.to_arrow()
    assert table.column("truth").to_pylist()[:5] == ["World", "Sports", "Business", "Sci/Tech", None]
    # A copied column stays as it is in the file.
    assert table.column("label_source").to_pylist()[:5] == [0, 1, 2, 3, -1]
    made = trained(source)
    assert made.classes == tuple(sorted(CLASSES))
    assert made.card["data"]["rows_without_label"] == 8


def test_names_in_the_file_are_the_classes_of_a_model(tmp_path: Path) -> None:
    rows = with_class_label("memory", tmp_path)
    labelled = rows.filter(pa.compute.greater_equal(rows.column("label"), 0))
    assert trained(labelled).classes == CLASSES


def test_several_labels_a_row_are_read_alike(tmp_path: Path) -> None:
    """Lists of numbers that the file has names for are read as lists of these names."""
    pytest.importorskip("sklearn")
    feature = {"feature": {"names": ["sport", "money"], "_type": "ClassLabel"}, "_type": "List"}
    about = {"info": {"features": {"label": feature}}}
    numbers = [[0], [1]] * 29 + [[0, 1], []]
    names = [[["sport", "money"][n] for n in row] for row in numbers]
    hub = pa.table({"text": TEXTS, "label": numbers}).replace_schema_metadata({"huggingface": json.dumps(about)})
    pq.write_table(hub, tmp_path / "hub.parquet")
    model = trained(tmp_path / "hub.parquet", multi_label=True)
    assert model.classes == ("money", "sport")
    named = pa.table({"text": TEXTS, "label": names})
    how = {"text_column": "text", "label_column": "label", "device": "cpu"}
    here, there = (evaluate_labels(model, source, **how) for source in (tmp_path / "hub.parquet", named))
    assert here.unknown == 0
    assert here.to_dict()["classes"] == there.to_dict()["classes"]


SPELLED = ["Sports", "sports ", "Money"] * 20


def test_spellings_of_one_class_are_reported_before_training(broadsheet_here: CommandHere, tmp_path: Path) -> None:
    pl.DataFrame({"text": TEXTS, "label": SPELLED}).write_csv(tmp_path / "rows.csv")
    arguments = ["train", tmp_path / "rows.csv", "--label-column", "label", "--vectors", "none", "--device", "cpu"]
    code, shown = broadsheet_here(*arguments, "-o", tmp_path / "three.safetensors")
    assert code == 0
    plain = " ".join(shown.split())
    assert "spellings of one class" in plain
    assert "--balanced" not in plain
    assert plain.index("--fold-labels") < plain.index("each row by a model that has not seen it")
    code, shown = broadsheet_here(*arguments, "-o", tmp_path / "two.safetensors", "--fold-labels")
    assert code == 0
    assert "spellings of one class" not in shown
    evaluated = ["evaluate", tmp_path / "two.safetensors", tmp_path / "rows.csv", "--label-column", "label"]
    code, shown = broadsheet_here(*evaluated)
    assert "'sports ' in 20 rows. 'sports ' looks like the class 'Sports': --fold-labels" in " ".join(shown.split())
    code, shown = broadsheet_here(*evaluated, "--fold-labels", "--json")
    assert json.loads(shown.splitlines()[0])["rows"] == 60


def test_labels_that_name_no_class_are_named(broadsheet_here: CommandHere, named: Model, tmp_path: Path) -> None:
    named.save(tmp_path / "named.safetensors")
    labels = ["World"] * 5 + ["Wrld"] * 3 + ["nan"] * 2
    pl.DataFrame({"text": ["about World again"] * 10, "label": labels}).write_csv(tmp_path / "rows.csv")
    where = ["--text-column", "text", "--label-column", "label", "--device", "cpu"]
    code, shown = broadsheet_here("evaluate", tmp_path / "named.safetensors", tmp_path / "rows.csv", *where)
    assert code == 0
    assert "these labels name no class of the model: 'Wrld' in 3 rows" in " ".join(shown.split())
    out = tmp_path / "out"
    classified = ["classify", tmp_path / "rows.csv", "-o", out, "--model", tmp_path / "named.safetensors", *where]
    code, shown = broadsheet_here(*classified, "--json")
    assert json.loads(shown.splitlines()[0])["unknown_labels"] == {"Wrld": 3}
    assert any("'Wrld' in 3 rows" in hint for hint in json.loads(shown.splitlines()[0])["hints"])
    code, shown = broadsheet_here(*classified, "--resume", "--json")
    assert any("not judged" in hint for hint in json.loads(shown.splitlines()[0])["hints"])


@pytest.mark.slow
def test_the_estimator_of_scikit_learn_reads_labels_alike(models: dict[str, Model]) -> None:
    from broadsheet.pipeline.sklearn import TextClassifier

    fitted = TextClassifier(device="cpu").fit(TEXTS, np.array(SECOND, float))
    assert fitted.predict(TEXTS[:2]).tolist() == [0.0, 1.0]
    with pytest.raises(ValueError, match="missing label"):
        TextClassifier(device="cpu").fit(TEXTS[:2], ["a", ""])


# Too many numbers, one beyond the classes, and numbers that begin at neither zero nor one.
@pytest.mark.parametrize("numbers", [range(1, 11), [0, 7], [2, 3]])
def test_numbers_that_are_no_class_numbers_are_not_guessed(numbers: Any) -> None:
    with pytest.raises(UsageError, match=r"give (--label-numbers-from |label_numbers_from=)0"):
        first_class_number(map(str, numbers), CLASSES, "label")


# Names of classes that look like numbers themselves.
@pytest.mark.parametrize("classes", [("01", "03", "05"), ("1e5", "2e5", "3e5"), ("0.5", "1.5", "2.5")])
def test_numbers_are_never_class_numbers_where_classes_are_codes(classes: tuple[str, ...]) -> None:
    """A tool that reads codes as numbers writes 1 for 01, and that is not the first class."""
    assert first_class_number(["1", "3"], classes, "label") is None


def test_class_numbers_that_are_asked_for_count_where_classes_are_called_like_numbers() -> None:
    indices = LabelRules(numbers_from=0).indices("0123", ("1", "2", "3"))
    assert indices == {"0": 0, "1": 1, "2": 2, "3": 2}


def test_names_in_the_file_win_within_a_column_and_for_floats() -> None:
    about = {"info": {"features": {"meta": {"topic": {"names": ["b", "a"], "_type": "ClassLabel"}}}}}
    names = class_names_in(pa.schema([], {"huggingface": json.dumps(about)}))
    assert names == {"meta.topic": ("b", "a")}
    assert labels_of(pa.array([0.0, 1.0, None, np.nan, -1.0]), names["meta.topic"]).to_pylist() == [
        "b",
        "a",
        *[None] * 3,
    ]
    with pytest.raises(UsageError, match="no whole number"):
        labels_of(pa.array([0.5]), names["meta.topic"])


def test_lists_where_a_row_has_one_label_are_refused(named: Model) -> None:
    rows = pa.table({"text": TEXTS, "label": [["World"], ["Sports"]] * 30})
    for ask in (lambda: trained(rows), lambda: accuracy(named, rows)):
        with pytest.raises(UsageError, match="holds lists"):
            ask()


def test_folding_sees_the_value_within_spaces() -> None:
    assert len({*class_of_each({"1": 2, "1.0 ": 1, "True": 1}, fold=True).values()}) == 1
    assert class_of_each({"0": 2, "-0.0": 1}) == {"0": "0", "-0.0": "0"}


def test_levels_count_from_where_the_user_says() -> None:
    rows = pa.table({"text": ["a"] * 3, "label": [0, 1, 2]})
    assert numbers_in(rows, "label", ("bad", "ok", "good"), LabelRules(numbers_from=0)).tolist() == [1.0, 2.0, 3.0]
    with pytest.raises(UsageError, match="holds 0"):
        numbers_in(rows, "label", ("bad", "ok", "good"))
