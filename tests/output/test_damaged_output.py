"""Output folders that are damaged, forged or not ours: each gives a message, and --resume redoes only the
damaged part.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import random
import shutil
import socket
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import examples
from distributed import Client
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jobs import Once, contents, file_size_limit
from typer.testing import CliRunner

from broadsheet.pipeline import BroadsheetError, OutputError, Paths, SourceError, UsageError, classify, verify
from broadsheet.pipeline.cli.commands import application
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.output.folder import OutputFolder
from broadsheet.pipeline.output.object_store import place_of
from broadsheet.pipeline.report.job import JobReport

ROWS = 68


class Finished(NamedTuple):
    """A finished job over two compressed CSVs, a CSV without rows, and a large Parquet file in two parts: five ranges.

    run: runs the job, given an output folder and options. files: the contents of its folder.
    """

    out: Path
    run: Callable[..., JobReport]
    files: dict[str, bytes]

    def one(self, pattern: str) -> Path:
        (path,) = self.out.glob(pattern)
        return path


@pytest.fixture(scope="module")
def undisturbed(client: Client, small_model: Model, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    folder = tmp_path_factory.mktemp("job")
    texts = [f"{kind} {i} {random.Random(i).randbytes(3000).hex()}" for kind in ("line", "row") for i in range(25)]
    lines = "".join(f"{text}\n" for text in texts[:25])
    (folder / "a.csv.gz").write_bytes(gzip.compress(f"text\n{lines}one,too many\n".encode(), mtime=0))
    (folder / "b.csv.gz").write_bytes(gzip.compress(f"text\n{lines}".encode(), mtime=0))
    (folder / "c.csv").write_text("text\n")
    pq.write_table(pa.table({"text": texts[25:42]}), folder / "d.parquet", row_group_size=6)
    source = Paths([str(file) for file in sorted(folder.iterdir())])
    run = partial(classify, source, model=small_model, client=client, chunk_size=10)
    report = run(folder / "out")
    assert report.rows_read == ROWS
    shutil.rmtree(folder / "out" / "_runs")
    return Finished(folder / "out", run, contents(folder / "out"))


@pytest.fixture
def job(undisturbed: Finished, tmp_path: Path) -> Finished:
    """A copy of the finished job's folder."""
    out = shutil.copytree(undisturbed.out, tmp_path / "out")
    return Finished(out, partial(undisturbed.run, out), undisturbed.files)


def changed(path: Path, change: Callable[[Any], object]) -> None:
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def forge_plan(out: Path, change: Callable[[Any], object]) -> None:
    """Change the plan, and its hash in the manifest."""
    changed(out / "_plan.json", change)
    give_hash(out)


def give_hash(out: Path) -> None:
    """Write the hash of the plan into the manifest."""
    digest = hashlib.sha256((out / "_plan.json").read_bytes()).hexdigest()
    changed(out / "_manifest.json", lambda manifest: manifest.update(plan=digest))


def take_away(job: Finished, chunk: str) -> None:
    """Remove a chunk: its part, its entry, and its share of the totals."""
    entry = job.one(f"_entries/{chunk}-*")
    figures = json.loads(entry.read_text())
    entry.unlink()
    (job.out / figures["files"][0]["name"]).unlink()

    def less(manifest: Any) -> None:
        totals = manifest["totals"]
        totals["chunks"] -= 1
        for name in ("rows_read", "rows_written", "chars", "truncated", "unknown_chars"):
            totals[name] -= figures[name]
        for label, rows in figures["labels"].items():
            totals["labels"][label] -= rows
        totals["lengths"] = [whole - part for whole, part in zip(totals["lengths"], figures["lengths"], strict=True)]
        for label, bins in figures["scores"].items():
            totals["scores"][label] = [a - b for a, b in zip(totals["scores"][label], bins, strict=True)]

    changed(job.out / "_manifest.json", less)


