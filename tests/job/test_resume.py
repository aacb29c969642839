"""Jobs that are killed, run out of disk, or are interrupted, and then resumed: no row is lost, and the bytes are the
same.

The trials of benchmarks.chaos are here too.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import start
from conftest import ROOT, Command, CommandHere
from distributed import Client
from jobs import alive, check_whole, committed, run_undisturbed, wait_until

from benchmarks.chaos import files, machine, processes
from benchmarks.chaos.jobs import Job, contents
from benchmarks.chaos.jobs import run_undisturbed as undisturbed_trial
from benchmarks.chaos.processes import KILL_PRELOAD
from benchmarks.chaos.slow import slowed
from benchmarks.chaos.trial import BAD, Kind, run_trial
from broadsheet.pipeline import JobReport, OutputError, UsageError, classify, verify
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.output.layout import FOLDERS, MANIFEST

Resume = Callable[[Path], JobReport]

CHUNKS = 16
"""Enough chunks for a process to have committed two while others are still to be written."""

STEPS = ["after-temporary", "before-entry"]  # the other steps are in the trials at the end of this file


@pytest.fixture(scope="module")
def job(small_model_file: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[list, Path]:
    """A job's arguments without the output folder, and the output folder of its undisturbed run."""
    return run_undisturbed(small_model_file, tmp_path_factory.mktemp("job"), rows=10 * CHUNKS, chunk_size=10)


@pytest.fixture
def resume(job, client: Client, small_model_file: Path) -> Resume:
    """A function that finishes the job of an output folder. `test_resume_refuses_another_job_…` does so by
    the command.
    """
    given = {"model": small_model_file, "id_column": "text", "chunk_size": 10, "client": client}
    return lambda out: classify(job[0][1], out, resume=True, **given)


TWO_CHUNKS = """
import os, threading, time
def seconds(first=threading.Semaphore(2)):
    while not first.acquire(blocking=False) and not os.path.exists({go_on!r}):
        time.sleep(0.1)
    return 0
"""
"""Code for a worker that reads two chunks, and waits for a file before it reads more."""


@pytest.mark.slow
def test_a_clock_that_is_set_back_ends_a_job_that_stands_still(resume: Resume, job, tmp_path: Path) -> None:
    """Dask may wait by that clock, as its workers here wait for a file."""
    arguments, undisturbed = job
    out, clock, fast, preload = (tmp_path / name for name in ("out", "clock", "fast", "preload.py"))
    preload.write_text(TWO_CHUNKS.format(go_on=str(fast)) + slowed("read", "seconds()"))
    env = {"LD_PRELOAD": str(machine.build_clock(tmp_path)), "CLOCK_SHIFT": str(clock)}
    run = start("broadsheet", *arguments, "-o", out, env={**env, "DASK_DISTRIBUTED__WORKER__PRELOAD": str(preload)})
    wait_until(lambda: run.poll() is not None or committed(out) >= 2)
    clock.write_text("-600")
    _, said = run.communicate()
    assert run.returncode == 1, said
    assert re.search(r"the clock was set back by (599|600) s, and nothing has progressed for \d+ s", said), said
    assert committed(out) < CHUNKS
    resume(out)
    check_whole(out, undisturbed)


@pytest.mark.parametrize("step", [STEPS[0], *(pytest.param(step, marks=pytest.mark.slow) for step in STEPS[1:])])
def test_everything_killed_at_a_step_of_a_commit(
    broadsheet: Command, resume: Resume, job, tmp_path: Path, step: str
) -> None:
    arguments, undisturbed = job
    out, flag = tmp_path / "out", tmp_path / "killed"
    env = {"BROADSHEET_KILL": f"{step} all {flag}", "DASK_DISTRIBUTED__WORKER__PRELOAD": KILL_PRELOAD}
    run = broadsheet(*arguments, "-o", out, "--workers", 1, env=env, start_new_session=True)
    assert run.returncode == -signal.SIGKILL
    assert flag.exists()
    assert 2 <= committed(out) < CHUNKS
    before = {name: (out / name).stat().st_mtime_ns for name in contents(out) if name.startswith("parts/part")}
    with pytest.raises(OutputError, match="is not finished: continue with resume=True"):
        verify(out)
    done = committed(out)
    resumed = resume(out)
    assert (resumed.exit_code, resumed.run.chunks_before) == (0, done)
    kept = [name for name, time_ in before.items() if (out / name).stat().st_mtime_ns == time_]
    assert len(kept) >= done
    check_whole(out, undisturbed)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs needs root")
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40k", "tmpfs", disk], check=False).returncode:
        pytest.skip("this system does not let root mount a tmpfs")
    yield disk
    subprocess.run(["umount", disk], check=True)


