"""Files that are read in parts: they give the same rows, numbers and bytes as the whole, whatever happens to a part."""

from __future__ import annotations

import csv
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as pa_dataset
import pytest
from conftest import examples
from distributed import Client
from hypothesis import given, settings
from hypothesis import strategies as st
from jobs import check_whole, committed, workers_that_run
from reading import found, read_files, read_split

from broadsheet.pipeline import classify, verify
from broadsheet.pipeline.job.starts import ClientStarts
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.report.job import JobReport
from broadsheet.pipeline.source.plan.plan import Range, RangeEnd, Start
from broadsheet.pipeline.source.rows.chunk import Chunk, Selection, concat

ROWS = 400

# A worker dies, once, as it reads the second part of "lost.jsonl", after the part's first chunk. Every worker dies that
# reads a row of the second part of "poison.jsonl".
PRELOAD = """
import os, signal
from pathlib import Path
from broadsheet.pipeline.job.worker import STATE
folder = Path({folder!r})
read_range = vars(STATE).setdefault("kept", STATE.read_range)
def troubled(range_, *a):
    name = os.path.basename(range_.files[0].path) if range_.files else ""
    for number, item in enumerate(read_range(range_, *a)):
        if name == "lost.jsonl" and range_.part_number == 1 and number == 1 and (folder / "kill").exists():
            (folder / "kill").unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        if name == "poison.jsonl" and range_.part_number == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        yield item
STATE.read_range = troubled
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("parts")


@pytest.fixture(scope="module")
def troubled(folder: Path) -> Iterator[Client]:
    with workers_that_run(PRELOAD.format(folder=str(folder)), folder, 2) as client:
        yield client


def write_jsonl(path: Path, rows: int = ROWS) -> Path:
    """Write rows of about 1,000 bytes, so that the file has several parts of 64 KiB, with blank lines and bad rows
    among them.
    """
    chance = random.Random(rows)
    with open(path, "w") as file:
        for number in range(rows):
            file.write(json.dumps({"text": f"{number} {chance.randbytes(chance.randrange(900)).hex()}"}) + "\n")
            file.write("\n" * (number % 7 == 0) + "no row\n" * (number % 50 == 0))
    return path


def write_csv(path: Path) -> Path:
    """Write records whose texts look like many records of the file, so that a guess within a text is wrong."""
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "id"])
        for number in range(7):
            writer.writerow([f"{number} begins\n" + f"a line,{number}\n" * 3_000, number])
            writer.writerow([f"{number} is short", number])
    return path


def rows_of(out: Path) -> pa.Table:
    rows = pa_dataset.dataset(out, exclude_invalid_files=True).to_table()
    return rows.sort_by([("file", "ascending"), ("row", "ascending")])


def parts_in(out: Path) -> set[str]:
    """Return the numbers of the ranges that have a part in the output."""
    return {path.name.split("-")[1] for path in (out / "parts").iterdir()}


def labelled(source: Any, out: Path, client: Client, model: Model, **options: Any) -> JobReport:
    return classify(source, out, client=client, model=model, chunk_size=40, scores=True, **options)


@pytest.mark.slow
def test_parts_have_the_rows_of_the_whole(client: Client, small_model: Model, tmp_path: Path) -> None:
    """The rows have the same order, numbers, offsets and bits."""
    sources = [write_jsonl(tmp_path / "a.jsonl"), write_csv(tmp_path / "b.csv")]
    report = labelled(sources, tmp_path / "out", client, small_model)
    assert len(parts_in(tmp_path / "out")) > 6
    # Under this limit, no file is read in parts.
    whole = labelled(sources, tmp_path / "whole", client, small_model, limit=1_000_000)
    assert parts_in(tmp_path / "whole") == {"000000"}
    assert rows_of(tmp_path / "out").equals(rows_of(tmp_path / "whole"))
    assert report.rows_read == whole.rows_read == verify(tmp_path / "out", input=True).rows_read
    order = [("file", "ascending"), ("row", "ascending")]
    assert report.quarantine().sort_by(order).equals(whole.quarantine().sort_by(order))
    assert report.run.read_again > 0  # parts of the CSV begin within a text


@pytest.mark.slow
def test_a_part_that_loses_its_worker_delays_those_after_it(
    troubled: Client, client: Client, small_model: Model, folder: Path, tmp_path: Path
) -> None:
    source = write_jsonl(tmp_path / "lost.jsonl")
    labelled(source, tmp_path / "undisturbed", client, small_model)
    (folder / "kill").touch()
    report = labelled(source, tmp_path / "out", troubled, small_model)
    assert not (folder / "kill").exists()
    assert report.exit_code == 0
    check_whole(tmp_path / "out", tmp_path / "undisturbed")


@pytest.mark.slow
def test_a_part_that_kills_every_worker_is_set_aside_and_those_after_it_are_labelled(
    troubled: Client, client: Client, small_model: Model, tmp_path: Path
) -> None:
    """The rows of that part are counted without being parsed, so that the rows after it get their numbers."""
    source, out = write_jsonl(tmp_path / "poison.jsonl"), tmp_path / "out"
    labelled(source, tmp_path / "undisturbed", client, small_model)
    report = labelled(source, out, troubled, small_model)
    assert report.exit_code == 3
    assert [name for name, _ in report.run.set_aside] == ["part-000001-0000000"]
    assert parts_in(out) == parts_in(tmp_path / "undisturbed") - {"000001"}
    assert labelled(source, out, client, small_model, resume=True).exit_code == 0
    check_whole(out, tmp_path / "undisturbed")


def test_a_job_that_was_stopped_goes_on_in_the_middle_of_a_file(
    client: Client, small_model: Model, tmp_path: Path
) -> None:
    source, out = write_jsonl(tmp_path / "in.jsonl"), tmp_path / "out"
    labelled(source, tmp_path / "undisturbed", client, small_model)
    report = labelled(source, out, client, small_model, stop=lambda: committed(out) >= 4)
    assert committed(out) >= 4
    again = labelled(source, out, client, small_model, resume=True)
    assert again.exit_code == 0
    assert report.exit_code in (0, 4)
    check_whole(out, tmp_path / "undisturbed")


@pytest.mark.slow
def test_parts_after_one_that_is_not_closed_are_counted_again(
    client: Client, small_model: Model, tmp_path: Path
) -> None:
    """A worker is lost with the second part, after later parts have been closed."""
    source, out = write_jsonl(tmp_path / "in.jsonl"), tmp_path / "out"
    labelled(source, tmp_path / "undisturbed", client, small_model)
    labelled(source, out, client, small_model)
    for path in (out / "_SUCCESS", *(out / "_entries").glob("*-000001-*"), *(out / "_entries").glob("*-000003-*")):
        path.unlink()
    assert labelled(source, out, client, small_model, resume=True).exit_code == 0
    check_whole(out, tmp_path / "undisturbed")


def test_a_folder_of_a_version_that_cut_no_file_is_resumed(client: Client, small_model: Model, tmp_path: Path) -> None:
    """The plan of that version has no parts: each file is one range."""
    source, out = write_jsonl(tmp_path / "in.jsonl"), tmp_path / "out"
    labelled(
        source, out, client, small_model, layout="attributes", root=tmp_path
    )  # sidecar files belong to one range each
    plan = json.loads((out / "_plan.json").read_text())
    assert "parts" not in plan
    (out / "_SUCCESS").unlink()
    max((out / "_parts").iterdir()).unlink()
    assert labelled(source, out, client, small_model, layout="attributes", root=tmp_path, resume=True).exit_code == 0
    assert verify(out, input=True, root=tmp_path).chunks == -(-(ROWS + 8) // 40)


def test_a_file_that_changes_while_it_is_read_in_parts_is_set_aside(
    client: Client, small_model: Model, tmp_path: Path
) -> None:
    source, out = write_jsonl(tmp_path / "in.jsonl"), tmp_path / "out"
    os.utime(source, ns=(0, 10**18))

    def stop() -> bool:
        os.utime(source, ns=(0, 2 * 10**18))
        return False

    report = labelled(source, out, client, small_model, stop=stop)
    assert report.exit_code == 3
    assert report.run.set_aside
    assert not (out / "_SUCCESS").exists()


lines = st.one_of(
    st.text('ab {}"é', max_size=30).map(lambda text: json.dumps({"text": text})),
    st.sampled_from(["", " ", "\r", "{", "null", '{"text": null}', '{"text": "' + "x" * 90 + '"}']),
)


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(lines, min_size=1, max_size=30), st.integers(1, 200), st.integers(1, 9), st.booleans())
def test_lines_in_parts_of_any_size_are_those_of_the_file(
    tmp_path_factory: pytest.TempPathFactory, given_lines: list[str], size: int, chunk_rows: int, ends: bool
) -> None:
    path = tmp_path_factory.mktemp("lines") / "f.jsonl"
    path.write_text("\n".join(given_lines) + "\n" * ends, newline="")
    files, asked = found([path]), Selection(text=("text",))

    def rows(chunks: list[Chunk]) -> list[Any]:
        chunk = concat(chunks)
        kept = zip(chunk.rows["row"].to_pylist(), chunk.text.to_pylist(), strict=True)
        return [*kept, *chunk.quarantine.to_pylist()]

    assert rows(read_split(files, asked, chunk_rows, size).chunks) == rows(read_files(files, asked, chunk_rows).chunks)


def end(number: int, rows: int, begin: int, after: int) -> RangeEnd:
    return RangeEnd(number, (("f", rows),), 1, begin=begin, after=after)


# The part begins at 100: one guess is before that, and one after it.
@pytest.mark.parametrize("guess", [90, 110])
def test_a_start_is_known_once_all_parts_before_have_been_read_from_where_they_begin(guess: int) -> None:
    starts = ClientStarts()
    for number in range(4):
        starts.with_start(Range(5 + number, (), None, None, number, 4))
    assert starts.read(end(7, 30, 200, 300)) == {}
    assert starts.read(end(6, 20, guess, 200)) == {}  # the part begins at 100
    assert starts.read(end(5, 10, 0, 100)) == {6: Start(10, 100)}
    assert starts.read(end(6, 21, 100, 200)) == {6: Start(10, 100), 7: Start(31, 200), 8: Start(61, 300)}
    assert starts.read(end(8, 1, 300, 400)) == {8: Start(61, 300)}


# The part begins at 100: one guess is before that, and one after it.
@pytest.mark.parametrize("guess", [90, 110])
def test_a_count_from_elsewhere_than_a_part_begins_is_known_for_wrong(guess: int) -> None:
    """The part is counted again, because the parts after it wait for its count."""
    starts = ClientStarts()
    parts = [starts.with_start(Range(number, (), None, None, number, 3)) for number in range(3)]
    starts.read(end(1, 20, guess, 200))
    assert not starts.is_misread(parts[1])
    assert starts.read(end(0, 10, 0, 100)) == {1: Start(10, 100)}
    assert starts.is_misread(parts[1])
    assert starts.with_start(parts[1]).start == Start(10, 100)
    starts.read(end(1, 19, 100, 200))
    assert not starts.is_misread(parts[1])


def test_those_after_a_part_that_cannot_be_read_are_given_the_reason() -> None:
    starts = ClientStarts()
    parts = [starts.with_start(Range(number, (), None, None, number, 3)) for number in range(3)]
    (told,) = starts.fail(parts[0], "gone").values()
    assert told == "its rows have no numbers: what is before it was not read (gone)"
    assert starts.read(end(1, 20, 100, 200)) == {1: told}
    assert starts.fail(parts[1], str(told)) == {2: told}
    assert starts.fail(parts[2], str(told)) == {}
