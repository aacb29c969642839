"""Output files that the user names: neither a full disk nor an option that names the wrong file destroys one."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import partial
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
from commands import start
from conftest import CommandHere
from distributed import Client
from jobs import committed, file_size_limit, wait_until

from benchmarks.chaos.slow import slowed
from broadsheet import pipeline
from broadsheet.pipeline import classify
from broadsheet.pipeline.errors import OutputError, UsageError
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.report.plots import save_png
from broadsheet.pipeline.report.timeline import Timeline, save_trace
from broadsheet.pipeline.storage.disk import refuse_outputs, write_file
from broadsheet.pipeline.telemetry.spans import Clock
from broadsheet.pipeline.train.progress import Epoch, plot_curve

OLD = b"what took a week to make"


def test_an_old_file_outlives_a_new_one_that_does_not_fit(small_model: Model, tmp_path: Path) -> None:
    """Every function that writes a file keeps the old one, and nothing remains beside the file."""
    torch, figure = map(pytest.importorskip, ("torch", "matplotlib.figure"))
    from broadsheet.pipeline.train.checkpoint import Checkpoint

    checkpoint = Checkpoint({}, 1, (), 0.0, {"weights": {"w": torch.zeros(9)}})
    path = tmp_path / "file.png"
    for write in (
        small_model.save,
        checkpoint.save,
        lambda where: save_png(figure.Figure(), where),
        lambda where: save_trace(Timeline(0.0, Clock(0.0, 0.0)), where),
        lambda where: plot_curve([Epoch(1, 0.5, 0.5)], where),
    ):
        path.write_bytes(OLD)
        with pytest.raises(OutputError) as raised, file_size_limit(10):
            write(path)
        assert path.read_bytes() == OLD
        assert os.listdir(tmp_path) == ["file.png"]
        assert str(raised.value).startswith(f"{path} (")
        assert "File too large. Raise the limit on file size (ulimit -f), or name a file elsewhere" in str(raised.value)
        assert str(raised.value).endswith("What it held is unchanged")
        write(path)
        assert path.read_bytes() != OLD


@pytest.mark.parametrize("format_", ["parquet", "jsonl", "csv"])
def test_the_labels_of_a_job_are_one_file_once_all_are_there(
    client: Client, small_model: Model, tmp_path: Path, format_: str
) -> None:
    """The file is complete or absent. Nothing remains beside it, except a record of rows without a label."""
    source, labels = tmp_path / "in.csv", tmp_path / f"labels.{format_}"
    source.write_text("id,text\n" + "".join(f"{i},some words {i}\n" for i in range(30)))
    hidden = tmp_path / f".labels.{format_}.job"
    job = partial(classify, source, client=client, model=small_model, chunk_size=6, keep="id")
    expected = job(tmp_path / "folder").to_arrow()
    stopped = job(labels, stop=lambda: True)
    assert (stopped.exit_code, labels.exists(), hidden.is_dir()) == (4, False, True)
    with pytest.raises(UsageError, match="give resume=True, update=True or overwrite=True"):
        job(labels)
    report = job(labels, resume=True)
    written = {"parquet": pd.read_parquet, "csv": pd.read_csv, "jsonl": partial(pd.read_json, lines=True)}[format_]
    assert written(labels)["id"].astype(str).tolist() == expected["id"].to_pylist()
    assert written(labels)["label"].tolist() == expected["label"].to_pylist() == report.to_arrow()["label"].to_pylist()
    assert (report.job.output, report.exit_code, hidden.exists()) == (str(labels), 0, False)
    before = labels.read_bytes()
    for again in ({}, {"resume": True}):
        with pytest.raises(UsageError, match="is there already: give another name, or overwrite=True"):
            job(labels, **again)
    for option in ({"partition_by": "label"}, {"update": True}, {"layout": "attributes", "root": tmp_path}):
        with pytest.raises(UsageError, match=f"made when the job is done: leave out {next(iter(option))}="):
            job(labels, overwrite=True, **option)
    assert labels.read_bytes() == before
    source.write_bytes(source.read_bytes() + b"30,\xff\n")
    report = job(labels, overwrite=True)
    assert (report.rows_written, report.rows_quarantined, len(written(labels))) == (30, 1, 30)
    assert f"what is not in {labels}, and why, is in the folder {hidden}" in report.hints
    assert report.quarantine()["row"].to_pylist() == [30]


@pytest.mark.slow
def test_a_job_for_one_file_that_is_killed_leaves_no_file_and_is_resumed_by_its_name(
    broadsheet_here: CommandHere, small_model_file: Path, tmp_path: Path
) -> None:
    source, labels, slow = tmp_path / "in.csv", tmp_path / "labels.csv", tmp_path / "slow.py"
    source.write_text("text\n" + "".join(f"some words {i}\n" for i in range(40)))
    arguments = ("classify", source, "--model", small_model_file, "--chunk-size", 4, "--workers", 1, "--quiet")
    slow.write_text(slowed("read", 0.3))
    process = start("broadsheet", *arguments, "-o", labels, env={"DASK_DISTRIBUTED__WORKER__PRELOAD": str(slow)})
    wait_until(lambda: committed(tmp_path / ".labels.csv.job") or process.poll() is not None)
    assert process.poll() is None, process.communicate()
    process.kill()
    process.communicate()
    assert 0 < committed(tmp_path / ".labels.csv.job") < 10
    assert not labels.exists()
    code, told = broadsheet_here("classify", "--resume", "-o", labels, "--quiet")
    assert (code, (tmp_path / ".labels.csv.job").exists()) == (0, False), told
    code, told = broadsheet_here(*arguments, "-o", tmp_path / "undisturbed.csv")
    assert (code, labels.read_bytes()) == (0, (tmp_path / "undisturbed.csv").read_bytes()), told


@pytest.mark.slow
def test_the_commands_leave_an_old_file_as_it_was(
    broadsheet_here: CommandHere, small_model: Model, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("onnx")
    monkeypatch.chdir(tmp_path)
    small_model.save("m.safetensors")
    Path("in.csv").write_text("text,kind\n" + "".join(f"some words {i},{i % 2}\n" for i in range(20)))
    for command in (
        ("train", "in.csv", "--label-column", "kind", "--ngrams", 256, "--device", "cpu", "-o", "old.safetensors"),
        ("calibrate", "--int8", "m.safetensors", "in.csv", "-o", "old.safetensors"),
        ("convert", "m.safetensors", "old.onnx"),
    ):
        old = Path(str(command[-1]))
        old.write_bytes(OLD)
        code, said = broadsheet_here(*command)
        assert (code, f"{old} is there already: give another name, or --overwrite" in said) == (2, True), command
        with file_size_limit(10):
            code, said = broadsheet_here(*command, "--overwrite")
        assert (code, "cannot be written: File too large" in said) == (1, True), said
        assert old.read_bytes() == OLD, command


def test_a_disk_that_is_really_full_is_told_with_what_is_free(tmp_path: Path) -> None:
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "full", tmp_path], capture_output=True)
    if mounted.returncode:
        pytest.skip("a small file system needs the right to mount one")
    try:
        (tmp_path / "m").write_bytes(OLD)
        with pytest.raises(OutputError, match=r"No space left on device; \d\d,\d{3} bytes are free there. Free some"):
            write_file(tmp_path / "m", b"x" * (1 << 20))
        assert (tmp_path / "m").read_bytes() == OLD
        assert os.listdir(tmp_path) == ["m"]
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_links_permissions_and_devices_stay_what_they_are(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(OLD)
    (tmp_path / "file").chmod(0o600)
    (tmp_path / "link").symlink_to("file")
    write_file(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_bytes() == b"new"
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600
    write_file(os.devnull, b"new")
    assert not Path(os.devnull).is_file()


def test_a_file_that_is_read_or_of_another_job_is_never_replaced(
    broadsheet_here: CommandHere, small_model_file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The job refuses before any work, under whatever name the file is given, and with --overwrite too."""
    monkeypatch.chdir(tmp_path)
    rows = "text,kind\n" + "".join(f"some words {i},{i % 2}\n" for i in range(20))
    for name in ("in.csv", "other.html"):
        Path(name).write_text(rows)
    os.mkdir("folder")
    os.link("in.csv", "folder/in.csv")
    os.symlink("in.csv", "link")
    Path("m.safetensors").write_bytes(small_model_file.read_bytes())
    Path("there.png").write_bytes(OLD)
    os.mkdir("job")
    Path("job/_manifest.json").write_text("{}")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    job = ("classify", "in.csv", "-o", "out", "--model", "m.safetensors", "--device", "cpu")
    of_folder = ("classify", "folder", *job[2:])
    train = ("train", "in.csv", "--label-column", "kind", "--device", "cpu")
    evaluate = ("evaluate", "m.safetensors", "in.csv", "--label-column", "kind")
    reads, of_job, exists = "is what the command reads", "the output folder of a job", "is there already"
    for *command, message in (
        (*job, "--report", "in.csv", "--overwrite", reads),
        (*of_folder, "--trace", "link", "--overwrite", reads),
        (*job, "--trace", "m.safetensors", "--overwrite", reads),
        (*job, "--trace", "job/t.json", of_job),
        (*job, "--report", "other.html", exists),
        (*job, "--report", "new", "--trace", "./new", "are the same file"),
        (*job, "--report", "none/new", "give a file in a folder that exists"),
        (*job, "--report", f"{'n' * 300}/new", "give a file in a folder that exists"),
        ("classify", "out/parts/a.csv", *job[2:], "--overwrite", "which the command writes to"),
        (*train, "-o", "link", "--overwrite", reads),
        (*train, "-o", "m.safetensors", "--init", "m.safetensors", "--overwrite", reads),
        (*train, "-o", "new", "--plot", "there.png", exists),
        ("calibrate", "--int8", "m.safetensors", "in.csv", "-o", "m.safetensors", "--overwrite", reads),
        ("calibrate", "m.safetensors", "in.csv", "--label-column", "kind", "-o", "job/m", of_job),
        ("convert", "m.safetensors", "job/m.bin", of_job),
        (*evaluate, "--plot", "in.csv", "--overwrite", reads),
        (*evaluate, "--reliability", "there.png", exists),
        ("profile", "--model", "m.safetensors", "--plot", "m.safetensors", "--overwrite", reads),
    ):
        if "out/parts/a.csv" in command:
            os.makedirs("out/parts")
            Path("out/parts/a.csv").write_text(rows)
        code, said = broadsheet_here(*command)
        assert (code, message in said) == (2, True), (command, said)
        assert before == {path: path.read_bytes() for path in before}, command
        assert command[-1] == "--overwrite" or not Path("new").exists()


