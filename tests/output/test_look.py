"""Inspecting finished jobs by the values of a column, and comparing jobs, against the same counts made by pandas."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import CommandHere, examples, random_model
from distributed import Client
from hypothesis import given, settings
from hypothesis import strategies as st

from broadsheet.pipeline import classify, select
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.output.look import compare, look, shown

VALUES = {
    "text": st.none() | st.sampled_from(["a", "", "it's", 'x"y']),
    "number": st.none() | st.floats(width=32) | st.sampled_from([0.0, -0.0, 0.5, 1.0]),
    "flag": st.none() | st.booleans(),
}
SHARES = st.none() | st.floats(0, 1, width=32) | st.sampled_from([0.5, np.float32(0.7), np.float32(0.9), 1.0])


def table_of(kind: str, rows: list[tuple]) -> pa.Table:
    types = {"text": pa.string(), "number": pa.float32(), "flag": pa.bool_()}
    value, score, label, n_chars = zip(*rows, strict=True)
    columns = [pa.array(value, types[kind]), pa.array(label, pa.string()), pa.array(score, pa.float32())]
    return pa.table([*columns, pa.array(n_chars, pa.int64())], ["value", "label", "score", "n_chars"])


@settings(deadline=None, max_examples=examples(30))
@given(st.data(), st.sampled_from([*VALUES]), st.none() | st.lists(st.floats(0, 1), min_size=1, max_size=3))
def test_values_have_the_figures_that_pandas_finds(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, kind: str, at: list[float] | None
) -> None:
    """The values and scores may be anything, including nulls and NaN."""
    row = st.tuples(VALUES[kind], SHARES, st.none() | st.sampled_from("xyz"), st.integers(0, 10_000))
    rows = data.draw(st.lists(row, min_size=1, max_size=60))
    path = tmp_path_factory.mktemp("look") / "labels.parquet"
    pq.write_table(table_of(kind, rows), path, row_group_size=7)
    (told,) = look(str(path), ["value"], at=at or ())
    frame = pd.DataFrame(rows, columns=["value", "score", "label", "n_chars"]).astype({"score": "float32"})

    def key(value: object) -> str:  # 0.0 and -0.0 count as the same value
        return shown("nan" if value != value else value + 0.0 if isinstance(value, float) else value)

    frame["value"] = [key(value) for value, *_ in rows]
    assert told["thresholds"] == (sorted({*at}) if at else [0.5, 0.7, 0.9, 0.99])
    named = {one["value"]: one for one in told["values"]}
    found = {key(value): one for value, one in named.items()}
    groups = dict(iter(frame.astype({"value": object}).groupby("value")))
    assert {*found} == {*groups}
    assert [one["rows"] for one in told["values"]] == sorted((len(part) for part in groups.values()), reverse=True)
    for one, part in [(told["all"], frame), *((found[key], part) for key, part in groups.items())]:
        kept = [part["score"] >= np.float32(least) for least in told["thresholds"]]
        assert one["rows"] == len(part)
        assert one["kept"] == pytest.approx([mask.mean() for mask in kept])
        cut = kept[told["thresholds"].index(told["at"])]
        for name, side in (("kept_chars", cut), ("dropped_chars", ~cut)):
            mean = part["n_chars"][side].mean()
            assert one[name] == (pytest.approx(mean) if side.any() else None)
        labels = part["label"].value_counts()
        assert one["label_share"] == pytest.approx(labels.max() / len(part) if len(labels) else 0)
        assert one["label"] in (labels[labels == labels.max()].index if len(labels) else [None])
        scores = part["score"].dropna()
        assert one["lowest"] == (scores.min() if len(scores) else None)
        assert one["std"] == (pytest.approx(scores.std(ddof=0), abs=1e-6) if len(scores) else None)
        found_quantiles = one["quantiles"] or [None] * 5
        if len(scores):
            ordered = [one["lowest"], *found_quantiles, one["highest"]]
            assert ordered == sorted(ordered)
    overall = [(frame["score"] >= np.float32(least)).mean() for least in told["thresholds"]]
    assert abs(overall[told["thresholds"].index(told["at"])] - 0.5) == pytest.approx(min(abs(s - 0.5) for s in overall))


ROWS = 400


def written(folder: Path) -> Path:
    """Write four sources: all kept, all dropped, constant scores, and scores that follow length. Return the folder."""
    rng = np.random.default_rng(3)
    source = np.repeat(["good", "bad", "same", "long"], ROWS // 4)
    score = np.select([source == "good", source == "bad", source == "same"], [0.95, 0.1, 0.6], rng.random(ROWS))
    score += np.where(np.isin(source, ["good", "bad"]), rng.random(ROWS) / 100, 0)
    n_chars = np.where(source == "long", np.exp(10 * score), rng.integers(10, 5000, ROWS)).astype(int)
    table = pa.table(
        {"source": source, "label": ["hq"] * ROWS, "score": pa.array(score, pa.float32()), "n_chars": n_chars}
    )
    for ending, write in {"parquet": pq.write_table, "csv": lambda t, p: t.to_pandas().to_csv(p, index=False)}.items():
        write(table, folder / f"rows.{ending}")
    table.to_pandas().to_json(folder / "rows.jsonl", orient="records", lines=True)
    return folder


@pytest.mark.parametrize("ending", ["parquet", "csv", "jsonl"])
def test_a_filter_that_sorts_by_source_is_noticed(tmp_path: Path, ending: str, broadsheet_here: CommandHere) -> None:
    rows = written(tmp_path) / f"rows.{ending}"
    code, said = broadsheet_here("inspect", rows, "--per", "source", "--report", tmp_path / "page.html")
    assert code == 0, said
    assert max(map(len, said.splitlines())) <= 80
    warned = [line for line in said.splitlines() if line.startswith("Warning")]
    table = pq.read_table(tmp_path / "rows.parquet").to_pandas()
    between = table.groupby("source")["score"].transform("mean").var() / table["score"].var()
    assert warned == [
        f"Warning: scores follow source: {between:.0%} of their variance lies between its values",
        "Warning: constant scores: same",
        "Warning: scores follow length: long (+1.00)",
        "Warning: wholly dropped at 0.5: bad",
        "Warning: wholly dropped at 0.7: same",
        "Warning: wholly kept at 0.5: same",
        "Warning: wholly kept at 0.9: good",
    ]
    assert all(line in (tmp_path / "page.html").read_text() for line in warned)
    code, said = broadsheet_here("inspect", rows, "--per", "label", "--at", 0.2, "--report", tmp_path / "page.html")
    assert (code, re.findall("Warning.*", said)) == (0, [])
    assert "wholly kept" not in (tmp_path / "page.html").read_text()  # the new report has replaced the old one


@pytest.fixture(scope="module")
def jobs(client: Client, small_model: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Jobs of two models over the same files, with different chunks and order. One of the jobs lacks some rows."""
    folder = tmp_path_factory.mktemp("jobs")
    rng = np.random.default_rng(5)
    for number, name in enumerate(("b", "a", "c")):
        texts = [
            None if i % 17 == 3 else f"{name} text {rng.integers(40)} " * int(rng.integers(1, 9)) for i in range(150)
        ]
        columns = {"text": texts, "lang": [*"xyz"] * 50, "level": [0.5, None, np.nan] * 50, "tags": [["t"]] * 150}
        pq.write_table(
            pa.table({**columns, "id": range(number * 1000, number * 1000 + 150)}), folder / f"{name}.parquet"
        )
    files = [folder / "b.parquet", folder / "a.parquet", folder / "c.parquet"]
    options = {"client": client, "root": folder, "text_column": "text", "id_column": ["id", "lang", "level", "tags"]}
    one, two = small_model, random_model(seed=2, length=123)
    classify(files, folder / "one", model=one, chunk_size=24, keep="text", **options)
    classify(files[::-1], folder / "two", model=two, chunk_size=41, where="n_chars > 20", **options)
    plain = {**options, "id_column": ["id", "lang"]}
    classify(files, folder / "parts", model=one, chunk_size=50, format="jsonl", partition_by="lang", **plain)
    classify(files, folder / "beside", model=one, layout="attributes", format="jsonl", **plain)
    for model, name in ((one, "p"), (two, "q")):
        model.save(folder / f"{name}.safetensors")
    classify(files, folder / "both", model=[folder / "p.safetensors", folder / "q.safetensors"], **plain)
    classify(files[:2], folder / "fewer", model=two, **plain)
    return folder


