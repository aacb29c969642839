"""Clusters of processes in trouble: a worker that is stopped and continues, a scheduler that dies, no workers."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
from pathlib import Path

import dask
import pytest
from conftest import Command
from distributed import Client, Scheduler, Worker
from jobs import (
    SLOW,
    Processes,
    check_whole,
    committed,
    held_after,
    run_undisturbed,
    start_scheduler,
    start_worker,
    wait_until,
)  # fmt: skip
from tornado.ioloop import PeriodicCallback

from benchmarks.chaos.processes import KILL_PRELOAD
from broadsheet.cluster.heartbeat import QuietEnd
from broadsheet.pipeline import classify


@pytest.fixture(scope="module")
def job(small_model_file: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[list, Path]:
    """A job with more chunks than are in flight at once."""
    return run_undisturbed(small_model_file, tmp_path_factory.mktemp("job"), rows=120, chunk_size=2)


@pytest.fixture
def slow(tmp_path: Path) -> dict[str, str]:
    """Slow workers down to a third of a second for writing a chunk, so that a test can disturb the job in its
    middle.
    """
    (tmp_path / "slow.py").write_text(SLOW)
    return {"DASK_DISTRIBUTED__WORKER__PRELOAD": str(tmp_path / "slow.py")}


@pytest.mark.slow
def test_a_worker_stopped_past_its_time_to_live_goes_on_and_harms_nothing(
    broadsheet_in_process: Command, job, processes: Processes, tmp_path: Path
) -> None:
    """The worker stops before it writes a part, and a message names it soon.

    The job ends without it. Then the worker continues, and writes that part and its entry again.
    """
    arguments, undisturbed = job
    _, file = start_scheduler(processes, tmp_path, WORKER_TTL="20s")
    flag, out = tmp_path / "stopped", tmp_path / "out"
    env = {"BROADSHEET_KILL": f"before-write stop {flag}", "DASK_DISTRIBUTED__WORKER__PRELOAD": KILL_PRELOAD}
    workers = [start_worker(processes, file, env) for _ in range(2)]
    run = broadsheet_in_process(*arguments, "-o", out, "--scheduler-file", file)
    assert run.returncode == 0, run.stderr
    silent = re.findall(r"(tcp://\S+) has sent no heartbeat for \d+ s; once it is given up, other", run.stderr)
    assert len(silent) == 1, (run.stderr, run.stdout)
    check_whole(out, undisturbed)
    before = {path: path.stat().st_mtime_ns for path in (out / "parts").iterdir()}
    (stopped,) = (worker for worker in workers if worker.pid == int(flag.read_text()))
    stopped.send_signal(signal.SIGCONT)
    wait_until(lambda: any(path.stat().st_mtime_ns != time for path, time in before.items()))
    stopped.wait(240)  # its scheduler has given it up, so it ends itself
    check_whole(out, undisturbed)


KILL_ON_MESSAGE = """
import functools, os, signal


async def dask_setup(worker):
    kind, number, flag = os.environ["KILL_ON_MESSAGE"].split(" ", 2)
    handler, left = worker.handlers[kind], [int(number)]

    @functools.wraps(handler)
    def handle(*given, **more):
        left[0] -= 1
        if not left[0] and not os.path.exists(flag):
            open(flag, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return handler(*given, **more)

    worker.handlers[kind] = handle
"""
"""A preload that kills its worker, once, at the message with this number among messages of a kind."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("message", "healthy"),
    [("plugin-add 1", 1), ("plugin-add 1", 0), ("plugin-add 2", 1), ("plugin-add 2", 0), ("run 1", 1), ("run 1", 0)],
)
def test_a_worker_that_is_lost_while_the_job_is_prepared_is_waited_for(
    broadsheet_in_process: Command, job, processes: Processes, tmp_path: Path, message: str, healthy: int
) -> None:
    """The worker is lost before the first plugin arrives, before the second, or after both, alone or beside a healthy
    worker.

    Its nanny starts it again.
    """
    arguments, undisturbed = job
    scheduler, file = start_scheduler(processes, tmp_path)
    (tmp_path / "kill.py").write_text(KILL_ON_MESSAGE)
    flag = tmp_path / "killed"
    env = {"KILL_ON_MESSAGE": f"{message} {flag}", "DASK_DISTRIBUTED__WORKER__PRELOAD": str(tmp_path / "kill.py")}
    options = ["--scheduler-file", file, "--host", "127.0.0.1", "--nthreads", 1, "--no-dashboard"]
    processes.dask("worker", *options, env=env)
    for _ in range(healthy):
        start_worker(processes, file)
    with Client(scheduler_file=str(file), set_as_default=False) as client:
        client.wait_for_workers(1 + healthy, timeout=240)
    run = broadsheet_in_process(*arguments, "-o", tmp_path / "out", "--scheduler-file", file)
    assert flag.exists()
    assert run.returncode == 0, run.stderr
    assert scheduler.poll() is None
    check_whole(tmp_path / "out", undisturbed)