def test_what_is_damaged_costs_its_chunk(job: Finished) -> None:
    entries = [job.one(f"_entries/part-{name}-*") for name in ("000000-0000000", "000000-0000001", "000001-0000001")]
    entries[0].write_bytes(b"")
    entries[1].write_bytes(entries[1].read_bytes()[:200])
    # An entry of a job whose id has the same beginning.
    changed(entries[2], lambda entry: entry.update(job=entry["job"][:8] + "01234567"))
    job.one("parts/part-000003-0000000-*").write_bytes(b"PAR1")
    job.one("parts/part-000003-0000001-*").unlink()
    fifo = job.one("_entries/part-000004-0000000-*")
    fifo.unlink()
    os.mkfifo(fifo)
    with pytest.raises(OutputError, match=r"is damaged: .+: resume=True repairs this$"):
        verify(job.out)
    assert job.run(resume=True).run.chunks_before == 3
    assert contents(job.out) == job.files
    verify(job.out)


def test_entries_of_another_job_do_not_count(job: Finished) -> None:
    """The content of an entry, as tested above, and its name both have to match the job."""
    entry = job.one("_entries/part-000001-0000001-*")
    other = entry.with_name(entry.name.replace(entry.stem[-8:], "01234567"))
    entry.rename(other)
    with pytest.raises(OutputError, match=r"belongs to no entry|part-000001-0000001 of .+ has no entry"):
        verify(job.out)
    assert job.run(resume=True).run.chunks_before == 8
    assert not other.exists()
    assert contents(job.out) == job.files


@pytest.mark.parametrize("name", ["part-000001-0000001", "group-000001"])
def test_a_missing_entry_of_what_was_counted_as_it_was_read_is_noticed(job: Finished, name: str) -> None:
    if name.startswith("part"):
        take_away(job, name)
    else:
        job.one(f"_entries/{name}-*").unlink()
    with pytest.raises(OutputError, match=r"b\.csv\.gz has no (closing )?entry.*: resume=True repairs this$"):
        verify(job.out)
    job.run(resume=True)
    assert contents(job.out) == job.files


@pytest.mark.parametrize("lost", ["a row", "the last chunk"])
def test_rows_that_no_entry_accounts_for_are_noticed(job: Finished, lost: str) -> None:
    """The chunks still follow one another without a gap, and their number equals the one in the group's
    closing entry.
    """
    end = job.one("_entries/group-000001-*")
    if lost == "a row":
        changed(end, lambda entry: entry["files"][0].__setitem__(1, entry["files"][0][1] + 1))
    else:
        take_away(job, "part-000001-0000002")
        changed(end, lambda entry: entry.update(chunks=entry["chunks"] - 1))
    with pytest.raises(OutputError, match=r"b\.csv\.gz has 2\d rows, its entries have 2\d: resume=True repairs this$"):
        verify(job.out)
    job.run(resume=True)
    assert contents(job.out) == job.files


@pytest.mark.parametrize("spoil", [lambda part: os.truncate(part, part.stat().st_size - 1), os.unlink])
def test_a_chunk_whose_part_is_not_whole_is_not_taken_for_committed(
    job: Finished, spoil: Callable[[Path], None]
) -> None:
    """The check is the one of a worker that takes over from a lost worker, which reads no part."""
    folder = OutputFolder(place_of(job.out))
    about = folder.manifest().fingerprint
    assert len(folder.entries_of(1, about.id, about.settings.names)) == 3
    spoil(job.one("parts/part-000001-0000001-*"))
    chunks = folder.entries_of(1, about.id, about.settings.names)
    assert list(chunks) == ["part-000001-0000000", "part-000001-0000002"]