def frame_of(folder: Path) -> pd.DataFrame:
    return pd.read_parquet(folder / "parts", partitioning=None)


@pytest.mark.slow
@pytest.mark.parametrize("swapped", [False, True])
def test_two_jobs_differ_where_a_join_says_so(jobs: Path, swapped: bool) -> None:
    names = ("two", "one") if swapped else ("one", "two")
    first, second = (frame_of(jobs / name) for name in names)
    both = first.merge(second, on="id", suffixes=("", "_b"))
    least = float(np.float32(both["score"].median()))
    told = compare(str(jobs / names[0]), str(jobs / names[1]), ["lang", "level"], at=[least])
    assert told["alone"] == [len(first) - len(both), len(second) - len(both)]
    keep, keeps = both["score"] >= np.float32(least), both["score_b"] >= np.float32(least)
    assert told["all"]["correlation"] == pytest.approx(np.corrcoef(both["score"], both["score_b"])[0, 1], abs=1e-6)
    groups = [(told["all"], both.index)]
    for column in ("lang", "level"):
        part = dict(iter(both.groupby([shown(None if v is None else v) for v in both[column]])))
        assert sorted(shown(one["value"]) for one in told["values"][column]) == sorted(part) or column == "level"
        groups += [
            (one, both.index[[shown(v) == shown(one["value"]) for v in both[column]]])
            for one in told["values"][column]
            if one["value"] is not None and one["value"] != "nan"
        ]
    for one, rows in groups:
        a, b = keep[rows], keeps[rows]
        assert one["rows"] == len(rows)
        assert one["same_label"] == pytest.approx((both["label"] == both["label_b"])[rows].mean())
        assert [one["both"], one["only_first"], one["only_second"]] == [(a & b).sum(), (a & ~b).sum(), (b & ~a).sum()]
    gaps = (both["score"] - both["score_b"]).abs()
    for shown_rows, chosen in zip(told["examples"], (keep & ~keeps, keeps & ~keep), strict=True):
        assert [abs(e["score"] - e["also"]) for e in shown_rows] == pytest.approx(
            sorted(gaps[chosen], reverse=True)[:5]
        )
        for example in shown_rows:
            (row,) = first[(first["file"] == example["file"]) & (first["row"] == example["row"])].to_dict("records")
            (here,) = (one for one in (first, second) if "text" in one)
            assert example["text"] == here[here["id"] == row["id"]]["text"].item()
            assert (example["label"], example["score"]) == (row["label"], row["score"])