def test_python_has_the_same_rules(small_model: Model, tmp_path: Path) -> None:
    page, rows = tmp_path / "trace.json", pa.table({"text": ["some words"]})
    page.write_bytes(OLD)
    options = {"model": small_model, "device": "cpu", "trace": page}
    with pytest.raises(UsageError, match=r"trace= .* is there already: give another name, or overwrite=True"):
        pipeline.classify(rows, **options)
    assert page.read_bytes() == OLD
    pipeline.classify(rows, overwrite=True, **options)
    assert page.read_bytes() != OLD
    refuse_outputs({"--trace": page}, True, lambda: [str(tmp_path / "elsewhere")])


def test_a_folder_that_is_read_is_never_written_to(
    broadsheet_here: CommandHere, small_model_file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Every command refuses before any work, under whatever name, and with --overwrite too. The folder keeps its
    content.
    """
    monkeypatch.chdir(tmp_path)
    Path("in.csv").write_text("text,kind\n" + "".join(f"some words {i},{i % 2}\n" for i in range(40)))
    Path("two").mkdir()
    for number in range(2):
        Path(f"two/{number}.csv").write_text("text\n" + "".join(f"more words {i}\n" for i in range(9)))
    classify = {"model": small_model_file, "device": "cpu", "text_column": "text"}
    pipeline.classify("in.csv", "labels", partition_by="label", id_column="text", **classify)
    pipeline.classify("labels/parts/*/*.parquet", "again", **classify)
    pipeline.classify("in.csv", "outer", id_column="text", **classify)
    pipeline.classify("in.csv", "lab", **classify)
    shutil.copytree("lab", "outer/parts/x/lab")
    for number in (1, 2):
        pipeline.classify(pipeline.Paths(["two"]), f"t{number}", shard=f"{number}/2", **classify)
    os.symlink("labels", "link")
    os.symlink("t1", "link_to_t1")
    os.symlink("labels/_manifest.json", "manifest.csv")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    job = ("--model", small_model_file, "--device", "cpu", "--text-column", "text")
    read, within, of_job = "is what the command reads", "which the command writes to", "the output folder of a job"
    part = next(Path("labels/parts").rglob("*.parquet"))
    for *command, folder, message in (
        ("select", "labels", "-o", "labels", read),
        ("select", "labels", "-o", "link", read),
        ("select", "link", "-o", "labels", read),
        ("select", "labels", "-o", "two/../labels", read),
        ("select", "labels", "-o", "labels/parts/best", of_job),
        ("select", "outer/parts/x/lab", "-o", "outer", within),
        ("select", "again", "--keep-all", "-o", "labels", within),
        ("select", "again", "--keep-all", "-o", "link", within),
        ("select", "labels", "--keep-all", "-o", "in.csv", read),
        ("select", "labels", "-o", "manifest.csv", of_job),
        ("merge", "t1", "t2", "-o", "t1", read),
        ("merge", "t1", "t2", "-o", "link_to_t1", read),
        ("merge", "t1", "t2", "-o", "t2/../t1", read),
        ("classify", "labels/parts", *job, "-o", "labels", within),
        ("classify", part, *job, "-o", "link", within),
        ("classify", "in.csv", *job, "-o", "labels/new", of_job),
    ):
        code, said = broadsheet_here(*command, folder, "--overwrite")
        assert (code, message in " ".join(said.split())) == (2, True), (command, folder, said)
        assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}, (command, folder)