@pytest.mark.parametrize(
    ("place", "data", "message"),
    [
        ("_entries/part-000000-0000000-*", None, r"\.json was removed while the job ran: resume=True repairs this$"),
        ("parts/part-000000-0000000-*", None, r"\.parquet is missing"),
        ("parts/part-000000-0000000-*", b"PAR", r"is damaged: it has 3 bytes, .+: resume=True repairs this$"),
        ("parts/part-000000-0000000-*", b"", r"is damaged: the hash .+: resume=True repairs this$"),
    ],
)
def test_what_is_removed_or_changed_while_the_job_runs_is_noticed_at_its_end(
    job: Finished, place: str, data: bytes | None, message: str
) -> None:
    def disturb() -> None:
        while not (files := list(job.out.glob(place))):
            time.sleep(0.01)
        if data is None:
            files[0].unlink()
        else:
            files[0].write_bytes(data or files[0].read_bytes()[::-1])

    shutil.rmtree(job.out)
    with pytest.raises(OutputError, match=message):
        job.run(progress=Once(disturb))
    assert not (job.out / "_SUCCESS").exists()
    job.run(resume=True)
    assert contents(job.out) == job.files


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def copy_as(path: Path, name: str, **changes: object) -> None:
    copy = path.with_name(path.name.replace("000000-0000000", name))
    shutil.copy(path, copy)
    if changes:
        changed(copy, lambda value: value.update(changes))


DAMAGES: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "a byte of a part": ("parts/part-000000-0000001-*", flip, r"is damaged: the hash"),
    "a byte of quarantined rows": ("_quarantine/part-000000-0000002-*", flip, r"is damaged: the hash"),
    "a byte of an entry": ("_entries/part-000001-0000000-*", flip, r"is damaged|does not|other|labels|has no entry"),
    "figures of an entry": ("_entries/part-000000-0000000-*", lambda p: changed(p, _more_chars), "labels or counts"),
    "rows of an entry": ("_entries/part-000004-0000000-*", lambda p: changed(p, _later), r"missing or duplicated"),
    "a part removed": ("parts/part-000003-0000000-*", Path.unlink, r"is missing"),
    "a part cut": ("parts/part-000003-0000001-*", lambda p: os.truncate(p, 20), r"it has 20 bytes"),
    "a strange part": ("parts/part-000000-0000000-*", lambda p: copy_as(p, "000009-0000000"), "belongs to no entry"),
    "another's part": ("parts/part-000000-0000000-*", lambda p: shutil.copy(p, p.with_name("x")), "to no entry"),
    "an empty entry": ("_entries/part-000000-0000000-*", lambda p: p.write_text(""), "is damaged"),
    "a strange entry": ("_entries/part-000000-0000000-*", lambda p: copy_as(p, "000000-0000007"), "is the entry of"),
    "totals": (
        "_manifest.json",
        lambda p: changed(p, lambda m: m["totals"].update(rows_written=7)),
        "rows_written is 7",
    ),
    "schema": ("_manifest.json", lambda p: changed(p, lambda m: m.update(schema="00ff")), "is damaged: no schema"),
    "the manifest": ("_manifest.json", lambda p: p.write_bytes(p.read_bytes()[:300]), "is damaged"),
    "no manifest": ("_manifest.json", Path.unlink, "has lost its _manifest.json"),
    "the plan": ("_plan.json", flip, "is not the plan that the job began with"),
    "no plan": ("_plan.json", Path.unlink, "is missing or damaged"),
    "scores of an entry": ("_entries/part-000000-0000000-*", lambda p: changed(p, _turned), "labels or counts"),
    "bins of an entry": ("_entries/part-000000-0000000-*", lambda p: changed(p, _cut), "do not add up"),
    "rows one before": ("_entries/part-000004-0000000-*", lambda p: changed(p, _earlier), r"missing or duplicated"),
}


def _turned(entry: Any) -> None:
    entry["scores"] = {label: bins[::-1] for label, bins in entry["scores"].items()}


def _cut(entry: Any) -> None:
    entry["scores"] = {label: bins[:5] for label, bins in entry["scores"].items()}


def _more_chars(entry: Any) -> None:
    entry["chars"] += 1


def _later(entry: Any) -> None:
    entry["sources"][0][1] += 1


def _earlier(entry: Any) -> None:
    entry["sources"][0][1] -= 1


@pytest.mark.parametrize("kinds", [[kind] for kind in DAMAGES] + [[*DAMAGES][:12]], ids=lambda kinds: kinds[-1][:20])
def test_what_verify_calls_damaged_resume_repairs(job: Finished, kinds: list[str]) -> None:
    for kind in kinds:
        place, damage, message = DAMAGES[kind]
        damage(job.one(place))
    with pytest.raises(
        OutputError, match=rf"({message}).*: resume=True repairs this$" if len(kinds) == 1 else "repairs"
    ):
        verify(job.out)
    job.run(resume=True)
    assert contents(job.out) == job.files
    assert verify(job.out).rows_read == ROWS