@pytest.mark.slow
def test_a_full_disk_stops_the_job_and_resume_finishes_it(
    broadsheet_in_process: Command, resume: Resume, job, small_disk: Path
) -> None:
    arguments, undisturbed = job
    out = small_disk / "out"
    run = broadsheet_in_process(*arguments, "-o", out)
    assert run.returncode == 1
    assert "No space left on device" in run.stderr
    assert "bytes are free there. Free some space, then continue with --resume" in run.stderr
    assert "Traceback" not in run.stderr
    subprocess.run(["mount", "-o", "remount,size=10m", small_disk], check=True)
    assert resume(out).exit_code == 0
    check_whole(out, undisturbed)


@pytest.mark.slow
def test_a_limit_on_file_size_is_told_and_nothing_half_written_stays(
    broadsheet: Command, resume: Resume, job, tmp_path: Path
) -> None:
    arguments, undisturbed = job
    out = tmp_path / "out"
    smallest_part = min(p.stat().st_size for p in (undisturbed / "parts").iterdir())

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (smallest_part - 1, smallest_part - 1))

    env = {"PYTHONDONTWRITEBYTECODE": "1"}  # Python does not check whether it wrote all of a module's bytecode
    run = broadsheet(*arguments, "-o", out, preexec_fn=limit, env=env)
    assert run.returncode == 1
    assert "File too large" in run.stderr
    assert "then continue with --resume" in run.stderr
    assert not list((out / "parts").iterdir())
    assert resume(out).exit_code == 0
    check_whole(out, undisturbed)


@pytest.mark.slow
def test_a_limit_on_open_files_is_told_before_anything_waits(broadsheet: Command, job, tmp_path: Path) -> None:
    arguments, _ = job

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))

    run = broadsheet(*arguments, "-o", tmp_path / "out", "--workers", 2, preexec_fn=limit)
    assert run.returncode == 2
    assert "needs 64 open files, and the limit is 32" in run.stderr
    assert "ulimit -n 64" in run.stderr


def test_a_worker_on_a_gpu_needs_more_open_files() -> None:
    code = """
import resource
from broadsheet.cluster.open_files import need_open_files
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
need_open_files(1)
need_open_files(1, on_gpus=True)
"""
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert "needs 96 open files, and the limit is 64" in run.stderr


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_job_ends_cleanly_and_says_how_to_go_on(
    broadsheet_here: CommandHere, job, tmp_path: Path, number: int
) -> None:
    """The message names a complete command, which works in any folder."""
    arguments, undisturbed = job
    out = tmp_path / "it's out"
    slow = tmp_path / "slow.py"
    slow.write_text(slowed("read", 0.5))
    process = start(
        *("broadsheet", *arguments, "-o", out, "--workers", 1),
        env={"DASK_DISTRIBUTED__WORKER__PRELOAD": str(slow)},
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # a script may ignore SIGINT
    )
    try:
        wait_until(lambda: committed(out) or process.poll() is not None)
        assert process.poll() is None, process.communicate()
        os.killpg(process.pid, number)  # every process of the job gets the signal, as from a terminal
        output, errors = process.communicate(timeout=240)
        assert process.returncode == 1
        assert "interrupted; what is committed in" in errors
        assert "Traceback" not in errors + output, errors
        wait_until(lambda: not alive(process.pid))
    finally:
        if alive(process.pid):
            os.killpg(process.pid, signal.SIGKILL)
    assert committed(out) < CHUNKS
    *_, remedy, command = errors.splitlines()
    assert remedy == "Continue with"
    name, *given = shlex.split(command)
    assert (name, *given) == ("broadsheet", "classify", "--resume", "-o", str(out), "--workers", "1")
    (quoted,) = re.findall(r"```\n(broadsheet: interrupted.*?)```", (ROOT / "docs/output.md").read_text(), re.DOTALL)
    told = errors[errors.index("broadsheet: interrupted") :].replace(shlex.quote(str(out)), "/data/labels")
    assert told.replace(str(out), "/data/labels") == quoted
    code, told = broadsheet_here(*given)
    assert code == 0, told
    check_whole(out, undisturbed)


def test_a_job_that_could_not_begin_is_not_to_be_continued(
    broadsheet_here: CommandHere, small_model_file: Path, tmp_path: Path
) -> None:
    (tmp_path / "in.csv").write_text("text\nsome words\n")
    code, told = broadsheet_here(
        "classify", tmp_path / "in.csv", "--model", small_model_file, "-o", tmp_path / "in.csv/out"
    )
    assert (code, told.splitlines()[-1]) == (1, "No job has begun there yet")
    assert "cannot be created" in told
    assert "--resume" not in told


