"""Choosing rows of a finished job by score and by a `where` expression, compared with the same choice made by
sorting.
"""

from __future__ import annotations

import datetime as dt
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import ROOT, CommandHere
from distributed import Client
from hypothesis import given
from hypothesis import strategies as st
from jobs import committed, file_size_limit

from benchmarks.chaos.jobs import contents
from broadsheet.pipeline import OutputError, SourceError, UsageError, classify, select, verify
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.output.cut import Amount, ranking
from broadsheet.pipeline.output.where import Where

SCORES = st.floats(width=32, allow_nan=False) | st.sampled_from([0.25, 0.5, 1.0, 0.0, -0.0])
ROWS = st.lists(st.tuples(SCORES, st.integers(0, 3)))


@given(ROWS, st.lists(st.integers(0, 50)), st.integers(0, 100), st.none() | st.integers(0, 20))
def test_a_cut_chooses_what_sorting_does(
    rows: list[tuple[float, int]], ends: list[int], percent: int, count: int | None
) -> None:
    """The scores are any floats, in chunks of any size. Rows with equal scores keep the order of the input."""
    amount = Amount.of(None, count) if count is not None else Amount.of(f"{percent}%", None)
    scores = np.array([score for score, _ in rows], np.float32)
    frame = pd.DataFrame({"place": range(len(rows)), "score": scores, "part": [group for _, group in rows]})
    edges = [0, *sorted(min(end, len(rows)) for end in ends), len(rows)]
    chunks = (pa.Table.from_pandas(frame[first:end]) for first, end in itertools.pairwise(edges))
    with ranking(chunks, amount) as best:
        places = [first + place for first, end in itertools.pairwise(edges) for place in best.between(first, end)]
        cuts = best.cuts
    expected = []
    for group, of_group in frame.groupby("part"):
        chosen = of_group.sort_values("score", ascending=False, kind="stable")[: amount.rows(len(of_group))]
        expected += list(chosen.index)
        cut = cuts.pop(group)
        assert (cut.rows, cut.chosen) == (len(of_group), len(chosen))
        assert cut.score == (chosen["score"].min() if len(chosen) else None)
    assert (places, cuts) == (sorted(expected), {})


@pytest.mark.parametrize(
    ("amount", "available", "rows"),
    [
        *((("10%", None), 5, 1), (("10%", None), 10, 1), (("10%", None), 11, 2), (("0%", None), 5, 0)),
        *((("100%", None), 7, 7), (("0.1", None), 30, 3), (("33.3%", None), 1000, 333), (("10%", None), 0, 0)),
        *(((None, 3), 2, 2), ((None, 3), 3, 3), ((None, 3), 9, 3), ((None, 0), 9, 0), ((None, None), 9, 9)),
    ],
)
def test_a_share_is_rounded_up_and_a_number_is_never_more_than_there_are(
    amount: tuple[str | None, int | None], available: int, rows: int
) -> None:
    assert Amount.of(*amount).rows(available) == rows