PLANS: dict[str, Callable[[Any], object]] = {
    "a file renamed": lambda plan: plan["files"][1].__setitem__(0, "/escaped.csv"),
    "a file of another size": lambda plan: plan["files"][0].__setitem__(1, 7),
    "a file deleted": lambda plan: plan.update(files=plan["files"][:3], groups=[1, 1, 1]),
    "files out of order": lambda plan: plan["files"].reverse(),
    "groups put together": lambda plan: plan.update(groups=[2, 2]),
    "groups of fewer files": lambda plan: plan.update(groups=[1, 1]),
    "of no file": lambda plan: plan.update(first=9),
    "chunk size": lambda plan: plan.update(chunk_rows=9),
    "selection": lambda plan: plan["selection"].update(text=[]),
    "kept types": lambda plan: plan["selection"].update(kept_types="ffff"),
}


@pytest.mark.parametrize("change", PLANS.values(), ids=PLANS)
def test_a_forged_plan_is_not_resumed(job: Finished, change: Callable[[Any], object]) -> None:
    forge_plan(job.out, change)
    (job.out / "_SUCCESS").unlink()
    before = contents(job.out)
    with pytest.raises(OutputError, match=r"_plan\.json is damaged: "):
        job.run(resume=True)
    assert contents(job.out) == before
    assert [path.name for path in job.out.parent.iterdir()] == ["out"]


def test_the_input_tells_what_a_wholly_forged_folder_does_not(undisturbed: Finished, job: Finished) -> None:
    told = CliRunner().invoke(application(), ["verify", str(job.out), "--input"])
    assert f"whole. 9 chunks; {ROWS} rows read" in told.output, told.output
    take_away(job, "part-000004-0000000")
    end = job.one("_entries/group-000004-*")
    changed(end, lambda entry: entry.update(chunks=0, files=[[entry["files"][0][0], 0]]))
    assert verify(job.out).rows_read == 63
    with pytest.raises(SourceError, match=r"d\.parquet has 17 rows, 12 are in the output"):
        verify(job.out, input=True)
    source = undisturbed.out.parent / "a.csv.gz"
    before = source.stat()
    os.utime(source, ns=(0, 0))
    try:
        with pytest.raises(
            SourceError, match=r"a\.csv\.gz has changed since it was labelled: its time of modification"
        ):
            verify(undisturbed.out, input=True)
    finally:
        os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("name", ["_plan.json", "_manifest.json", "_claim.json", "parts/part-000000-0000000-*"])
@pytest.mark.parametrize("kind", ["fifo", "socket", "device"])
def test_what_is_no_regular_file_is_not_waited_for(
    job: Finished, monkeypatch: pytest.MonkeyPatch, name: str, kind: str
) -> None:
    path = job.one(name)
    path.unlink()
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as listening:
            monkeypatch.chdir(path.parent)  # the path of a socket has to be short
            listening.bind(path.name)
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(OutputError, match=f"{path.name} is not a regular file"):
        verify(job.out)
    if name.startswith("parts"):
        job.run(resume=True)
        assert contents(job.out) == job.files
    else:
        with pytest.raises((OutputError, UsageError), match=r"is not a regular file|is not an output folder"):
            job.run(resume=True)


def test_verify_says_what_a_folder_lacks_that_is_not_ours(tmp_path: Path) -> None:
    def message(path: object) -> str:
        with pytest.raises(OutputError) as raised:
            verify(path)
        return str(raised.value)

    (tmp_path / "file").write_text("{}")
    (tmp_path / "loop").symlink_to("loop")
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    assert "theirs does not exist or is empty" in message(theirs)
    pq.write_table(pa.table({"x": [1]}), theirs / "part-0.parquet")
    for path in ("/", theirs, tmp_path / "file"):
        assert f"{path} is not an output folder of broadsheet: _manifest.json is missing" in message(path)
    assert "loop" in message(tmp_path / "loop")
    assert "name too long" in message("x" * 300)
    assert "null byte" in message("\0")


