"""What starts beside other work: it is entered and left in one thread, and nothing of it outlives an error."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pipeline.processes.beside import beside


class Cluster:
    """Notes the threads in which it starts and ends, and the error with which its block ended."""

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
    with beside(cluster.start(), head_start=0.01) as started:
        deadline = time.monotonic() + 30
        while not cluster.threads and time.monotonic() < deadline:
            time.sleep(0.01)
        assert len(cluster.threads) == 1
        assert started() == started() == "client"
    assert len(cluster.threads) == 2
    assert len({*cluster.threads, threading.get_ident()}) == 2


def test_a_block_that_fails_at_once_starts_nothing() -> None:
    cluster = Cluster()
    with pytest.raises(ValueError, match="no such column"), beside(cluster.start(), head_start=60):
        raise ValueError("no such column")
    assert cluster.threads == []


def test_a_block_that_fails_while_it_starts_waits_and_ends_it() -> None:
    cluster = Cluster(seconds=0.2)

    def plan() -> None:
        while not cluster.threads:
            time.sleep(0.01)
        raise KeyboardInterrupt

    with pytest.raises(OSError, match="lost") as raised, beside(cluster.start(), head_start=0):
        plan()
    assert isinstance(cluster.heard, KeyboardInterrupt)
    assert raised.value.__cause__ is cluster.heard  # the context's own error takes its place, as in a `with`
    assert len(cluster.threads) == 2


def test_an_error_of_the_start_is_raised_where_it_is_waited_for() -> None:
    cluster = Cluster(fails=RuntimeError("no GPU"))
    with pytest.raises(RuntimeError, match="no GPU"), beside(cluster.start(), head_start=0) as started:
        started()
    assert len(cluster.threads) == 1
