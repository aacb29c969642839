"""`--join`: a template makes the text to label from several columns. Every command uses it, and the model stores it."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from conftest import Command, examples
from distributed import Client
from hypothesis import given, settings
from hypothesis import strategies as st
from training import articles

from broadsheet.pipeline import UsageError, classify, evaluate, label, next_rows, verify
from broadsheet.pipeline.ingest.blocks import can_read
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.model.loading import load_model
from broadsheet.pipeline.source.formats.jsonl import Jsonl
from broadsheet.pipeline.source.rows.chunk import Selection
from broadsheet.pipeline.source.rows.join import Join

TEMPLATE = r"{url}\n\n{title} {{{n}}}"
ROWS = [
    {"url": "http://a.example/oil", "title": "Oil prices rise", "n": 3},
    {"url": None, "title": "Cup final", "n": None},
    {"url": "http://b.example/é", "title": "Shares fall {twice}", "n": -17},
    {"url": "http://c.example", "title": "Treaty signed", "n": 0},
]
TEXTS = [f"{r['url'] or ''}\n\n{r['title']} {{{'' if r['n'] is None else r['n']}}}" for r in ROWS]
ALL_NULL = {"url": None, "title": None, "n": None}


def scores(rows: Any, model: Model, **options: Any) -> list[dict[str, Any]]:
    """Return the label and the scores of each row."""
    table = pa.Table.from_pylist(rows) if isinstance(rows, list) else rows
    labelled = label(table, model=model, scores=True, device="cpu", **options)
    return labelled.select([name for name in labelled.column_names if name not in table.column_names]).to_pylist()


def written(rows: list[dict[str, Any]], kind: str, folder: Path) -> Path:
    path = folder / f"rows.{kind}"
    if kind == "jsonl":
        path.write_text("\n".join(map(json.dumps, rows)))
    elif kind == "csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, [*rows[0]])
            writer.writeheader()
            writer.writerows(rows)
    else:
        pq.write_table(pa.Table.from_pylist(rows), path)
    return path


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_a_row_is_labelled_by_the_text_that_the_template_makes(
    kind: str, client: Client, small_model: Model, tmp_path: Path
) -> None:
    expected = scores([{"text": text} for text in TEXTS], small_model)
    assert len({json.dumps(one) for one in expected}) == len(ROWS)
    job = {"model": small_model, "client": client, "scores": True}
    classify(written(ROWS, kind, tmp_path), tmp_path / "out", join=TEMPLATE, **job)
    rows = pq.read_table(tmp_path / "out").sort_by("row")
    names = [name for name in rows.column_names if name.startswith(("label", "score"))]
    assert rows.select(names).to_pylist() == [{name: one[name] for name in names} for one in expected]
    assert verify(tmp_path / "out").rows_written == len(ROWS)


def test_rows_in_memory_are_joined_too(small_model: Model) -> None:
    expected = scores([{"text": text} for text in TEXTS], small_model)
    assert scores(ROWS, small_model, join=TEMPLATE) == expected
    report = classify(ROWS, model=small_model, scores=True, join=TEMPLATE, device="cpu")
    assert report.to_arrow().column("label").to_pylist() == [one["label"] for one in expected]
    of_nested = [{"page": row} for row in ROWS]
    within = r"{page.url}\n\n{page.title} {{{page.n}}}"
    assert scores(of_nested, small_model, join=within) == expected


def test_numbers_dates_and_booleans_are_written_and_lists_are_refused(small_model: Model, tmp_path: Path) -> None:
    table = pa.table({"day": [date(2024, 5, 1)], "share": [1.5], "sure": [True], "code": pa.array([7], pa.uint8())})
    join = "{day} {share} {sure} {code}"
    expected = scores([{"text": "2024-05-01 1.5 true 7"}], small_model)
    assert scores(table, small_model, join=join) == expected
    in_lines = tmp_path / "rows.jsonl"
    in_lines.write_text('{"day": "2024-05-01", "share": 1.50, "sure": true, "code": 7}\n')
    report = classify(in_lines, model=small_model, scores=True, join=join, device="cpu")
    digits_as_written = scores([{"text": "2024-05-01 1.50 true 7"}], small_model)
    assert report.to_arrow().column("score").to_pylist() == [one["score"] for one in digits_as_written]
    with pytest.raises(UsageError, match="the text column 'tags' holds list<item: string>, not strings or numbers"):
        label(pa.table({"tags": [["a"]]}), model=small_model, join="{tags}")


def test_a_row_without_any_of_the_columns_is_quarantined(small_model: Model, tmp_path: Path) -> None:
    rows = [*ROWS, ALL_NULL, {"url": "u", "n": 1}, {"url": "u", "title": ["t"], "n": 1}]
    report = classify(written(rows, "jsonl", tmp_path), model=small_model, join=TEMPLATE, device="cpu")
    reasons = report.quarantine().select(["row", "reason"]).to_pylist()
    assert [(bad["row"], bad["reason"]) for bad in reasons] == [
        (4, "the text is null"),
        (5, "no key 'title'"),
        (6, "the text 'title' is an array, not a string"),
    ]


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{url} {body}", "no column 'body'; (it has|there are): url, title, n"),
        ("title", r"join= names no column in 'title': write one in braces, as in '\{url\} \{text\}'"),
        ("", "join= names no column"),
        ("{}", "join= has empty braces"),
        ("{url", r"join= has a single '\{' in"),
        ("url} {title}", r"join= has a single '\}' in"),
        (r"{url}\d{title}", r"join= has the escape '\\\\d': a backslash that is text is written"),
    ],
)
def test_a_template_that_cannot_be_used_says_why(template: str, message: str, tmp_path: Path) -> None:
    for rows in (written(ROWS, "parquet", tmp_path), ROWS):
        with pytest.raises(UsageError, match=message):
            classify(rows, join=template, device="cpu")


def test_text_columns_beside_a_template_have_to_be_those_of_the_template(small_model: Model) -> None:
    with pytest.raises(
        UsageError, match="join= has the columns url, title, n, and text_column= names title: leave out"
    ):
        label(pa.Table.from_pylist(ROWS), model=small_model, join=TEMPLATE, text_column="title")
    both = scores(ROWS, small_model, join=TEMPLATE, text_column=["n", "url", "title"])
    assert both == scores(ROWS, small_model, join=TEMPLATE)


words = st.text(max_size=5)


@settings(max_examples=examples(200))
@given(
    st.lists(st.tuples(words, st.sampled_from(["a", "b c", "d.e"])), min_size=1, max_size=4),
    words,
    st.dictionaries(st.sampled_from(["a", "b c", "d.e"]), words, min_size=3),
)
def test_a_template_keeps_any_text_between_its_columns(
    parts: list[tuple[str, str]], end: str, values: dict[str, str]
) -> None:
    literal = Join(tuple(name for _, name in parts), (*(before for before, _ in parts), end))
    assert Join.of(str(literal)) == literal
    assert "\n" not in str(literal)
    columns = {name: pa.array([value], pa.large_string()) for name, value in values.items()}
    text = "".join(before + values[name] for before, name in parts) + end
    assert literal.texts(columns).to_pylist() == [text]


def test_resume_and_update_go_on_with_the_template_that_the_job_had(
    broadsheet_in_process: Command, small_model_file: Path, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    written(ROWS, "jsonl", tmp_path / "in")
    job = ["classify", str(tmp_path / "in"), "-o", str(tmp_path / "out"), "--model", str(small_model_file)]
    first = broadsheet_in_process(*job, "--join", TEMPLATE, "--device", "cpu")
    assert first.returncode == 0, first.stderr
    (tmp_path / "in" / "z.jsonl").write_text((tmp_path / "in" / "rows.jsonl").read_text())
    for other in (["--join", "{url} {title}"], ["--text-column", "title"], []):
        refused = broadsheet_in_process(*job, *other, "--device", "cpu", "--update")
        said = " ".join(refused.stderr.split())
        assert refused.returncode == 2, said
        assert f"add --join '{TEMPLATE}'" in said
    same = TEMPLATE.replace(r"\n", "\n")  # the same template with line ends as a script writes them
    updated = broadsheet_in_process(*job, "--join", same, "--device", "cpu", "--update")
    assert updated.returncode == 0, updated.stderr
    resumed = broadsheet_in_process("classify", "-o", str(tmp_path / "out"), "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert pq.read_table(tmp_path / "out").num_rows == 2 * len(ROWS)
    card = broadsheet_in_process("inspect", str(tmp_path / "out"), "--card", str(tmp_path / "card.md"))
    assert card.returncode == 0, card.stderr
    assert TEMPLATE in (tmp_path / "card.md").read_text()


def trained(command: Command, folder: Path) -> tuple[Path, Path]:
    """Train a model with a template, and return it together with rows to test it on."""
    rows, test, model = folder / "rows.csv", folder / "test.csv", folder / "m.safetensors"
    for file, seed in ((rows, 0), (test, 1)):
        table = articles(120, seed=seed)
        texts = table.column(0).to_pylist()
        labels = [*table.column(1).to_pylist()[:-9], *["sport"] * 9]  # some labels are wrong
        halves = [(text[: len(text) // 2], text[len(text) // 2 :]) for text in texts]
        names = ["head", "body", "topic"]
        pa_csv.write_csv(pa.table([*map(pa.array, zip(*halves, strict=True)), labels], names), file)
    how = ["--device", "cpu", "--vectors", "none", "--ngrams", str(1 << 12)]
    made = command("train", str(rows), "--join", "{head}{body}", "--label-column", "topic", "-o", str(model), *how)
    assert made.returncode == 0, made.stderr
    return model, test


def test_a_model_that_was_trained_with_a_template_uses_it(broadsheet_in_process: Command, tmp_path: Path) -> None:
    model, test = trained(broadsheet_in_process, tmp_path)
    assert load_model(model).join == "{head}{body}"
    judged = broadsheet_in_process("evaluate", str(model), str(test), "--device", "cpu")
    assert judged.returncode == 0, judged.stderr
    assert "columns: text {head}{body}; label topic" in judged.stderr
    table = pa_csv.read_csv(test)
    texts = [head + body for head, body in zip(table["head"].to_pylist(), table["body"].to_pylist(), strict=True)]
    whole = pa.table({"text": texts, "topic": table["topic"]})
    by_hand = evaluate(model, whole, text_column="text", device="cpu")
    assert evaluate(model, table, device="cpu").to_dict() == by_hand.to_dict()
    assert by_hand.to_dict() != evaluate(model, table, text_column="body", device="cpu").to_dict()
    assert next_rows(model, test, count=2, device="cpu").num_rows == 2
    assert scores(table, load_model(model)) == scores(whole.select(["text"]), load_model(model), text_column="text")
    fitted = tmp_path / "fitted.safetensors"
    again = broadsheet_in_process("calibrate", str(model), str(test), "--label-column", "topic", "-o", str(fitted))
    assert again.returncode == 0, again.stderr
    assert load_model(fitted).join == "{head}{body}"
    with pytest.raises(UsageError, match="no column 'head'; there are: text"):
        label(whole, model=model, device="cpu")


def test_a_converted_model_keeps_the_template_that_it_is_given(
    broadsheet_in_process: Command, small_model_file: Path, small_model: Model, tmp_path: Path
) -> None:
    made = tmp_path / "joined.safetensors"
    asked = ["convert", str(small_model_file), str(made), "--join", TEMPLATE]
    done = broadsheet_in_process(*asked)
    assert done.returncode == 0, done.stderr
    assert scores(ROWS, load_model(made)) == scores([{"text": text} for text in TEXTS], small_model)
    assert load_model(made).digest == small_model.digest
    with pytest.raises(UsageError, match=r"these models read different texts .*give join= or text_column= for all"):
        label(pa.Table.from_pylist(ROWS), model=[made, small_model_file], device="cpu")
    refused = broadsheet_in_process("convert", str(made), str(tmp_path / "x.bin"), "--join", TEMPLATE)
    assert (refused.returncode, "--join is kept in a .safetensors file" in refused.stderr) == (2, True)


def test_a_gpu_leaves_texts_that_a_template_makes_to_the_host() -> None:
    plain = Selection(text=("url", "title"))
    assert can_read(Jsonl(), plain)
    assert not can_read(Jsonl(), replace(plain, join="{url} {title}"))