def test_parts_of_another_kind_and_links_are_told(job: Finished) -> None:
    def message() -> str:
        with pytest.raises(OutputError) as raised:
            verify(job.out)
        return str(raised.value)

    (job.out / "parts" / "up").symlink_to("..")
    assert "parts/up belongs to no entry" in message()
    (job.out / "parts" / "up").unlink()
    part, entry = job.one("parts/part-000000-0000000-*"), job.one("_entries/part-000000-0000000-*")
    table = pq.read_table(part)
    for data in (
        b"not Parquet",
        _parquet(table.drop_columns("row")),
        _parquet(table.set_column(1, "row", [["x"] * 10])),
    ):
        part.write_bytes(data)
        about = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        changed(entry, lambda value, about=about: value["files"][0].update(about))
        assert message().startswith(f"{part} ")


def _parquet(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return sink.getvalue().to_pybytes()


def test_a_limit_on_file_size_met_by_the_plan(job: Finished) -> None:
    """The message asks for a larger chunk size, as there is nothing to resume, and smaller chunks make the
    plan larger.
    """
    shutil.rmtree(job.out)
    with file_size_limit(500), pytest.raises(OutputError) as raised:
        job.run()
    assert "File too large. Raise the limit on file size (ulimit -f)" in str(raised.value)
    assert str(raised.value).endswith("(ulimit -f), or use a larger chunk_size=, then start again")
    job.run()
    assert contents(job.out) == job.files


# Records of an output folder with any content give a message, and no row is lost.


__all__ = ["undisturbed"]  # a fixture that the test below uses too

RECORDS = [
    "_manifest",
    "_plan",
    "_claim",
    "_entries/part-000000-0000001",
    "_entries/part-000001-0000002",
    "_entries/group-000000",
    "_entries/group-000001",
]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(["../../x", "\0"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Return every value nested in a value, as pairs of its container and its key or index."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [(value, key) for key in keys] + [place for key in keys for place in places(value[key])]


def disturbed(data: st.DataObject, text: bytes) -> bytes:
    """Return a JSON file that is cut short, replaced as a whole, or has one value replaced, removed or doubled."""
    whole = data.draw(st.none() | st.binary(max_size=20) | VALUES.map(lambda v: json.dumps(v).encode()), "the whole")
    if whole is not None:
        return whole
    value = json.loads(text)
    container, key = data.draw(st.sampled_from(places(value)))
    match data.draw(st.sampled_from(["replace", "remove", "double", "cut", "nest"])):
        case "replace":
            container[key] = data.draw(VALUES)
        case "remove":
            del container[key]
        case "double" if isinstance(container, list):
            container.insert(key, container[key])
        case "cut":
            return text[: data.draw(st.integers(0, len(text)))]
        case _:
            return text.replace(b": ", b": " + b"[" * 5000, 1)
    return json.dumps(value).encode()


@pytest.mark.slow
@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_no_record_whatever_it_holds_ends_in_a_traceback_or_loses_a_row(
    undisturbed: Finished, tmp_path: Path, data: st.DataObject
) -> None:
    """verify and --resume end with a message, or the output is complete. The test forges a plan together with
    its hash.
    """
    out = tmp_path / "within" / "out"
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(undisturbed.out, out)
    path = min(out.glob(data.draw(st.sampled_from(RECORDS)) + "*.json"))
    path.write_bytes(disturbed(data, path.read_bytes()))
    if path.name == "_plan.json":
        give_hash(out)
    parts = {name: content for name, content in undisturbed.files.items() if name.startswith("parts/")}
    for call in (verify, partial(undisturbed.run, resume=True)):
        message = ""
        try:
            result = call(out)
        except BroadsheetError as error:
            message = str(error)
        assert "Traceback" not in message
        told = message or getattr(result, "exit_code", 0)
        assert told or parts == {name: content for name, content in contents(out).items() if name.startswith("parts/")}
    assert [path.name for path in tmp_path.rglob("*") if out not in path.parents] == ["within", "out"]