@pytest.fixture(scope="module")
def labels(client: Client, small_model: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job over three files with the scores of every class, many of which are equal, and with quarantined rows."""
    folder = tmp_path_factory.mktemp("select")
    for number, name in enumerate(("b", "a", "c")):
        texts = [None if i % 17 == 3 else f"text {(i * 7 + number) % 40}" for i in range(150)]
        ids, levels, marks = range(number * 1000, number * 1000 + 150), [np.nan, 0.0, -0.0] * 50, ["a", None, "b"] * 50
        table = pa.table({"text": texts, "id": ids, "lang": [*"xyz"] * 50, "level": levels, "mark": marks})
        pq.write_table(table, folder / f"{name}.parquet", row_group_size=40)
    files = [folder / "b.parquet", folder / "a.parquet", folder / "c.parquet"]
    options = {"model": small_model, "client": client, "chunk_size": 24, "scores": True}
    kept = ["id", "lang", "level", "mark"]
    classify(files, folder / "labels", id_column=kept, **options)
    classify(files, folder / "by_label", id_column=kept, partition_by="label", format="jsonl", **options)
    return folder / "labels"


def frame_of(folder: Path) -> pd.DataFrame:
    return pd.read_parquet(folder / "parts", partitioning=None)


@pytest.mark.parametrize("source", ["labels", pytest.param("by_label", marks=pytest.mark.slow)])
# The share applies to all rows, and the number or share applies to each value of a column, of every type.
@pytest.mark.parametrize(
    ("options", "per"),
    [
        ({"top": "30%"}, None),
        ({"count": 7}, "lang"),
        ({"top": 0.1}, "file"),
        ({"count": 5}, "level"),
        ({"top": "20%"}, "mark"),
    ],
)
def test_the_best_rows_are_those_that_sorting_finds(
    labels: Path, tmp_path: Path, source: str, options: dict, per: str | None
) -> None:
    """The result is a folder that verifies, and from which rows can be chosen again."""
    by = next(name for name in frame_of(labels).columns if name.startswith("score_"))
    out = tmp_path / "out"
    report = select(labels.parent / source, out, by=by, per=per, where="n_chars > 6", format="parquet", **options)
    rows = frame_of(labels)
    may = rows[rows["n_chars"] > 6]
    ranks = may.sort_values(by, ascending=False, kind="stable")
    amount = Amount.of(options.get("top"), options.get("count"))
    groups = [ranks] if per is None else [of_group for _, of_group in ranks.groupby(per, dropna=False)]
    expected = pd.concat([of_group[: amount.rows(len(of_group))] for of_group in groups])
    assert sorted(frame_of(out)["id"]) == sorted(expected["id"])
    totals, before = verify(out, input=True), verify(labels)
    assert report.chosen == len(expected) == totals.rows_written
    assert before.rows_quarantined == totals.rows_quarantined == 27  # quarantined rows do not count as filtered
    assert totals.rows_filtered == len(rows) - len(expected)
    assert report.rows == len(rows)
    assert {cut.score for cut in report.cuts.values()} == {
        of_group[: amount.rows(len(of_group))][by].min() for of_group in groups
    }
    again = select(out, tmp_path / "one.csv", count=3, by=by)
    assert list(pd.read_csv(tmp_path / "one.csv")["id"]) == sorted(ranks[:3]["id"], key=list(rows["id"]).index)
    assert again.rows == report.chosen


@pytest.mark.slow
def test_what_does_not_fit_into_memory_is_ranked_on_disk_and_a_full_disk_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    scores = np.random.default_rng(0).random(5_000_000, np.float32)
    places, part = np.arange(len(scores)), np.zeros(len(scores), np.int32)
    table = pa.table({"place": places, "score": scores, "part": part})
    chunks = [table.slice(first, 100_000) for first in range(0, len(table), 100_000)]
    with ranking(chunks, Amount.of("10%", None), memory=80_000_000) as best:
        best_places = best.between(0, len(scores))
    assert list(best_places) == sorted(np.argsort(-scores, kind="stable")[:500_000])
    with (
        file_size_limit(1000),
        pytest.raises(OutputError, match=rf"in {tmp_path}/.+ Free some space there, or set TMPDIR to a folder"),
        ranking(chunks, Amount.of("10%", None), memory=80_000_000) as best,
    ):
        pass
    assert not list(tmp_path.iterdir())


def test_a_choice_that_fails_leaves_nothing_behind(labels: Path, tmp_path: Path) -> None:
    message = r"parts/.* cannot be written: File too large.*, then choose again$"
    # The limit is smaller than the parts, and larger than the manifest.
    with file_size_limit(4000), pytest.raises(OutputError, match=message):
        select(labels, tmp_path / "out", top="90%", format="jsonl")
    damaged = Path(shutil.copytree(labels, tmp_path / "damaged"))
    part = sorted((damaged / "parts").iterdir())[-1]
    part.write_bytes(part.read_bytes()[:-1] + b" ")
    for options, out in itertools.product(({"top": "40%"}, {"score": ">= 0"}), ("out", "one.csv")):
        with pytest.raises(OutputError, match=f"{part.name} is damaged"):
            select(damaged, tmp_path / out, **options)
    assert not (tmp_path / "one.csv").exists()
    assert not any((tmp_path / "out").iterdir())
    assert select(labels, tmp_path / "out", count=3).chosen == verify(tmp_path / "out").rows_written == 3


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_folders_for_the_values_of_any_columns(labels: Path, tmp_path: Path, kind: str) -> None:
    """Folders for a copied column and within it for each label, or for files. The result is verified, selected from and
    read.
    """
    out, rows = tmp_path / "out", frame_of(labels)
    select(labels, out, top="50%", by="score", partition_by=["lang", "label"], format=kind)
    best = rows.sort_values("score", ascending=False, kind="stable")[: -(-len(rows) // 2)]
    folders = {path.parent.relative_to(out / "parts").as_posix() for path in (out / "parts").rglob("part-*")}
    pairs = zip(best["lang"], best["label"], strict=True)
    assert folders == {f"lang={lang}/label={quote(label, safe='')}" for lang, label in pairs}
    assert verify(out, input=True).rows_written == len(best)
    if kind == "parquet":
        assert dict(pd.read_parquet(out).groupby("lang", observed=True)["id"].count()) == dict(
            best["lang"].value_counts()
        )
    select(out, tmp_path / "by_file", partition_by="file", format="parquet")
    assert len(list((tmp_path / "by_file" / "parts").iterdir())) == best["file"].nunique()
    assert verify(tmp_path / "by_file").rows_written == len(best)
    select(tmp_path / "by_file", tmp_path / "again.parquet")
    again = pd.read_parquet(tmp_path / "again.parquet")
    assert list(again["id"]) == list(best.sort_index()["id"])
    assert set(again["file"]) == set(best["file"])
    with pytest.raises(UsageError, match=r"there is no column 'lng' .*did you mean 'lang'"):
        select(labels, tmp_path / "none", partition_by="lng")


@pytest.mark.slow
def test_a_choice_that_is_killed_is_no_output_and_is_made_again(labels: Path, tmp_path: Path) -> None:
    whole, out = tmp_path / "whole", tmp_path / "out"
    select(labels, whole, top="60%", partition_by="lang")
    command = ["select", labels, "-o", out, "--top", "60%", "--partition-by", "lang"]
    killed = "from jobs import killed_after; killed_after('_entries', 1); from broadsheet.__main__ import main; main()"
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests' / 'helpers'}"}
    done = subprocess.run([sys.executable, "-c", killed, *map(str, command)], env=environment)
    assert done.returncode == -signal.SIGKILL
    assert committed(out) == 1
    with pytest.raises(OutputError, match="is not finished: choose again with overwrite=True"):
        verify(out)
    select(labels, out, top="60%", partition_by="lang", overwrite=True)
    assert contents(out) == contents(whole)
    assert verify(out).rows_written == verify(whole).rows_written


def test_an_updated_folder_is_chosen_from_as_its_manifest_has_it(
    client: Client, small_model: Model, tmp_path: Path
) -> None:
    """The selection includes the rows of an update.

    It leaves them out if the update has ended since the manifest was read. The test puts the old manifest back to
    imitate that.
    """
    folder, out = tmp_path / "in", tmp_path / "labels"
    folder.mkdir()
    for name, rows in (("1.txt", 30), ("2.txt", 10)):
        (folder / name).write_text("".join(f"text {i} of {name}\n" for i in range(rows)))
        classify(folder, out, model=small_model, client=client, chunk_size=8, update=name == "2.txt")
        if name == "1.txt":
            before = (out / "_manifest.json").read_bytes()
    assert select(out, tmp_path / "of-all", top="50%").chosen == 20
    assert verify(tmp_path / "of-all").rows_written == 20
    (out / "_manifest.json").write_bytes(before)
    for plan in out.glob("_plan-*.json"):
        plan.unlink()
    chosen = select(out, tmp_path / "of-first")
    assert (chosen.rows, chosen.chosen) == (30, 30)
    assert set(frame_of(tmp_path / "of-first")["file"]) == {str(folder / "1.txt")}


def test_a_share_is_exact_whatever_floats_say() -> None:
    """As floats, 0.07 times 100 is more than 7."""
    for percent in range(101):
        for top in (f"{percent}%", str(percent / 100), percent / 100):
            assert [Amount.of(top, None).rows(n) for n in (100, 1000)] == [percent, 10 * percent], top


def test_the_chosen_rows_of_the_input(labels: Path, tmp_path: Path) -> None:
    """The result has every column of the input and the labels, and leaves out files that have changed."""
    select(labels, tmp_path / "out", count=5, per="lang", keep_all=True)
    chosen = frame_of(tmp_path / "out")
    assert list(chosen.columns[:5]) == ["file", "row", "text", "id", "lang"]
    assert (chosen["text"].str.len() == chosen["n_chars"]).all()
    files = [pd.read_parquet(file).assign(file=str(file)) for file in sorted(labels.parent.glob("*.parquet"))]
    texts = pd.concat(files).set_index("id")["text"]
    assert list(chosen["text"]) == list(texts[chosen["id"]])
    assert verify(tmp_path / "out", input=True).rows_written == 15
    file = labels.parent / "a.parquet"
    data = file.read_bytes()
    file.write_bytes(data + b" ")
    try:
        with pytest.raises(SourceError, match=r"a.parquet has changed since it was labelled"):
            select(labels, tmp_path / "late.jsonl", count=5, keep_all=True)
    finally:
        file.write_bytes(data)
    assert not (tmp_path / "late.jsonl").exists()


def test_what_the_command_says(labels: Path, tmp_path: Path, broadsheet_here: CommandHere) -> None:
    out = tmp_path / "ids.csv"
    code, said = broadsheet_here("select", labels, "-o", out, "--count", 2, "--per", "lang", "--keep", "id", "--json")
    assert code == 0, said
    told = json.loads(said)
    assert (told["chosen"], [cut["group"] for cut in told["cuts"]]) == (6, ["x", "y", "z"])
    assert len(out.read_text().splitlines()) == 7
    code, said = broadsheet_here("select", labels, "-o", out, "--score", "0.9", "--overwrite")
    assert (code, "--score '0.9' is no comparison: '>= 0.9' chooses scores from there on" in said) == (2, True), said
    whole = tmp_path / "labels.jsonl"
    assert broadsheet_here("select", labels, "-o", whole)[0] == 0
    assert [json.loads(line)["id"] for line in whole.read_text().splitlines()] == list(frame_of(labels)["id"])
    for arguments, message in (
        (["--count", 2], "is there already: give another name, or --overwrite"),
        (["--top", "11", "--overwrite"], "it must be a share such as 10% or 0.1; --count takes a number of rows"),
        (["--count", 1, "--by", "scor", "--overwrite"], "did you mean 'score'?"),
        (["--count", 1, "--per", "lng", "--overwrite"], "did you mean 'lang'?"),
        (["--score", "=> 0.5", "--overwrite"], "where: "),
        (["--where", "label == 'nosuch'", "--overwrite"], "the model has no class 'nosuch' (it has "),
    ):
        code, said = broadsheet_here("select", labels, "-o", out, *arguments)
        assert (code, message in said) == (2, True), said
    assert len(out.read_text().splitlines()) == 7


def test_a_folder_tells_what_each_threshold_keeps(labels: Path, tmp_path: Path, broadsheet_here: CommandHere) -> None:
    """The figures of an unfinished job cover the rows that it has. They equal those computed from the rows."""
    rows = frame_of(labels)
    for finished in (True, False):
        if not finished:
            labels = Path(shutil.copytree(labels, tmp_path / "begun"))
            manifest = json.loads((labels / "_manifest.json").read_text())
            (labels / "_manifest.json").write_text(json.dumps({**manifest, "totals": None}))
        code, said = broadsheet_here("inspect", labels, "--json")
        assert code == 0, said
        told = json.loads(said)
        assert (told["finished"], told["totals"]["rows_written"]) == (finished, len(rows))
        (model,) = told["models"]
        assert model["labels"] == rows["label"].value_counts().to_dict()
        for label, kept in model["kept"].items():
            scores = rows["score"][rows["label"] == label].to_numpy()
            assert kept == [int((scores >= np.float32(least)).sum()) for least in told["thresholds"]]
        code, said = broadsheet_here("inspect", labels)
        assert (code, max(map(len, said.splitlines())) <= 80, "≥ 0.95" in said) == (0, True, True)
    code, said = broadsheet_here("inspect", tmp_path)
    assert (code, "not the output of a job" in said) == (2, True)


# `where` expressions: what they choose, and the message for a wrong expression.


WHERE_ROWS = pa.table(
    {
        "label": ["Sports", "World", "Sci/Tech", None],
        "truth": ["Sports", "Sports", None, None],
        "score": pa.array([0.9, 0.5, np.nan, None], pa.float32()),
        "score_Sci/Tech": pa.array([0.1, 0.2, 0.3, 0.4], pa.float32()),
        "n": [1, (1 << 60) + 1, -3, None],
        "id": pa.array([(1 << 64) - 1, 0, 1, None], pa.uint64()),
        "truncated": [True, False, True, None],
        "when": pa.array([dt.datetime(2020, 1, 1), dt.datetime(2024, 1, 1), None, None]),
        "local": pa.array([0, 10**9, None, 5], pa.timestamp("s", "Europe/Berlin")),
        "kind": pa.array(["x", "y", None, "x"]).dictionary_encode(),
        "tags": [["a"], [], None, ["b"]],
        "a`b": [1, 2, 3, 4],
    }
)


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ('label == "Sports" and score >= 0.9', [0]),
        ("score == 0.9", [0]),  # the float32 that prints as 0.9
        # NaN is greater than nothing; a null satisfies neither a condition nor its negation.
        ("not score > 0.5", [1, 2]),
        ('label != "Sports"', [1, 2]),
        ("label in ('Sports', \"World\")", [0, 1]),
        ('label not in ("Sports")', [1, 2]),
        ("label is null or truth is not null", [0, 1, 3]),
        ("label == truth", [0]),
        ("truncated", [0, 2]),
        ("truncated == false", [1]),
        ("0.05 < score_Sci/Tech <= 0.2", [0, 1]),
        ("n == 1152921504606846977 or n == -3", [1, 2]),
        ("n > .5", [0, 1]),
        ("1e0 < n", [1]),
        ("id > -1 and id < 5", [1, 2]),
        ("id == 18446744073709551615 and id != 18446744073709551614", [0]),
        (f"n < 99999999999999999999 and n > -{'9' * 5000} and score < {'9' * 400}", [0, 1]),
        ('when >= "2021-01-01 12:00"', [1]),
        ('local < "1970-01-01 00:59" or local > "2000-01-01T00:00:00Z"', [1]),
        ('kind == "x"', [0, 3]),
        ("`a``b` == 2 or not (`a``b` <= 3)", [1, 3]),
        ('label == "a \\"quote\\""', []),
        ("true", [0, 1, 2, 3]),
        (" or ".join(f"`a``b` == {i}" for i in range(500)), [0, 1, 2, 3]),
    ],
)
def test_it_chooses_the_rows_for_which_it_is_true(text: str, rows: list[int]) -> None:
    Where(text).check(WHERE_ROWS.schema)
    assert np.flatnonzero(Where(text).mask(WHERE_ROWS)).tolist() == rows


# The limits of 64-bit integers, which no float holds exactly.
@pytest.mark.parametrize(
    ("kind", "low", "high"),
    [(pa.int64(), -(1 << 63), (1 << 63) - 1), (pa.uint64(), 0, (1 << 64) - 1)],
)
def test_the_ends_of_integers_are_compared_exactly(kind: pa.DataType, low: int, high: int) -> None:
    """Near these limits, neighbouring integers are equal as floating-point numbers."""
    rows = pa.table({"n": pa.array([low, low + 1, high - 1, high], kind)})
    for text, chosen in (
        (f"n == {high}", [3]),
        (f"n < {high}", [0, 1, 2]),
        (f"n == {low}", [0]),
        (f"n > {low}", [1, 2, 3]),
        (f"n < {high + 1}", [0, 1, 2, 3]),
        (f"n == {high + 1}", []),
        (f"n > {low - 1}", [0, 1, 2, 3]),
    ):
        assert np.flatnonzero(Where(text).mask(rows)).tolist() == chosen, text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a column, a number or a text in quotes, at the end"),
        ('label = "x"', r"equality is written ==, at '= \"x\"' \(character 7\)"),
        ("truncated && truncated", r"write `and`, at '&& truncated' \(character 11\)"),
        ('(label == "x"', r"expected `\)`, at the end"),
        ('label == "x")', r"expected `and`, `or` or the end, at '\)' \(character 13\)"),
        ('label == "x', r"the quote is never closed.+\(character 10\)"),
        ("label == null", "write `is null` or `is not null`"),
        ("score_C++ > 1", r"stands between backticks, at '\+\+ > 1' \(character 8\)"),
        ("truncated # and more", r"\(character 11\)"),
        ("Score > 1", r"there is no column 'Score' \(there are label, truth, score, score_Sci/Tech, n, .+ `a``b`\)"),
        ("score", "'score' is a number: compare it with something"),
        ("1 or truncated", "this is neither true nor false"),
        ("truncated == 1", "'truncated' is true or false and 1 is a number: they cannot be compared"),
        ("n in (1, 'a')", "'n' is a number and 'a' is text"),
        ("label < score", "'label' is text and 'score' is a number"),
        ("tags == 'a'", "'tags' is a list"),
        ("when > 'yesterday'", r"this is no timestamp\[us\], at \"'yesterday'\" \(character 8\)"),
        ("(" * 51 + "truncated" + ")" * 51, "more than 50 parentheses and `not` within one another"),
        ("not " * 5000 + "truncated", "more than 50 parentheses and `not` within one another"),
        ("label in (truth)", "expected a number or a text in quotes"),
        ("__import__('os')", "expected `and`, `or` or the end"),
    ],
)
def test_what_is_wrong_is_told_with_its_place_without_a_row(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Where(text).check(WHERE_ROWS.schema)


TOKENS = [
    *WHERE_ROWS.column_names[:4],
    "`a``b`",
    "1",
    "-2.5",
    '"x"',
    "==",
    "<",
    "in",
    "is",
    "not",
    "null",
    "and",
    "or",
    "(",
    ")",
    ",",
]


@given(st.lists(st.sampled_from(TOKENS), max_size=9).map(" ".join) | st.text(max_size=20))
def test_whatever_is_given_it_is_an_expression_for_every_row_or_for_none(text: str) -> None:
    try:
        Where(text).check(WHERE_ROWS.schema)
    except UsageError:
        return
    assert len(Where(text).mask(WHERE_ROWS)) == len(WHERE_ROWS)


def test_a_label_that_the_model_does_not_have_is_told() -> None:
    for text in ('score > 0.5 and label == "sports"', "label in ('World', 'sports')", "'sports' != truth"):
        with pytest.raises(UsageError, match=r"the model has no class 'sports' \(it has World, Sports\), at ."):
            Where(text).check_labels({"label": ("World", "Sports"), "truth": ("World", "Sports")})
    Where("label == 'Sports' or label == truth or kind == 'sports'").check_labels(
        {"label": ("World", "Sports"), "truth": ("World", "Sports")}
    )


QUERY_WITH_SIGNAL = """
import os, signal, sys, threading
from broadsheet.pipeline.output.cut import answered, rows_on_disk

def interrupt(*_):
    raise KeyboardInterrupt

number = int(sys.argv[1])
signal.signal(number, interrupt)  # as the command does for SIGTERM
try:
    with rows_on_disk("rows are counted") as database:
        threading.Timer(0.5, os.kill, (os.getpid(), number)).start()
        answered(database, "SELECT count(*) FROM range(1000000000) a(i), range(1000) b(j) WHERE i * j % 7 = 3")
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_interrupts_a_query_as_it_interrupts_python(number: int) -> None:
    """DuckDB itself looks for signals in some queries only, and raises an error of its own."""
    command = [sys.executable, "-c", QUERY_WITH_SIGNAL, str(int(number))]
    run = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert (run.returncode, run.stdout) == (0, "interrupted\n"), run.stderr