ASKED = {
    "text_column": ("title", "it's text"), "label_column": "class", "scores": True, "top_k": 2, "abstain": 0.26,
    "windows": 3, "overlap": 5, "window_score": "best", "chunk_size": 4, "limit": 11, "delimiter": "\t",
    "quote": "none", "escape": "\\",
    "columns": ("id", "title", "it's text", "class"), "encoding": "cp1252", "hash": "full", "id_column": "id",
    "keep": ("title",), "keep_all": True, "format": "jsonl", "partition_by": "label", "where": "score > 0.1",
}  # fmt: skip


@pytest.mark.slow
def test_every_option_that_is_forgotten_is_named_and_the_folder_alone_has_them_all(
    broadsheet_here: CommandHere, small_model_file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rows = "".join(f"{i}\tStocks {i}\tcaf\xe9 {'fell ' * 300}\t{i % 4 + 1}\n" for i in range(20))
    (tmp_path / "[in]").mkdir()
    monkeypatch.chdir(tmp_path / "[in]")
    Path("a.csv").write_text(rows, "cp1252")
    shutil.copy(small_model_file, "m.safetensors")
    classify("*.csv", tmp_path / "out", model="m.safetensors", root=tmp_path, device="cpu", **ASKED)
    undisturbed = contents(tmp_path / "out")
    (tmp_path / "out" / "_SUCCESS").unlink()
    next((tmp_path / "out" / "_entries").iterdir()).unlink()
    given = ("classify", "a.csv", "-o", tmp_path / "out", "--resume")
    code, told = broadsheet_here(
        *given, "--model", "m.safetensors", "--root", tmp_path, "--top-k", 3, "--columns", "a,b"
    )
    assert code == 2
    for flag in (
        "add --text-column 'title' --text-column 'it'\"'\"'s text'", "add --label-column 'class'", "add --scores",
        "add --top-k 2 in place of --top-k 3", "add --abstain 0.26", "add --windows 3", "add --overlap 5",
        "add --window-score 'best'", "add --limit 11", "add --delimiter 'tab'", "add --quote 'none'",
        "add --escape '\\'", "add --encoding 'cp1252'",
        "add --hash 'full'", "add --id-column 'id' --id-column 'title'", "add --keep-all", "add --format 'jsonl'",
        "add --partition-by 'label'", "add --where 'score > 0.1'", "in place of --columns 'a,b'",
    ):  # fmt: skip
        assert flag in told, flag
    code, told = broadsheet_here(*given, "--root", tmp_path)
    assert (code, f"--model '{tmp_path}/[in]/m.safetensors'" in told) == (2, True), told
    monkeypatch.chdir("/")
    code, told = broadsheet_here("classify", "--resume", "-o", tmp_path / "out")
    assert code == 0, told
    assert contents(tmp_path / "out") == undisturbed
    verify(tmp_path / "out", input=True, root=tmp_path)
    code, told = broadsheet_here("classify", "--resume", "-o", tmp_path / "none")
    assert (code, "does not hold what a job was asked for" in told) == (2, True)


@pytest.mark.slow
def test_resume_refuses_another_job_and_says_what_changed(
    broadsheet_in_process: Command, job, client: Client, model: Model, small_model: Model, tmp_path: Path
) -> None:
    arguments, undisturbed = job
    out = shutil.copytree(undisturbed, tmp_path / "out")
    (out / "_SUCCESS").unlink()
    source = Path(arguments[1])
    same = {"model": small_model, "id_column": "text", "chunk_size": 10}

    def refused(what: str, **other: object) -> None:
        with pytest.raises(UsageError, match=re.escape(what)):
            classify(str(source), out, client=client, resume=True, **(same | other))

    refused("leave out top_k=2", top_k=2)
    refused("leave out scores=True", scores=True)
    refused("add chunk_size=10 in place of chunk_size=20", chunk_size=20)
    refused("leave out text_column='id'", text_column="id")
    refused("add id_column='text' in place of id_column= and keep=.", id_column=(), keep="id")
    refused("another model", model=model)
    before = source.stat()
    os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    try:
        refused(f": changed: {source}. Its job is finished: update=True changed=True labels what has changed")
    finally:
        os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns))
    resume = [*arguments, "-o", out, "--resume"]
    run = broadsheet_in_process(*resume, env={"OPENBLAS_CORETYPE": "Prescott"})
    assert run.returncode == 2
    assert "go on with cpu fp32, numpy kernels" in run.stderr
    run = broadsheet_in_process(*resume)
    assert run.returncode == 0, run.stderr
    assert f"{CHUNKS} of {CHUNKS} chunks done before" in run.stdout


