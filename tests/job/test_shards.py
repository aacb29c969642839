"""Jobs in shares without a cluster: every machine divides them alike, they may be preempted, and a merge joins them."""

from __future__ import annotations

import json
import random
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import start
from conftest import CommandHere
from distributed import Client
from hypothesis import given
from hypothesis import strategies as st
from jobs import check_whole, committed, wait_until

from benchmarks.chaos.jobs import contents
from benchmarks.chaos.slow import slowed
from broadsheet.pipeline import OutputError, UsageError, classify, merge, select, verify
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.source.formats.csv import Csv
from broadsheet.pipeline.source.plan.files import Files, divided
from broadsheet.pipeline.source.rows.format import InputFile

COUNT = 4


@given(st.lists(st.integers(0, 1 << 40)), st.integers(1, 9), st.randoms())
def test_files_are_divided_by_size_the_same_way_in_any_order(sizes: Sequence[int], count: int, order: random.Random):
    files = [InputFile(f"{number:03d}.csv", Csv(), None, size, "", "") for number, size in enumerate(sizes)]
    shuffled = order.sample(files, len(files))
    shares = []
    for number in range(1, count + 1):
        share = divided(Files(tuple(files)), f"{number}/{count}", None).found
        assert [*share] == [file for file in files if file in share]
        assert {*share} == {*divided(Files(tuple(shuffled)), f"{number}/{count}", None).found}
        shares.append(share)
    assert sorted(file.path for share in shares for file in share) == [file.path for file in files]
    weights = [sum(max(file.size or 0, 1) for file in share) for share in shares]
    assert max(weights) - min(weights) <= max([1, *sizes])


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three files, which are fewer than the shares. The second has ids of another type than the first."""
    folder = tmp_path_factory.mktemp("corpus") / "in"
    folder.mkdir()
    for number, rows in enumerate((50, 90, 20)):
        texts = [None if i % 17 == 3 else f"text {(i * 7 + number) % 40}" for i in range(rows)]
        ids = [f"{number}-{i}" if number == 1 else i for i in range(rows)]
        pq.write_table(pa.table({"text": texts, "id": ids}), folder / f"{number}.parquet", row_group_size=40)
    return folder


@pytest.fixture(scope="module")
def options(client: Client, small_model: Model, corpus: Path) -> dict:
    return {"model": small_model, "client": client, "root": corpus, "id_column": "id", "chunk_size": 16}


@pytest.fixture(scope="module")
def shares(corpus: Path, options: dict) -> list[Path]:
    folders = [corpus.parent / f"share-{number}" for number in range(1, COUNT + 1)]
    for number, out in enumerate(folders, 1):
        classify(corpus, out, shard=f"{number}/{COUNT}", resume=True, **options)
    return folders


def rows_of(folder: Path) -> list[dict]:
    frame = pd.read_parquet(folder / "parts", partitioning=None)
    return frame.astype({"file": str}).sort_values(["file", "row"]).to_dict("records")


@pytest.mark.slow
def test_the_shares_of_a_job_become_one_dataset(corpus: Path, shares: list[Path], options: dict, tmp_path: Path):
    """The merged dataset has the rows of an undivided job, copies no bytes, and goes on like any other job."""
    out = tmp_path / "out"
    classify(corpus, tmp_path / "whole", **options)
    totals = merge(reversed(shares), out)
    assert (totals.rows_read, totals.rows_quarantined) == (160, 10)
    assert rows_of(out) == rows_of(tmp_path / "whole")
    assert verify(out, input=True, root=corpus) == totals
    inodes = {path.stat().st_ino for share in shares for path in (share / "parts").iterdir()}
    assert {path.stat().st_ino for path in (out / "parts").iterdir()} == inodes
    assert select(out, tmp_path / "best", top="10%").chosen == 15
    later = shutil.copytree(corpus, tmp_path / "in", copy_function=shutil.copy2)
    pq.write_table(pa.table({"text": ["one more"], "id": ["new"]}), later / "4.parquet")
    report = classify(later, out, update=True, **{**options, "root": later})
    assert (report.rows_read, verify(out).rows_read) == (161, 161)


def test_a_part_that_is_a_link_is_merged_as_the_file_it_leads_to(shares: list[Path], tmp_path: Path) -> None:
    share = shutil.copytree(shares[0], tmp_path / "share")
    part = next((share / "parts").iterdir())
    part.symlink_to(part.rename(tmp_path / "elsewhere.parquet"))
    merge([share, *shares[1:]], tmp_path / "out")
    assert not any(path.is_symlink() for path in (tmp_path / "out").rglob("*"))
    (tmp_path / "elsewhere.parquet").unlink()
    verify(tmp_path / "out")


def test_a_merge_that_was_interrupted_is_finished_as_if_it_had_not_been(shares: list[Path], tmp_path: Path) -> None:
    merge(shares, tmp_path / "whole")
    out = tmp_path / "out"
    merge(shares, out)
    entries, parts = (sorted((out / name).rglob("part-*")) for name in ("_entries", "parts"))
    for path in (*entries[::3], *parts[1::3], out / "_SUCCESS"):  # so an entry lacks its part, and a part its entry
        path.unlink()
    with pytest.raises(OutputError, match="not finished"):
        verify(out)
    for _ in range(2):
        merge(shares, out, resume=True)
        assert contents(out) == contents(tmp_path / "whole")
    damaged = next((out / "parts").iterdir())
    data = damaged.read_bytes()
    damaged.unlink()  # unlinked first, because the share has the same file
    damaged.write_bytes(data[:-9] + b"x" + data[-8:])
    with pytest.raises(OutputError, match="is damaged"):
        verify(out)
    merge(shares, out, resume=True)
    check_whole(out, tmp_path / "whole")


@pytest.mark.slow
def test_what_is_not_one_whole_job_is_not_merged(
    corpus: Path, shares: list[Path], options: dict, tmp_path: Path, broadsheet_here: CommandHere
) -> None:
    later = shutil.copytree(corpus, tmp_path / "in", copy_function=shutil.copy2)
    pq.write_table(pa.table({"text": ["one more"], "id": ["new"]}), later / "4.parquet")
    other = {}
    for name, source, changed in (
        ("scores", corpus, {"scores": True}),
        ("listing", later, {"root": later}),
        ("fifths", corpus, {"shard": "1/5"}),
        ("plain", corpus, {"shard": None}),
    ):
        other[name] = tmp_path / name
        classify(source, other[name], **{**options, "shard": f"1/{COUNT}", **changed})
    first, *rest = shares
    other["model"] = tmp_path / "model"
    classify(corpus, other["model"], **{**options, "shard": f"1/{COUNT}", "model": "ag-news"})
    code, said = broadsheet_here("merge", other["model"], *rest, "-o", tmp_path / "out", "--allow-mixed")
    assert (code, "differ in model: " in said) == (2, True), said
    begun = shutil.copytree(first, tmp_path / "begun")
    (begun / "_SUCCESS").unlink()
    for given_, message in (
        (rest, "of 4 shares these are missing: 1/4"),
        ([*shares, shutil.copytree(first, tmp_path / "twice")], "are the same share, 1"),
        ([other["scores"], *rest], "differ in settings: scores False, not True"),
        ([other["listing"], *rest], "were divided from different listings"),
        ([other["fifths"], *rest], "share-2 is one of 4 shares, "),
        ([other["plain"], *rest], "is not a share of a job: it ran without --shard"),
        ([begun, *rest], "is not finished: continue with --resume"),
        ([first / "parts", *rest], "is not an output folder of broadsheet"),
    ):
        code, said = broadsheet_here("merge", *given_, "-o", tmp_path / "out")
        assert (code in (1, 2), message in said) == (True, True), said
    assert not (tmp_path / "out").exists()
    manifest = json.loads((first / "_manifest.json").read_text())
    assert manifest["fingerprint"]["settings"]["shard"] == "1/4"
    for shard in ("0/4", "5/4", "1", "a/b"):
        with pytest.raises(UsageError, match="share I, from 1 on, of N"):
            classify(corpus, tmp_path / "out", **{**options, "shard": shard})
    for changed in ({"update": True}, {"limit": 3}):
        with pytest.raises(UsageError, match="does not go with shard"):
            classify(corpus, tmp_path / "out", **{**options, "shard": "1/2", **changed})
    with pytest.raises(UsageError, match="is for files"):
        classify(["a text"], tmp_path / "out", shard="1/2", model=options["model"], client=options["client"])


@pytest.mark.slow
def test_a_preempted_share_goes_on_with_its_own_files(small_model_file: Path, tmp_path: Path) -> None:
    """The share gets SIGTERM, as a spot machine or a scheduler sends it, and gives back the chunk that it has computed.

    It ignores files that have come since, although they would change how the job is divided.
    """
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(4):
        (folder / f"{number}.txt").write_text("".join(f"text {i} of {number}\n" for i in range(40 + number)))
    given_ = {"model": small_model_file, "chunk_size": 10, "root": folder, "shard": "2/2"}
    classify(folder, tmp_path / "undisturbed", **given_)
    out, slow = tmp_path / "out", tmp_path / "slow.py"
    slow.write_text(slowed("read", 0.5))
    command = ["broadsheet", "classify", folder, "-o", out, "--resume", "--workers", 1]
    command += [f for name, value in given_.items() for f in (f"--{name.replace('_', '-')}", value)]
    process = start(*command, env={"DASK_DISTRIBUTED__WORKER__PRELOAD": str(slow)}, start_new_session=True)
    wait_until(lambda: committed(out) >= 2)
    process.send_signal(signal.SIGTERM)
    _, told = process.communicate(timeout=240)
    assert (process.returncode, "--resume" in told) == (1, True), told
    assert 2 <= committed(out) < committed(tmp_path / "undisturbed")
    (folder / "5.txt").write_text("much more\n" * 1000)
    classify(folder, out, resume=True, **given_)
    check_whole(out, tmp_path / "undisturbed")