def test_every_kind_of_output_tells_the_same(jobs: Path, broadsheet_here: CommandHere, tmp_path: Path) -> None:
    def told(name: Path | str, **options: object) -> list[tuple]:
        (looked,) = look(str(jobs / name), ["lang"], **options)
        return [(one["value"], one["rows"], one["kept"], one["label"]) for one in looked["values"]]

    expected = told("one")
    assert [rows for _, rows, *_ in expected] == sorted(frame_of(jobs / "one")["lang"].value_counts(), reverse=True)
    assert told("parts") == told("beside") == told("both", by="p_score") == expected
    assert [one["score"] for one in look(str(jobs / "both"), ["lang", "file"])] == ["p_score", "q_score"] * 2
    _, said = broadsheet_here("inspect", jobs / "both", "--per", "lang")
    assert [line for line in said.splitlines() if "_score by " in line] == ["p_score by lang", "q_score by lang"]
    for ending in ("parquet", "csv", "jsonl"):
        select(jobs / "one", tmp_path / f"all.{ending}", columns=["lang", "label", "score"])
        assert told(tmp_path / f"all.{ending}") == expected
    (without,) = look(str(tmp_path / "all.csv"), ["lang"])
    assert "The rows have no n_chars: how long their texts are is not known." in without["remarks"]
    assert without["all"]["kept_chars"] is without["all"]["follows_length"] is None


def test_what_cannot_be_looked_at_is_said(jobs: Path, tmp_path: Path, broadsheet_here: CommandHere) -> None:
    begun = Path(shutil.copytree(jobs / "one", tmp_path / "begun"))
    (begun / "_SUCCESS").unlink()
    for arguments, code, message in (
        ((jobs / "one", "--per", "tags"), 2, "holds lists or structs"),
        ((jobs / "one", "--per", "lng"), 2, "did you mean 'lang'?"),
        ((jobs / "one", "--per", "lang", "--by", "scor"), 2, "did you mean 'score'?"),
        ((begun, "--per", "lang"), 1, "is not finished: continue with --resume"),
        ((jobs / "one", begun), 1, "is not finished: continue with --resume"),
        ((jobs / "one", jobs / "fewer"), 2, "have labelled other inputs: c.parquet is not in both"),
        ((jobs / "one", jobs / "a.parquet"), 2, "two output folders are compared"),
        ((jobs / "a.parquet", "--per", "lang"), 2, "'score' is no column of scores"),
        ((jobs / "one", "--by", "score"), 2, "--by, --at and --report go with --per"),
        ((jobs / "one", jobs / "two", "--report", tmp_path / "p.html"), 2, "--report shows one job"),
        ((jobs / "one", "--per", "lang", "--report", jobs / "a.parquet"), 2, "is no page of a job"),
    ):
        assert broadsheet_here("inspect", *arguments) == (code, Contains(message)), arguments


class Contains:
    """Equals every text that contains this one, wherever its lines break."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __eq__(self, other: object) -> bool:
        return self.text in " ".join(str(other).split())

    def __repr__(self) -> str:
        return f"… {self.text} …"


def test_the_commands_print_tables_of_80_columns(jobs: Path, tmp_path: Path, broadsheet_here: CommandHere) -> None:
    code, said = broadsheet_here("inspect", jobs / "one", jobs / "two", "--per", "level", "--at", 0.3)
    assert code == 0, said
    assert max(len(line) for line in said.splitlines() if f"{jobs}" not in line) <= 80
    assert f"Rows that one alone has: {jobs / 'one'}" in said
    told = json.loads(broadsheet_here("inspect", jobs / "one", jobs / "two", "--per", "level", "--json")[1])
    assert {one["value"] for one in told["values"]["level"]} == {0.5, None, "nan"}
    (looked,) = json.loads(broadsheet_here("inspect", jobs / "one", "--per", "level", "--json")[1])
    assert {one["value"] for one in looked["values"]} == {0.5, None, "nan"}
