"""A context in the background starts and ends in one thread, and a child process ends with its parent."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import packages_distributions
from pathlib import Path
from pickle import PickleBuffer

import numpy as np
import psutil
import pyarrow as pa
import pytest

from broadsheet.pipeline.processes.child import Child
from broadsheet.pipeline.processes.messages import Closed, packed, pieces, receive, send, taken, unpacked
from broadsheet.pipeline.processes.threads import in_background


class Cluster:
    """Records the threads in which it starts and ends, and the error that ended its block."""

    def __init__(self, seconds: float = 0.0, fails: Exception | None = None) -> None:
        self.seconds, self.fails = seconds, fails
        self.threads: list[int] = []
        self.heard: BaseException | None = None

    @contextmanager
    def start(self) -> Iterator[str]:
        self.threads.append(threading.get_ident())
        time.sleep(self.seconds)
        if self.fails:
            raise self.fails
        try:
            yield "client"
        except BaseException as error:
            self.heard = error
            raise OSError("lost") from error
        finally:
            self.threads.append(threading.get_ident())


def test_it_starts_while_the_block_works_and_ends_in_the_thread_that_started_it() -> None:
    cluster = Cluster()
    with in_background(cluster.start(), head_start=0.01) as started:
        deadline = time.monotonic() + 240
        while not cluster.threads and time.monotonic() < deadline:
            time.sleep(0.01)
        assert len(cluster.threads) == 1
        assert started() == started() == "client"
    assert len(cluster.threads) == 2
    assert len({*cluster.threads, threading.get_ident()}) == 2


def test_a_block_that_fails_at_once_starts_nothing() -> None:
    cluster = Cluster()
    with pytest.raises(ValueError, match="no such column"), in_background(cluster.start(), head_start=60):
        raise ValueError("no such column")
    assert cluster.threads == []


def test_a_block_that_fails_while_it_starts_waits_and_ends_it() -> None:
    cluster = Cluster(seconds=0.2)

    def plan() -> None:
        while not cluster.threads:
            time.sleep(0.01)
        raise KeyboardInterrupt

    with pytest.raises(OSError, match="lost") as raised, in_background(cluster.start(), head_start=0):
        plan()
    assert isinstance(cluster.heard, KeyboardInterrupt)
    assert raised.value.__cause__ is cluster.heard  # the context's error replaces the block's, as in a `with`
    assert len(cluster.threads) == 2


def test_an_error_of_the_start_is_raised_where_it_is_waited_for() -> None:
    cluster = Cluster(fails=RuntimeError("no GPU"))
    with pytest.raises(RuntimeError, match="no GPU"), in_background(cluster.start(), head_start=0) as started:
        started()
    assert len(cluster.threads) == 1


CHILD = "child_of_a_test"
"""A module outside the project, which `Child` finds on the path of this process."""


@pytest.fixture
def child_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / f"{CHILD}.py").write_text(
        "import sys, time\n"
        "from broadsheet.pipeline.processes.child import parent_of\n"
        "from broadsheet.pipeline.processes.messages import packed, receive, send, unpacked\n"
        "connection = parent_of(sys.argv[1])\n"
        "asked = unpacked(receive(connection))\n"
        "if asked == 'fail':\n"
        "    raise ValueError('no more of it')\n"
        "send(connection, packed((asked, sys.argv[2:])))\n"
        "time.sleep(600)\n"
    )
    return CHILD


def test_a_child_answers_and_ends(child_module: str) -> None:
    child = Child(child_module, 1, "two")
    asked = {"rows": np.arange(100_000), "table": pa.table({"a": [1, 2, 3]}).slice(1)}
    send(child.connection, packed(asked))
    answer, arguments = unpacked(receive(child.connection))
    assert (answer["rows"].tolist(), arguments) == (asked["rows"].tolist(), ["1", "two"])
    assert answer["table"].equals(asked["table"])
    assert child.is_alive
    assert child.end() == -signal.SIGKILL
    assert child.how_it_ended() == "was ended by SIGKILL (out of memory?)"


def test_the_last_line_that_a_child_wrote_is_told(child_module: str, capfd: pytest.CaptureFixture[str]) -> None:
    child = Child(child_module)
    send(child.connection, packed("fail"))
    with pytest.raises(Closed):
        receive(child.connection)
    assert child.how_it_ended() == "ended with exit code 1: ValueError: no more of it"
    assert "Traceback" in capfd.readouterr().err  # the child's stderr is passed on too
    child.end()


def test_a_child_ends_with_its_parent_however_that_ends(child_module: str) -> None:
    """A child that computes, and does not read from its parent, ends as well."""
    parent = "import sys; from broadsheet.pipeline.processes.child import Child\n"
    parent += "from broadsheet.pipeline.processes.messages import *\n"
    parent += f"child = Child({child_module!r}); send(child.connection, packed('wait')); receive(child.connection)\n"
    parent += "print(child.process.pid, flush=True); sys.stdin.read()"
    path = os.pathsep.join(path or os.getcwd() for path in sys.path)
    with subprocess.Popen(
        [sys.executable, "-c", parent],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
    ) as process:
        assert process.stdout is not None
        child = psutil.Process(int(process.stdout.readline()))
        assert child.is_running()
        process.kill()
    psutil.wait_procs([child], timeout=240)
    assert not child.is_running()


SCRIPT = """
import mine
from broadsheet.cluster import connect
from broadsheet.pipeline.processes.child import Child

if __name__ == "__main__":
    with connect(workers=1) as client:
        assert client.submit(mine.answer).result() == 42
    for part in ("serve.engine_process", "serve.http_process", "source.read.reader_process"):
        child = Child(f"broadsheet.pipeline.{part}")
        child.connection.close()
        child.process.wait()
"""


@pytest.mark.slow
def test_no_process_runs_what_lies_in_the_current_folder(tmp_path: Path) -> None:
    """Dask's workers and multiprocessing's helpers do not either. They still find modules beside the user's script."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "mine.py").write_text("def answer():\n    return 42\n")
    script, stubs = tmp_path / "own" / "script.py", tmp_path / "stubs"
    script.write_text(SCRIPT)
    stubs.mkdir()
    for name in {*sys.stdlib_module_names, *packages_distributions(), "mine"} - {"broadsheet", "pipeline", "cluster"}:
        (stubs / f"{name}.py").write_text("open(__file__ + '.ran', 'w')\nraise ImportError\n")
    done = subprocess.run([sys.executable, script], cwd=stubs, capture_output=True, text=True, timeout=240, check=False)
    assert [file.name for file in stubs.glob("*.ran")] == []
    assert done.returncode == 0, done.stderr


def test_messages_are_taken_whole_from_what_comes_in_any_pieces() -> None:
    chosen = random.Random(1)
    sent = [
        [chosen.randbytes(chosen.choice([0, 1, 100, 65_535, 65_536, 300_000])) for _ in range(i % 4)] for i in range(40)
    ]
    stream = b"".join(piece for buffers in sent for piece in pieces(packed([PickleBuffer(data) for data in buffers])))
    came, got, at = bytearray(), [], 0
    while at < len(stream):
        size = chosen.choice([1, 7, 16, 1000, 65_536, 256_000])
        came += stream[at : at + size]
        at += size
        while frames := taken(came):
            got.append([bytes(data) for data in unpacked(frames)])
    assert (got, came) == (sent, b"")