@pytest.mark.slow
def test_workers_with_too_little_memory_are_named_with_their_limit(
    broadsheet_in_process: Command, job, processes: Processes, tmp_path: Path
) -> None:
    arguments, _ = job
    scheduler, file = start_scheduler(processes, tmp_path)
    options = ["--scheduler-file", file, "--host", "127.0.0.1", "--nthreads", 1, "--no-dashboard"]
    processes.dask("worker", *options, "--memory-limit", "170MB")
    with Client(scheduler_file=str(file), set_as_default=False) as client:
        client.wait_for_workers(1, timeout=240)
    with dask.config.set({"distributed.scheduler.no-workers-timeout": "20s"}):
        run = broadsheet_in_process(*arguments, "-o", tmp_path / "out", "--scheduler-file", file)
    assert run.returncode == 1
    assert scheduler.poll() is None
    assert "the connection to the scheduler" not in run.stderr
    assert "162 MiB" in run.stderr, run.stderr


@pytest.mark.slow
def test_without_workers_a_job_ends_after_the_wait_that_its_message_states(
    broadsheet_in_process: Command, job, processes: Processes, slow: dict[str, str], tmp_path: Path
) -> None:
    """No worker ever comes, or all workers are lost in the middle of the job."""
    arguments, _ = job
    _, file = start_scheduler(processes, tmp_path, NO_WORKERS_TIMEOUT="3s")
    out = tmp_path / "out"
    resume = [*arguments, "-o", out, "--scheduler-file", file, "--resume"]
    with dask.config.set({"distributed.scheduler.no-workers-timeout": "3s"}):
        run = broadsheet_in_process(*resume)
    assert run.returncode == 1
    assert f"no worker has joined the scheduler {file} within 3 s" in run.stderr
    worker = start_worker(processes, file, slow)
    command = processes.broadsheet(*resume, env={"DASK_DISTRIBUTED__SCHEDULER__NO_WORKERS_TIMEOUT": "1 day"})
    wait_until(lambda: committed(out) >= 3)
    worker.kill()
    # The scheduler decides how long to wait, and not the command's settings.
    _, errors = command.communicate(timeout=240)
    assert command.returncode == 1
    assert "the cluster has lost all its workers and no other has joined" in errors
    assert "(waited 3 s)" in errors
    assert "Traceback" not in errors, errors


@pytest.mark.slow
def test_a_worker_of_another_kind_that_joins_is_refused(
    processes: Processes, small_model_file: Path, slow: dict[str, str], tmp_path: Path
) -> None:
    """Workers may join at any time, and the scores must not depend on them.

    The chunks of a file of more than 64 KiB are handed out one by one. The first worker is held up until the other
    joins, so that both get some.
    """
    (tmp_path / "in.csv").write_text("text\n" + f"{'words ' * 200}\n" * 240)
    _, file = start_scheduler(processes, tmp_path)
    out, joined = tmp_path / "out", tmp_path / "joined"
    (tmp_path / "slow.py").write_text(held_after(3, out, joined))
    start_worker(processes, file, slow)
    arguments = ["classify", tmp_path / "in.csv", "--model", small_model_file, "--chunk-size", 2]
    command = processes.broadsheet(*arguments, "-o", out, "--scheduler-file", file)
    wait_until(lambda: committed(out) >= 3)
    start_worker(processes, file, {"OPENBLAS_CORETYPE": "Prescott"})
    with Client(scheduler_file=str(file), set_as_default=False) as client:
        client.wait_for_workers(2, timeout=240)
    joined.touch()
    _, errors = command.communicate(timeout=240)
    assert command.returncode == 1
    assert "a worker that joined computes with" in errors
    assert "Use workers of one kind, or --allow-mixed" in errors


@pytest.mark.slow
def test_a_job_told_to_stop_finishes_what_is_in_flight(
    client: Client, small_model_file: Path, job, processes: Processes, slow: dict[str, str], tmp_path: Path
) -> None:
    arguments, undisturbed = job
    out = tmp_path / "out"
    command = processes.broadsheet(*arguments, "-o", out, "--workers", 1, env=slow)
    wait_until(lambda: committed(out) >= 3)
    os.kill(command.pid, signal.SIGUSR1)
    output, errors = command.communicate(timeout=240)
    assert command.returncode == 4, errors
    assert "--resume does the chunks that are left" in output
    assert committed(out) == len(list((out / "parts").iterdir())) < 60
    same = {"model": small_model_file, "id_column": "text", "chunk_size": 2}
    assert classify(arguments[1], out, client=client, resume=True, **same).exit_code == 0
    check_whole(out, undisturbed)


@pytest.mark.parametrize("is_quiet", [False, True])
def test_a_worker_that_closes_in_the_middle_of_a_heartbeat_says_nothing(
    is_quiet: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Our clusters must log nothing. Without the plugin, Tornado's logger prints a traceback."""
    log = logging.getLogger("tornado.application")

    async def run() -> None:
        ended = asyncio.Event()
        async with Scheduler(port=0, dashboard=False) as scheduler, Worker(scheduler.address) as worker:

            async def beat() -> None:
                try:
                    await worker.heartbeat()
                finally:
                    ended.set()

            async def closed(worker: Worker) -> None:
                await worker.close(nanny=False)

            if is_quiet:
                QuietEnd().setup(worker)
            worker.metrics = {**worker.metrics, "closed": closed}
            beating = PeriodicCallback(beat, 1)
            beating.start()
            await ended.wait()
            beating.stop()

    log.addHandler(caplog.handler)
    caplog.handler.setLevel(logging.WARNING)  # Dask's embedded cluster has silenced it
    kept = list(log.filters)
    log.filters.clear()  # the plugin's own filter, if a worker ran in this process before
    try:
        asyncio.run(run())
    finally:
        log.removeHandler(caplog.handler)
        log.filters[:] = kept
    assert [record.name for record in caplog.records].count(log.name) == (not is_quiet)