@pytest.mark.parametrize("option", [{}, {"resume": True}, {"overwrite": True}], ids=str)
def test_a_folder_whose_job_was_killed_before_its_manifest(
    client: Client, small_model: Model, job, tmp_path: Path, option: dict[str, bool]
) -> None:
    arguments, undisturbed = job
    out = tmp_path / "out"
    for name in FOLDERS:
        (out / name).mkdir(parents=True)
    (out / "._plan.json.0123.tmp").write_text('{"units": [')
    classify(str(arguments[1]), out, client=client, model=small_model, id_column="text", chunk_size=10, **option)
    check_whole(out, undisturbed)


def test_verify_finds_any_damage(broadsheet_in_process: Command, job, tmp_path: Path) -> None:
    _, undisturbed = job
    part, entry = (
        str(next((undisturbed / f).glob("*-0000003-*")).relative_to(undisturbed)) for f in ("parts", "_entries")
    )

    def damaged(name: str) -> Path:
        return shutil.copytree(undisturbed, tmp_path / name)

    def message(folder: Path) -> str:
        with pytest.raises(OutputError) as raised:
            verify(folder)
        return str(raised.value)

    data = bytearray((undisturbed / part).read_bytes())
    data[len(data) // 2] ^= 1
    (damaged("flipped") / part).write_bytes(data)
    run = broadsheet_in_process("verify", tmp_path / "flipped")  # the other cases call the function behind the command
    assert run.returncode == 1
    assert f"{part} is damaged" in run.stderr
    assert "Traceback" not in run.stderr
    (damaged("lost part") / part).unlink()
    assert "part" in message(tmp_path / "lost part")
    (damaged("lost entry") / entry).unlink()
    assert "belongs to no entry" in message(tmp_path / "lost entry")
    shutil.copy(damaged("doubled") / part, tmp_path / "doubled" / part.replace("-000000-", "-000009-"))
    assert "belongs to no entry" in message(tmp_path / "doubled")
    min((damaged("lost quarantine") / "_quarantine").iterdir()).unlink()
    assert "part-000000-0000000" in message(tmp_path / "lost quarantine")
    (damaged("cut manifest") / MANIFEST).write_text("{")
    assert "_manifest.json is damaged" in message(tmp_path / "cut manifest")
    (damaged("no manifest") / MANIFEST).unlink()
    assert "has lost its _manifest.json" in message(tmp_path / "no manifest")
    assert "does not exist" in message(tmp_path / "nothing")


# Trials of benchmarks.chaos with fixed seeds: whatever happens to a job, its output is whole or the job reports it.


# With these seeds each job is small, and is disturbed in its middle.
SEEDS = {
    processes.kill_workers: 49,
    processes.kill_client: 2,
    processes.kill_at_a_step: 3,
    processes.stop_and_continue: 4,
    processes.kill_a_stopped_worker: 49,
    processes.lose_the_scheduler: 68,
    files.change_the_input: 8,
    files.lose_output: 9,
    files.damage_output: 10,
    processes.resume_twice_at_once: 66,
    processes.overwrite_while_it_runs: 54,
    machine.set_the_clock: 68,
}


@pytest.fixture(scope="module")
def jobs(small_model_file: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Job]:
    folder = tmp_path_factory.mktemp("jobs")
    return [undisturbed_trial(name, folder, ("--model", str(small_model_file))) for name in ("parquet", "csv.gz")]


@pytest.mark.slow
@pytest.mark.parametrize("kind", SEEDS, ids=lambda kind: kind.__name__)
def test_a_disturbed_job_is_whole_or_its_user_is_told(kind: Kind, jobs: list[Job], tmp_path: Path) -> None:
    if reason := machine.missing(kind):
        pytest.skip(reason)
    trial = run_trial(kind, 0, SEEDS[kind], jobs, tmp_path)
    if trial["verdict"] in BAD:
        (job,) = (job for job in jobs if job.name == trial["job"])
        pytest.fail(record_of(trial, tmp_path / "trial-0", job), pytrace=False)


def record_of(trial: dict[str, Any], folder: Path, job: Job) -> str:
    """Return all that a trial left, in full, because nobody can look into the folder of a run in CI."""
    here, there = contents(folder / "out"), contents(job.folder / "out")
    unlike = sorted(name for name in here.keys() | there.keys() if here.get(name) != there.get(name))
    sizes = [f"{name}: {len(here.get(name, b''))} bytes, undisturbed {len(there.get(name, b''))}" for name in unlike]
    logs = [f"{log.name}: …{log.read_text(errors='replace')[-2000:]}" for log in sorted(folder.glob("command-*.log"))]
    return "\n".join([json.dumps(trial, indent=1, default=str), *logs, "files that differ:", *sizes])
